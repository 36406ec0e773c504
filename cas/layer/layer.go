// Package layer keeps trees that were materialised, so that the next workload with the
// same sources gets them without a file being written.
//
//	<hex of the root>-<bytes>-<shared>-<inodes>-<n>/tree   a layer: all of one tree
//	tmp-<n>/                                               half made, or on its way out
//
//	Get ──here──▶ touched? ──no──▶ a lease
//	 │               └──yes──▶ dropped, made anew
//	 └──not here──▶ room? ──yes──▶ tmp-<n> ──complete, renamed──▶ a lease
//	                  └──no──▶ ErrNoRoom: who asked makes a copy of its own
//
// A layer is shown to workloads where they cannot write it, and it shares nothing with
// the store that a write could reach. It is held all the same to what it was made as: each
// time it is given out its print must be the one it had (see tree.Print), and its bytes
// are held against their names at the first use in a process's life, so also after an
// unclean stop, and a day after the last such look.
//
// Invariants: what is not complete has no layer's name; what is leased is neither removed
// nor counted as room; bytes and inodes of all layers stay within the budget.
//
// It decides nothing about what is fetched or pinned, and a layer keeps nothing in the
// store: the store may forget what a layer still has.
package layer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

const (
	tmpPrefix = "tmp-"
	treeDir   = "tree"

	// checkFor is how long a look at the bytes of a layer holds.
	checkFor = 24 * time.Hour

	// pageSize is what a file's last byte takes at least.
	pageSize = 4096
)

// ErrNoRoom is in the error of a Get whose tree does not fit beside what is in use. It is
// no trouble: a copy of one's own serves as well.
var ErrNoRoom = errors.New("no room for the layer")

// Config of a cache.
type Config struct {
	Dir string // its folder; best on the filesystem of the store, for reflinks
	// MaxBytes and MaxInodes bound all layers together, by their full sizes, though files
	// that share their blocks with the store take nothing more.
	MaxBytes, MaxInodes int64
	Store               tree.Source
	Clock               clock.Clock
	Log                 *slog.Logger
}

// Cache is a folder of layers. It is safe for concurrent use.
type Cache struct {
	cfg Config

	mu      sync.Mutex // guards what follows
	layers  map[forgeyard.Digest]*entry
	making  map[forgeyard.Digest]chan struct{} // closed when it was made, or not
	leaving map[*entry]struct{}                // dropped, and still leased
	pending size                               // of what is being made
	uses    uint64                             // counts Gets: who was used last
	serial  uint64                             // of the last folder's name
	stats   Stats
}

// size is what something takes.
type size struct{ bytes, inodes int64 }

// entry is one layer.
type entry struct {
	name    string // of its folder
	root    forgeyard.Digest
	size    size
	shared  int64  // bytes that it has in common with the store
	serial  uint64 // no two folders have the same name, though they hold the same
	leases  int
	used    uint64
	print   forgeyard.Digest
	checked forgeyard.Instant // zero: not in this process's life
	dropped bool              // not given out any more; removed with the last lease
	looking chan struct{}     // somebody holds its bytes against their names; closed at the end
	failed  bool              // and found that they are not
}

// Stats tells what a cache holds and did.
type Stats struct {
	Layers, Leased               int
	Bytes, Inodes                int64
	MaxBytes, MaxInodes          int64
	Reused, Made, Refused, Wrong uint64 // gets served by a layer, by making one, not at all; layers that somebody had touched
}

