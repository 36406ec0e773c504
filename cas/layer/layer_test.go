//go:build linux

package layer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type rig struct {
	t     *testing.T
	store *disk.Store
	clock *clock.Manual
	c     *Cache
	cfg   Config
	made  int // how often a tree was fetched, so made
}

func newRig(t *testing.T, bytes, inodes int64) *rig {
	t.Helper()
	dir, c := t.TempDir(), clock.NewManual(time.Unix(1_700_000_000, 0))
	s, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "cas"), NoSync: true, Reserve: -1, ReserveInodes: -1, Clock: c})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	r := &rig{t: t, store: s, clock: c, cfg: Config{Dir: filepath.Join(dir, "layers"), MaxBytes: bytes, MaxInodes: inodes, Store: s, Clock: c, Log: slog.New(slog.DiscardHandler)}}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	var err error
	r.c, err = Open(r.cfg)
	must(r.t, err)
}

// tree stores a tree of n files that no other name has.
func (r *rig) tree(name string, n int) forgeyard.Digest {
	r.t.Helper()
	dir := r.t.TempDir()
	for i := range n {
		must(r.t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(name+fmt.Sprint(i)), 0o644))
	}
	must(r.t, os.Symlink("0", filepath.Join(dir, "link")))
	ref, err := tree.Capture(r.t.Context(), r.store, dir, tree.Options{})
	must(r.t, err)
	return ref.Digest
}

func (r *rig) want() Want {
	return Want{Fetch: func(context.Context) error { r.made++; return nil }}
}

func (r *rig) get(d forgeyard.Digest) *Lease {
	r.t.Helper()
	l, err := r.c.Get(r.t.Context(), d, r.want())
	must(r.t, err)
	r.t.Cleanup(l.Release)
	return l
}

// folders lists what is on the disk.
func (r *rig) folders() int {
	r.t.Helper()
	l, err := os.ReadDir(r.cfg.Dir)
	must(r.t, err)
	return len(l)
}

const plenty = 1 << 30

// A second workload gets the same folder, after a restart too, and nothing is made again.
func TestReuse(t *testing.T) {
	r := newRig(t, plenty, plenty)
	d := r.tree("a", 20)
	first := r.get(d)
	second := r.get(d)
	if first.Reused || !second.Reused || first.Dir != second.Dir || r.made != 1 {
		t.Fatalf("%+v %+v, made %d times", first, second, r.made)
	}
	must(t, tree.Check(t.Context(), r.store, d, first.Dir, tree.Limits{}))
	r.open()
	if l := r.get(d); !l.Reused || l.Dir != first.Dir || r.made != 1 {
		t.Fatalf("after a restart: %+v, made %d times", l, r.made)
	}
	if s := r.c.Stats(); s.Layers != 1 || s.Leased != 1 || s.Reused != 1 || s.Inodes != 23 || s.Bytes < 20*4096 {
		t.Fatalf("%+v", s)
	}
}

// Whatever somebody did to a layer, nobody gets it any more; who has it keeps what he sees.
func TestTouchedLayersAreMadeAnew(t *testing.T) {
	for name, touch := range map[string]func(t *testing.T, dir string){
		"written": func(t *testing.T, d string) { must(t, os.WriteFile(filepath.Join(d, "3"), []byte("a3"), 0o644)) }, // what was there before
		"written and its time set back": func(t *testing.T, d string) {
			st, err := os.Stat(filepath.Join(d, "3"))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(d, "3"), []byte("b3"), 0o644))
			must(t, os.Chtimes(filepath.Join(d, "3"), st.ModTime(), st.ModTime()))
		},
		"rights": func(t *testing.T, d string) { must(t, os.Chmod(filepath.Join(d, "3"), 0o755)) },
		"linked": func(t *testing.T, d string) {
			must(t, os.Link(filepath.Join(d, "3"), filepath.Join(filepath.Dir(d), "x")))
		},
		"added":   func(t *testing.T, d string) { must(t, os.WriteFile(filepath.Join(d, "new"), nil, 0o644)) },
		"removed": func(t *testing.T, d string) { must(t, os.Remove(filepath.Join(d, "3"))) },
		"a link": func(t *testing.T, d string) {
			must(t, os.Remove(filepath.Join(d, "link")))
			must(t, os.Symlink("1", filepath.Join(d, "link")))
		},
		"gone": func(t *testing.T, d string) { must(t, os.RemoveAll(d)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, plenty, plenty)
			d := r.tree("a", 5)
			old := r.get(d)
			touch(t, old.Dir)
			l := r.get(d)
			if l.Reused || l.Dir == old.Dir || r.made != 2 || r.c.Stats().Wrong != 1 {
				t.Fatalf("%+v, made %d times, %+v", l, r.made, r.c.Stats())
			}
			must(t, tree.Check(t.Context(), r.store, d, l.Dir, tree.Limits{}))
			if n := r.folders(); n != 2 {
				t.Errorf("%d folders while the old one is leased", n)
			}
			old.Release()
			old.Release()
			if n := r.folders(); n != 1 {
				t.Errorf("%d folders", n)
			}
		})
	}
}

