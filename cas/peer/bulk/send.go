package bulk

import (
	"container/heap"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

func be32(b [4]byte) uint32 { return binary.BigEndian.Uint32(b[:]) }

// write answers wants until ctx or the connection ends.
func (v *serving) write(ctx context.Context) error {
	sweep := v.Clock.Now().Add(aliveEvery)
	for {
		if now := v.Clock.Now(); now >= sweep {
			v.sweep(now)
			sweep = now.Add(aliveEvery)
		}
		its, small := v.next()
		if err := v.put(small); err != nil {
			return err
		}
		if len(its) > 0 {
			if err := v.steps(ctx, its); err != nil {
				return err
			}
			continue
		}
		if err := v.flush(); err != nil {
			return err
		}
		var tick <-chan time.Time
		if v.waiting() {
			tick = v.Clock.After(aliveEvery)
		}
		select {
		case <-v.ready:
		case <-tick:
		case <-ctx.Done():
			return context.Canceled
		}
	}
}

// next gives the most urgent item, with those of its like that follow it where they can be
// read together, and the refusals that have gathered.
func (v *serving) next() (its []item, small []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	small, v.small = v.small, nil
	its = v.some[:0]
	_, most := v.Source.(Many)
	for len(v.queue) > 0 && (len(its) == 0 || most && len(its) < maxTogether && alike(its[0], v.queue[0])) {
		its = append(its, heap.Pop(&v.queue).(item))
	}
	v.some = its
	return its, small
}

// alike reports whether two items may be objects that lie side by side.
func alike(a, b item) bool {
	may := func(it item) bool { return it.w.Count == 0 && !it.w.Check && !it.alone }
	return may(a) && may(b) && a.w.Priority == b.w.Priority
}

// steps answers items. What cannot be read with others gets in line again, by itself: it may
// be large, and something more urgent may have come.
func (v *serving) steps(ctx context.Context, its []item) error {
	if len(its) == 1 {
		return v.step(ctx, its[0])
	}
	done, err := v.together(ctx, its)
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, it := range its {
		if !done[i] {
			it.alone = true
			heap.Push(&v.queue, it)
		}
	}
	return err
}

// together answers those objects that the source has side by side, and tells which.
func (v *serving) together(ctx context.Context, its []item) (done [maxTogether]bool, err error) {
	names := make([]forgeyard.Digest, len(its))
	for i, it := range its {
		names[i] = it.w.Name
	}
	var ends []int // of each block in frames
	var who []int
	v.frames = v.frames[:0]
	v.Source.(Many).Many(ctx, names, func(i int, b []byte) {
		if len(b) == 0 || len(b) > maxSmall {
			return
		}
		v.frames = head{kindBlock, its[i].w.ID, its[i].w.First, uint32(len(b))}.append(v.frames)
		v.frames = append(v.frames, b...)
		ends, who = append(ends, len(v.frames)), append(who, i)
	})
	from := 0
	for k, i := range who {
		frame := v.frames[from:ends[k]]
		from, done[i] = ends[k], true
		it, n := its[i], len(frame)-headSize
		if open, err := v.due(ctx, it, key{it.w.ID, it.w.First}, n); err != nil || !open {
			if err != nil {
				return done, err
			}
			continue
		}
		if err := v.put(frame); err != nil {
			return done, err
		}
		v.sent(n)
	}
	return done, nil
}

func (v *serving) waiting() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.parked) > 0
}

// sweep refuses what was parked too long, and says that we live while something is.
func (v *serving) sweep(now forgeyard.Instant) {
	v.mu.Lock()
	var late []*ticket
	for t := range v.parked {
		if now >= t.it.by {
			late = append(late, t)
		}
	}
	if len(v.parked) > 0 {
		v.small = appendAlive(v.small, v.Progress())
	}
	v.mu.Unlock()
	for _, t := range late {
		if v.Parking.remove(t) {
			v.mu.Lock()
			delete(v.parked, t)
			v.mu.Unlock()
			v.refuseRest(t.it, Late)
		}
	}
}

// refuseRest refuses all that remains of an item.
func (v *serving) refuseRest(it item, r Reason) {
	n := uint32(it.w.blocks()) - it.at
	if !it.name.IsZero() {
		n = 1
	}
	v.refuseOpen(it.w.ID, it.w.First+it.at, n, r)
}

// step answers one block of an item, and queues what remains of it.
func (v *serving) step(ctx context.Context, it item) error {
	name := it.name
	if it.w.Count == 0 {
		name = it.w.Name
	}
	if !name.IsZero() {
		return v.send(ctx, it, name)
	}
	m, ok := v.manifest(ctx, it.w.Name)
	switch {
	case !ok:
		v.absent(ctx, it, it.w.Name)
		return nil
	case int64(it.w.First)+int64(it.w.Count) > int64(len(m.Blocks)):
		v.refuseRest(it, Wrong)
		return nil
	}
	one := it
	one.name = m.Blocks[it.w.First+it.at].Digest
	if it.at++; it.at < it.w.Count {
		v.mu.Lock()
		heap.Push(&v.queue, it)
		v.mu.Unlock()
	}
	return v.send(ctx, one, one.name)
}

