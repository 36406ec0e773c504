package disk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

var blockPool = sync.Pool{New: func() any { b := make([]byte, cas.BlockSize); return &b }}

// Put implements cas.Store.
func (s *Store) Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	const op = "cas put"
	leave, err := s.enter(op)
	if err != nil {
		return cas.Ref{}, err
	}
	defer leave()
	if o.Owner != "" {
		if err := cas.ValidateOwner(o.Owner); err != nil {
			return cas.Ref{}, err
		}
	}
	if o.Size > cas.MaxBlobSize {
		return cas.Ref{}, forgeyard.Errorf(op, forgeyard.Limit, "%d bytes are more than the bound of %d for one object", o.Size, cas.MaxBlobSize)
	}
	buf := blockPool.Get().(*[]byte)
	defer blockPool.Put(buf)
	w := &spool{s: s, op: op, ctx: ctx, r: r, o: o, buf: *buf}
	if !o.SHA256.IsZero() {
		w.sha = sha256.New()
		w.r = io.TeeReader(r, w.sha)
	}
	defer w.discard()
	ref, err := w.run()
	if err != nil {
		return cas.Ref{}, s.fail(op, err)
	}
	return ref, nil
}

// spool is one Put. It reads a block at a time.
//
//	one block or less      stays in memory until it is known not to be here
//	same as a blob here    follows that blob's manifest and writes nothing
//	anything else          a file in tmp/
type spool struct {
	s   *Store
	op  string
	ctx context.Context
	r   io.Reader
	o   cas.PutOptions
	buf []byte

	mb       *cas.ManifestBuilder
	sha      hash.Hash // of what was read; nil: nobody asks
	res      *reservation
	f        *os.File
	at       int64    // where it goes on
	tmp      []string // files to remove unless the commit took them
	twin     forgeyard.Digest
	twinMan  cas.Manifest // of the blob that this one equals so far; Size 0: none
	releases []func()
}

func (w *spool) run() (cas.Ref, error) {
	if w.o.Size > 0 && !w.expected() {
		res, err := w.s.reserve(w.op, w.o.Size)
		if err != nil {
			return cas.Ref{}, err
		}
		w.res = res
	}
	n, err := w.read()
	if err != nil {
		return cas.Ref{}, err
	}
	if n < len(w.buf) {
		return w.small(w.buf[:n])
	}
	w.mb = cas.NewManifestBuilder()
	first := append([]byte(nil), w.buf...)
	more, err := w.read()
	if err != nil {
		return cas.Ref{}, err
	}
	if more == 0 {
		return w.small(first)
	}
	if w.o.ByContent {
		w.r = io.MultiReader(bytes.NewReader(first), bytes.NewReader(slices.Clone(w.buf[:more])), w.r)
		return w.chunks()
	}
	if err := w.block(first); err != nil {
		return cas.Ref{}, err
	}
	if err := w.blocks(more); err != nil {
		return cas.Ref{}, err
	}
	return w.large()
}

// blocks takes the n bytes in buf and all that follow. While one block is hashed and written
// the next is read.
func (w *spool) blocks(n int) error {
	other := blockPool.Get().(*[]byte)
	defer blockPool.Put(other)
	type read struct {
		n   int
		err error
	}
	buf, next := w.buf, *other
	for n > 0 {
		ahead := make(chan read, 1)
		w.buf = next
		go func() {
			n, err := w.read()
			ahead <- read{n, err}
		}()
		err := w.block(buf[:n])
		r := <-ahead
		if err = cmp.Or(err, r.err); err != nil {
			return err
		}
		n, buf, next = r.n, next, buf
	}
	return nil
}