// After a stop, whichever, the bytes of a layer are held against their names before it is
// given out; and a day after the last look.
func TestBytesAreLookedAt(t *testing.T) {
	r := newRig(t, plenty, plenty)
	d := r.tree("a", 5)
	l := r.get(d)
	dir := l.Dir
	l.Release()
	must(t, os.WriteFile(filepath.Join(dir, "3"), []byte("z3"), 0o644))
	r.open() // no print is known of it any more
	if l := r.get(d); l.Reused || r.made != 2 || r.c.Stats().Wrong != 1 {
		t.Fatalf("a wrong layer is given out after a restart: %+v", l)
	}
	// As if the disk had changed a byte without the filesystem: the print is as it was.
	e := r.c.layers[d]
	must(t, os.WriteFile(filepath.Join(r.c.dir(e), "2"), []byte("z2"), 0o644))
	var err error
	e.print, err = tree.Print(r.c.dir(e))
	must(t, err)
	if l := r.get(d); !l.Reused {
		t.Fatal("a look holds for a day")
	}
	r.clock.Advance(checkFor)
	if l := r.get(d); l.Reused || r.c.Stats().Wrong != 2 {
		t.Fatal("a day later it is still given out")
	}
}

// Bytes and inodes are bounded; the layer that was used longest ago goes first; one in use
// never does, and then a tree gets no layer.
func TestBudget(t *testing.T) {
	for name, rig := range map[string]func(*testing.T) *rig{
		"bytes":  func(t *testing.T) *rig { return newRig(t, 3*15*4096, plenty) },
		"inodes": func(t *testing.T) *rig { return newRig(t, plenty, 3*14) },
	} {
		t.Run(name, func(t *testing.T) {
			r := rig(t)
			a, b, c, d := r.tree("a", 10), r.tree("b", 10), r.tree("c", 10), r.tree("d", 10)
			la, lb := r.get(a), r.get(b)
			r.get(c).Release()
			lb.Release()
			la.Release()
			la = r.get(a)
			r.get(d).Release() // for b or c: b was leased before c
			if s := r.c.Stats(); s.Layers != 3 || s.Bytes > s.MaxBytes || s.Inodes > s.MaxInodes || r.c.layers[b] != nil || r.c.layers[a] == nil {
				t.Fatalf("%+v", s)
			}
			lc, ld := r.get(c), r.get(d)
			_, err := r.c.Get(t.Context(), b, r.want())
			if !errors.Is(err, ErrNoRoom) || r.c.Stats().Refused != 1 {
				t.Fatalf("everything is in use: %v", err)
			}
			lc.Release()
			ld.Release()
			la.Release()
			if _, err := r.c.Get(t.Context(), r.tree("big", 60), r.want()); !errors.Is(err, ErrNoRoom) || r.c.Stats().Layers != 3 {
				t.Fatalf("more than everything: %v", err)
			}
			if n := r.c.Evictable(); n < 3*10*4096 {
				t.Errorf("%d bytes could be freed", n)
			}
			if n := r.c.Evict(1); n < 10*4096 || r.c.Stats().Layers != 2 {
				t.Errorf("%d bytes came free", n)
			}
			if r.c.Evict(plenty); r.folders() != 0 || r.c.Stats().Bytes != 0 {
				t.Errorf("%d folders stay", r.folders())
			}
		})
	}
}

