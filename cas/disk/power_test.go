//go:build linux

package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
)

// lossy is a disk that remembers only what was synced: the bytes of a file as they were at
// its last sync, and the names of a folder as they were at its own. At one sync, before it
// is done, the power is cut; what is written later is written to a machine that is off.
//
// The store works on real files. A second link to each file that was seen keeps its inode
// from being given to another one.
type lossy struct {
	root, side string
	cut        int // at which sync
	whole      bool
	deaf       string        // paths with this in them are never synced: a fault of the store, seeded
	takes      time.Duration // each sync, so that others come meanwhile

	mu    sync.Mutex // guards what follows
	syncs int
	bytes map[uint64][]byte
	names map[string]map[string]uint64 // folder → name → inode, 0 for a folder
}

func newLossy(t *testing.T, cut int, whole bool) *lossy {
	dir := t.TempDir()
	l := &lossy{root: filepath.Join(dir, "cas"), side: filepath.Join(dir, "links"), cut: cut, whole: whole, bytes: map[uint64][]byte{}, names: map[string]map[string]uint64{}}
	if err := errors.Join(os.Mkdir(l.root, 0o700), os.Mkdir(l.side, 0o700)); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *lossy) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.syncs
}

func (l *lossy) off() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.syncs >= l.cut
}

// path implements syncer. Nothing is really synced.
func (l *lossy) path(p string) error {
	time.Sleep(l.takes)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.syncs++; l.syncs >= l.cut || (l.deaf != "" && strings.Contains(p, l.deaf)) {
		return nil
	}
	return l.remember(p)
}

func (l *lossy) file(f *os.File) error { return l.path(f.Name()) }

func (l *lossy) all(*os.File) error {
	if !l.whole {
		return errors.ErrUnsupported
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.syncs++; l.syncs >= l.cut {
		return nil
	}
	return filepath.WalkDir(l.root, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return l.remember(p)
	})
}

func (l *lossy) remember(p string) error {
	st, err := os.Lstat(p)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		ino, err := l.inode(p)
		if err != nil {
			return err
		}
		l.bytes[ino], err = os.ReadFile(p)
		return err
	}
	es, err := os.ReadDir(p)
	if err != nil {
		return err
	}
	names := map[string]uint64{}
	for _, e := range es {
		if names[e.Name()] = 0; !e.IsDir() {
			ino, err := l.inode(filepath.Join(p, e.Name()))
			if errors.Is(err, os.ErrNotExist) { // it went while we looked
				delete(names, e.Name())
				continue
			}
			if err != nil {
				return err
			}
			names[e.Name()] = ino
		}
	}
	l.names[p] = names
	return nil
}

func (l *lossy) inode(p string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return 0, err
	}
	if err := os.Link(p, filepath.Join(l.side, fmt.Sprint(st.Ino))); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, err
	}
	return st.Ino, nil
}

// after makes the folder that is found when the power is back.
func (l *lossy) after(t *testing.T) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	to := t.TempDir()
	var build func(from, to string)
	build = func(from, to string) {
		for name, ino := range l.names[from] {
			p := filepath.Join(to, name)
			if ino == 0 {
				if err := os.Mkdir(p, 0o700); err != nil {
					t.Fatal(err)
				}
				build(filepath.Join(from, name), p)
				continue
			}
			if err := os.WriteFile(p, l.bytes[ino], 0o600); err != nil { // of a file that was never synced no byte came
				t.Fatal(err)
			}
		}
	}
	build(l.root, to)
	return to
}

// lossyFS is the same disk under the index.
type lossyFS struct {
	vfs.FS
	l *lossy
}

type lossyFile struct {
	vfs.File
	name string
	l    *lossy
}

func (f lossyFile) Sync() error                { return f.l.path(f.name) }
func (f lossyFile) SyncData() error            { return f.l.path(f.name) }
func (f lossyFile) SyncTo(int64) (bool, error) { return false, nil }

func (s lossyFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return lossyFile{f, name, s.l}, nil
}

func (s lossyFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.Create(name, c)
	return s.wrap(name, f, err)
}

func (s lossyFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := s.FS.OpenReadWrite(name, c, o...)
	return s.wrap(name, f, err)
}

func (s lossyFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.ReuseForWrite(from, to, c)
	return s.wrap(to, f, err)
}

func (s lossyFS) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	return s.wrap(name, f, err)
}

// promised is what was acknowledged before the cut.
type promised struct {
	objects map[forgeyard.Digest][]byte
	pins    map[string]forgeyard.Digest
}

