//go:build linux

package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// smallDisk mounts a tmpfs, or skips with the reason.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		needs.Lacking(t, "no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	return dir
}

// fill puts until there is no space, and gives what was acknowledged.
func fill(t *testing.T, s *disk.Store, size, from int) (refs []cas.Ref, err error) {
	t.Helper()
	for i := from; i < from+100_000; i++ {
		ref, err := s.Put(ctx, bytes.NewReader(castest.Bytes(uint64(i), size)), cas.PutOptions{})
		if err != nil {
			return refs, err
		}
		refs = append(refs, ref)
	}
	t.Fatal("the disk is never full")
	return nil, nil
}

func wantNoSpace(t *testing.T, err error, words ...string) {
	t.Helper()
	castest.WantKind(t, err, forgeyard.NoSpace)
	var e *forgeyard.Error
	if !errors.As(err, &e) || e.Hint == "" {
		t.Fatalf("without a hint: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("does not say %q: %v", w, err)
		}
	}
}

// C11: the limit is larger than the disk, others fill it, inodes run out. Each gives
// NoSpace with its bound; nothing acknowledged is lost; space that comes back is used
// without a restart.
func TestC11FullDisk(t *testing.T) {
	dir := smallDisk(t, "size=2m")
	s := open(t, disk.Config{Dir: filepath.Join(dir, "cas"), Limit: 1 << 30})
	hog := filepath.Join(dir, "hog")
	must(t, os.WriteFile(hog, castest.Bytes(1, 300_000), 0o600))
	refs, err := fill(t, s, 30_000, 0)
	wantNoSpace(t, err, filepath.Join(dir, "cas"), "bytes free")
	if len(refs) < 5 {
		t.Fatalf("only %d went in", len(refs))
	}
	for _, r := range refs {
		must(t, readAll(s, r.Digest))
	}
	large := castest.Bytes(77, cas.BlockSize+5)
	_, err = s.Put(ctx, bytes.NewReader(large), cas.PutOptions{})
	wantNoSpace(t, err)
	_, m := castest.Describe(t, large)
	_, err = s.Partial(ctx, m)
	wantNoSpace(t, err)
	if left, err := os.ReadDir(filepath.Join(dir, "cas", "partial")); err != nil || len(left) != 0 {
		t.Fatalf("what had no room left a file: %v %v", left, err)
	}
	must(t, os.Remove(hog))
	more, err := fill(t, s, 30_000, 1000)
	wantNoSpace(t, err)
	if len(more) < 5 {
		t.Fatalf("space came back and only %d went in", len(more))
	}
	must(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{refs[0].Digest}}))
	r, err := s.GC(ctx, false)
	if err != nil || r.Removed < int64(len(refs)+len(more)-1) {
		t.Fatalf("%+v %v", r, err)
	}
	castest.Put(t, s, large)
	must(t, readAll(s, refs[0].Digest))
	if left, err := os.ReadDir(filepath.Join(dir, "cas", "tmp")); err != nil || len(left) != 0 {
		t.Fatalf("temporary files stay: %v %v", left, err)
	}
}

// With no reserve the disk itself says no, in the middle of a write.
func TestC11RealENOSPC(t *testing.T) {
	dir := smallDisk(t, "size=2m")
	s := open(t, disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1})
	refs, err := fill(t, s, 20_000, 0)
	wantNoSpace(t, err)
	// Others take what the admission could not know of.
	f, err := os.Create(filepath.Join(dir, "hog"))
	must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	must(t, f.Close())
	_, err = s.Put(ctx, bytes.NewReader([]byte("one more")), cas.PutOptions{})
	wantNoSpace(t, err)
	wantNoSpace(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{refs[0].Digest}}))
	for _, r := range refs {
		must(t, readAll(s, r.Digest))
	}
	if r, err := s.GC(ctx, false); err != nil || r.Removed != int64(len(refs)) {
		t.Fatalf("a collection on a full disk: %+v %v", r, err)
	}
	must(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{refs[0].Digest}}))
	castest.Put(t, s, []byte("one more"))
}

