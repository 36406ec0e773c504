package consensus

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// A real full disk: nothing acknowledged is lost, and the node goes on when
// there is room. The same with a store double is in guards_test.go.
func TestFullDiskForReal(t *testing.T) { overStores(t, fullDiskForReal) }

func fullDiskForReal(t *testing.T, store townOption) {
	dir := t.TempDir()
	// Room for two files of a log in segments, and of three once the ballast is gone.
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=36m"); err != nil {
		needs.Lacking(t, "a small tmpfs cannot be mounted here: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	events := make(chan Event, maxEvents)
	tn := newTown(t, 1, nil, store, func(_ int, c *Config) {
		c.Dir = filepath.Join(dir, "raft")
		c.Clock = clock.System()
		c.OnEvent = func(e Event) { events <- e }
	})
	// await waits for all of them, in any order.
	await := func(all ...EventKind) {
		t.Helper()
		late := time.After(time.Minute)
		for len(all) > 0 {
			select {
			case e := <-events:
				all = slices.DeleteFunc(all, func(k EventKind) bool { return k == e.Kind })
			case <-late:
				t.Fatalf("no %v within a minute", all)
			}
		}
	}
	r := tn.nodes[0]
	r.open()
	if err := r.g.Bootstrap(bg); err != nil {
		t.Fatal(err)
	}
	await(LeadershipGained)
	junk := make([]byte, 100<<10)
	var kept []string
	for i := 0; ; i++ {
		rand.Read(junk)
		name := fmt.Sprint("command ", i, " ")
		_, err := r.g.Propose(bg, append([]byte(name), junk...))
		if err != nil {
			if !isNoSpace(err) || forgeyard.KindOf(err) != forgeyard.Unknown {
				t.Fatalf("%v", err)
			}
			break
		}
		kept = append(kept, name)
		if i > 1000 {
			t.Fatal("the disk does not fill")
		}
	}
	await(DiskFull)
	await(RestartFailed)
	if _, err := r.g.Propose(bg, nil); forgeyard.KindOf(err) != forgeyard.NoSpace {
		t.Errorf("%v", err)
	}
	holdsAll(t, r.fsm, kept)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	await(Restarted, LeadershipGained) // either may be told first
	tn.put(r, "after")
	r.close()
	r.open()
	await(LeadershipGained)
	holdsAll(t, r.fsm, append(kept, "after"))
	tn.stop()
}

func holdsAll(t *testing.T, n *notebook, names []string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	at := 0
	for _, name := range names {
		for at < len(n.entries) && !bytes.HasPrefix(n.entries[at].Data, []byte(name)) {
			at++
		}
		if at == len(n.entries) {
			t.Fatalf("%q was acknowledged and is gone", name)
		}
	}
}