// What others were promised of the disk is not taken.
func TestDiskHasNoRoom(t *testing.T) {
	r := newRig(t, plenty, plenty)
	r.get(r.tree("a", 10)).Release()
	w := r.want()
	w.Room = func() (int64, int64) { return plenty, int64(20 - 15*r.c.Stats().Layers) } // a's go when it goes
	l, err := r.c.Get(t.Context(), r.tree("b", 10), w)
	must(t, err)
	if s := r.c.Stats(); s.Layers != 1 || s.Leased != 1 {
		t.Fatalf("%+v", s)
	}
	w.Room = func() (int64, int64) { return 100, plenty }
	if _, err := r.c.Get(t.Context(), r.tree("c", 10), w); !errors.Is(err, ErrNoRoom) {
		t.Fatal(err)
	}
	// Nor what another layer that is being made will take.
	r.c.pending = size{1 << 20, 1000}
	w.Room = func() (int64, int64) { return 1 << 20, plenty }
	if _, err := r.c.Get(t.Context(), r.tree("d", 10), w); !errors.Is(err, ErrNoRoom) {
		t.Fatal(err)
	}
	w.Room = func() (int64, int64) { return plenty, 1000 }
	if _, err := r.c.Get(t.Context(), r.tree("d", 10), w); !errors.Is(err, ErrNoRoom) {
		t.Fatal(err)
	}
	r.c.pending = size{}
	l.Release()
	if r.c.pending != (size{}) {
		t.Fatalf("%+v stays reserved", r.c.pending)
	}
}

// A crash leaves parts under no layer's name, and they go at the next start; so does what
// somebody put there.
func TestLeftovers(t *testing.T) {
	r := newRig(t, plenty, plenty)
	d := r.tree("a", 5)
	l := r.get(d)
	must(t, os.MkdirAll(filepath.Join(r.cfg.Dir, "tmp-7", "tree", "sub"), 0o755))
	must(t, os.Chmod(filepath.Join(r.cfg.Dir, "tmp-7", "tree", "sub"), 0))
	must(t, os.WriteFile(filepath.Join(r.cfg.Dir, "junk"), nil, 0o600))
	older := filepath.Base(filepath.Dir(l.Dir))
	twin := older[:len(older)-1] + "9"
	must(t, os.MkdirAll(filepath.Join(r.cfg.Dir, twin), 0o700))
	must(t, os.Chtimes(filepath.Join(r.cfg.Dir, twin), time.Unix(1, 0), time.Unix(1, 0)))
	r.open()
	if n := r.folders(); n != 1 {
		t.Fatalf("%d folders", n)
	}
	if l := r.get(d); !l.Reused {
		t.Fatal("the whole one went too")
	}
}