// live puts, pins, fetches and collects until the work is over, and notes what was
// acknowledged while there was power.
func live(t *testing.T, l *lossy) promised {
	t.Helper()
	ctx := context.Background()
	p := promised{objects: map[forgeyard.Digest][]byte{}, pins: map[string]forgeyard.Digest{}}
	s, err := Open(Config{Dir: l.root, Reserve: -1, power: l, files: lossyFS{vfs.Default, l}})
	if err != nil {
		t.Fatal(err)
	}
	pin := func(owner string, d forgeyard.Digest) {
		err := s.Pin(ctx, cas.Pin{Owner: owner, Roots: []forgeyard.Digest{d}})
		if err != nil {
			t.Fatal(err)
		}
		if !l.off() {
			p.pins[owner] = d
		}
	}
	put := func(b []byte, o cas.PutOptions) forgeyard.Digest {
		ref, err := s.Put(ctx, bytes.NewReader(b), o)
		if err != nil {
			t.Fatal(err)
		}
		if !l.off() && o.Class == cas.Durable {
			p.objects[ref.Digest] = b
		}
		return ref.Digest
	}
	pin("small", put(castest.Bytes(1, 100), cas.PutOptions{Owner: "small"}))
	pin("middle", put(castest.Bytes(2, 40_000), cas.PutOptions{Owner: "middle"}))
	put(castest.Bytes(3, 100), cas.PutOptions{Class: cas.Cache, Owner: "cache"})
	put(castest.Bytes(4, 40_000), cas.PutOptions{Class: cas.Cache, Owner: "cache"})
	pin("hardened", put(castest.Bytes(4, 40_000), cas.PutOptions{Owner: "hardened"}))
	pin("small, hardened", put(castest.Bytes(3, 100), cas.PutOptions{Owner: "x"}))
	pin("large", put(castest.Bytes(5, 2*cas.BlockSize+1), cas.PutOptions{Owner: "large"}))

	b := castest.Bytes(6, 2*cas.BlockSize)
	ref, m := castest.Describe(t, b)
	pin("fetched", ref.Digest)
	part, err := s.Partial(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Blocks {
		if err := part.PutBlock(i, b[i*cas.BlockSize:(i+1)*cas.BlockSize]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := part.Commit(ctx, cas.Durable); err != nil {
		t.Fatal(err)
	}
	if !l.off() {
		p.objects[ref.Digest] = b
	}
	free := put(castest.Bytes(7, 50_000), cas.PutOptions{})
	delete(p.objects, free) // the collection takes it
	if err := errors.Join(part.Close(), s.Unpin(ctx, "cache")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range 12 { // together, so that they share their syncs
		wg.Go(func() {
			b := castest.Bytes(uint64(20+i), []int{300, 30_000}[i%2])
			ref, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil && !l.off() {
				p.objects[ref.Digest] = b
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

// C09, C15: the power is cut at every sync in turn. The store opens again each time, has
// every object and pin that it acknowledged, gives no wrong byte, and goes on.
func TestC09PowerCutAtEverySync(t *testing.T) {
	for _, whole := range []bool{false, true} {
		cut := 1
		for ; ; cut++ {
			if whole {
				cut += 2 // the same syncs for the most part
			}
			l := newLossy(t, cut, whole)
			p := live(t, l)
			if !l.off() {
				break
			}
			if broken := brokenPromises(t, l.after(t), p); len(broken) > 0 {
				t.Fatalf("cut at sync %d (whole filesystem %v): %q", cut, whole, broken)
			}
		}
		if cut < 25 {
			t.Fatalf("only %d syncs: the disk is not asked", cut)
		}
	}
}

// The checker sees a store that leaves out a sync.
func TestPowerCutSeesAMissingSync(t *testing.T) {
	for _, deaf := range []string{"/pins", "/index", "/tmp/put-", "/blobs/"} {
		l := newLossy(t, 1<<20, false)
		l.deaf = deaf
		p := live(t, l)
		if broken := brokenPromises(t, l.after(t), p); len(broken) == 0 {
			t.Errorf("%s is never synced, and nothing was lost", deaf)
		}
	}
}

// Puts that come while others are being committed share one commit: 32 at once cost fewer
// syncs than there are of them, where one alone costs several.
func TestPutsTogetherShareTheirSyncs(t *testing.T) {
	const puts = 32
	l := newLossy(t, 1<<20, false)
	l.takes = 2 * time.Millisecond
	s, err := Open(Config{Dir: l.root, Reserve: -1, power: l, files: lossyFS{vfs.Default, l}})
	if err != nil {
		t.Fatal(err)
	}
	put := func(i int) {
		_, err := s.Put(t.Context(), bytes.NewReader(castest.Bytes(uint64(i), 300)), cas.PutOptions{})
		if err != nil {
			t.Error(err)
		}
	}
	put(0)
	before := l.count()
	put(1)
	if alone := l.count() - before; alone < 1 {
		t.Fatalf("a put alone costs %d syncs", alone)
	}
	before = l.count()
	var wg sync.WaitGroup
	for i := range puts {
		wg.Go(func() { put(2 + i) })
	}
	wg.Wait()
	if n := l.count() - before; n >= puts/2 {
		t.Errorf("%d puts at once cost %d syncs", puts, n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// brokenPromises opens what a power cut left.
func brokenPromises(t *testing.T, dir string, p promised) (out []string) {
	t.Helper()
	ctx := context.Background()
	s, err := Open(Config{Dir: dir, NoSync: true, Reserve: -1})
	if err != nil {
		return []string{err.Error()}
	}
	pins, err := s.Pins(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	have := map[string]forgeyard.Digest{}
	for _, p := range pins {
		have[p.Owner] = p.Roots[0]
	}
	for owner, d := range p.pins {
		if have[owner] != d {
			out = append(out, "pin "+owner)
		}
	}
	lost := func(d forgeyard.Digest) bool {
		o, err := s.Open(ctx, d)
		if err != nil {
			return true
		}
		b, err := io.ReadAll(o)
		return errors.Join(err, o.Close()) != nil || !bytes.Equal(b, p.objects[d])
	}
	for d, b := range p.objects {
		if lost(d) {
			out = append(out, fmt.Sprintf("%d bytes", len(b)))
		}
	}
	_, verr := s.Verify(ctx, 0, nil)
	_, gerr := s.GC(ctx, false)
	if err := errors.Join(verr, gerr); err != nil {
		out = append(out, err.Error())
	}
	for owner, d := range p.pins {
		if _, ok := p.objects[d]; ok && lost(d) {
			out = append(out, "kept by "+owner)
		}
	}
	if _, err := s.Put(ctx, bytes.NewReader(castest.Bytes(99, 100_000)), cas.PutOptions{}); err != nil {
		out = append(out, err.Error())
	}
	if err := s.Close(); err != nil {
		out = append(out, err.Error())
	}
	return out
}
