package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// partialState is a blob on its way in, shared by all who have it open.
//
//	missing ──PutBlock verifies, writes──▶ fresh ──data sync, then index──▶ marked
//
// A block that is fresh when the process is killed is found again by hashing what
// the sparse file holds (C05). Its key is the manifest, not the whole: two peers that
// divide one blob differently, one of them lying, do not disturb each other.
type partialState struct {
	s    *Store
	m    cas.Manifest
	id   forgeyard.Digest // of the manifest
	offs []int64
	at   map[forgeyard.Digest]int // a block's first index

	refs int         // under Store.partialMu
	done atomic.Bool // the whole is committed
	dead atomic.Bool // the manifest was found to be wrong

	mu      sync.Mutex // guards what follows
	f       *os.File   // nil once committed or closed, which waits until nothing is being written
	past    *os.File   // the same file for writes past the kernel's cache; nil: there are none
	have    []bool
	writing map[int]struct{} // blocks being written, without mu
	turn    *sync.Cond       // on mu: a block was written, or the hash of the whole went on
	fresh   []int            // verified and written, not marked in the index yet

	marked   int64 // bytes that the index counts
	flushing bool  // somebody syncs

	parts *parts    // the hash of the whole by its blocks; nil: whole has it
	whole rolling   // the same in its order
	wrote time.Time // the file's own time after our last write
	bytes int64     // of the blocks in have
	known bool      // the index has the partial
	res   *reservation
}

// partial is one caller's hold on a partialState.
type partial struct {
	*partialState
	once sync.Once
}

// Partial implements cas.Store.
func (s *Store) Partial(ctx context.Context, m cas.Manifest) (cas.Partial, error) {
	const op = "cas partial"
	leave, err := s.enter(op)
	if err != nil {
		return nil, err
	}
	defer leave()
	enc, err := m.Encode()
	if err != nil {
		return nil, err
	}
	ref, err := s.Put(ctx, bytes.NewReader(enc), cas.PutOptions{Class: cas.Cache})
	if err != nil {
		return nil, err
	}
	s.partialMu.Lock()
	defer s.partialMu.Unlock()
	p := s.partials[ref.Digest]
	if p == nil || p.dead.Load() || (p.done.Load() && !s.present(m.Whole)) {
		p = newPartialState(s, m, ref.Digest)
		if err := p.start(ctx); err != nil {
			return nil, s.fail(op, err)
		}
		s.partials[ref.Digest] = p
	}
	p.refs++
	return &partial{partialState: p}, nil
}

func newPartialState(s *Store, m cas.Manifest, id forgeyard.Digest) *partialState {
	p := &partialState{
		s: s, m: m, id: id, offs: m.Offsets(), at: map[forgeyard.Digest]int{}, have: make([]bool, len(m.Blocks)), writing: map[int]struct{}{},
	}
	p.turn = sync.NewCond(&p.mu)
	if cas.Parts() && len(m.Blocks) > 1 && isPlain(m) {
		p.parts = newParts(len(m.Blocks))
	}
	for i, b := range m.Blocks {
		if _, ok := p.at[b.Digest]; !ok {
			p.at[b.Digest] = i
		}
	}
	return p
}

