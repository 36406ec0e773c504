package disk_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Rot that no reader met is found by a verification, set aside, and stays findable as what
// it was; the rest is untouched.
func TestVerifyFindsRot(t *testing.T) {
	dir := t.TempDir()
	s := open(t, disk.Config{Dir: dir, NoSync: true})
	large, mid, small := castest.Put(t, s, castest.Bytes(1, 3*cas.BlockSize)), castest.Put(t, s, castest.Bytes(2, 50_000)), castest.Put(t, s, castest.Bytes(3, 50))
	c, err := s.Verify(ctx, 0, nil)
	if err != nil || len(c.Damaged) != 0 || c.Objects != 4 || c.Bytes < 3*cas.BlockSize+50_050 {
		t.Fatalf("%+v %v", c, err)
	}
	damage(t, blobFile(t, dir, large.Digest), flip(2*cas.BlockSize+1))
	must(t, os.Remove(blobFile(t, dir, mid.Digest)))
	told := 0
	c, err = s.Verify(ctx, 0, func(disk.Checked) { told++ })
	if err != nil || len(c.Damaged) != 2 || told == 0 {
		t.Fatalf("%+v %v, told %d times", c, err, told)
	}
	if s.Has(ctx, large.Digest) || s.Has(ctx, mid.Digest) || !s.Has(ctx, small.Digest) {
		t.Fatal("has the damaged ones, or not the other")
	}
	_, err = s.Stat(ctx, large.Digest)
	castest.WantKind(t, err, forgeyard.NotFound)
	if !strings.Contains(err.Error(), "damaged") {
		t.Fatalf("does not say why: %v", err)
	}
}

// A verification keeps to its rate.
func TestVerifyKeepsItsRate(t *testing.T) {
	s := open(t, disk.Config{Dir: t.TempDir(), NoSync: true})
	castest.Put(t, s, castest.Bytes(1, 200_000))
	castest.Put(t, s, castest.Bytes(2, 200_000))
	began := time.Now()
	if _, err := s.Verify(ctx, 2_000_000, nil); err != nil || time.Since(began) < 195*time.Millisecond {
		t.Fatalf("400,000 bytes at 2 MB/s took %v: %v", time.Since(began), err)
	}
}

// C15: with the index gone, a repair brings all of it back from the files: blobs of both
// divisions, their blocks, and the counters.
func TestC15RepairRebuildsTheIndex(t *testing.T) {
	config := disk.Config{Dir: t.TempDir(), NoSync: true, Inline: -1}
	s, err := disk.Open(config)
	must(t, err)
	plain, content := castest.Bytes(1, 2*cas.BlockSize+7), castest.Bytes(2, 4*cas.BlockSize)
	castest.Put(t, s, plain)
	castest.Put(t, s, []byte("small"))
	ref, err := s.Put(ctx, bytes.NewReader(content), cas.PutOptions{ByContent: true})
	must(t, err)
	m := mustManifest(t, s, ref.Manifest)
	before, err := s.Usage(ctx)
	must(t, err)
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(config.Dir, "index")))
	bad := filepath.Join(config.Dir, "blobs", "00", "11")
	must(t, os.MkdirAll(bad, 0o700))
	must(t, os.WriteFile(filepath.Join(bad, "0011"+strings.Repeat("0", 60)+".1"), []byte("not what it says"), 0o444))

	s = open(t, config)
	c, err := s.Repair(ctx, nil)
	if err != nil || c.Indexed < 4 || c.Proved != 1 || len(c.Damaged) != 1 {
		t.Fatalf("%+v %v", c, err)
	}
	for i, b := range m.Blocks {
		if got, err := s.Block(ctx, b.Digest); err != nil || cas.Sum(got) != b.Digest {
			t.Fatalf("block %d of a division by content: %v", i, err)
		}
	}
	_, pm := castest.Describe(t, plain)
	if _, err := s.Block(ctx, pm.Blocks[1].Digest); err != nil {
		t.Fatal(err)
	}
	after, err := s.Usage(ctx)
	if before.DiskFree, after.DiskFree = 0, 0; err != nil || after.Objects < before.Objects || after.Bytes < before.Bytes {
		t.Fatalf("%+v, then %+v %v", before, after, err)
	}
	must(t, s.Pin(ctx, cas.Pin{Owner: "checkpoint/1", Roots: []forgeyard.Digest{ref.Digest}}))
	if _, err := s.GC(ctx, false); err != nil || !bytes.Equal(castest.Read(t, s, ref.Digest), content) {
		t.Fatal(err)
	}
	again, err := s.Repair(ctx, nil)
	if err != nil || again.Indexed+again.Proved+again.Forgotten != 0 || len(again.Damaged) != 0 {
		t.Fatalf("a repair of what is whole: %+v %v", again, err)
	}
}

