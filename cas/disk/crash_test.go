//go:build linux

package disk_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if role := os.Getenv("CAS_DISK_CHILD"); role != "" {
		child(role, os.Getenv("CAS_DISK_DIR"))
		return
	}
	os.Exit(m.Run())
}

// child writes for ever and says on its output what was acknowledged.
func child(role, dir string) {
	s, err := disk.Open(disk.Config{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	start, _ := strconv.Atoi(os.Getenv("CAS_DISK_START"))
	switch role {
	case "put":
		for g := range 3 {
			go func() {
				for i := start + g; ; i += 3 {
					ref, err := s.Put(ctx, bytes.NewReader(crashBytes(i)), cas.PutOptions{})
					if err == nil {
						err = s.Pin(ctx, cas.Pin{Owner: fmt.Sprint("n/", i), Roots: []forgeyard.Digest{ref.Digest}})
					}
					fmt.Println("ack", i, err)
				}
			}()
		}
		select {}
	case "gc", "repair":
		fmt.Println("ack", 0, nil)
		if role == "gc" {
			_, err = s.GC(ctx, false)
		} else {
			_, err = s.Repair(ctx, nil)
		}
		fmt.Println("ack", 1, err)
		select {}
	case "partial":
		b := castest.Bytes(1, 64*cas.BlockSize)
		mb := cas.NewManifestBuilder()
		_, _ = mb.Write(b)
		_, m, _, err := mb.Finish()
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		p, err := s.Partial(ctx, m)
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		for i := range 40 {
			fmt.Println("ack", i, p.PutBlock(i, b[i*cas.BlockSize:(i+1)*cas.BlockSize]))
		}
		select {}
	}
}

func crashBytes(i int) []byte {
	return castest.Bytes(uint64(i), []int{10, 70_000, cas.BlockSize + i, 3 * cas.BlockSize}[i%4])
}

// runAndKill starts a child, waits for n acknowledgements, kills it with SIGKILL and
// gives what it had acknowledged.
func runAndKill(t *testing.T, role, dir string, start, n int) []int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CAS_DISK_CHILD="+role, "CAS_DISK_DIR="+dir, fmt.Sprint("CAS_DISK_START=", start))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var acked []int
	killed := false
	for sc := bufio.NewScanner(out); sc.Scan(); {
		var i int
		if _, err := fmt.Sscanf(sc.Text(), "ack %d <nil>", &i); err != nil {
			t.Errorf("the child says %q", sc.Text())
			break
		}
		acked = append(acked, i)
		if len(acked) >= n && !killed {
			killed = true
			must(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Process.Kill() // it may be dead already
	_ = cmd.Wait()         // killed: that is the point
	return acked
}

// C01, C09, C15: killed at any moment, the store opens again, has all it
// acknowledged, and nothing under a name that is not its own.
func TestKilledWhileWriting(t *testing.T) {
	dir := t.TempDir()
	var acked []int
	for round := range 5 {
		acked = append(acked, runAndKill(t, "put", dir, round*1000, 5+round*7)...)
		if t.Failed() {
			return
		}
		s, err := disk.Open(disk.Config{Dir: dir})
		must(t, err)
		for _, i := range acked {
			d := cas.Sum(crashBytes(i))
			path, release, err := s.Path(ctx, d) // hashes: the stop was not clean
			if err != nil {
				t.Fatalf("round %d: %d was acknowledged: %v", round, i, err)
			}
			b, err := os.ReadFile(path)
			release()
			if err != nil || cas.Sum(b) != d {
				t.Fatalf("round %d: %d: %v", round, i, err)
			}
			if err := readAll(s, d); err != nil {
				t.Fatalf("round %d: %d: %v", round, i, err)
			}
		}
		checkNames(t, dir)
		if _, err := s.GC(ctx, false); err != nil {
			t.Fatal(err)
		}
		for _, i := range acked {
			if !s.Has(ctx, cas.Sum(crashBytes(i))) {
				t.Fatalf("round %d: %d was pinned and is gone", round, i)
			}
		}
		checkUsage(t, s, dir)
		must(t, s.Close())
	}
	if len(acked) < 5*5 {
		t.Fatalf("only %d acknowledged", len(acked))
	}
}

// checkNames hashes every file under blobs/.
func checkNames(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(filepath.Join(dir, "blobs"), func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if h, _, _ := strings.Cut(e.Name(), "."); cas.Sum(b).Hex() != h {
			t.Errorf("%s holds %s", p, cas.Sum(b))
		}
		return nil
	}))
}

// checkUsage holds the counters against the files.
func checkUsage(t *testing.T, s *disk.Store, dir string) {
	t.Helper()
	var files, size int64
	must(t, filepath.WalkDir(filepath.Join(dir, "blobs"), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		st, err := e.Info()
		if err == nil {
			files, size = files+1, size+st.Size()
		}
		return err
	}))
	n, inline, err := s.InlineRows()
	must(t, err)
	files, size = files+n, size+inline
	u, err := s.Usage(ctx)
	if err != nil || u.Objects != files || u.Bytes != size {
		t.Errorf("usage says %d objects, %d bytes; there are %d, %d (%v)", u.Objects, u.Bytes, files, size, err)
	}
}

// C05: after a kill in the middle of an arrival at least 95 % of what was verified is
// used again, and nothing that was not.
func TestC05KilledWhileFetching(t *testing.T) {
	dir := t.TempDir()
	acked := runAndKill(t, "partial", dir, 0, 40)
	b := castest.Bytes(1, 64*cas.BlockSize)
	ref, m := castest.Describe(t, b)
	// What a power cut may do to a block whose mark is not in the index yet.
	damage(t, filepath.Join(dir, "partial", ref.Manifest.Hex()), flip(39*cas.BlockSize+7))
	s := open(t, disk.Config{Dir: dir})
	p, err := s.Partial(ctx, m)
	must(t, err)
	missing := p.Missing()
	if reused := 64 - len(missing); reused < len(acked)*95/100 || reused > 39 {
		t.Fatalf("%d acknowledged, %d reused", len(acked), reused)
	}
	if missing[0] != 39 {
		t.Fatalf("the damaged block is trusted: %v are missing", missing)
	}
	for _, i := range missing {
		must(t, p.PutBlock(i, b[i*cas.BlockSize:(i+1)*cas.BlockSize]))
	}
	if got, err := p.Commit(ctx, cas.Durable); err != nil || got != ref {
		t.Fatalf("%+v %v", got, err)
	}
	must(t, p.Close())
	must(t, readAll(s, ref.Digest))
}

// After an unclean stop a path is given out only for bytes that were hashed again:
// what was put as Cache may have lost anything.
func TestPathChecksAfterUncleanStop(t *testing.T) {
	dir := t.TempDir()
	acked := runAndKill(t, "put", dir, 0, 6)
	acked = slices.DeleteFunc(acked, func(i int) bool { return i%4 == 0 }) // those lie in the index
	victim := crashBytes(acked[0])
	ref, _ := castest.Describe(t, victim)
	damage(t, blobFile(t, dir, ref.Digest), flip(3))
	s := open(t, disk.Config{Dir: dir})
	_, _, err := s.Path(ctx, ref.Digest)
	castest.WantKind(t, err, forgeyard.Corrupt)
	if quarantined(t, dir) != 1 || s.Has(ctx, ref.Digest) {
		t.Fatal("not set aside")
	}
}