// start opens the sparse file and takes back what was verified before.
func (p *partialState) start(ctx context.Context) error {
	s := p.s
	if whole, ok := s.wholeOf(p.id); ok && s.present(whole) {
		p.done.Store(true)
		return nil
	}
	if s.present(p.m.Whole) {
		return p.proveHere(ctx)
	}
	f, err := os.OpenFile(s.partialPath(p.id), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := p.resume(ctx, f); err != nil {
		closeQuiet(f)
		return err
	}
	p.f = f
	if p.m.Size >= directFrom && isPlain(p.m) {
		p.past = openPast(f.Name())
	}
	return nil
}

// proveHere holds the manifest against the whole blob, which is here already by
// another division.
func (p *partialState) proveHere(ctx context.Context) error {
	const op = "cas partial"
	s := p.s
	release, _ := s.claim("", p.m.Whole, p.id)
	defer release()
	o, err := s.Open(ctx, p.m.Whole)
	if err != nil {
		return err
	}
	defer closeQuiet(o)
	buf := blockPool.Get().(*[]byte)
	defer blockPool.Put(buf)
	for i, b := range p.m.Blocks {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := o.ReadAt((*buf)[:b.Size], p.offs[i])
		if err != nil && err != io.EOF {
			return err
		}
		if cas.Sum((*buf)[:n]) != b.Digest {
			return forgeyard.Errorf(op, forgeyard.Corrupt, "%s is here and block %d of manifest %s does not match it: the manifest is wrong", p.m.Whole, i, p.id)
		}
	}
	j := newJob(cas.Cache)
	j.files = []file{{digest: p.m.Whole, size: p.m.Size}}
	j.proved = []proof{{whole: p.m.Whole, digest: p.id, m: p.m, plain: isPlain(p.m)}}
	if err := s.submit(j); err != nil {
		return err
	}
	p.done.Store(true)
	return nil
}

func (p *partialState) resume(ctx context.Context, f *os.File) error {
	s := p.s
	st, err := f.Stat()
	if err != nil {
		return err
	}
	rec, known := s.partialRecord(p.id)
	whole := st.Size() == p.m.Size
	if known {
		p.marked = rec.Have
	}
	if whole && known {
		for i := range p.have {
			if rec.has(i) {
				p.have[i], p.bytes = true, p.bytes+p.m.Blocks[i].Size
			}
		}
	}
	if !whole {
		if err := f.Truncate(p.m.Size); err != nil {
			return err
		}
	}
	if p.res, err = s.reserve("cas partial", p.m.Size-p.bytes); err != nil {
		if st.Size() == 0 {
			_ = os.Remove(f.Name()) // it was made for this; else it goes with the next collection
		}
		return err
	}
	if err := p.recover(ctx, f, st.Size()); err != nil {
		p.res.end()
		return err
	}
	if err := p.flush(f); err != nil {
		p.res.end()
		return err
	}
	return nil
}

// recover hashes the blocks that have data and no mark.
func (p *partialState) recover(ctx context.Context, f *os.File, size int64) error {
	buf := blockPool.Get().(*[]byte)
	defer blockPool.Put(buf)
	for i := 0; i < len(p.have); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		off, b := p.offs[i], p.m.Blocks[i]
		if p.have[i] {
			continue
		}
		data := dataAfter(f, off)
		if data < 0 || off >= size {
			return nil
		}
		if data >= off+b.Size {
			continue
		}
		if _, err := f.ReadAt((*buf)[:b.Size], off); err != nil && err != io.EOF {
			return err
		}
		if cas.Sum((*buf)[:b.Size]) == b.Digest {
			p.take(i)
		}
	}
	return nil
}

// take notes that block i is verified and written. Under mu, or before anyone else has p.
func (p *partialState) take(i int) {
	b := p.m.Blocks[i]
	p.have[i], p.bytes, p.fresh = true, p.bytes+b.Size, append(p.fresh, i)
	p.res.written(b.Size)
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.fresh[b.Digest] = location{container: p.id, partial: true, off: p.offs[i], size: b.Size}
}

// Missing implements cas.Partial.
func (p *partialState) Missing() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []int
	if p.done.Load() {
		return out
	}
	for i, ok := range p.have {
		if !ok {
			out = append(out, i)
		}
	}
	return out
}

