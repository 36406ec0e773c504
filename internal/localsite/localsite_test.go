package localsite

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

func TestAwait(t *testing.T) {
	s := New(t.TempDir(), Programs{})
	n := 0
	if err := s.Await(t.Context(), "the third look", time.Minute, func(context.Context) (bool, error) { n++; return n == 3, errOn(n, 1) }); err != nil || n != 3 {
		t.Errorf("%d looks, %v", n, err)
	}
	err := s.Await(t.Context(), "a miracle", time.Millisecond, func(context.Context) (bool, error) { return false, errors.New("not today") })
	if forgeyard.KindOf(err) != forgeyard.Unavailable || !strings.Contains(err.Error(), "not today") {
		t.Errorf("%v", err)
	}
	end := errors.New("it is over")
	if err := s.Await(t.Context(), "more", time.Minute, func(context.Context) (bool, error) { return false, Final(end) }); err != end {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Await(ctx, "nothing", time.Minute, func(context.Context) (bool, error) { return false, nil }); forgeyard.KindOf(err) != forgeyard.Interrupted {
		t.Errorf("%v", err)
	}
}

func errOn(n, at int) error {
	if n == at {
		return errors.New("not yet")
	}
	return nil
}

// A daemon that ends by itself ends every wait; one that was killed does not.
func TestDaemonThatEndsUnasked(t *testing.T) {
	if _, err := os.Stat("/bin/sh"); err != nil {
		needs.Lacking(t, "there is no /bin/sh to play a daemon: %v", err)
	}
	s := New(t.TempDir(), Programs{})
	never := func(context.Context) (bool, error) { return false, nil }
	d, err := s.start("steady", "/bin/sh", []string{"WORD=heard"}, "-c", `echo "$WORD ${FORGEYARD_DATA_DIR-none}"; exec tail -f /dev/null`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if !Alive(d.PID) || len(s.Running()) != 1 {
		t.Error("it does not run")
	}
	err = s.Await(t.Context(), "its line", time.Minute, func(context.Context) (bool, error) { return strings.Contains(s.Tails(1), "heard none"), nil })
	if err != nil {
		t.Error(err)
	}
	if err := d.Kill(); err != nil || Alive(d.PID) {
		t.Errorf("it lives: %v", err)
	}
	if err := s.Await(t.Context(), "x", time.Millisecond, never); forgeyard.KindOf(err) != forgeyard.Unavailable || strings.Contains(err.Error(), "by itself") {
		t.Errorf("a killed daemon ended the wait: %v", err)
	}
	if _, err := s.start("brief", "/bin/sh", nil, "-c", "exit 3"); err != nil {
		t.Fatal(err)
	}
	if err := s.Await(t.Context(), "x", time.Minute, never); err == nil || !strings.Contains(err.Error(), "by itself") {
		t.Errorf("%v", err)
	}
}

func TestCommand(t *testing.T) {
	if _, err := os.Stat("/bin/sh"); err != nil {
		needs.Lacking(t, "there is no /bin/sh: %v", err)
	}
	s := New(t.TempDir(), Programs{})
	out, err := s.Command(t.Context(), "/bin/sh", nil, "secret", "-c", "cat; echo told >&2")
	if err != nil || out != "secret" {
		t.Errorf("%q %v", out, err)
	}
	if _, err := s.Command(t.Context(), "/bin/sh", nil, "", "-c", "echo why >&2; exit 4"); err == nil || !strings.Contains(err.Error(), "exit status 4: why") {
		t.Errorf("%v", err)
	}
}

func TestPlainEnv(t *testing.T) {
	t.Setenv("FORGEYARD_ADDR", "somewhere")
	t.Setenv("KEPT", "1")
	env := plainEnv()
	if !slices.Contains(env, "KEPT=1") || slices.Contains(env, "FORGEYARD_ADDR=somewhere") {
		t.Error("the environment is not what it should be")
	}
}

func TestTail(t *testing.T) {
	if got := tail("a\nb\nc\n", 2); got != "b\nc" {
		t.Errorf("%q", got)
	}
	if got := tail("a\n", 5); got != "a" {
		t.Errorf("%q", got)
	}
}

func TestFindPrograms(t *testing.T) {
	if _, err := FindPrograms(t.TempDir()); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Errorf("%v", err)
	}
}