// Several that want one tree at once wait for one to make it; one that gives up, or
// fails, leaves it to the next.
func TestOneMakesForAll(t *testing.T) {
	r := newRig(t, plenty, plenty)
	d := r.tree("a", 50)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, fail := 0, errors.New("no peer")
	dirs := map[string]bool{}
	for i := range 16 {
		wg.Go(func() {
			l, err := r.c.Get(t.Context(), d, Want{Fetch: func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				if made++; made == 1 {
					return fail
				}
				return nil
			}})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				dirs[l.Dir] = true
				if i%2 == 0 {
					l.Release()
				}
			case !errors.Is(err, fail):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 2 || len(dirs) != 1 || r.c.Stats().Leased != 1 {
		t.Fatalf("fetched %d times into %v", made, dirs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.c.making[r.tree("b", 1)] = make(chan struct{})
	if _, err := r.c.Get(ctx, r.tree("b", 1), r.want()); forgeyard.KindOf(err) != forgeyard.Interrupted {
		t.Fatalf("who waits cannot give up: %v", err)
	}
}

// A disk that ends while a layer is made: the layers that nobody uses go, and if that is
// not enough nothing stays and the next one is made when there is room.
func TestDiskEnds(t *testing.T) {
	needs.Root(t, "mount a small tmpfs")
	r := newRig(t, plenty, plenty)
	must(t, unix.Mount("tmpfs", r.cfg.Dir, "tmpfs", 0, "nr_inodes=20"))
	t.Cleanup(func() { must(t, unix.Unmount(r.cfg.Dir, unix.MNT_DETACH)) })
	r.get(r.tree("a", 10)).Release()
	r.get(r.tree("b", 10)).Release()
	if s := r.c.Stats(); s.Layers != 1 {
		t.Fatalf("%+v", s)
	}
	_, err := r.c.Get(t.Context(), r.tree("c", 30), r.want())
	if forgeyard.KindOf(err) != forgeyard.NoSpace || r.folders() != 0 {
		t.Fatalf("%v, %d folders", err, r.folders())
	}
	must(t, unix.Mount("tmpfs", r.cfg.Dir, "tmpfs", unix.MS_REMOUNT, "nr_inodes=100"))
	r.get(r.tree("c", 30))
}

func FuzzName(f *testing.F) {
	f.Add("tmp-1")
	f.Add(cas.Sum(nil).Hex() + "-1-2-3-4")
	f.Fuzz(func(t *testing.T, s string) {
		if e, ok := parseName(s); ok && (e.folderName() != s || e.size.bytes < 0 || e.root.IsZero()) {
			t.Fatalf("%q is read as %+v", s, e)
		}
	})
}

// countedStore counts how often a layer is held against its tree, and holds the first of
// those up until it may go on.
type countedStore struct {
	tree.Source
	root  forgeyard.Digest
	mu    sync.Mutex
	looks int
	first chan struct{} // closed: go on
}

func (s *countedStore) look(d forgeyard.Digest) {
	if d != s.root {
		return
	}
	s.mu.Lock()
	s.looks++
	n := s.looks
	s.mu.Unlock()
	if n == 1 {
		<-s.first
	}
}

func (s *countedStore) Open(ctx context.Context, d forgeyard.Digest) (cas.Object, error) {
	s.look(d)
	return s.Source.Open(ctx, d)
}

func (s *countedStore) Block(ctx context.Context, d forgeyard.Digest) ([]byte, error) {
	s.look(d)
	return s.Source.Block(ctx, d)
}

// Several that want one layer at its first use hold its bytes against their names once; one
// that gives up leaves that to the next, and one that finds them wrong finds it for all.
func TestOneLooksForAll(t *testing.T) {
	for name, c := range map[string]struct {
		wrong, givesUp bool
		looks          int
	}{"right": {false, false, 1}, "the first gives up": {false, true, 2}, "wrong": {true, false, 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, plenty, plenty)
			d := r.tree("a", 20)
			l := r.get(d)
			l.Release()
			if c.wrong {
				must(t, os.WriteFile(filepath.Join(l.Dir, "3"), []byte("z3"), 0o644))
			}
			s := &countedStore{Source: r.store, root: d, first: make(chan struct{})}
			r.cfg.Store = s
			r.open()
			r.made = 0
			var made sync.Mutex
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var started, ended sync.WaitGroup
			const all = 8
			errs := make([]error, all)
			for i := range all {
				started.Add(1)
				ended.Go(func() {
					mine := t.Context()
					if i == 0 {
						mine = ctx
					}
					started.Done()
					_, errs[i] = r.c.Get(mine, d, Want{Fetch: func(context.Context) error {
						made.Lock()
						defer made.Unlock()
						r.made++
						return nil
					}})
				})
			}
			started.Wait()
			if c.givesUp {
				cancel()
			}
			close(s.first)
			ended.Wait()
			for i, err := range errs {
				if err != nil && !(c.givesUp && i == 0 && forgeyard.KindOf(err) == forgeyard.Interrupted) {
					t.Error(i, err)
				}
			}
			st := r.c.Stats()
			if c.wrong != (r.made == 1) || c.wrong != (st.Wrong == 1) {
				t.Errorf("made %d times: %+v", r.made, st)
			}
			if most := c.looks + 2*r.made; s.looks > most { // to make one is to read its tree, twice
				t.Errorf("its tree was read %d times, not %d at most", s.looks, most)
			}
		})
	}
}
