package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// present reports whether a whole blob is here, by index and file size.
func (s *Store) present(d forgeyard.Digest) bool {
	r, ok := s.record(d)
	return ok && s.has(d, r)
}

// has reports whether the bytes of an indexed blob are here.
func (s *Store) has(d forgeyard.Digest, r record) bool {
	if r.Inline {
		return true
	}
	st, err := os.Lstat(s.blobPath(d, r.Gen))
	return err == nil && st.Mode().IsRegular() && st.Size() == r.Size
}

func notFound(op string, d forgeyard.Digest) error {
	return forgeyard.Errorf(op, forgeyard.NotFound, "%s is not in the local store", d)
}

// openBlob opens a whole blob's file, healing the index or setting aside a file of the
// wrong length on the way (C09). There is no file of an object in the index.
func (s *Store) openBlob(ctx context.Context, op string, d forgeyard.Digest) (*os.File, record, error) {
	for range 2 {
		r, ok := s.record(d)
		if ok && r.Inline {
			return nil, r, nil
		}
		if ok {
			f, err := os.Open(s.blobPath(d, r.Gen))
			if err == nil {
				st, err := f.Stat()
				if err == nil && st.Mode().IsRegular() && st.Size() == r.Size {
					return f, r, nil
				}
				closeQuiet(f)
				s.quarantine(d, r.Gen, fmt.Sprintf("the file has %d bytes, the index says %d", sizeOf(st), r.Size))
			} else if !errors.Is(err, fs.ErrNotExist) {
				return nil, record{}, s.fail(op, err)
			}
		}
		if err := s.heal(ctx, op, d); err != nil {
			return nil, record{}, err
		}
	}
	return nil, record{}, notFound(op, d)
}

func sizeOf(st fs.FileInfo) int64 {
	if st == nil {
		return -1
	}
	return st.Size()
}

// Has implements cas.Store.
func (s *Store) Has(ctx context.Context, d forgeyard.Digest) bool {
	if d == cas.Empty() || s.present(d) {
		return true
	}
	f, _, err := s.openBlob(ctx, "cas has", d)
	if err != nil {
		return false
	}
	closeFile(f)
	return true
}

func closeFile(f *os.File) {
	if f != nil {
		closeQuiet(f)
	}
}

// inline gives the verified bytes of an object that lies in the index.
func (s *Store) inline(op string, d forgeyard.Digest, r record) ([]byte, error) {
	b, ok := s.row(tInline, d[:])
	if !ok {
		if now, still := s.record(d); !still || now.Gen != r.Gen {
			return nil, notFound(op, d) // collected meanwhile
		}
		return nil, s.corrupt(op, d, r.Gen, "the index has no bytes of it")
	}
	if cas.Sum(b) != d {
		return nil, s.corrupt(op, d, r.Gen, "the bytes do not match the name")
	}
	s.noteUse(d, r)
	return b, nil
}

// Open implements cas.Store.
func (s *Store) Open(ctx context.Context, d forgeyard.Digest) (cas.Object, error) {
	const op = "cas open"
	if d == cas.Empty() {
		return &object{s: s, ref: cas.Ref{Digest: d}}, nil
	}
	f, r, err := s.openBlob(ctx, op, d)
	if err != nil {
		return nil, err
	}
	if r.Inline {
		b, err := s.inline(op, d, r)
		if err != nil {
			return nil, err
		}
		return &object{s: s, ref: r.ref(d), gen: r.Gen, blocks: []cas.Block{{Digest: d, Size: r.Size}}, offs: []int64{0}, buf: b}, nil
	}
	s.noteUse(d, r)
	o := &object{s: s, ref: r.ref(d), gen: r.Gen, f: f, cur: -1}
	if r.Size <= cas.BlockSize {
		o.blocks, o.offs = []cas.Block{{Digest: d, Size: r.Size}}, []int64{0}
		return o, nil
	}
	m, err := s.manifestOf(ctx, op, d)
	if err != nil {
		closeQuiet(f)
		return nil, err
	}
	o.blocks, o.offs = m.Blocks, m.Offsets()
	return o, nil
}

// manifestOf loads a proved manifest of a large blob. When all are lost, the blob is
// hashed again.
func (s *Store) manifestOf(ctx context.Context, op string, d forgeyard.Digest) (cas.Manifest, error) {
	for range 2 {
		r, ok := s.record(d)
		if !ok {
			return cas.Manifest{}, notFound(op, d)
		}
		for _, md := range r.Manifests {
			if m, err := s.loadManifest(md); err == nil && m.Whole == d {
				return m, nil
			}
		}
		if err := s.reindex(ctx, op, d, r.Gen); err != nil {
			return cas.Manifest{}, err
		}
	}
	return cas.Manifest{}, forgeyard.Errorf(op, forgeyard.Corrupt, "%s has no readable manifest", d)
}