// A collection on a disk without a free byte needs room for the index, and has it from the
// ballast, which is made again when there is room. Without that file it fails with a bound,
// and what is pinned stays.
func TestC11BallastLetsAFullDiskCollect(t *testing.T) {
	for _, with := range []bool{true, false} {
		t.Run(fmt.Sprint(with), func(t *testing.T) {
			dir := smallDisk(t, "size=64m")
			s := open(t, disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1})
			ballast := filepath.Join(dir, "cas", "ballast")
			st, err := os.Stat(ballast)
			must(t, err)
			var refs []cas.Ref
			for i := range 300 { // files, so many that their removal does not fit into the tail of a page
				refs = append(refs, castest.Put(t, s, castest.Bytes(uint64(i), 20_000)))
			}
			must(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{refs[0].Digest}}))
			if !with {
				must(t, os.Remove(ballast))
			}
			hog := fillToTheLastByte(t, dir)
			r, err := s.GC(ctx, false)
			must(t, readAll(s, refs[0].Digest))
			if !with {
				wantNoSpace(t, err)
				must(t, os.Remove(hog)) // room to close
				return
			}
			if err != nil || r.Removed != int64(len(refs)-1) {
				t.Fatalf("a collection with its ballast: %+v %v", r, err)
			}
			if now, err := os.Stat(ballast); err != nil || now.Size() != st.Size() {
				t.Fatalf("the ballast was not made again: %v", err)
			}
			castest.Put(t, s, []byte("one more"))
		})
	}
}

// fillToTheLastByte leaves no page of the disk under dir free, and gives the file that it is in.
func fillToTheLastByte(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "hog"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	for block := make([]byte, 64<<10); len(block) > 0 && err == nil; {
		if _, err = f.Write(block); err != nil {
			block, err = block[:len(block)/2], nil
		}
	}
	must(t, f.Close())
	return f.Name()
}

// A store that was killed on a full disk opens again: what it has is read, a pin is taken
// off and collected, and what that frees is used, all without another start.
func TestC11OpensOnAFullDisk(t *testing.T) {
	root := smallDisk(t, "size=128m")
	dir := filepath.Join(root, "cas")
	acked := runAndKill(t, "put", dir, 0, 30)
	if t.Failed() {
		return
	}
	left, err := filepath.Glob(filepath.Join(dir, "tmp", "*"))
	must(t, err)
	for _, path := range left {
		must(t, os.Remove(path)) // the opening does it too, and would have room from it
	}
	fillToTheLastByte(t, root)

	s, err := disk.Open(disk.Config{Dir: dir})
	must(t, err)
	for _, i := range acked {
		if err := readAll(s, cas.Sum(crashBytes(i))); err != nil {
			t.Fatalf("%d was acknowledged: %v", i, err)
		}
	}
	_, err = s.Put(ctx, bytes.NewReader([]byte("one more")), cas.PutOptions{})
	wantNoSpace(t, err)
	for _, i := range acked[1:] {
		must(t, s.Unpin(ctx, fmt.Sprint("n/", i)))
	}
	if r, err := s.GC(ctx, false); err != nil || r.Removed < int64(len(acked)-1) {
		t.Fatalf("a collection: %+v %v", r, err)
	}
	castest.Put(t, s, []byte("one more"))
	must(t, readAll(s, cas.Sum(crashBytes(acked[0]))))
	must(t, s.Close())
}