// manifest reads a manifest and keeps the last few.
func (v *serving) manifest(ctx context.Context, name forgeyard.Digest) (cas.Manifest, bool) {
	for i, k := range v.manifests {
		if k.name == name {
			v.manifests = slices.Insert(slices.Delete(v.manifests, i, i+1), 0, k)
			return k.m, true
		}
	}
	m, err := v.Source.Manifest(ctx, name)
	if err != nil {
		return m, false
	}
	v.manifests = slices.Insert(v.manifests, 0, kept{name, m})
	v.manifests = v.manifests[:min(len(v.manifests), keptManifests)]
	return m, true
}

// send answers one block with its bytes, or as one that is absent.
func (v *serving) send(ctx context.Context, it item, name forgeyard.Digest) error {
	k := key{it.w.ID, it.w.First + it.at}
	v.mu.Lock()
	_, open := v.open[k]
	v.mu.Unlock()
	if !open {
		return nil
	}
	if o, ok := v.Source.(Opener); ok && !it.w.Check {
		if p := o.Open(name); p != nil {
			sent, err := v.stream(ctx, it, k, p)
			if sent || err != nil {
				return err
			}
		}
	}
	n, err := v.Source.Block(ctx, name, v.buf[lead:], it.w.Check)
	if err != nil || n == 0 {
		v.absent(ctx, it, name)
		return nil
	}
	if open, err := v.due(ctx, it, k, n); err != nil || !open {
		return err
	}
	if err := v.put(v.frame(k, n, n)); err != nil {
		return err
	}
	v.sent(n)
	return nil
}

// stream answers one block piece by piece. It reports false when nothing was said yet and
// the block's bytes could not be read. Later than that the connection must end: the frame
// that was begun cannot be.
func (v *serving) stream(ctx context.Context, it item, k key, p cas.Pieces) (bool, error) {
	defer func() { _ = p.Close() }() // it was read, or the error says why not
	n, at := int(p.Size()), int(min(p.Size(), pieceSize))
	if n == 0 || n > maxBody {
		return false, nil
	}
	if _, err := p.ReadAt(v.buf[lead:lead+at], 0); err != nil {
		return false, nil
	}
	if open, err := v.due(ctx, it, k, n); err != nil || !open {
		return true, err
	}
	if err := v.put(v.frame(k, n, at)); err != nil {
		return true, err
	}
	for at < n {
		piece := v.buf[lead : lead+min(pieceSize, n-at)]
		if _, err := p.ReadAt(piece, int64(at)); err != nil {
			return true, err
		}
		if err := v.put(piece); err != nil {
			return true, err
		}
		at += len(piece)
	}
	v.sent(n)
	return true, nil
}

// due waits until a block of n bytes may go, and takes it off what is open; false when it
// was cancelled.
func (v *serving) due(ctx context.Context, it item, k key, n int) (bool, error) {
	if err := v.pace(ctx, it.w.Priority, n); err != nil {
		return false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.answered(k), nil
}

// frame is the head of a block of size bytes with the first n of them, which are in buf.
func (v *serving) frame(k key, size, n int) []byte {
	at := lead - headSize
	head{kindBlock, k.id, k.index, uint32(size)}.append(v.buf[at:at])
	return v.buf[at : lead+n]
}

func (v *serving) sent(n int) {
	if v.Sent != nil {
		v.Sent(n)
	}
}

// pace waits for the peer's share of the line. What is urgent only pays for it.
func (v *serving) pace(ctx context.Context, p Priority, n int) error {
	if v.Pace == nil {
		return nil
	}
	d := v.Pace(n)
	if d <= 0 || p >= Urgent {
		return nil
	}
	for by := v.Clock.Now().Add(d); ; {
		if err := v.flush(); err != nil {
			return err
		}
		left := by.Sub(v.Clock.Now())
		if left <= 0 {
			return nil
		}
		select {
		case <-v.Clock.After(min(left, aliveEvery)):
		case <-ctx.Done():
			return context.Canceled
		}
		if left > aliveEvery { // a thin line is not silence
			if err := v.put(appendAlive(nil, v.Progress())); err != nil {
				return err
			}
		}
	}
}

// absent parks an item until name is here, or refuses it.
func (v *serving) absent(ctx context.Context, it item, name forgeyard.Digest) {
	if it.by.IsZero() {
		v.refuseRest(it, Absent)
		return
	}
	if v.Clock.Now() >= it.by {
		v.refuseRest(it, Late)
		return
	}
	t := &ticket{s: v, name: name, it: it}
	v.mu.Lock()
	v.parked[t] = struct{}{}
	v.mu.Unlock()
	v.Parking.add(t)
	// It may have come between the look and the ticket. One byte is enough to know.
	if n, err := v.Source.Block(ctx, name, v.buf[lead:], false); err == nil && n > 0 && v.Parking.remove(t) {
		v.unpark(t)
	}
}

// put writes bytes: small ones with others, large ones by themselves.
func (v *serving) put(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	v.dog.bound(&v.dog.write, len(b)+v.w.Buffered())
	defer v.dog.write.Store(0)
	if len(b) > writeBuffer/2 {
		if err := v.w.Flush(); err != nil {
			return err
		}
		_, err := v.conn.Write(b)
		return err
	}
	_, err := v.w.Write(b)
	return err
}

func (v *serving) flush() error {
	if v.w.Buffered() == 0 {
		return nil
	}
	v.dog.bound(&v.dog.write, v.w.Buffered())
	defer v.dog.write.Store(0)
	return v.w.Flush()
}