// loadManifest reads a manifest from its file, if the bytes are its.
func (s *Store) loadManifest(md forgeyard.Digest) (cas.Manifest, error) {
	r, ok := s.record(md)
	if !ok || r.Size > cas.BlockSize {
		return cas.Manifest{}, notFound("cas manifest", md)
	}
	if r.Inline {
		b, err := s.inline("cas manifest", md, r)
		if err != nil {
			return cas.Manifest{}, err
		}
		return cas.DecodeManifest(b)
	}
	b, err := os.ReadFile(s.blobPath(md, r.Gen))
	if err != nil {
		return cas.Manifest{}, err
	}
	if cas.Sum(b) != md {
		s.quarantine(md, r.Gen, "a manifest does not match its name")
		return cas.Manifest{}, forgeyard.Errorf("cas manifest", forgeyard.Corrupt, "%s does not match its name", md)
	}
	return cas.DecodeManifest(b)
}

// plainManifest is the manifest that Put would make of d, if it is known.
func (s *Store) plainManifest(d forgeyard.Digest) (cas.Manifest, bool) {
	r, ok := s.record(d)
	if !ok || len(r.Manifests) == 0 {
		return cas.Manifest{}, false
	}
	m, err := s.loadManifest(r.Manifests[0])
	if err != nil || m.Whole != d {
		return cas.Manifest{}, false
	}
	return m, isPlain(m)
}

func isPlain(m cas.Manifest) bool {
	for _, b := range m.Blocks[:len(m.Blocks)-1] {
		if b.Size != cas.BlockSize {
			return false
		}
	}
	return true
}

// object is an open blob. It keeps the last verified block, so that small reads in
// a row hash it once.
type object struct {
	s      *Store
	ref    cas.Ref
	gen    uint64
	blocks []cas.Block
	offs   []int64

	mu     sync.Mutex // guards what follows
	f      *os.File   // nil for the empty object and after Close
	closed bool
	pos    int64
	cur    int // index of the block in buf, -1: none
	buf    []byte
}

// Ref implements cas.Object.
func (o *object) Ref() cas.Ref { return o.ref }

// Read implements io.Reader.
func (o *object) Read(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.readAt(p, o.pos)
	o.pos += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// ReadAt implements io.ReaderAt.
func (o *object) ReadAt(p []byte, off int64) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.readAt(p, off)
}