// chunks takes blocks that end where the content says.
func (w *spool) chunks() (cas.Ref, error) {
	whole := w.buf
	for have := 0; ; {
		w.buf = whole[have:]
		n, err := w.read()
		w.buf = whole
		if err != nil {
			return cas.Ref{}, err
		}
		if have += n; have == 0 {
			return w.large()
		}
		n = cas.ByContent.Next(whole[:have])
		if err := w.block(whole[:n]); err != nil {
			return cas.Ref{}, err
		}
		have = copy(whole, whole[n:have])
	}
}

// expected reports whether the caller named the bytes and they are here already.
func (w *spool) expected() bool {
	return !w.o.Expect.IsZero() && w.s.present(w.o.Expect)
}

// read fills buf; fewer bytes mean the end.
func (w *spool) read() (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := io.ReadFull(w.r, w.buf)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return n, nil
	}
	return n, err
}

func (w *spool) check(got forgeyard.Digest) error {
	if w.sha != nil {
		if sha := cas.SHA256(w.sha.Sum(nil)); sha != w.o.SHA256 {
			return forgeyard.Errorf(w.op, forgeyard.Corrupt, "the bytes have SHA-256 %s, expected was %s; nothing was kept", sha, w.o.SHA256)
		}
	}
	if w.o.Expect.IsZero() || w.o.Expect == got {
		return nil
	}
	return forgeyard.Errorf(w.op, forgeyard.Corrupt, "the bytes are %s, expected was %s; nothing was kept", got, w.o.Expect)
}

func (w *spool) small(b []byte) (cas.Ref, error) {
	ref := cas.Ref{Digest: cas.Sum(b), Size: int64(len(b))}
	if err := w.check(ref.Digest); err != nil || len(b) == 0 {
		return ref, err
	}
	if w.claim(ref.Digest) {
		return ref, w.here(ref, ref.Digest)
	}
	f, err := w.stage(ref.Digest, b)
	if err != nil {
		return ref, err
	}
	j := newJob(w.o.Class)
	j.files = []file{f}
	return ref, w.commit(ref, j)
}

// here ends a put of what is here already.
func (w *spool) here(ref cas.Ref, ds ...forgeyard.Digest) error {
	if w.sha != nil {
		if err := w.s.bind(w.o.Class, cas.Binding{Name: cas.Name{Space: cas.SpaceSHA256, Key: w.o.SHA256}, Ref: ref}); err != nil {
			return err
		}
	}
	return w.s.harden(w.o.Class, ds...)
}

// claim protects the digest and reports whether there is nothing to do for it.
func (w *spool) claim(ds ...forgeyard.Digest) bool {
	release, dying := w.s.claim(w.o.Owner, ds...)
	w.releases = append(w.releases, release)
	if dying {
		return false
	}
	if !w.s.present(ds[0]) {
		return false
	}
	if len(ds) == 1 {
		return true
	}
	r, ok := w.s.record(ds[0])
	return ok && r.hasManifest(ds[1]) && w.s.present(ds[1])
}

// room makes sure that n more bytes are reserved.
func (w *spool) room(n int64) error {
	if w.res == nil {
		res, err := w.s.reserve(w.op, n)
		w.res = res
		return err
	}
	if n > w.res.left {
		return w.res.grow(w.op, n-w.res.left, 0)
	}
	return nil
}

// block takes the next block of a large blob. When nothing here begins as this one does, it
// is written while it is hashed.
func (w *spool) block(b []byte) error {
	i := len(w.mb.Blocks())
	if i > 0 && w.twinMan.Size == 0 {
		written := make(chan error, 1)
		go func() { written <- w.write(b) }()
		_, err := w.mb.Write(b)
		w.mb.Cut()
		return cmp.Or(<-written, err)
	}
	if _, err := w.mb.Write(b); err != nil {
		return err
	}
	w.mb.Cut()
	got := w.mb.Blocks()[i]
	if i == 0 && !w.o.ByContent {
		w.findTwin(got)
	}
	if w.twinMan.Size > 0 {
		if i < len(w.twinMan.Blocks) && w.twinMan.Blocks[i] == got {
			return nil
		}
		if err := w.leaveTwin(i); err != nil {
			return err
		}
	}
	return w.write(b)
}

