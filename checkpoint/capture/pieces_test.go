//go:build unix

package capture_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
)

// noise is a state that nothing compresses.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func inPieces(t testing.TB) capture.Expect {
	e := expect(t)
	e.Pieces = true
	e.Contract.MaxBytes = 1 << 30
	return e
}

func restored(t *testing.T, store cas.Store, g capture.Ingested, p string) []byte {
	t.Helper()
	dst := place(t)
	must(t, capture.Restore(t.Context(), store, g.Manifest, dst))
	b, err := os.ReadFile(filepath.Join(dst, p))
	must(t, err)
	return b
}

// A checkpoint of a large file costs what has changed since the one before, and comes back
// the same (CK-211: the store shares what content has in common; no checkpoint needs another
// one to be read, so CK-209's chain has one link).
func TestNextCheckpointCostsWhatChanged(t *testing.T) {
	store, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	state := noise(24<<20, 1)
	files := map[string]string{"state/big": string(state), "state/small": "a", "state/dir/other": string(state[:3<<20])}
	first := newSlot(t, files)
	a, err := capture.IngestSealed(t.Context(), store, first.dir, inPieces(t))
	must(t, err)
	// Both are of one slot here, and so of one owner.
	must(t, store.Pin(t.Context(), cas.Pin{Owner: "checkpoint/first", Trees: []forgeyard.Digest{a.Payload}, Roots: []forgeyard.Digest{a.Manifest.Marker}}))
	before := store.Holds()

	// One place is written over, and eleven bytes are pushed in before all the rest.
	copy(state[10<<20:], noise(1000, 2))
	state = append(noise(11, 3), state...)
	files["state/big"] = string(state)
	second := newSlot(t, files)
	b, err := capture.IngestSealed(t.Context(), store, second.dir, inPieces(t))
	must(t, err)
	if more := store.Holds().Bytes - before.Bytes; more > 5<<20 {
		t.Errorf("the second of %d bytes cost %d", len(state), more)
	}
	if !a.Manifest.Pieces || a.Manifest.Files != 3 {
		t.Errorf("%+v", a.Manifest)
	}
	if got := restored(t, store, b, "state/big"); !bytes.Equal(got, state) {
		t.Errorf("%d bytes came back that differ", len(got))
	}
	if got := restored(t, store, b, "state/dir/other"); cas.Sum(got) != second.marker.Files[indexOf(second.marker, "state/dir/other")].BLAKE3 {
		t.Error("the file beside it differs")
	}
	// The first needs nothing of the second.
	must(t, store.Unpin(t.Context(), b.Owner))
	_, err = store.GC(t.Context(), false)
	must(t, err)
	if got := restored(t, store, a, "state/small"); string(got) != "a" {
		t.Errorf("%q", got)
	}
}

func indexOf(m checkpoint.Marker, p string) int {
	for i, f := range m.Files {
		if f.Path == p {
			return i
		}
	}
	return -1
}

