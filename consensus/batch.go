package consensus

import (
	"context"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// batcher gathers proposals while entries are under way (group commit): what waits when
// one of them ends goes into the next entry together. A proposal that finds nothing or
// little under way goes alone and at once, so a lone caller pays nothing; beside many it
// waits for them and goes with all that waits, since half as many entries cost half as much.
//
// The answer comes from where the entry is applied, or else from the sender, whichever has
// it first. Every proposal that was put in gets one, because the last sender goes on until
// nothing waits, and raft answers every sender until the instance has stopped; then the
// callers do not wait for senders any more.
type batcher struct {
	mu      sync.Mutex
	waiting []*proposal
	senders int
	flying  int                   // commands in the entries that are under way
	flights map[*byte][]*proposal // those, by the first byte of their entry
}

type proposal struct {
	data  []byte
	sent  bool        // guarded by batcher.mu: it may be in the log
	reply chan answer // capacity 1
}

type answer struct {
	Result
	err error
}

// gather proposes a command, alone or with others, and waits for what Apply made of it.
func (in *instance) gather(ctx context.Context, op string, data []byte) (Result, error) {
	p := &proposal{data: data, reply: make(chan answer, 1)}
	b := &in.batch
	b.mu.Lock()
	if len(b.waiting) >= maxWaiting {
		b.mu.Unlock()
		return Result{}, forgeyard.Errorf(op, forgeyard.Unavailable, "%d proposals wait already", maxWaiting)
	}
	b.waiting = append(b.waiting, p)
	if b.senders == 0 || b.senders < maxSenders && b.flying < manyFlying {
		b.senders++
		go in.sendBatches(op)
	}
	b.mu.Unlock()
	select {
	case a := <-p.reply:
		return a.Result, a.err
	case <-in.quit:
		return in.lastWord(op, p)
	case <-ctx.Done():
		if b.withdraw(p) {
			return Result{}, forgeyard.E(op, forgeyard.Unavailable, context.Cause(ctx))
		}
		return Result{}, context.Cause(ctx)
	}
}

// lastWord is what a caller hears of a proposal once raft has stopped: its answer, where
// there is one.
func (in *instance) lastWord(op string, p *proposal) (Result, error) {
	select {
	case a := <-p.reply:
		return a.Result, a.err
	default:
	}
	if in.batch.withdraw(p) {
		return Result{}, in.g.unavailable(op)
	}
	return Result{}, in.whyStopped()
}

// withdraw takes a proposal back that did not leave yet.
func (b *batcher) withdraw(p *proposal) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.sent {
		return false
	}
	for i, w := range b.waiting {
		if w == p {
			b.waiting = append(b.waiting[:i:i], b.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// take removes the next batch: oldest first, within the bounds, at least one.
func (b *batcher) take() []*proposal {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, size := 0, frameHeader
	for n < len(b.waiting) && n < maxBatch {
		size += batchItem + len(b.waiting[n].data)
		if n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	if n == 0 || b.senders > 1 && b.flying >= manyFlying {
		b.senders-- // nothing waits, or another sender takes it when it is back
		return nil
	}
	batch := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	if len(b.waiting) == 0 {
		b.waiting = nil // let the answered ones go
	}
	for _, p := range batch {
		p.sent = true
	}
	b.flying += n
	return batch
}

// depart notes what is under way in an entry of these bytes.
func (b *batcher) depart(data []byte, batch []*proposal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flights == nil {
		b.flights = map[*byte][]*proposal{}
	}
	b.flights[&data[0]] = batch
}

// land is what was under way in an entry of these bytes, once.
func (b *batcher) land(data []byte) []*proposal {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.flights[&data[0]]
	if batch != nil {
		delete(b.flights, &data[0])
		b.flying -= len(batch)
	}
	return batch
}

func (in *instance) sendBatches(op string) {
	for batch := in.batch.take(); batch != nil; batch = in.batch.take() {
		in.sendBatch(op, batch)
	}
}

func (in *instance) sendBatch(op string, batch []*proposal) {
	data := encodeCommand(batch[0].data)
	if len(batch) > 1 {
		data = encodeBatch(batch)
	}
	in.batch.depart(data, batch)
	// No caller's patience ends the wait of the others: raft does, or the instance. Where
	// raft never answers, the instance's end frees the callers, and this goroutine is lost.
	r, err := in.proposeHere(op, data)
	in.answer(data, r, err)
}

// applied answers where the entry is applied: raft's own word comes by way of the sender,
// which is one more goroutine to wake. An entry is known by where its bytes are, so only
// the log of the very raft that they were given to can hold them.
func (in *instance) applied(l *raft.Log, value any) {
	in.answer(l.Data, Result{Index: l.Index, Value: value}, nil)
}

// answer gives the callers of an entry their answers, unless they have them.
func (in *instance) answer(data []byte, r Result, err error) {
	batch := in.batch.land(data)
	if batch == nil {
		return
	}
	values, _ := r.Value.([]any)
	for i, p := range batch {
		a := answer{Result: r, err: err}
		if len(batch) > 1 {
			a.Value = nil
			if i < len(values) { // there are none if the entry was skipped as a replay
				a.Value = values[i]
			}
		}
		p.reply <- a
	}
	in.g.batches.add(len(batch), err == nil)
}

// applyBatch applies the commands of one entry in their order.
func (m *machine) applyBatch(l *raft.Log, commands [][]byte) []any {
	values := make([]any, len(commands))
	live := m.live(l)
	for i, data := range commands {
		values[i] = m.fsm.Apply(Entry{Index: l.Index, Term: l.Term, Data: data, Live: live})
		if h, ok := values[i].(*Halt); ok {
			m.halt(l.Index, h)
			break
		}
	}
	return values
}

// batchCount is how well proposals gather.
type batchCount struct {
	mu       sync.Mutex
	entries  uint64
	commands uint64
}

func (c *batchCount) add(commands int, committed bool) {
	if !committed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries++
	c.commands += uint64(commands)
}

// Batches counts the entries that this node's proposals made since it was opened, and the
// commands in them. Both stay zero while Config.Batches says no.
func (g *Group) Batches() (entries, commands uint64) {
	g.batches.mu.Lock()
	defer g.batches.mu.Unlock()
	return g.batches.entries, g.batches.commands
}