// Open makes the folder, removes what is half made, and looks what layers there are by
// their names alone.
func Open(cfg Config) (*Cache, error) {
	if !filepath.IsAbs(cfg.Dir) || cfg.Store == nil || cfg.Clock == nil || cfg.Log == nil {
		return nil, forgeyard.Errorf("layers", forgeyard.Invalid, "an absolute folder, not %q, store, clock and log must be given", cfg.Dir)
	}
	c := &Cache{cfg: cfg, layers: map[forgeyard.Digest]*entry{}, making: map[forgeyard.Digest]chan struct{}{}, leaving: map[*entry]struct{}{}}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, forgeyard.E("layers", forgeyard.Unavailable, err)
	}
	l, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, forgeyard.E("layers", forgeyard.Unavailable, err)
	}
	var found []*entry
	last := map[*entry]time.Time{}
	for _, d := range l {
		e, ok := parseName(d.Name())
		st, err := d.Info()
		if !ok || err != nil || !d.IsDir() {
			c.remove(filepath.Join(cfg.Dir, d.Name()))
			continue
		}
		found, last[e] = append(found, e), st.ModTime()
	}
	slices.SortFunc(found, func(a, b *entry) int { return last[a].Compare(last[b]) })
	for _, e := range found {
		if twin, ok := c.layers[e.root]; ok {
			c.remove(filepath.Join(cfg.Dir, twin.name))
		}
		c.uses++
		e.used, c.serial = c.uses, max(c.serial, e.serial)
		c.layers[e.root] = e
	}
	c.shrink(size{})
	return c, nil
}

// folderName says all that must be known of a layer before it is looked at.
func (e *entry) folderName() string {
	return fmt.Sprintf("%s-%d-%d-%d-%d", e.root.Hex(), e.size.bytes, e.shared, e.size.inodes, e.serial)
}

// parseName is the inverse of folderName.
func parseName(s string) (*entry, bool) {
	part := strings.Split(s, "-")
	if len(part) != 5 {
		return nil, false
	}
	root, err := forgeyard.ParseDigest("b3:" + part[0])
	if err != nil {
		return nil, false
	}
	var n [4]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(part[i+1], 10, 64); err != nil || n[i] < 0 {
			return nil, false
		}
	}
	e := &entry{name: s, root: root, size: size{n[0], n[2]}, shared: n[1], serial: uint64(n[3])}
	return e, e.folderName() == s
}

// Lease keeps a layer from being removed until Release.
type Lease struct {
	Dir    string // the tree; nothing in it may be written
	Reused bool   // it was there before

	c    *Cache
	e    *entry
	once sync.Once
}

// Release ends the lease and is idempotent.
func (l *Lease) Release() {
	l.once.Do(func() {
		l.c.mu.Lock()
		l.e.leases--
		gone := l.e.dropped && l.e.leases == 0
		if gone {
			delete(l.c.leaving, l.e)
		}
		l.c.mu.Unlock()
		if gone {
			l.c.discard(l.e)
		}
	})
}

// Want says how a Get may go.
type Want struct {
	tree.Limits
	// Fetch brings the tree with all that it names into the store. It is called when no
	// layer serves.
	Fetch func(ctx context.Context) error
	// Room is how many bytes and inodes of the disk a new layer may take now; nil: what the
	// budget leaves.
	Room func() (bytes, inodes int64)
}

// Get leases the layer of a tree and makes it when there is none. ErrNoRoom: it does not
// fit. Other errors are those of tree.Materialise and of w.Fetch.
func (c *Cache) Get(ctx context.Context, root forgeyard.Digest, w Want) (*Lease, error) {
	for {
		e, wait := c.take(root)
		switch {
		case wait != nil:
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, forgeyard.E("layers", forgeyard.Interrupted, ctx.Err())
			}
		case e != nil:
			l, err := c.serve(ctx, e, w)
			if l != nil || err != nil {
				return l, err
			}
		default:
			return c.makeAlone(ctx, root, w)
		}
	}
}

// take gives a leased layer, or what to wait for, or neither: then the caller makes it.
func (c *Cache) take(root forgeyard.Digest) (*entry, chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.layers[root]; ok {
		c.lease(e)
		return e, nil
	}
	if wait, ok := c.making[root]; ok {
		return nil, wait
	}
	c.making[root] = make(chan struct{})
	return nil, nil
}

// Has reports whether there is a layer of the tree. It is looked at before it is given out.
func (c *Cache) Has(root forgeyard.Digest) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.layers[root]
	return ok
}

func (c *Cache) lease(e *entry) {
	c.uses++
	e.used = c.uses
	e.leases++
}