// What is in pieces is checked as what is whole: the digest that the marker names, a secret
// over the seam of two pieces, a file that grows, a piece that a disk has spoilt.
func TestPiecesAreCheckedLikeWholes(t *testing.T) {
	state := noise(5<<20, 4)
	whole := func() *slot { return newSlot(t, map[string]string{"big": string(state)}) }
	store := newMemory()

	s := whole()
	s.marker.Files[0].BLAKE3 = cas.Sum([]byte("another"))
	s.seal()
	_, err := capture.IngestSealed(t.Context(), store, s.dir, inPieces(t))
	if f, _ := checkpoint.FindingOf(err); f.Code != checkpoint.CodeDigest {
		t.Errorf("another digest: %v", err)
	}

	for at := 1<<20 - len(secret); at <= 1<<20; at += 3 { // every piece ends by then
		spoilt := bytes.Clone(state)
		copy(spoilt[at:], secret)
		s := newSlot(t, map[string]string{"big": string(spoilt)})
		fresh := newMemory()
		_, err := capture.IngestSealed(t.Context(), fresh, s.dir, inPieces(t))
		if f, _ := checkpoint.FindingOf(err); f.Code != checkpoint.CodeSecret || len(fresh.pins) != 0 {
			t.Errorf("a secret at %d: %v", at, err)
		}
	}

	store = newMemory()
	g, err := capture.IngestSealed(t.Context(), store, whole().dir, inPieces(t))
	must(t, err)
	var piece forgeyard.Digest
	for d, b := range store.blobs {
		if len(b) > 128<<10 {
			piece = d
		}
	}
	store.flip(t, piece)
	dst := place(t)
	if err := capture.Restore(t.Context(), store, g.Manifest, dst); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("a spoilt piece: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(dst)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Of a site that has programs which read no pieces nothing is kept in pieces.
func TestWithoutPiecesFilesAreWhole(t *testing.T) {
	store := newMemory()
	s := newSlot(t, map[string]string{"big": string(noise(2<<20, 5))})
	e := inPieces(t)
	e.Pieces = false
	g, err := capture.IngestSealed(t.Context(), store, s.dir, e)
	must(t, err)
	if g.Manifest.Pieces || store.blobs[s.marker.Files[0].BLAKE3] == nil {
		t.Errorf("%+v", g.Manifest)
	}
}

// Whoever remembers how a state was cut keeps the same of the next one as whoever does not,
// whatever has changed in it, and cuts and names only what has.
func TestMemoryCutsAsAnew(t *testing.T) {
	state := noise(21<<20+777, 6)
	changes := map[string]func([]byte) []byte{
		"nothing":          func(b []byte) []byte { return b },
		"a byte":           func(b []byte) []byte { b[9<<20] ^= 1; return b },
		"the first byte":   func(b []byte) []byte { b[0] ^= 1; return b },
		"the last byte":    func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"a batch's seam":   func(b []byte) []byte { copy(b[4<<20-5:], noise(11, 7)); return b },
		"pushed in":        func(b []byte) []byte { return append(noise(11, 8), b...) },
		"longer":           func(b []byte) []byte { return append(b, noise(3<<20, 9)...) },
		"shorter":          func(b []byte) []byte { return b[:7<<20] },
		"a hole":           func(b []byte) []byte { clear(b[5<<20 : 12<<20]); return b },
		"another, as long": func(b []byte) []byte { return noise(len(b), 10) },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := inPieces(t)
			e.Memory = &capture.Memory{}
			take := func(b []byte, e capture.Expect) capture.Ingested {
				g, err := capture.IngestSealed(t.Context(), newMemory(), newSlot(t, map[string]string{"big": string(b)}).dir, e)
				must(t, err)
				return g
			}
			take(state, e)
			next := change(bytes.Clone(state))
			for range 2 { // what was remembered of what was remembered
				if got, want := take(next, e), take(next, inPieces(t)); got.Payload != want.Payload {
					t.Errorf("%s, cut anew it is %s", got.Payload.Short(), want.Payload.Short())
				}
			}
		})
	}
}

var sparseMiB = flag.Int64("sparse-mib", 256, "size of the file in TestHolesComeBackAsHoles")