// findTwin looks for a blob here that begins with the same block.
func (w *spool) findTwin(first cas.Block) {
	for _, l := range w.s.locations(first.Digest) {
		if l.partial || l.off != 0 {
			continue
		}
		if m, ok := w.s.plainManifest(l.container); ok {
			release, dying := w.s.claim("", l.container)
			w.releases = append(w.releases, release)
			if !dying && w.s.present(l.container) {
				w.twin, w.twinMan = l.container, m
				return
			}
		}
	}
}

// leaveTwin writes the i blocks that were equal, now that the next one is not.
func (w *spool) leaveTwin(i int) error {
	m, off := w.twinMan, int64(0)
	w.twinMan = cas.Manifest{}
	o, err := w.s.Open(w.ctx, w.twin)
	if err != nil {
		return forgeyard.E(w.op, forgeyard.Unavailable, err).WithHint("a damaged copy was found and set aside; put again")
	}
	defer closeQuiet(o)
	b := make([]byte, cas.BlockSize)
	for _, bl := range m.Blocks[:i] {
		if _, err := o.ReadAt(b[:bl.Size], off); err != nil && err != io.EOF {
			return forgeyard.E(w.op, forgeyard.Unavailable, err).WithHint("a damaged copy was found and set aside; put again")
		}
		if err := w.write(b[:bl.Size]); err != nil {
			return err
		}
		off += bl.Size
	}
	return nil
}

func (w *spool) write(b []byte) error {
	if w.f == nil {
		f, err := w.s.createTemp()
		if err != nil {
			return err
		}
		w.f, w.tmp = f, append(w.tmp, f.Name())
	}
	if err := w.room(int64(len(b))); err != nil {
		return err
	}
	var err error
	if bytes.Equal(b, zeroBlock[:len(b)]) {
		_, err = w.f.Seek(int64(len(b)), io.SeekCurrent) // a hole: large gives the file its size
	} else {
		err = writeSlices(func(b []byte, _ int64) error { _, err := w.f.Write(b); return err }, b)
	}
	if err != nil {
		return err
	}
	if w.o.Class == cas.Durable && !w.s.cfg.NoSync {
		writeBack(w.f, w.at, int64(len(b)))
	}
	w.at += int64(len(b))
	w.res.written(int64(len(b)))
	return nil
}

// writeSlices writes b in pieces that the kernel takes cheaply.
func writeSlices(write func(b []byte, at int64) error, b []byte) error {
	for at := 0; at < len(b); at += writeSlice {
		if err := write(b[at:min(at+writeSlice, len(b))], int64(at)); err != nil {
			return err
		}
	}
	return nil
}

// zeroBlock is what a hole reads as.
var zeroBlock [cas.BlockSize]byte

func (w *spool) large() (cas.Ref, error) {
	ref, m, enc, err := w.mb.Finish()
	if err != nil {
		return ref, err
	}
	if err := w.check(ref.Digest); err != nil {
		return ref, err
	}
	if w.claim(ref.Digest, ref.Manifest) {
		return ref, w.here(ref, ref.Digest, ref.Manifest)
	}
	if w.twinMan.Size > 0 && (ref.Digest != w.twin || !w.s.present(w.twin)) {
		if err := w.leaveTwin(len(m.Blocks)); err != nil {
			return ref, err
		}
	}
	j := newJob(w.o.Class)
	if w.f != nil {
		if err := errors.Join(w.f.Truncate(ref.Size), seal(w.f)); err != nil {
			return ref, err
		}
		j.files = append(j.files, file{digest: ref.Digest, tmp: w.f.Name(), size: ref.Size})
		w.f = nil
	} else {
		j.files = append(j.files, file{digest: ref.Digest, size: ref.Size}) // it is here; only its manifest is new
	}
	f, err := w.stage(ref.Manifest, enc)
	if err != nil {
		return ref, err
	}
	j.files = append(j.files, f)
	j.proved = []proof{{whole: ref.Digest, digest: ref.Manifest, m: m, plain: !w.o.ByContent}}
	return ref, w.commit(ref, j)
}