// serve gives out a layer that is here, or nothing if it is not what it was made as.
func (c *Cache) serve(ctx context.Context, e *entry, w Want) (*Lease, error) {
	l := &Lease{Dir: c.dir(e), Reused: true, c: c, e: e}
	err := c.look(ctx, e)
	if err == nil && w.MaxBytes > 0 && e.size.bytes > w.MaxBytes {
		// Sizes are rounded up here; a copy of one's own is bounded exactly.
		err = forgeyard.Errorf("layers", forgeyard.Limit, "%w: it takes %d bytes", ErrNoRoom, e.size.bytes)
	}
	if err == nil {
		c.count(func(s *Stats) { s.Reused++ })
		now := c.cfg.Clock.Wall()
		_ = os.Chtimes(filepath.Dir(l.Dir), now, now) // only says after a restart who was used last
		return l, nil
	}
	if errors.Is(err, ErrNoRoom) || forgeyard.KindOf(err) == forgeyard.Interrupted {
		l.Release()
		return nil, err
	}
	if errors.Is(err, errFailed) { // who found it tells it, and drops it
		c.drop(e)
		l.Release()
		return nil, nil
	}
	if forgeyard.KindOf(err) == forgeyard.NotFound { // the store forgot the tree: there is nothing to hold the layer against
		c.cfg.Log.Info("a tree that is kept for reuse cannot be looked at; it is made anew", "root", e.root, "err", err)
	} else {
		c.cfg.Log.Error("a tree that is kept for reuse is not what it was made as; it is made anew", "root", e.root, "err", err)
		c.count(func(s *Stats) { s.Wrong++ })
	}
	c.drop(e)
	l.Release()
	return nil, nil
}

// errFailed is of a layer whose bytes somebody else has just found to be wrong.
var errFailed = errors.New("it was found to be wrong")

// look sees whether a layer is still what it was made as. Several at once hold its bytes
// against their names once.
func (c *Cache) look(ctx context.Context, e *entry) error {
	for {
		p, err := tree.Print(c.dir(e))
		if err != nil {
			return forgeyard.Errorf("layers", forgeyard.Corrupt, "%s cannot be looked at: %v", c.dir(e), err)
		}
		now := c.cfg.Clock.Now()
		c.mu.Lock()
		was, known, failed := e.print, e.checked != 0, e.failed
		seen := known && now.Sub(e.checked) < checkFor
		other := e.looking
		mine := !failed && !seen && other == nil && (!known || p == was)
		if mine {
			e.looking = make(chan struct{})
		}
		c.mu.Unlock()
		switch {
		case failed:
			return errFailed
		case known && p != was:
			return forgeyard.Errorf("layers", forgeyard.Corrupt, "somebody touched %s", c.dir(e))
		case seen:
			return nil
		case mine:
			return c.check(ctx, e, p, now)
		}
		select {
		case <-other:
		case <-ctx.Done():
			return forgeyard.E("layers", forgeyard.Interrupted, ctx.Err())
		}
	}
}

// check holds a layer's bytes against their names, for all who wait for that.
func (c *Cache) check(ctx context.Context, e *entry, print forgeyard.Digest, now forgeyard.Instant) error {
	err := tree.Check(ctx, c.cfg.Store, e.root, c.dir(e), tree.Limits{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		e.print, e.checked = print, now
	}
	e.failed = err != nil && ctx.Err() == nil // else the next one looks
	close(e.looking)
	e.looking = nil
	return err
}

// drop lets nobody have the layer any more.
func (c *Cache) drop(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.dropped = true
	c.leaving[e] = struct{}{} // its lease is still the caller's
	if c.layers[e.root] == e {
		delete(c.layers, e.root)
	}
}

func (c *Cache) dir(e *entry) string { return filepath.Join(c.cfg.Dir, e.name, treeDir) }

func (c *Cache) count(f func(*Stats)) { c.mu.Lock(); f(&c.stats); c.mu.Unlock() }

// makeAlone makes a layer while whoever else wants it waits.
func (c *Cache) makeAlone(ctx context.Context, root forgeyard.Digest, w Want) (*Lease, error) {
	e, err := c.make(ctx, root, w)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.making[root])
	delete(c.making, root)
	if err != nil {
		if errors.Is(err, ErrNoRoom) {
			c.stats.Refused++
		}
		return nil, err
	}
	c.layers[root] = e
	c.lease(e)
	c.stats.Made++
	return &Lease{Dir: c.dir(e), c: c, e: e}, nil
}

