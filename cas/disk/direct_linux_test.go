package disk

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// noiseOf makes bytes and the manifest of them.
func noiseOf(t *testing.T, n int) ([]byte, cas.Ref, cas.Manifest) {
	t.Helper()
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(b)
	mb := cas.NewManifestBuilder()
	_, _ = mb.Write(b)
	ref, m, _, err := mb.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return b, ref, m
}

func opened(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A large blob arrives in any order, each block from two at once, from memory that no disk
// would take as it is, and interrupted by a close. It is whole in the end.
func TestLargePartialFromMany(t *testing.T) {
	data, ref, m := noiseOf(t, directFrom+5*cas.BlockSize+77)
	dir := t.TempDir()
	s := opened(t, dir)
	order := rand.New(rand.NewPCG(1, 2)).Perm(len(m.Blocks))
	half := order[:len(order)/2]
	for _, part := range [][]int{half, append(order[len(order)/2:], half...)} {
		p, err := s.Partial(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		offs, at := m.Offsets(), make(chan int)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				odd := make([]byte, cas.BlockSize+1)[w%2:] // half of them at an odd address
				for i := range at {
					b := odd[:copy(odd, data[offs[i]:offs[i]+m.Blocks[i].Size])]
					if err := p.PutBlock(i, b); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for _, i := range part {
			at <- i
			at <- i
		}
		close(at)
		wg.Wait()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = opened(t, dir)
	}
	p, err := s.Partial(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if left := p.Missing(); len(left) > 0 {
		t.Fatalf("%d blocks are missing", len(left))
	}
	if got, err := p.Commit(t.Context(), cas.Durable); err != nil || got != ref {
		t.Fatal(got, err)
	}
	path, release, err := s.Path(t.Context(), ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if b, err := os.ReadFile(path); err != nil || cas.Sum(b) != ref.Digest {
		t.Fatal(err)
	}
}

// What came was hashed on its way, by its part or in its order: the commit reads nothing back.
func TestCommitReadsNothingBack(t *testing.T) {
	t.Run("parts", func(t *testing.T) { commitReadsNothingBack(t, true) })
	t.Run("in order", func(t *testing.T) { commitReadsNothingBack(t, false) })
}

// inOrder makes a partial hash the whole in its order, as it does where parts do not go.
func inOrder(p cas.Partial) *partialState {
	state := p.(*partial).partialState
	state.parts = nil
	return state
}

func commitReadsNothingBack(t *testing.T, byParts bool) {
	data, _, m := noiseOf(t, directFrom+77)
	s := opened(t, t.TempDir())
	p, err := s.Partial(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	state := p.(*partial).partialState
	if byParts = byParts && cas.Parts(); !byParts {
		state = inOrder(p)
	}
	offs, next := m.Offsets(), make(chan int)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range next {
				if err := p.PutBlock(i, data[offs[i]:offs[i]+m.Blocks[i].Size]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	order := rand.New(rand.NewPCG(3, 4)).Perm(len(m.Blocks))
	for k := range m.Blocks {
		i := k
		if byParts {
			i = order[k]
		}
		next <- i
	}
	close(next)
	wg.Wait()
	for i := range m.Blocks {
		if !state.hashed(i) {
			t.Fatalf("block %d of %d is not in the hash", i, len(m.Blocks))
		}
	}
	if state.sum() != m.Whole {
		t.Fatal("the hash is another one")
	}
	if _, err := p.Commit(t.Context(), cas.Cache); err != nil {
		t.Fatal(err)
	}
}

// The whole takes a block before the block is written. One that could not be written is not
// taken a second time when it comes again, and is missing until it does.
func TestBlockThatCannotBeWrittenIsTakenOnce(t *testing.T) {
	data, ref, m := noiseOf(t, 3*cas.BlockSize+5)
	s := opened(t, t.TempDir())
	p, err := s.Partial(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	offs, state := m.Offsets(), inOrder(p)
	put := func(i int) error { return p.PutBlock(i, data[offs[i]:offs[i]+m.Blocks[i].Size]) }
	good := state.f
	if state.f, err = os.Open(good.Name()); err != nil { // it refuses writes
		t.Fatal(err)
	}
	if err := put(0); err == nil {
		t.Fatal("a block was written to a file that cannot be")
	}
	if state.whole.next != 1 {
		t.Errorf("the whole has taken %d blocks, not the one that was in memory", state.whole.next)
	}
	closeQuiet(state.f)
	state.f = good
	if got := p.Missing(); len(got) != len(m.Blocks) {
		t.Errorf("missing are %v of %d blocks", got, len(m.Blocks))
	}
	for i := range m.Blocks {
		if err := put(i); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := p.Commit(t.Context(), cas.Cache); err != nil || got.Digest != ref.Digest {
		t.Fatalf("%v, %v", got, err)
	}
}

// A file that somebody else wrote to after our last write is read as a whole by the commit,
// whatever was hashed on its way: damage is found, and only its block is missing again.
func TestCommitReadsWhatOthersWrote(t *testing.T) {
	for _, byParts := range []bool{true, false} {
		data, ref, m := noiseOf(t, 3*cas.BlockSize+5)
		s := opened(t, t.TempDir())
		p, err := s.Partial(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		state := p.(*partial).partialState
		if !byParts {
			state = inOrder(p)
		}
		offs := m.Offsets()
		put := func(i int) {
			t.Helper()
			if err := p.PutBlock(i, data[offs[i]:offs[i]+m.Blocks[i].Size]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range m.Blocks {
			put(i)
		}
		if _, err := state.f.WriteAt([]byte("other"), offs[1]+7); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(state.f.Name(), time.Time{}, time.Now().Add(time.Second)); err != nil { // a clock's step may be longer than this test
			t.Fatal(err)
		}
		if _, err := p.Commit(t.Context(), cas.Cache); forgeyard.KindOf(err) != forgeyard.Corrupt {
			t.Fatalf("by parts %v: %v", byParts, err)
		}
		if got := p.Missing(); len(got) != 1 || got[0] != 1 {
			t.Fatalf("by parts %v: missing are %v", byParts, got)
		}
		put(1)
		if got, err := p.Commit(t.Context(), cas.Cache); err != nil || got.Digest != ref.Digest {
			t.Fatalf("by parts %v: %v, %v", byParts, got, err)
		}
	}
}

// Who sends blocks hashes each at its first use in the process's life, and again when
// somebody wrote to the file. Asked for care it hashes always.
func TestBlocksAreHashedAtFirstUse(t *testing.T) {
	data, ref, m := noiseOf(t, 2*cas.BlockSize+5)
	dir := t.TempDir()
	s := opened(t, dir)
	if _, err := s.Put(t.Context(), bytes.NewReader(data), cas.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	look := func(i int) bool {
		r, ok := s.record(ref.Digest)
		f, err := os.Open(s.blobPath(ref.Digest, r.Gen))
		if !ok || err != nil {
			t.Fatal(err)
		}
		defer closeQuiet(f)
		return s.lookAt(location{container: ref.Digest, off: m.Offsets()[i], size: m.Blocks[i].Size}, r, f).known
	}
	read := func(i int, check bool) error {
		b, err := s.ReadBlock(context.Background(), m.Blocks[i].Digest, nil, check)
		if err == nil && cas.Sum(b) != m.Blocks[i].Digest {
			return errors.New("wrong bytes")
		}
		return err
	}
	if !look(0) {
		t.Fatal("a blob that was just put is not known")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = opened(t, dir)
	for i := range m.Blocks {
		if look(i) {
			t.Fatalf("block %d is known after a start", i)
		}
		if err := read(i, false); err != nil || !look(i) {
			t.Fatal(err, look(i))
		}
	}
	s.mu.Lock()
	_, whole := s.vouched[ref.Digest]
	parts := len(s.seen)
	s.mu.Unlock()
	if !whole || parts != 0 {
		t.Fatal("all blocks were seen, and the whole is not vouched for")
	}
	spoil := func() (uint64, print) {
		r, _ := s.record(ref.Digest)
		path := s.blobPath(ref.Digest, r.Gen)
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer closeQuiet(f)
		if _, err := f.WriteAt([]byte("other"), 7); err != nil {
			t.Fatal(err)
		}
		p, _ := printOf(f)
		return r.Gen, p
	}
	spoil()
	if err := read(1, false); err != nil { // not the one that was written to
		t.Fatal(err)
	}
	if err := read(0, false); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Fatalf("a written block: %v", err)
	}
	// As if the disk had changed it by itself: the print is the one that was seen.
	if _, err := s.Put(t.Context(), bytes.NewReader(data), cas.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	gen, p := spoil()
	s.noteVouched(ref.Digest, vouched{gen: gen, print: p})
	if err := read(0, false); err == nil || forgeyard.KindOf(err) != forgeyard.Other {
		t.Fatalf("a block that is known was hashed: %v", err)
	}
	if err := read(0, true); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Fatalf("asked for care: %v", err)
	}
}