// stage makes ready what is at most a block: a small object goes into the index, and what
// is larger into a file.
func (w *spool) stage(d forgeyard.Digest, b []byte) (file, error) {
	if int64(len(b)) > w.s.inlineMost() {
		path, err := w.writeTemp(b)
		return file{digest: d, tmp: path, size: int64(len(b))}, err
	}
	if err := w.room(int64(len(b))); err != nil {
		return file{}, err
	}
	return file{digest: d, inline: slices.Clone(b), size: int64(len(b))}, nil
}

func (w *spool) writeTemp(b []byte) (string, error) {
	if err := w.room(int64(len(b))); err != nil {
		return "", err
	}
	f, err := w.s.createTemp()
	if err != nil {
		return "", err
	}
	w.tmp = append(w.tmp, f.Name())
	if err := writeSlices(func(b []byte, _ int64) error { _, err := f.Write(b); return err }, b); err != nil {
		closeQuiet(f)
		return "", err
	}
	w.res.written(int64(len(b)))
	return f.Name(), seal(f)
}

// seal makes the file read-only and closes it. The committer syncs it.
func seal(f *os.File) error { return errors.Join(f.Chmod(0o444), f.Close()) }

// commit hands the files over; discard removes those that were not taken.
func (w *spool) commit(ref cas.Ref, j *job) error {
	j.ref, j.sha = ref, w.o.SHA256
	err := w.s.submit(j)
	if err != nil {
		return err
	}
	w.tmp = slices.DeleteFunc(w.tmp, func(p string) bool {
		return slices.ContainsFunc(j.files, func(f file) bool { return f.tmp == p && f.placed != "" })
	})
	var here []forgeyard.Digest // by another put, of a class of its own
	for _, f := range j.files {
		if f.placed == "" && (f.skip || f.inline == nil) {
			here = append(here, f.digest)
		}
	}
	return w.s.harden(w.o.Class, here...)
}

// submit waits for the committer. The caller stands between enter and leave.
func (s *Store) submit(j *job) error {
	s.jobs <- j
	<-j.done
	return j.err
}

// harden makes what was put as Cache survive a power cut, now that somebody wants
// it Durable.
func (s *Store) harden(c cas.Class, ds ...forgeyard.Digest) error {
	if c != cas.Durable || s.cfg.NoSync {
		return nil
	}
	for _, d := range ds {
		r, ok := s.record(d)
		if !ok || r.Synced {
			continue
		}
		if !r.Inline {
			if err := s.syncBlob(d, r.Gen); err != nil {
				return err
			}
		}
		err := s.update(func(u *update) error {
			if now, ok := u.record(d); ok && now.Gen == r.Gen {
				now.Synced = true
				u.putRecord(d, now)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// syncBlob makes the file of a blob and its name safe.
func (s *Store) syncBlob(d forgeyard.Digest, gen uint64) error {
	dir := s.blobDir(d)
	for _, p := range []string{s.blobPath(d, gen), dir, filepath.Dir(dir), filepath.Join(s.cfg.Dir, blobsDir)} {
		if err := s.cfg.power.path(p); err != nil {
			return err
		}
	}
	return nil
}

// discard removes what the commit did not take.
func (w *spool) discard() {
	if w.f != nil {
		closeQuiet(w.f)
	}
	for _, p := range w.tmp {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			w.s.log.Warn("cas: a temporary file stays until the next start", "file", p, "err", err)
		}
	}
	w.res.end()
	for _, r := range w.releases {
		r()
	}
}

func (s *Store) createTemp() (*os.File, error) {
	return os.CreateTemp(filepath.Join(s.cfg.Dir, tmpDir), "put-")
}