// A repair forgets rows whose file is gone, and counts anew.
func TestRepairForgetsWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	s := open(t, disk.Config{Dir: dir, NoSync: true})
	ref := castest.Put(t, s, castest.Bytes(1, 40_000))
	castest.Put(t, s, castest.Bytes(2, 40_000))
	must(t, os.Remove(blobFile(t, dir, ref.Digest)))
	c, err := s.Repair(ctx, nil)
	if err != nil || c.Forgotten != 1 {
		t.Fatalf("%+v %v", c, err)
	}
	if u, err := s.Usage(ctx); err != nil || u.Objects != 1 || u.Bytes != 40_000 {
		t.Fatalf("%+v %v", u, err)
	}
}

// Above the high mark what was used longest ago goes, until the low mark; what is pinned,
// held, promised or open stays, and who asks later hears why an object went.
func TestEvictionWorksToItsMarks(t *testing.T) {
	c := clock.NewManual(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	s := open(t, disk.Config{Dir: t.TempDir(), NoSync: true, Clock: c, Limit: 1_000_000, Reserve: -1})
	put := func(seed uint64, o cas.PutOptions) cas.Ref {
		ref, err := s.Put(ctx, bytes.NewReader(castest.Bytes(seed, 20_000)), o)
		must(t, err)
		return ref
	}
	pinned, held, promised := put(1, cas.PutOptions{}), put(2, cas.PutOptions{Owner: "upload/1"}), put(3, cas.PutOptions{})
	must(t, s.Pin(ctx, cas.Pin{Owner: "job/1", Roots: []forgeyard.Digest{pinned.Digest}}))
	open := put(4, cas.PutOptions{})
	o, err := s.Open(ctx, open.Digest)
	must(t, err)
	var old []cas.Ref
	for i := range 20 {
		old = append(old, put(uint64(100+i), cas.PutOptions{}))
	}
	c.Advance(48 * time.Hour)
	missing, err := s.Keep(ctx, c.Wall().Add(time.Hour), promised.Digest)
	if err != nil || len(missing) != 0 {
		t.Fatal(missing, err)
	}
	if r, err := s.Evict(ctx); err != nil || r.Removed != 0 {
		t.Fatalf("below the mark: %+v %v", r, err)
	}
	must(t, readAll(s, old[0].Digest)) // used again
	for i := range 24 {
		put(uint64(200+i), cas.PutOptions{})
	}
	r, err := s.Evict(ctx)
	must(t, err)
	u, err := s.Usage(ctx)
	if err != nil || u.Bytes > 800_000 || u.Bytes < 600_000 || r.Freed == 0 {
		t.Fatalf("%+v, %+v %v", r, u, err)
	}
	for name, ref := range map[string]cas.Ref{"pinned": pinned, "held": held, "promised": promised, "used again": old[0]} {
		if !s.Has(ctx, ref.Digest) {
			t.Fatalf("what was %s went", name)
		}
	}
	for i := range 24 {
		if !s.Has(ctx, cas.Sum(castest.Bytes(uint64(200+i), 20_000))) {
			t.Fatalf("the newest went before the oldest")
		}
	}
	b := make([]byte, 20_000)
	if _, err := o.ReadAt(b, 0); err != nil || cas.Sum(b) != open.Digest {
		t.Fatalf("a reader was stopped: %v", err)
	}
	must(t, o.Close())
	for _, ref := range old[1:] {
		if s.Has(ctx, ref.Digest) {
			continue
		}
		_, err := s.Stat(ctx, ref.Digest)
		castest.WantKind(t, err, forgeyard.NotFound)
		if !strings.Contains(err.Error(), "evicted") || !strings.Contains(err.Error(), "2030-01-03") {
			t.Fatalf("does not say when and why: %v", err)
		}
		return
	}
	t.Fatal("nothing old went")
}

// A put makes what was said of its absence void.
func TestTombstoneGoesWithAPut(t *testing.T) {
	s := open(t, disk.Config{Dir: t.TempDir(), NoSync: true})
	b := castest.Bytes(1, 30_000)
	ref := castest.Put(t, s, b)
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	if g, ok := s.Gone(ref.Digest); !ok || g.Size != 30_000 || !strings.Contains(g.Why, "collected") {
		t.Fatalf("%+v %v", g, ok)
	}
	castest.Put(t, s, b)
	if g, ok := s.Gone(ref.Digest); ok {
		t.Fatalf("%+v of what is here", g)
	}
}

// A store is read in steps, each object once, and the pace is told of every byte, in
// pieces; what was set aside is lost until somebody brings it again.
func TestVerifySome(t *testing.T) {
	dir := t.TempDir()
	s := open(t, disk.Config{Dir: dir, NoSync: true})
	var refs []cas.Ref
	for i := range 20 {
		refs = append(refs, castest.Put(t, s, castest.Bytes(uint64(i), []int{50, 50_000, 3 * cas.BlockSize}[i%3])))
	}
	u, err := s.Usage(ctx)
	must(t, err)
	damage(t, blobFile(t, dir, refs[2].Digest), flip(70))
	damage(t, blobFile(t, dir, refs[4].Digest), flip(70))
	var paced, biggest int64
	pace := func(_ context.Context, n int64) error { paced, biggest = paced+n, max(biggest, n); return nil }
	var sum disk.Checked
	steps := 0
	for after, done := (forgeyard.Digest{}), false; !done; steps++ {
		var c disk.Checked
		c, after, done, err = s.VerifySome(ctx, after, 7, pace)
		must(t, err)
		if c.Objects > 7 {
			t.Fatalf("%d objects in a step", c.Objects)
		}
		sum.Objects, sum.Bytes, sum.Damaged = sum.Objects+c.Objects, sum.Bytes+c.Bytes, append(sum.Damaged, c.Damaged...)
	}
	if sum.Objects != u.Objects || sum.Bytes != u.Bytes || paced != u.Bytes || biggest > cas.BlockSize || steps != int(u.Objects+6)/7 || len(sum.Damaged) != 2 {
		t.Fatalf("%+v, paced %d, at most %d, %d steps, %+v", sum, paced, biggest, steps, u)
	}
	lost, err := s.Lost(ctx, forgeyard.Digest{}, 10)
	if err != nil || len(lost) != 2 {
		t.Fatalf("%v %v", lost, err)
	}
	if next, err := s.Lost(ctx, lost[0], 10); err != nil || len(next) != 1 || next[0] != lost[1] {
		t.Fatalf("after the first: %v %v", next, err)
	}
	castest.Put(t, s, castest.Bytes(2, 3*cas.BlockSize))
	if lost, err = s.Lost(ctx, forgeyard.Digest{}, 10); err != nil || len(lost) != 1 || lost[0] != refs[4].Digest {
		t.Fatalf("%v %v", lost, err)
	}
	stop := errors.New("enough")
	if _, _, _, err := s.VerifySome(ctx, forgeyard.Digest{}, 7, func(context.Context, int64) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("cannot be stopped: %v", err)
	}
}
