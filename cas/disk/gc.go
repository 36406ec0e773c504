package disk

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// marker collects what pins keep. Trees are told from blobs by where they are
// named, never by their bytes.
type marker struct {
	s        *Store
	keep     digestSet
	marked   func(forgeyard.Digest) // is told of each, once; nil: nobody is
	trees    digestSet
	partials map[forgeyard.Digest][]forgeyard.Digest // whole → manifests of its partials
	strict   bool                                    // a tree that is not here is an error
}

func (s *Store) newMarker() *marker {
	m := &marker{s: s, partials: map[forgeyard.Digest][]forgeyard.Digest{}}
	for id, p := range s.partialRecords() {
		m.partials[p.Whole] = append(m.partials[p.Whole], id)
	}
	return m
}

func (m *marker) kept(d forgeyard.Digest) bool { return m.keep.has(d) }

func (m *marker) mark(d forgeyard.Digest) {
	if m.marked != nil && !m.keep.has(d) {
		m.marked(d)
	}
	m.keep.add(d)
}

func (m *marker) pin(ctx context.Context, p cas.Pin) error {
	for _, d := range p.Roots {
		m.blob(ctx, d)
	}
	for _, d := range p.Trees {
		if err := m.tree(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// blob keeps the bytes of d, their manifests, and what a manifest d describes.
func (m *marker) blob(ctx context.Context, d forgeyard.Digest) {
	if d.IsZero() || m.kept(d) {
		return
	}
	m.mark(d)
	r, ok := m.s.record(d)
	if !ok && m.s.heal(ctx, "cas gc", d) == nil {
		r, _ = m.s.record(d)
	}
	for _, md := range r.Manifests {
		m.mark(md)
	}
	for _, id := range m.partials[d] {
		m.mark(id)
	}
	if whole, ok := m.s.wholeOf(d); ok {
		m.blob(ctx, whole)
	}
}

// tree keeps d and all that it names. What is not here yet has nothing to keep; the
// rest of the closure is kept all the same.
func (m *marker) tree(ctx context.Context, root forgeyard.Digest) error {
	for todo := []forgeyard.Digest{root}; len(todo) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		d := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if m.trees.has(d) {
			continue
		}
		m.trees.add(d)
		m.blob(ctx, d)
		t, err := m.s.readTree(ctx, d)
		switch {
		case forgeyard.KindOf(err) == forgeyard.NotFound && !m.strict:
			continue
		case forgeyard.KindOf(err) == forgeyard.NotFound:
			return forgeyard.Errorf("cas gc", forgeyard.Conflict, "the index was lost, and so was the pinned tree %s: what it keeps is unknown", d).WithHint("fetch it from a peer with `forgeyard-node cas get`, or unpin it")
		case forgeyard.KindOf(err) == forgeyard.Invalid || forgeyard.KindOf(err) == forgeyard.Limit || forgeyard.KindOf(err) == forgeyard.Corrupt:
			m.s.log.Warn("cas: a pinned tree cannot be followed", "digest", d, "err", err)
			continue
		case err != nil:
			return err
		}
		for _, e := range t.Entries {
			switch e.Kind {
			case cas.File:
				m.blob(ctx, e.Digest)
				m.blob(ctx, e.Manifest)
			case cas.Dir:
				m.blob(ctx, e.Manifest)
				todo = append(todo, e.Digest)
			}
		}
	}
	return nil
}

func (s *Store) readTree(ctx context.Context, d forgeyard.Digest) (cas.Tree, error) {
	o, err := s.Open(ctx, d)
	if err != nil {
		return cas.Tree{}, err
	}
	defer closeQuiet(o)
	if o.Ref().Size > cas.MaxTreeBytes {
		return cas.Tree{}, forgeyard.Errorf("cas tree", forgeyard.Limit, "%s has %d bytes, no tree is larger than %d", d, o.Ref().Size, cas.MaxTreeBytes)
	}
	b := make([]byte, o.Ref().Size)
	if _, err := o.ReadAt(b, 0); err != nil {
		return cas.Tree{}, err
	}
	return cas.DecodeTree(b)
}

// keepers lists the pins and holds that keep a blob.
func (s *Store) keepers(ctx context.Context, ds ...forgeyard.Digest) []cas.Pin {
	s.pinMu.Lock()
	pins := s.livePins()
	s.pinMu.Unlock()
	var out []cas.Pin
	for _, p := range pins {
		m := s.newMarker()
		if err := m.pin(ctx, p); err != nil {
			return out
		}
		for _, d := range ds {
			if m.kept(d) {
				out = append(out, p)
				break
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner, held := range s.holds {
		if _, ok := held[ds[0]]; ok {
			out = append(out, cas.Pin{Owner: owner, Roots: ds[:1]})
		}
	}
	return out
}

// collection is one run of GC.
type collection struct {
	*marker
	dryRun bool
	doomed map[forgeyard.Digest]struct{} // partials that this run removes; their manifests are ordinary blobs then
	report cas.GCReport
	why    gone // what the tombstones say
}

// GC implements cas.Store. It marks what the pins keep, then removes the rest a page
// at a time; between pages it takes in what was pinned meanwhile. Readers are never
// stopped: an open file outlives its name.
func (s *Store) GC(ctx context.Context, dryRun bool) (cas.GCReport, error) {
	const op = "cas gc"
	leave, err := s.enter(op)
	if err != nil {
		return cas.GCReport{}, err
	}
	defer leave()
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	c, err := s.newCollection(dryRun, goneCollected)
	if err != nil {
		return cas.GCReport{}, err
	}
	if err := c.run(ctx); err != nil {
		return c.report, s.fail(op, err)
	}
	if err := s.tidy(ctx, dryRun); err != nil {
		return c.report, s.fail(op, err)
	}
	if !dryRun {
		s.fillBallast()
	}
	return c.report, nil
}

// newCollection begins one, under gcMu.
func (s *Store) newCollection(dryRun bool, why gone) (*collection, error) {
	const op = "cas gc"
	if len(s.badPins) > 0 {
		return nil, forgeyard.Errorf(op, forgeyard.Corrupt, "the pin in %s is unreadable, so what it keeps is unknown", s.badPins[0]).WithHint("remove that file, pin again what must stay, and restart")
	}
	c := &collection{marker: s.newMarker(), dryRun: dryRun, doomed: map[forgeyard.Digest]struct{}{}, why: why}
	c.strict = s.lost
	s.pinMu.Lock()
	s.freshPins = s.livePins()
	s.pinMu.Unlock()
	return c, nil
}

func (c *collection) run(ctx context.Context) error {
	// The first marking may take long and holds no lock; what is pinned meanwhile is
	// marked before each page.
	if err := c.takePins(ctx, func() error { return nil }); err != nil {
		return err
	}
	if err := c.sweepPartials(ctx); err != nil {
		return err
	}
	for after := []byte(nil); ; {
		page, last, err := c.page(after)
		if err != nil {
			return err
		}
		if len(page) > 0 {
			if err := c.takePins(ctx, func() error { return c.remove(page) }); err != nil {
				return err
			}
		}
		if last == nil {
			break
		}
		after = last
	}
	return c.sweepStrays(ctx)
}

// tidy ends a collection that found all that is pinned.
func (s *Store) tidy(ctx context.Context, dryRun bool) error {
	if dryRun {
		return nil
	}
	if s.lost {
		if err := s.update(func(u *update) error { u.setMeta("lost", 0); return nil }); err != nil {
			return err
		}
		s.lost = false
	}
	return errors.Join(s.forgetKept(ctx), s.forgetGone(ctx))
}

// takePins marks what was pinned since the last time. Pins wait while then runs.
func (c *collection) takePins(ctx context.Context, then func() error) error {
	for {
		c.s.pinMu.Lock()
		fresh := c.s.freshPins
		c.s.freshPins = nil
		if len(fresh) == 0 {
			defer c.s.pinMu.Unlock()
			return then()
		}
		c.s.pinMu.Unlock()
		for _, p := range fresh {
			if err := c.pin(ctx, p); err != nil {
				return err
			}
		}
	}
}

// victim is a blob that nothing keeps.
type victim struct {
	digest    forgeyard.Digest
	rec       record
	manifests []cas.Manifest
	ids       []forgeyard.Digest // of all its manifests, which go with it
}

// page examines the next objects and gives the victims among them, and where to go
// on; nil is the end.
func (c *collection) page(after []byte) (out []victim, last []byte, err error) {
	found, last, err := c.s.objectsFrom(after, gcPage)
	if err != nil {
		return nil, nil, err
	}
	for _, v := range found {
		c.report.Examined++
		switch {
		case c.kept(v.digest):
			c.report.Kept++
		case c.partOfAnother(v.digest):
			// A manifest goes with its blob, so that the blob's blocks can be found until then.
		default:
			v.manifests = c.s.readableManifests(v.rec)
			out = append(out, v)
		}
	}
	return out, last, nil
}

func (c *collection) partOfAnother(d forgeyard.Digest) bool {
	if _, ok := c.s.row(tManifests, d[:]); ok {
		return true
	}
	_, ok := c.s.row(tPartials, d[:])
	return ok && !c.isDoomed(d)
}

// objectsFrom gives the next most objects after a key, and the key to go on after; nil is
// the end.
func (s *Store) objectsFrom(after []byte, most int) (out []victim, last []byte, err error) {
	n := 0
	err = s.rows(tObjects, nil, after, func(k, v []byte) bool {
		if bytes.Equal(k, after) {
			return true
		}
		if n == most {
			return false
		}
		n++
		last = bytes.Clone(k)
		var d forgeyard.Digest
		if r, ok := decodeRecord(v); ok && copy(d[:], k) == len(k) {
			out = append(out, victim{digest: d, rec: r, ids: r.Manifests})
		}
		return true
	})
	if n < most {
		last = nil
	}
	return out, last, err
}

// remove takes the victims away, under pinMu. The index forgets first, in one
// commit, then the files of exactly these generations go.
func (c *collection) remove(page []victim) error {
	s := c.s
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	page = c.condemn(page)
	defer c.absolve(page)
	if c.dryRun {
		for _, v := range page {
			c.count(v.rec)
			for _, id := range v.ids {
				if r, ok := s.record(id); ok {
					c.count(r)
				}
			}
		}
		return nil
	}
	var gone []string
	forget := func() error {
		gone = gone[:0]
		return s.update(func(u *update) error {
			for _, v := range page {
				for _, id := range append([]forgeyard.Digest{v.digest}, v.ids...) {
					r, ok := u.record(id)
					if !ok {
						continue
					}
					ms := v.manifests
					if id != v.digest {
						ms = nil
					}
					u.dropObject(id, r.Gen, ms)
					u.bury(id, s.tombstone(r, c.why))
					if !r.Inline {
						gone = append(gone, s.blobPath(id, r.Gen))
					}
				}
			}
			return nil
		})
	}
	before := s.usedAndObjects()
	err := forget()
	if isNoSpace(err) && s.dropBallast() {
		err = forget()
	}
	if err != nil {
		return err
	}
	after := s.usedAndObjects()
	c.report.Freed += before[0] - after[0]
	c.report.Removed += before[1] - after[1]
	for _, path := range gone {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("cas: a collected file stays until the next collection", "file", path, "err", err)
		}
	}
	return nil
}

func (c *collection) count(r record) {
	c.report.Removed++
	c.report.Freed += r.Size
}

func (s *Store) usedAndObjects() [2]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2]int64{s.space.used, s.objects}
}

// condemn keeps only victims that nobody uses, holds or has pinned meanwhile, and
// marks them, so that a put which sees them in the index does not rely on them.
func (c *collection) condemn(page []victim) []victim {
	s := c.s
	s.mu.Lock()
	out := page[:0]
	for _, v := range page {
		ids := append([]forgeyard.Digest{v.digest}, v.ids...)
		free := true
		for _, d := range ids {
			if s.busy[d] > 0 || s.held[d] > 0 || c.kept(d) {
				free = false
			}
		}
		if !free {
			c.report.Kept++
			continue
		}
		for _, d := range ids {
			s.dying[d] = struct{}{}
		}
		out = append(out, v)
	}
	s.mu.Unlock()
	return c.spare(out)
}

// spare lets those go that somebody was told of. It comes after they were marked: who is
// told of one from now on hears that it is not here.
func (c *collection) spare(page []victim) []victim {
	now := c.s.cfg.Clock.Wall().Unix()
	var spared []victim
	out := page[:0]
	for _, v := range page {
		told := c.s.keptUntil(v.digest) > now
		for _, d := range v.ids {
			told = told || c.s.keptUntil(d) > now
		}
		if told {
			c.report.Kept++
			spared = append(spared, v)
			continue
		}
		out = append(out, v)
	}
	c.absolve(spared)
	return out
}

func (c *collection) absolve(page []victim) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range page {
		delete(s.dying, v.digest)
		for _, d := range v.ids {
			delete(s.dying, d)
		}
	}
}

func (c *collection) isDoomed(d forgeyard.Digest) bool { _, ok := c.doomed[d]; return ok }

// sweepPartials removes the partials that nobody keeps or has open.
func (c *collection) sweepPartials(ctx context.Context) error {
	s := c.s
	for id, p := range s.partialRecords() {
		err := c.takePins(ctx, func() error {
			s.partialMu.Lock()
			defer s.partialMu.Unlock()
			c.report.Examined++
			s.mu.Lock()
			free := s.busy[id] == 0 && s.held[id] == 0 && s.held[p.Whole] == 0
			s.mu.Unlock()
			if _, open := s.partials[id]; open || !free || c.kept(id) || c.kept(p.Whole) {
				c.report.Kept++
				return nil
			}
			c.report.Removed++
			c.report.Freed += p.Have
			c.doomed[id] = struct{}{}
			if c.dryRun {
				return nil
			}
			m, err := s.loadManifest(id)
			if err != nil {
				m = cas.Manifest{} // its block entries lead nowhere from now on
			}
			return s.removePartial(id, m)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sweepStrays removes blob and partial files that the index does not know, which a
// kill between rename and index, or a lost index, leaves. What is kept was healed
// while it was marked.
func (c *collection) sweepStrays(ctx context.Context) error {
	s := c.s
	err := filepath.WalkDir(filepath.Join(s.cfg.Dir, blobsDir), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return errors.Join(ctx.Err(), ignoreGone(err))
		}
		d, gen, ok := parseBlobName(e.Name())
		if !ok {
			return nil
		}
		return c.takePins(ctx, func() error {
			s.commitMu.Lock()
			defer s.commitMu.Unlock()
			r, known := s.record(d)
			if (known && r.Gen == gen) || (c.kept(d) && !s.present(d)) {
				return nil // the one that counts, or one that may still have to
			}
			return c.stray(path, e)
		})
	})
	if err != nil {
		return err
	}
	es, err := os.ReadDir(filepath.Join(s.cfg.Dir, partialDir))
	if err != nil {
		return err
	}
	for _, e := range es {
		d, ok := parseHex(e.Name())
		if !ok || c.kept(d) {
			continue
		}
		s.partialMu.Lock()
		_, open := s.partials[d]
		if _, known := s.partialRecords()[d]; !open && !known {
			err = c.stray(filepath.Join(s.cfg.Dir, partialDir, e.Name()), e)
		}
		s.partialMu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *collection) stray(path string, e fs.DirEntry) error {
	st, err := e.Info()
	if err != nil {
		return ignoreGone(err)
	}
	c.report.Examined++
	c.report.Removed++
	c.report.Freed += allocated(st)
	if c.dryRun {
		return nil
	}
	c.s.log.Info("cas: a file that the index does not know is removed", "file", path)
	return ignoreGone(os.Remove(path))
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Holds is what of Usage is counted as it changes: it asks no disk, and knows neither what is
// pinned nor what is free.
func (s *Store) Holds() cas.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cas.Usage{Bytes: s.space.used, Limit: s.cfg.Limit, Objects: s.objects}
}

// pinnedBytes remembers what Usage computed until pins or objects change.
type pinnedBytes struct {
	valid         bool
	pins, commits uint64
	live          int // pins that had not expired
	bytes         int64
}

// Usage implements cas.Store.
func (s *Store) Usage(ctx context.Context) (cas.Usage, error) {
	const op = "cas usage"
	d, err := diskFree(s.cfg.Dir)
	if err != nil {
		return cas.Usage{}, s.fail(op, err)
	}
	s.pinMu.Lock()
	pins, epoch := s.livePins(), s.pinEpoch
	s.pinMu.Unlock()
	s.mu.Lock()
	cached, commits := s.pinned, s.commits
	s.mu.Unlock()
	if !cached.valid || cached.pins != epoch || cached.live != len(pins) || cached.commits != commits {
		n, err := s.sumPinned(ctx, pins)
		if err != nil {
			return cas.Usage{}, s.fail(op, err)
		}
		cached = pinnedBytes{valid: true, pins: epoch, live: len(pins), commits: commits, bytes: n}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinned = cached
	return cas.Usage{Bytes: s.space.used, Limit: s.cfg.Limit, Pinned: cached.bytes, Objects: s.objects, DiskFree: d.free}, nil
}

func (s *Store) sumPinned(ctx context.Context, pins []cas.Pin) (int64, error) {
	m, n, records := s.newMarker(), int64(0), s.partialRecords()
	m.marked = func(d forgeyard.Digest) {
		if r, ok := s.record(d); ok {
			n += r.Size
		}
		n += records[d].Have
	}
	for _, p := range pins {
		if err := m.pin(ctx, p); err != nil {
			return 0, err
		}
	}
	return n, nil
}
