//go:build linux

package disk_test

import (
	"bufio"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

// killWithin starts a child and kills it with SIGKILL so long after its work began, or at the
// work's end. It gives whether the work had ended.
func killWithin(t *testing.T, role, dir string, after time.Duration) (ended bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CAS_DISK_CHILD="+role, "CAS_DISK_DIR="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	said := make(chan string)
	go func() {
		defer close(said)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			said <- sc.Text()
		}
	}()
	if s := <-said; s != "ack 0 <nil>" {
		t.Errorf("the child says %q", s)
	}
	select {
	case s := <-said:
		if ended = true; s != "ack 1 <nil>" {
			t.Errorf("the child says %q", s)
		}
	case <-time.After(after):
	}
	must(t, cmd.Process.Kill())
	for range said {
		ended = true // it ended as it was killed
	}
	_ = cmd.Wait() // killed: that is the point
	return ended
}

// blobFiles counts the files of a store.
func blobFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	must(t, filepath.WalkDir(filepath.Join(dir, "blobs"), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return err
	}))
	return n
}

// C06, C09: a collection that is killed at any moment takes nothing that is kept, leaves no name
// without its bytes and counts rightly; the next one takes the rest.
func TestKilledWhileCollecting(t *testing.T) {
	const garbage = 400
	dir, moment, cut := t.TempDir(), rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0)), 0
	at := func(i int) []byte { return castest.Bytes(uint64(i), []int{100, 40_000}[i%2]) }
	for round := range 5 {
		s, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
		must(t, err)
		var kept []cas.Ref
		for i := range 6 {
			kept = append(kept, castest.Put(t, s, castest.Bytes(uint64(100_000+i), []int{100, 40_000, cas.BlockSize + 9}[i%3])))
			must(t, s.Pin(ctx, cas.Pin{Owner: fmt.Sprint("n/", i), Roots: []forgeyard.Digest{kept[i].Digest}}))
		}
		for i := range garbage {
			castest.Put(t, s, at(round*garbage+i))
		}
		must(t, s.Close())
		before := blobFiles(t, dir)
		ended := killWithin(t, "gc", dir, time.Duration(1+moment.IntN(40))*time.Millisecond)
		if left := blobFiles(t, dir); !ended && left < before && left > before-garbage/2 {
			cut++
		}
		s, err = disk.Open(disk.Config{Dir: dir, NoSync: true})
		must(t, err)
		for _, r := range kept {
			must(t, readAll(s, r.Digest))
		}
		for i := range garbage {
			if d := cas.Sum(at(round*garbage + i)); s.Has(ctx, d) {
				must(t, readAll(s, d))
			}
		}
		checkNames(t, dir)
		_, err = s.GC(ctx, false)
		must(t, err)
		for i := range garbage {
			if s.Has(ctx, cas.Sum(at(round*garbage+i))) {
				t.Fatalf("round %d: what nothing keeps stays", round)
			}
		}
		for _, r := range kept {
			must(t, readAll(s, r.Digest))
		}
		checkUsage(t, s, dir)
		must(t, s.Close())
	}
	t.Logf("%d of 5 collections were cut in the middle", cut)
}

// C15: a repair that is killed at any moment is begun again, and finds all that the files have.
func TestKilledWhileRepairing(t *testing.T) {
	const objects = 60
	dir, moment := t.TempDir(), rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	s, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
	must(t, err)
	var all []cas.Ref
	for i := range objects {
		all = append(all, castest.Put(t, s, castest.Bytes(uint64(i), []int{40_000, cas.BlockSize + 9}[i%2])))
	}
	must(t, s.Close())
	files := blobFiles(t, dir)
	for round := range 6 {
		must(t, os.RemoveAll(filepath.Join(dir, "index")))
		after := time.Duration(1+moment.IntN(150)) * time.Millisecond
		if round == 5 {
			after = time.Minute // at its end
		}
		ended := killWithin(t, "repair", dir, after)
		s, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
		must(t, err)
		if u, err := s.Usage(ctx); err != nil || ended && u.Objects < int64(files) {
			t.Fatalf("round %d: of a repair that had ended %d of %d objects are known: %v", round, u.Objects, files, err)
		}
		c, err := s.Repair(ctx, nil)
		if err != nil || len(c.Damaged) != 0 || c.Forgotten != 0 {
			t.Fatalf("round %d: %+v %v", round, c, err)
		}
		for _, r := range all {
			must(t, readAll(s, r.Digest))
		}
		if again, err := s.Repair(ctx, nil); err != nil || again.Indexed+again.Proved+again.Forgotten != 0 {
			t.Fatalf("round %d: a repair of what is whole: %+v %v", round, again, err)
		}
		checkNames(t, dir)
		checkUsage(t, s, dir)
		must(t, s.Close())
		if n := blobFiles(t, dir); n < files {
			t.Fatalf("round %d: %d of %d files are left", round, n, files)
		}
	}
}