func (c *Cache) make(ctx context.Context, root forgeyard.Digest, w Want) (*entry, error) {
	if err := w.Fetch(ctx); err != nil {
		return nil, err
	}
	need, err := measure(ctx, c.cfg.Store, root, w.Limits)
	if err != nil {
		return nil, err
	}
	if err := c.reserve(need, w.Room); err != nil {
		return nil, err
	}
	defer c.unreserve(need)
	e, err := c.lay(ctx, root, w.Limits, need)
	if forgeyard.KindOf(err) == forgeyard.NoSpace && c.Evict(need.bytes) > 0 {
		e, err = c.lay(ctx, root, w.Limits, need)
	}
	return e, err
}

// lay makes the folder of a layer. After an error nothing of it is left.
func (c *Cache) lay(ctx context.Context, root forgeyard.Digest, l tree.Limits, need size) (e *entry, err error) {
	e = &entry{root: root, size: need}
	at, serial := c.tempName()
	e.serial = serial
	defer func() {
		if err != nil {
			c.remove(at)
		}
	}()
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, diskError(err)
	}
	r, err := tree.Materialise(ctx, c.cfg.Store, root, filepath.Join(at, treeDir), tree.Materialisation{Limits: l})
	if err != nil {
		return nil, err
	}
	e.shared, e.checked = r.Shared, c.cfg.Clock.Now()
	e.name = e.folderName()
	if err := os.Rename(at, filepath.Join(c.cfg.Dir, e.name)); err != nil {
		return nil, diskError(err)
	}
	at = filepath.Join(c.cfg.Dir, e.name)
	e.print, err = tree.Print(c.dir(e))
	return e, err
}

func diskError(err error) error {
	if durable.Full(err) {
		return forgeyard.E("layers", forgeyard.NoSpace, err)
	}
	return forgeyard.E("layers", forgeyard.Unavailable, err)
}

// measure says what a tree takes when it is laid out, files shared with nobody.
func measure(ctx context.Context, s tree.Source, root forgeyard.Digest, l tree.Limits) (size, error) {
	need := size{inodes: 2, bytes: 2 * pageSize}
	err := tree.Walk(ctx, cas.Ref{Digest: root}, tree.FromStore(s), l, func(_ string, e cas.Entry) error {
		need.inodes++
		switch e.Kind {
		case cas.File:
			need.bytes += (e.Size + pageSize - 1) / pageSize * pageSize
		case cas.Dir:
			need.bytes += (e.Size + pageSize - 1) / pageSize * pageSize // its names take about what its tree does
		}
		return nil
	})
	return need, err
}

// reserve makes room in the budget, and sees that the disk has it too.
func (c *Cache) reserve(need size, room func() (int64, int64)) error {
	full := func(format string, args ...any) error {
		return forgeyard.Errorf("layers", forgeyard.Limit, "%w: "+format, append([]any{ErrNoRoom}, args...)...)
	}
	if need.bytes > c.cfg.MaxBytes || need.inodes > c.cfg.MaxInodes {
		return full("the tree takes %d bytes and %d inodes, all layers may take %d and %d", need.bytes, need.inodes, c.cfg.MaxBytes, c.cfg.MaxInodes)
	}
	if !c.shrink(need) {
		return full("%d bytes and %d inodes do not fit beside the layers in use", need.bytes, need.inodes)
	}
	for room != nil {
		bytes, inodes := c.spare(need, room)
		if need.bytes <= bytes && need.inodes <= inodes {
			break
		}
		if c.Evict(max(need.bytes-bytes, 1)) == 0 {
			c.unreserve(need)
			return full("the disk has %d bytes and %d inodes to spare, the tree takes %d and %d", bytes, inodes, need.bytes, need.inodes)
		}
	}
	return nil
}