// CK-317: of a sparse state only what it has is kept, it comes back as sparse as it was, and it
// passes through memory in small parts, however large it is.
func TestHolesComeBackAsHoles(t *testing.T) {
	store, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	size := *sparseMiB<<20 + 5
	s := newSlot(t, map[string]string{"sparse": ""})
	f, err := os.OpenFile(filepath.Join(s.dir, "sparse"), os.O_RDWR, 0)
	must(t, err)
	must(t, f.Truncate(size))
	for _, at := range []int64{17, size / 2, size - 4<<20} {
		_, err = f.WriteAt(noise(3<<20, uint64(at)), at)
		must(t, err)
	}
	h := cas.NewHasher()
	_, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	must(t, err)
	must(t, f.Close())
	s.marker.Files[0].Size, s.marker.Files[0].BLAKE3 = size, h.Sum()
	s.seal()
	e := inPieces(t)
	e.Contract.MaxBytes = 1 << 40
	began, before := time.Now(), maxRSS(t)
	g, err := capture.IngestSealed(t.Context(), store, s.dir, e)
	must(t, err)
	taken := time.Since(began)
	dst := place(t)
	must(t, capture.Restore(t.Context(), store, g.Manifest, dst))
	whole := time.Since(began)
	back, err := os.Stat(filepath.Join(dst, "sparse"))
	must(t, err)
	held, more := store.Holds().Bytes, maxRSS(t)-before
	t.Logf("%d MiB: taken in %s, restored in %s, %d bytes in the store, %d on the disk, %d MiB of memory more", *sparseMiB, taken, whole-taken, held, onDisk(t, back), more>>20)
	if back.Size() != size || held > 24<<20 || onDisk(t, back) > 24<<20 || more > 256<<20 {
		t.Errorf("%d bytes, of which %d are stored and %d come back on the disk, through %d of memory", back.Size(), held, onDisk(t, back), more)
	}
}

// maxRSS is the most memory that this process had.
func maxRSS(t *testing.T) int64 {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	if runtime.GOOS == "darwin" { // which counts bytes, others KiB
		return int64(u.Maxrss)
	}
	return int64(u.Maxrss) << 10
}

func onDisk(t *testing.T, info os.FileInfo) int64 {
	t.Helper()
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%T", info.Sys())
	}
	return st.Blocks * 512
}

// CK-320: five hundred checkpoints of one state, of which each keeps what its job's retention
// keeps. The store's size and the time of a restore do not grow with their number.
func TestChainOfCheckpoints(t *testing.T) {
	const all, size, files = 500, 3 << 19, 2
	store, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	e := inPieces(t)
	e.Memory = &capture.Memory{}
	state, base := noise(files*size, 12), t.TempDir()
	var kept []capture.Ingested
	held, took := map[int]int64{}, map[int]time.Duration{}
	for seq := 1; seq <= all; seq++ {
		copy(state[(seq*7919)%(len(state)-1000):], noise(1000, uint64(seq)))
		s := &slot{t: t, dir: filepath.Join(base, checkpoint.SlotName(seq)), marker: checkpoint.Marker{V: 1, Attempt: attempt, Epoch: 2, Seq: seq, Mode: job.ResumeApplication, Consistency: checkpoint.Application, Quiesced: true}}
		for i := range files {
			b := state[i*size : (i+1)*size]
			s.write(fmt.Sprint("part", i), string(b))
			s.marker.Files = append(s.marker.Files, checkpoint.File{Path: fmt.Sprint("part", i), Size: size, BLAKE3: cas.Sum(b), Mode: 0o644})
		}
		s.seal()
		e.LastSeq = seq - 1
		g, err := capture.IngestSealed(t.Context(), store, s.dir, e)
		must(t, err)
		must(t, os.RemoveAll(s.dir))
		if kept = append(kept, g); len(kept) > checkpoint.DefaultKeep {
			must(t, store.Unpin(t.Context(), kept[0].Owner))
			kept = kept[1:]
		}
		if seq%100 != 0 && seq != 20 {
			continue
		}
		_, err = store.GC(t.Context(), false)
		must(t, err)
		began := time.Now()
		if got := restored(t, store, g, "part1"); !bytes.Equal(got, state[size:2*size]) {
			t.Fatalf("checkpoint %d comes back as %d other bytes", seq, len(got))
		}
		held[seq], took[seq] = store.Holds().Bytes, time.Since(began)
	}
	if most := held[20] + held[20]/2; held[all] > most {
		t.Errorf("the store has %d bytes after %d, and had %d after 20", held[all], all, held[20])
	}
	t.Logf("bytes in the store %v, restored in %v", held, took)
}