// PutBlock implements cas.Partial.
func (p *partialState) PutBlock(i int, b []byte) error {
	const op = "cas put block"
	if i < 0 || i >= len(p.have) {
		return forgeyard.Errorf(op, forgeyard.Invalid, "block %d is not in [0, %d)", i, len(p.have))
	}
	want := p.m.Blocks[i]
	part, ok := p.matches(i, b) // hashed before the lock, so that many can at once
	if !ok {
		return forgeyard.Errorf(op, forgeyard.Corrupt, "block %d of %s: %d bytes do not match %s", i, p.m.Whole, len(b), want.Digest)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.near(i) {
		p.turn.Wait() // somebody else has the same block
	}
	if p.done.Load() || p.have[i] {
		return nil
	}
	if p.f == nil {
		return forgeyard.Errorf(op, forgeyard.Conflict, "the partial blob %s is closed", p.m.Whole)
	}
	if err := p.write(i, b, part); err != nil {
		return p.s.fail(op, err)
	}
	return p.s.fail(op, p.flushSome())
}

// write brings a verified block into the file without mu, so that many are on their way to
// the disk at once, and into the hash of the whole: by its part, or in its turn.
func (p *partialState) write(i int, b []byte, part cas.Part) error {
	p.writing[i] = struct{}{}
	defer func() {
		delete(p.writing, i)
		p.turn.Broadcast()
	}()
	f, past := p.f, p.past
	if p.parts == nil && p.whole.next == i && !p.whole.busy { // now, while the processor has it in its cache
		p.absorb(func() ([]byte, bool) { return b, true })
	}
	p.mu.Unlock()
	err := p.writeTo(f, past, i, b)
	p.mu.Lock()
	if err != nil {
		return err
	}
	p.take(i)
	p.stamp(f)
	if p.parts != nil {
		p.parts.note(i, part)
		return nil
	}
	p.follow(i, b)
	return nil
}

// writeTo writes a block past the kernel's cache where that is possible. What a cache
// would keep of a large blob nobody asks it for: a workload reads a file of its own.
func (p *partialState) writeTo(f, past *os.File, i int, b []byte) error {
	if past != nil && int64(len(b)) == cas.BlockSize {
		ok, err := writePast(past, b, p.offs[i])
		if ok || err != nil {
			return err
		}
	}
	if err := writeSlices(func(b []byte, at int64) error { _, err := f.WriteAt(b, p.offs[i]+at); return err }, b); err != nil {
		return err
	}
	if !p.s.cfg.NoSync {
		writeBack(f, p.offs[i], int64(len(b)))
	}
	return nil
}

// quiesce waits until nothing is being written. The caller holds mu.
func (p *partialState) quiesce() {
	for len(p.writing) > 0 {
		p.turn.Wait()
	}
}

// flushSome flushes when enough is fresh and nobody does already. The sync is waited
// for without mu, so that more can be written meanwhile.
func (p *partialState) flushSome() error {
	if len(p.fresh) < flushBlocks || p.flushing {
		return nil
	}
	p.flushing = true
	defer func() { p.flushing = false }()
	f, fresh := p.f, slices.Clone(p.fresh)
	if !p.s.cfg.NoSync {
		p.mu.Unlock()
		err := p.s.cfg.power.file(f)
		p.mu.Lock()
		if p.f != f {
			return nil // committed or closed meanwhile, which flushed all
		}
		if err != nil {
			return err
		}
	}
	n := 0 // some may have been lost meanwhile, and others come
	for n < min(len(fresh), len(p.fresh)) && fresh[n] == p.fresh[n] {
		n++
	}
	return p.mark(n)
}

// flush syncs the data and then marks it.
func (p *partialState) flush(f *os.File) error {
	if p.known && len(p.fresh) == 0 {
		return nil
	}
	if !p.s.cfg.NoSync && len(p.fresh) > 0 {
		if err := p.s.cfg.power.file(f); err != nil {
			return err
		}
	}
	return p.mark(len(p.fresh))
}

// mark notes in the index that the first n fresh blocks are safe.
func (p *partialState) mark(n int) error {
	fresh := p.fresh[:n]
	var added int64
	err := p.s.update(func(u *update) error {
		added = 0
		for _, i := range fresh {
			l := location{off: p.offs[i], size: p.m.Blocks[i].Size, partial: true}
			added += l.size
			u.put(tBlocks, l.encode(), p.m.Blocks[i].Digest[:], p.id[:])
		}
		old, now := u.partial(p.id), p.record(p.fresh[n:])
		u.bytes += now.Have - old.Have
		p.marked = now.Have
		u.putPartial(p.id, now)
		return nil
	})
	if err != nil {
		return err
	}
	p.known = true
	p.res.counted(added)
	p.forgetFresh(fresh)
	p.fresh = slices.Delete(p.fresh, 0, n)
	return nil
}

// forgetFresh leaves it to the index to know where blocks are.
func (p *partialState) forgetFresh(blocks []int) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, i := range blocks {
		if d := p.m.Blocks[i].Digest; p.s.fresh[d].container == p.id {
			delete(p.s.fresh, d)
		}
	}
}