func TestC11Inodes(t *testing.T) {
	dir := smallDisk(t, "size=64m,nr_inodes=120")
	s := open(t, disk.Config{Dir: filepath.Join(dir, "cas")})
	refs, err := fill(t, s, 20_000, 0)
	wantNoSpace(t, err, "inodes")
	for _, r := range refs {
		must(t, readAll(s, r.Digest))
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
}

// Small objects lie in the index, whose log cannot be written on a full disk: that is an
// error with a bound like any other, nothing acknowledged is lost, and space that comes
// back is used without a restart.
func TestC11FullDiskOfSmallObjects(t *testing.T) {
	dir := smallDisk(t, "size=24m")
	s := open(t, disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1})
	put := func(i int) (cas.Ref, error) {
		return s.Put(ctx, bytes.NewReader(castest.Bytes(uint64(i), 4000)), cas.PutOptions{})
	}
	var refs []cas.Ref
	next := 0
	for round := range 3 {
		for range 300 {
			ref, err := put(next)
			must(t, err)
			refs, next = append(refs, ref), next+1
		}
		hog := filepath.Join(dir, "hog")
		f, err := os.Create(hog)
		must(t, err)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		must(t, f.Close())
		full := 0
		for full < 5 && next < 100_000 {
			ref, err := put(next)
			if err == nil {
				refs = append(refs, ref)
			} else {
				wantNoSpace(t, err)
				full++
			}
			next++
		}
		if full == 0 {
			t.Fatal("the disk is never full")
		}
		wantNoSpace(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{refs[0].Digest}}))
		for _, r := range refs {
			must(t, readAll(s, r.Digest))
		}
		must(t, os.Remove(hog))
		ref, err := put(next)
		if err != nil {
			t.Fatalf("round %d: space came back: %v", round, err)
		}
		refs, next = append(refs, ref), next+1
	}
	for _, r := range refs {
		must(t, readAll(s, r.Digest))
	}
	must(t, s.Close())
	s = open(t, disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1})
	for _, r := range refs {
		must(t, readAll(s, r.Digest))
	}
	if r, err := s.GC(ctx, false); err != nil || r.Removed != int64(len(refs)) {
		t.Fatalf("%+v %v", r, err)
	}
}

func TestLimit(t *testing.T) {
	s := open(t, disk.Config{Dir: t.TempDir(), Limit: 3 << 20, NoSync: true})
	_, err := s.Put(ctx, bytes.NewReader(nil), cas.PutOptions{Size: 4 << 20})
	wantNoSpace(t, err, "limit of 3145728")
	big := castest.Bytes(1, 5<<20)
	_, err = s.Put(ctx, bytes.NewReader(big), cas.PutOptions{})
	wantNoSpace(t, err, "limit")
	// A promise to one is not given to another.
	b := castest.Bytes(2, 2<<20)
	_, m := castest.Describe(t, b)
	p, err := s.Partial(ctx, m)
	must(t, err)
	_, err = s.Put(ctx, bytes.NewReader(castest.Bytes(3, 3<<19)), cas.PutOptions{})
	wantNoSpace(t, err, "expects")
	must(t, p.PutBlock(0, b[:cas.BlockSize]))
	must(t, p.Close())
	ref := castest.Put(t, s, castest.Bytes(3, 3<<19))
	u, err := s.Usage(ctx)
	if err != nil || u.Bytes < cas.BlockSize+ref.Size || u.Limit != 3<<20 {
		t.Fatalf("%+v %v", u, err)
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	refs, err := fill(t, s, 1<<18, 50)
	wantNoSpace(t, err)
	if len(refs) != 12 {
		t.Fatalf("%s went in, not exactly the limit", fmt.Sprint(len(refs)))
	}
}

// What a collection says it freed is what the disk got back, though a file that nobody knows
// has holes.
func TestFreedIsWhatTheDiskGetsBack(t *testing.T) {
	dir := t.TempDir()
	s := open(t, disk.Config{Dir: dir, NoSync: true})
	stray := filepath.Join(dir, "partial", cas.Sum([]byte("stray")).Hex())
	must(t, os.WriteFile(stray, castest.Bytes(1, 10_000), 0o600))
	must(t, os.Truncate(stray, 1<<30))
	if r, err := s.GC(ctx, false); err != nil || r.Removed != 1 || r.Freed < 8_000 || r.Freed > 1<<20 {
		t.Fatalf("%+v %v", r, err)
	}
}

// Small objects lie in the index. One that is opened again on a full disk writes all of its
// memory into a table and begins a log, which the ballast has to hold too.
func TestC11BallastHoldsTheIndexsMemory(t *testing.T) {
	dir := smallDisk(t, "size=800m")
	s := open(t, disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1})
	var refs []cas.Ref
	for i := range 420 { // almost as many as its memory holds
		refs = append(refs, castest.Put(t, s, castest.Bytes(uint64(i), 8<<10)))
	}
	must(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{refs[0].Digest}}))
	hog := fillToTheLastByte(t, dir)
	r, err := s.GC(ctx, false)
	if err != nil || r.Removed != int64(len(refs)-1) {
		t.Fatalf("a collection with its ballast: %+v %v", r, err)
	}
	must(t, readAll(s, refs[0].Digest))
	must(t, os.Remove(hog)) // room to close
}
