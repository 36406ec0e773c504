//go:build linux

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/exectest"
)

func make1(t *testing.T, cfg Config) executor.Executor {
	t.Helper()
	cfg.SameUser = true
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestConformance(t *testing.T) {
	exectest.Test(t, func(t *testing.T) executor.Executor { return make1(t, Config{}) })
}

// Without control groups the tree is found by scanning.
func TestConformanceWithoutCgroups(t *testing.T) {
	exectest.Test(t, func(t *testing.T) executor.Executor { return make1(t, Config{NoCgroups: true}) })
}

// Decision 9: under a root daemon credentials are unreadable (RA-453).
func TestDedicatedUser(t *testing.T) {
	needs.Root(t, "change the user")
	b := exectest.New(t, make1(t, Config{}))
	secret := filepath.Join(b.Root, "key")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := b.MustStart("id -u; id -G; cat " + secret + "; grep NoNewPrivs /proc/self/status; ulimit -c")
	b.Finish(r)
	if got, want := r.Out.String(), fmt.Sprintf("%d\n%d\nNoNewPrivs:\t1\n0\n", b.User.UID, b.User.GID); got != want || !b.User.Lent() {
		t.Errorf("%q %q", got, r.Err)
	}
}

// A network of its own: loopback, and nothing else.
func TestOwnNetwork(t *testing.T) {
	needs.Root(t, "make a network namespace")
	b := exectest.New(t, make1(t, Config{}))
	r := b.MustStart("cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '")
	b.Finish(r)
	if r.Out.String() != "lo\n" {
		t.Errorf("%q", r.Out)
	}
	r = b.MustStart("cat /proc/net/dev | wc -l", func(r *executor.Request) { r.Network = job.NetworkHost })
	if b.Finish(r); r.Out.String() == "3\n" {
		t.Logf("the host has only a loopback device too")
	}
}