// record is what the index notes: all that is here, without what is not safe yet.
func (p *partialState) record(unsafe []int) partialRecord {
	r := partialRecord{Whole: p.m.Whole, Size: p.m.Size, Have: p.bytes, Bits: make([]byte, (len(p.have)+7)/8)}
	for i, ok := range p.have {
		if ok {
			r.Bits[i/8] |= 1 << (i % 8)
		}
	}
	for _, i := range unsafe {
		r.Bits[i/8] &^= 1 << (i % 8)
		r.Have -= p.m.Blocks[i].Size
	}
	return r
}

func (u *update) partial(id forgeyard.Digest) partialRecord {
	v, ok := u.get(tPartials, id[:])
	if !ok {
		return partialRecord{}
	}
	r, _ := decodePartial(v) // a damaged one counts as none
	return r
}

func (u *update) putPartial(id forgeyard.Digest, r partialRecord) {
	u.put(tPartials, marshal(r), id[:])
}

// Commit implements cas.Partial.
func (p *partialState) Commit(ctx context.Context, class cas.Class) (cas.Ref, error) {
	const op = "cas commit"
	ref := cas.Ref{Digest: p.m.Whole, Size: p.m.Size, Manifest: p.id}
	leave, err := p.s.enter(op)
	if err != nil {
		return cas.Ref{}, err
	}
	defer leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiesce()
	if p.done.Load() {
		return ref, p.s.fail(op, p.s.harden(class, ref.Digest, ref.Manifest))
	}
	if p.f == nil {
		return cas.Ref{}, forgeyard.Errorf(op, forgeyard.Conflict, "the partial blob %s is closed", p.m.Whole)
	}
	if p.bytes < p.m.Size {
		return cas.Ref{}, forgeyard.Errorf(op, forgeyard.Conflict, "%d of %d bytes of %s are still missing", p.m.Size-p.bytes, p.m.Size, p.m.Whole)
	}
	if err := p.verify(ctx, op); err != nil {
		return cas.Ref{}, err
	}
	if err := p.adopt(class); err != nil {
		return cas.Ref{}, p.s.fail(op, err)
	}
	return ref, p.s.fail(op, p.s.harden(class, ref.Digest, ref.Manifest))
}

// verify sees that all in the file is hashed. Blocks that were damaged meanwhile are
// missing again; when every block matches and the whole does not, the manifest
// itself was a lie and nothing of it is kept (C01).
func (p *partialState) verify(ctx context.Context, op string) error {
	damaged, err := p.readRest(ctx)
	if err != nil {
		return p.s.fail(op, err)
	}
	whole := p.sum()
	switch {
	case len(damaged) > 0:
		return errors.Join(forgeyard.Errorf(op, forgeyard.Corrupt, "%d blocks of %s were damaged on this disk and are missing again", len(damaged), p.m.Whole).WithHint("fetch them again"), p.lose(damaged))
	case whole != p.m.Whole:
		err := forgeyard.Errorf(op, forgeyard.Corrupt, "every block of manifest %s matches, yet the whole is %s and not %s: the manifest is wrong", p.id, whole, p.m.Whole).WithHint("ask another peer for the manifest; this one's giver lied or is broken")
		return errors.Join(err, p.discard())
	}
	return nil
}

// lose marks blocks as missing.
func (p *partialState) lose(blocks []int) error {
	for _, i := range blocks {
		p.unhash(i)
		if p.have[i] {
			p.have[i], p.bytes = false, p.bytes-p.m.Blocks[i].Size
		}
		p.fresh = slices.DeleteFunc(p.fresh, func(j int) bool { return i == j })
	}
	err := p.s.update(func(u *update) error {
		for _, i := range blocks {
			u.drop(tBlocks, p.m.Blocks[i].Digest[:], p.id[:])
		}
		old, now := u.partial(p.id), p.record(p.fresh)
		u.bytes += now.Have - old.Have
		p.marked = now.Have
		u.putPartial(p.id, now)
		return nil
	})
	var n int64
	for _, i := range blocks {
		n += p.m.Blocks[i].Size
	}
	if p.res == nil {
		return err
	}
	return errors.Join(err, p.res.grow("cas partial", n, 0))
}