func (o *object) readAt(p []byte, off int64) (int, error) {
	switch {
	case o.closed:
		return 0, forgeyard.E("cas read", forgeyard.Conflict, fs.ErrClosed)
	case off < 0:
		return 0, forgeyard.Errorf("cas read", forgeyard.Invalid, "offset %d is negative", off)
	case off >= o.ref.Size:
		return 0, io.EOF
	}
	n := 0
	for i := o.find(off); n < len(p) && i < len(o.blocks); i++ {
		if err := o.load(i); err != nil {
			return n, err
		}
		k := copy(p[n:], o.buf[off-o.offs[i]:])
		n, off = n+k, off+int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// find gives the block that holds the offset.
func (o *object) find(off int64) int {
	lo, hi := 0, len(o.offs)-1
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if o.offs[mid] <= off {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// load brings block i into buf, verified.
func (o *object) load(i int) error {
	if o.cur == i {
		return nil
	}
	b := o.blocks[i]
	if int64(cap(o.buf)) < b.Size {
		o.buf = make([]byte, b.Size)
	}
	o.buf, o.cur = o.buf[:b.Size], -1
	if _, err := o.f.ReadAt(o.buf, o.offs[i]); err != nil && err != io.EOF {
		return o.s.fail("cas read", err)
	}
	if cas.Sum(o.buf) != b.Digest {
		return o.s.corrupt("cas read", o.ref.Digest, o.gen, fmt.Sprintf("block %d at %d does not match its name", i, o.offs[i]))
	}
	o.cur = i
	return nil
}

// Seek implements io.Seeker.
func (o *object) Seek(off int64, whence int) (int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		off += o.pos
	case io.SeekEnd:
		off += o.ref.Size
	}
	if off < 0 || whence < io.SeekStart || whence > io.SeekEnd {
		return o.pos, forgeyard.Errorf("cas seek", forgeyard.Invalid, "whence %d to %d", whence, off)
	}
	o.pos = off
	return off, nil
}

// Close implements io.Closer and is idempotent.
func (o *object) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	o.closed = true
	if o.f == nil {
		return nil
	}
	return o.f.Close()
}

// Block implements cas.Store.
func (s *Store) Block(ctx context.Context, d forgeyard.Digest) ([]byte, error) {
	return s.ReadBlock(ctx, d, nil, true)
}

// ReadBlock implements cas.BlockReader.
func (s *Store) ReadBlock(ctx context.Context, d forgeyard.Digest, buf []byte, check bool) ([]byte, error) {
	const op = "cas block"
	if d == cas.Empty() {
		return []byte{}, nil
	}
	var bad error
	if r, ok := s.record(d); ok && r.Size <= cas.BlockSize {
		b, err := s.smallKnown(ctx, op, d, r, buf, check)
		if err == nil {
			return b, nil
		}
		bad = err
	}
	for _, l := range s.locations(d) {
		b, err := s.readLocation(op, d, l, buf, check)
		if err == nil {
			return b, nil
		}
		if bad == nil || forgeyard.KindOf(bad) == forgeyard.NotFound {
			bad = err
		}
	}
	if bad != nil && forgeyard.KindOf(bad) != forgeyard.NotFound {
		return nil, bad
	}
	return s.smallBlob(ctx, op, d, buf)
}

// room gives n bytes of buf, or new ones when it is too small.
func room(buf []byte, n int64) []byte {
	if int64(len(buf)) >= n {
		return buf[:n]
	}
	return make([]byte, n)
}

// smallKnown is smallBlob of one whose record was just read.
func (s *Store) smallKnown(ctx context.Context, op string, d forgeyard.Digest, r record, buf []byte, check bool) ([]byte, error) {
	if !r.Inline {
		return s.smallBlob(ctx, op, d, buf)
	}
	if !check {
		// The index compares the sum of each of its blocks that it reads from the disk.
		if b, ok := s.row(tInline, d[:]); ok && int64(len(b)) == r.Size {
			s.noteUse(d, r)
			return b, nil
		}
	}
	return s.inline(op, d, r)
}

// smallBlob reads and verifies a whole blob of at most a block.
func (s *Store) smallBlob(ctx context.Context, op string, d forgeyard.Digest, buf []byte) ([]byte, error) {
	f, r, err := s.openBlob(ctx, op, d)
	if err != nil {
		return nil, err
	}
	if r.Inline {
		return s.inline(op, d, r)
	}
	defer closeQuiet(f)
	s.noteUse(d, r)
	if r.Size > cas.BlockSize {
		return nil, forgeyard.Errorf(op, forgeyard.NotFound, "%s is a blob of %d bytes, not a block; ask for the blocks of its manifest %s", d, r.Size, r.ref(d).Manifest)
	}
	b := room(buf, r.Size)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, s.fail(op, err)
	}
	if cas.Sum(b) != d {
		return nil, s.corrupt(op, d, r.Gen, "the bytes do not match the name")
	}
	return b, nil
}

// readLocation reads one place where the block should be.
func (s *Store) readLocation(op string, d forgeyard.Digest, l location, buf []byte, check bool) ([]byte, error) {
	path, r := s.partialPath(l.container), record{}
	if !l.partial {
		var ok bool
		if r, ok = s.record(l.container); !ok {
			return nil, notFound(op, d)
		}
		path = s.blobPath(l.container, r.Gen)
		s.noteUse(l.container, r)
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notFound(op, d)
	}
	if err != nil {
		return nil, s.fail(op, err)
	}
	defer closeQuiet(f)
	look := s.lookAt(l, r, f)
	b := room(buf, l.size)
	n, err := f.ReadAt(b, l.off)
	if err != nil && err != io.EOF {
		return nil, s.fail(op, err)
	}
	if !check && look.known && n == len(b) {
		return b, nil
	}
	if cas.Sum(b) == d {
		s.saw(look, f)
		return b, nil
	}
	if l.partial {
		s.log.Error("cas: a block of a partial blob is damaged; it is fetched again", "block", d, "manifest", l.container)
		s.forgetPartialBlock(l.container, d)
		return nil, forgeyard.Errorf(op, forgeyard.Corrupt, "%s was damaged in a partial blob and is missing again", d)
	}
	return nil, s.corrupt(op, l.container, r.Gen, fmt.Sprintf("its block %s does not match its name", d))
}

// BlockSize implements cas.Store.
func (s *Store) BlockSize(ctx context.Context, d forgeyard.Digest) (int64, error) {
	const op = "cas block size"
	if d == cas.Empty() {
		return 0, nil
	}
	if r, ok := s.record(d); ok && r.Size <= cas.BlockSize && s.present(d) {
		return r.Size, nil
	}
	for _, l := range s.locations(d) {
		if l.partial || s.present(l.container) {
			return l.size, nil
		}
	}
	f, r, err := s.openBlob(ctx, op, d)
	if err != nil {
		return 0, err
	}
	closeFile(f)
	if r.Size > cas.BlockSize {
		return 0, notFound(op, d)
	}
	return r.Size, nil
}

// Path implements cas.Store. Whoever gets a path reads without checking, so the bytes
// are vouched for before it is given out.
func (s *Store) Path(ctx context.Context, d forgeyard.Digest) (string, func(), error) {
	const op = "cas path"
	if d == cas.Empty() {
		return s.emptyPath(), func() {}, nil
	}
	release, dying := s.claim("", d)
	if dying {
		release()
		return "", nil, notFound(op, d)
	}
	f, r, err := s.openBlob(ctx, op, d)
	if err != nil {
		release()
		return "", nil, err
	}
	if r.Inline {
		defer release() // a copy needs nobody's leave to stay
		return s.inlinePath(op, d, r)
	}
	defer closeQuiet(f)
	s.noteUse(d, r)
	if err := s.vouch(ctx, op, d, r, f); err != nil {
		release()
		return "", nil, err
	}
	return s.blobPath(d, r.Gen), sync.OnceFunc(release), nil
}

// inlinePath makes a file of an object that lies in the index, for as long as somebody
// needs its path.
func (s *Store) inlinePath(op string, d forgeyard.Digest, r record) (string, func(), error) {
	b, err := s.inline(op, d, r)
	if err != nil {
		return "", nil, err
	}
	res, err := s.reserve(op, r.Size)
	if err != nil {
		return "", nil, err
	}
	defer res.end()
	f, err := s.createTemp()
	if err != nil {
		return "", nil, s.fail(op, err)
	}
	path := f.Name()
	remove := sync.OnceFunc(func() {
		if err := os.Remove(path); err != nil {
			s.log.Warn("cas: a temporary file stays until the next start", "file", path, "err", err)
		}
	})
	_, err = f.Write(b)
	if err = errors.Join(err, seal(f)); err != nil {
		remove()
		return "", nil, s.fail(op, err)
	}
	return path, remove, nil
}

// noteUse remembers the hour in which an object was used, for evictions. It is written
// with many others, and may be lost.
func (s *Store) noteUse(d forgeyard.Digest, r record) {
	hour := hourOf(s.cfg.Clock.Wall())
	if r.Used >= hour {
		return
	}
	s.mu.Lock()
	s.used[d] = hour
	full := len(s.used) == maxUsed
	s.mu.Unlock()
	if full {
		if err := s.saveUsed(); err != nil {
			s.log.Warn("cas: the use of objects cannot be noted; they may be evicted early", "err", err)
		}
	}
}

func (s *Store) saveUsed() error {
	s.mu.Lock()
	used := s.used
	s.used = map[forgeyard.Digest]int64{}
	s.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return s.lazily(func(u *update) error {
		for d, hour := range used {
			if r, ok := u.record(d); ok {
				r.Used = hour
				u.putRecord(d, r)
			}
		}
		return nil
	})
}

// Stat implements cas.Store.
func (s *Store) Stat(ctx context.Context, d forgeyard.Digest) (cas.Info, error) {
	const op = "cas stat"
	if d == cas.Empty() {
		return cas.Info{Ref: cas.Ref{Digest: d}, Complete: true}, nil
	}
	var info cas.Info
	f, r, err := s.openBlob(ctx, op, d)
	switch {
	case err == nil:
		closeFile(f)
		info = cas.Info{Ref: r.ref(d), Stored: s.stored(r), Complete: true, Have: r.Size}
	case forgeyard.KindOf(err) == forgeyard.NotFound:
		md, p, ok := s.bestPartial(d)
		if !ok {
			if g, was := s.Gone(d); was {
				err = forgeyard.Errorf(op, forgeyard.NotFound, "%s is not in the local store any more: its %d bytes were %s", d, g.Size, g)
			}
			return info, err
		}
		info = cas.Info{Ref: cas.Ref{Digest: d, Size: p.Size, Manifest: md}, Have: p.Have}
	default:
		return info, err
	}
	info.Pinned = s.keepers(ctx, d, info.Ref.Manifest)
	return info, nil
}
