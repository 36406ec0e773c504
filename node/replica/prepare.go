package replica

import (
	"bytes"
	"sync"

	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/site"
)

// outcome is what one command makes of one state. It is a function of the two and of the
// entry's place in the log, so it is the same whenever and wherever it is worked out.
type outcome struct {
	index, term uint64
	data        []byte
	before      *site.State

	next    *site.State
	command site.Command
	unread  error
	reply   site.Reply
}

func outcomeOf(before *site.State, e consensus.Entry) outcome {
	o := outcome{index: e.Index, term: e.Term, data: e.Data, before: before}
	o.command, o.unread = site.Decode(e.Data)
	o.next, o.reply = before.ApplyCommand(e.Index, e.Term, o.command, o.unread)
	return o
}

// is says that an outcome is that of an entry, applied to a state.
func (o *outcome) is(before *site.State, e consensus.Entry) bool {
	return o.before == before && o.index == e.Index && o.term == e.Term && bytes.Equal(o.data, e.Data)
}

// maxPrepared bounds the outcomes that wait for their entries to be committed.
const maxPrepared = 512

// outcomes are those of entries that may be applied next, in their order: each begins with
// the state that the one before ends with. Whatever else is applied makes all of them void.
type outcomes struct {
	mu   sync.Mutex
	all  []outcome
	upTo uint64 // entries that Apply has begun to work out by itself
}

var _ consensus.Preparer = (*Replica)(nil)

// Prepare implements consensus.Preparer.
func (r *Replica) Prepare(e consensus.Entry) bool {
	a := &r.ahead
	a.mu.Lock() // an Apply of this very command waits for it, and has it then
	defer a.mu.Unlock()
	if e.Index <= a.upTo || len(a.all) >= maxPrepared {
		return false
	}
	before := r.state.Load()
	if n := len(a.all); n > 0 {
		before = a.all[n-1].next
	}
	a.all = append(a.all, outcomeOf(before, e))
	return true
}

// outcome is that of an entry, applied to a state.
func (a *outcomes) outcome(before *site.State, e consensus.Entry) outcome {
	a.mu.Lock()
	if len(a.all) > 0 && a.all[0].is(before, e) {
		defer a.mu.Unlock()
		o := a.all[0]
		a.all[0] = outcome{} // let the state go
		if a.all = a.all[1:]; len(a.all) == 0 {
			a.all = nil
		}
		return o
	}
	a.all, a.upTo = nil, e.Index
	a.mu.Unlock()
	return outcomeOf(before, e)
}