// adopt gives the file its name.
func (p *partialState) adopt(class cas.Class) error {
	s := p.s
	release, _ := s.claim("", p.m.Whole, p.id)
	defer release()
	path := p.f.Name()
	p.closePast()
	err := seal(p.f)
	p.f = nil
	if err != nil {
		return err
	}
	j := newJob(class)
	j.files = []file{{digest: p.m.Whole, tmp: path, size: p.m.Size}}
	j.proved = []proof{{whole: p.m.Whole, digest: p.id, m: p.m, plain: isPlain(p.m)}}
	j.partial, j.counted = p.id, p.marked
	if err := s.submit(j); err != nil {
		f, oerr := os.OpenFile(path, os.O_RDWR, 0)
		if oerr == nil {
			p.f = f // still a partial, for another try, by way of the cache
		}
		return errors.Join(err, oerr)
	}
	if j.files[0].skip {
		_ = os.Remove(path) // the blob came from elsewhere first; a leftover goes with the next collection
	}
	p.done.Store(true)
	p.forgetFresh(p.fresh)
	p.res.end()
	return nil
}

// discard throws the partial away, file and index.
func (p *partialState) discard() error {
	p.dead.Store(true)
	err := p.s.removePartial(p.id, p.m)
	for i := range p.have {
		p.have[i] = false
	}
	p.bytes, p.fresh = 0, nil
	p.res.end()
	p.closePast()
	if p.f != nil {
		closeQuiet(p.f)
		p.f = nil
	}
	return err
}

func (p *partialState) closePast() {
	closeFile(p.past)
	p.past = nil
}

// removePartial forgets a partial and then removes its file.
func (s *Store) removePartial(id forgeyard.Digest, m cas.Manifest) error {
	err := s.update(func(u *update) error {
		u.bytes -= u.partial(id).Have
		u.dropPartial(id, m)
		return nil
	})
	if err != nil {
		return err
	}
	if err := os.Remove(s.partialPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close implements cas.Partial and is idempotent.
func (p *partial) Close() error {
	var err error
	p.once.Do(func() {
		p.s.partialMu.Lock()
		defer p.s.partialMu.Unlock()
		if p.refs--; p.refs > 0 || p.s.partials[p.id] != p.partialState {
			return
		}
		delete(p.s.partials, p.id)
		err = p.shut()
	})
	return p.s.fail("cas partial close", err)
}

// shut marks what is fresh and closes the file.
func (p *partialState) shut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiesce()
	if p.f == nil {
		return nil
	}
	p.closePast()
	err := errors.Join(p.flush(p.f), p.f.Close())
	p.f = nil
	p.res.end()
	return err
}

// forgetPartialBlock marks a block of a partial as missing, after a reader found it
// damaged.
func (s *Store) forgetPartialBlock(id, block forgeyard.Digest) {
	s.mu.Lock()
	delete(s.fresh, block)
	s.mu.Unlock()
	s.partialMu.Lock()
	p := s.partials[id]
	s.partialMu.Unlock()
	if p == nil {
		m, err := s.loadManifest(id)
		if err != nil {
			return // without its manifest nobody can go on with it
		}
		p = newPartialState(s, m, id)
		rec, _ := s.partialRecord(id)
		for i := range p.have {
			if rec.has(i) {
				p.have[i], p.bytes = true, p.bytes+m.Blocks[i].Size
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var lost []int
	for i, b := range p.m.Blocks {
		if b.Digest == block {
			lost = append(lost, i)
		}
	}
	if err := p.lose(lost); err != nil {
		s.log.Warn("cas: a damaged block of a partial blob could not be unmarked", "block", block, "err", err)
	}
}

// bestPartial finds the partial of a blob that has most of it.
func (s *Store) bestPartial(whole forgeyard.Digest) (id forgeyard.Digest, best partialRecord, ok bool) {
	for md, p := range s.partialRecords() {
		if p.Whole == whole && (!ok || p.Have > best.Have) {
			id, best, ok = md, p, true
		}
	}
	return id, best, ok
}