// spare is what room has beside the layers that others are making, of which the disk knows
// only what is written by now. need is reserved already.
func (c *Cache) spare(need size, room func() (int64, int64)) (bytes, inodes int64) {
	c.mu.Lock()
	others := size{c.pending.bytes - need.bytes, c.pending.inodes - need.inodes}
	c.mu.Unlock()
	bytes, inodes = room()
	return bytes - others.bytes, inodes - others.inodes
}

func (c *Cache) unreserve(n size) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending.bytes -= n.bytes
	c.pending.inodes -= n.inodes
}

// shrink removes layers, the one used longest ago first, until need fits into the budget,
// and reserves it. It reports whether it does.
func (c *Cache) shrink(need size) bool {
	for {
		c.mu.Lock()
		u := c.used()
		if u.bytes+need.bytes <= c.cfg.MaxBytes && u.inodes+need.inodes <= c.cfg.MaxInodes {
			c.pending.bytes += need.bytes
			c.pending.inodes += need.inodes
			c.mu.Unlock()
			return true
		}
		e := c.oldest()
		c.mu.Unlock()
		if e == nil {
			return false
		}
		c.discard(e)
	}
}

// used is what layers and what is being made take. Under mu.
func (c *Cache) used() size {
	u := c.pending
	add := func(e *entry) { u.bytes, u.inodes = u.bytes+e.size.bytes, u.inodes+e.size.inodes }
	for _, e := range c.layers {
		add(e)
	}
	for e := range c.leaving {
		add(e)
	}
	return u
}

// oldest takes the unleased layer that was used longest ago out of the table; nil: there
// is none. Under mu.
func (c *Cache) oldest() *entry {
	var old *entry
	for _, e := range c.layers {
		if e.leases == 0 && (old == nil || e.used < old.used) {
			old = e
		}
	}
	if old != nil {
		old.dropped = true
		delete(c.layers, old.root)
	}
	return old
}

// Evict removes unleased layers until so many bytes came free, or all of them, and tells
// how many did. What a layer shares with the store does not count.
func (c *Cache) Evict(want int64) (freed int64) {
	for freed < want {
		c.mu.Lock()
		e := c.oldest()
		c.mu.Unlock()
		if e == nil {
			break
		}
		c.discard(e)
		freed += max(e.size.bytes-e.shared, 1)
	}
	return freed
}

// Evictable is how many bytes Evict could free.
func (c *Cache) Evictable() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.layers {
		if e.leases == 0 {
			n += max(e.size.bytes-e.shared, 0)
		}
	}
	return n
}

// Stats tells what it holds and did.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, u := c.stats, c.used()
	s.Layers, s.Bytes, s.Inodes, s.MaxBytes, s.MaxInodes = len(c.layers), u.bytes, u.inodes, c.cfg.MaxBytes, c.cfg.MaxInodes
	for _, e := range c.layers {
		s.Leased += min(e.leases, 1)
	}
	return s
}

// discard removes a layer that is in no table. Its name goes first, so that a crash in
// between leaves no half of it.
func (c *Cache) discard(e *entry) {
	from := filepath.Join(c.cfg.Dir, e.name)
	to, _ := c.tempName()
	if err := os.Rename(from, to); err != nil {
		to = from
	}
	c.remove(to)
}

func (c *Cache) tempName() (string, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	return filepath.Join(c.cfg.Dir, tmpPrefix+strconv.FormatUint(c.serial, 10)), c.serial
}

// remove deletes what nobody looks for any more; what stays is tried again at the start.
func (c *Cache) remove(dir string) {
	if err := tree.Remove(dir); err != nil {
		c.cfg.Log.Warn("what is left of a tree for reuse stays until the next start", "folder", dir, "err", err)
	}
}
