//go:build linux

package layer

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

const (
	envDir   = "FORGEYARD_TEST_LAYERS"
	envTrees = "FORGEYARD_TEST_TREES"
)

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(envDir); dir != "" {
		if err := makeForEver(dir, strings.Fields(os.Getenv(envTrees))); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// makeForEver makes layers, of which its budget holds but two, until it is killed.
func makeForEver(dir string, trees []string) error {
	s, c, err := opened(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	for i := 0; ; i++ {
		d, err := forgeyard.ParseDigest(trees[i%len(trees)])
		if err != nil {
			return err
		}
		fmt.Println("making", i)
		l, err := c.Get(context.Background(), d, Want{Fetch: func(context.Context) error { return nil }})
		if err != nil {
			return err
		}
		l.Release()
		fmt.Println("made", i)
	}
}

const crashFiles = 200

func opened(dir string) (*disk.Store, *Cache, error) {
	s, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "cas"), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		return nil, nil, err
	}
	c, err := Open(Config{Dir: filepath.Join(dir, "layers"), MaxBytes: plenty, MaxInodes: 2*crashFiles + 50, Store: s, Clock: clock.System(), Log: slog.New(slog.DiscardHandler)})
	return s, c, err
}

// Killed at any moment, in the middle of making or of removing one: what has a layer's
// name is a whole layer, before anybody has looked, and nothing else is left at the start.
func TestKilledWhileMaking(t *testing.T) {
	r := newRig(t, plenty, plenty)
	var trees []string
	for _, n := range []string{"a", "b", "c"} {
		trees = append(trees, r.tree(n, crashFiles).String())
	}
	must(t, r.store.Close())
	dir := filepath.Dir(r.cfg.Dir)
	halves := 0
	for round := range 12 {
		killed(t, dir, trees, round)
		l, err := os.ReadDir(r.cfg.Dir)
		must(t, err)
		s, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "cas"), NoSync: true, Reserve: -1, ReserveInodes: -1})
		must(t, err)
		whole := 0
		for _, d := range l {
			e, ok := parseName(d.Name())
			if !ok {
				halves++
				continue
			}
			whole++
			must(t, tree.Check(t.Context(), s, e.root, filepath.Join(r.cfg.Dir, d.Name(), treeDir), tree.Limits{}))
		}
		must(t, s.Close())
		s, c, err := opened(dir)
		must(t, err)
		l, err = os.ReadDir(r.cfg.Dir)
		must(t, err)
		if len(l) != c.Stats().Layers || len(l) < whole-1 { // two of one tree: the older goes
			t.Fatalf("round %d: %d folders, %d layers, %d were whole", round, len(l), c.Stats().Layers, whole)
		}
		must(t, s.Close())
	}
	if halves == 0 {
		t.Error("no kill met a layer that was half made: the test shows nothing")
	}
}

// killed runs the child and kills it a little after it said that it makes the nth.
func killed(t *testing.T, dir string, trees []string, n int) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), envDir+"="+dir, envTrees+"="+strings.Join(trees, " "))
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	sc := bufio.NewScanner(out)
	for sc.Scan() && sc.Text() != fmt.Sprint("making ", 3+n) {
		if strings.HasPrefix(sc.Text(), "error") {
			t.Error(sc.Text())
		}
	}
	// Somewhere in the next one: which place it is does not matter, only that they differ.
	<-time.After(time.Duration(n) * 700 * time.Microsecond)
	must(t, c.Process.Kill())
	for sc.Scan() {
	}
	_ = c.Wait() // killed: that is the point
}
