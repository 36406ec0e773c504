// Package replica is this node's copy of the site's state, and its way to change it.
//
// It feeds the log's entries to site.Apply, hands out immutable states, and carries
// proposals to whoever leads, with one request id through every retry, so that a
// lost answer never does a thing twice (decision 26f).
//
// It decides nothing about the site. Goroutines: none of its own.
package replica

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/site"
)

// Replica implements consensus.StateMachine over site.State.
type Replica struct {
	state atomic.Pointer[site.State] // what the log has built
	shown atomic.Pointer[site.State] // what others see: state, but while that is built again

	held bool // shown stays; of the goroutine that calls the consensus.StateMachine

	ahead outcomes

	mu      sync.Mutex
	changed chan struct{}
	observe []func(Applied)
}

// Applied is one entry after its application.
type Applied struct {
	Index   uint64
	Live    bool // false: replayed, or caught up with from before this process
	Command site.Command
	Reply   site.Reply
	Before  *site.State // the state that it was applied to
	State   *site.State
}

var _ consensus.StateMachine = (*Replica)(nil)

// New returns the replica of a site that was not initialised.
func New() *Replica {
	r := &Replica{changed: make(chan struct{})}
	r.state.Store(&site.State{})
	r.shown.Store(r.state.Load())
	return r
}

// Observe adds a function that sees every applied entry, in order. It runs inside
// Apply: it must be quick, and never propose. Add all before the log opens.
func (r *Replica) Observe(f func(Applied)) { r.observe = append(r.observe, f) }

// State returns the newest whole state. It never changes; keep it as long as you like.
// Later calls never return an older one: a state that is given up and built again from
// the log shows when it has come as far (RA-442).
func (r *Replica) State() *site.State { return r.shown.Load() }

// Changed returns a channel that is closed at the next change. Take it before State.
func (r *Replica) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Apply implements consensus.StateMachine.
func (r *Replica) Apply(e consensus.Entry) any {
	o := r.ahead.outcome(r.state.Load(), e)
	if err := o.next.Readable(); err != nil {
		return &consensus.Halt{Err: err} // the voters went on without this program (07§206)
	}
	r.set(o.next)
	if o.unread == nil {
		for _, f := range r.observe {
			f(Applied{Index: e.Index, Live: e.Live, Command: o.command, Reply: o.reply, Before: o.before, State: o.next})
		}
	}
	return o.reply
}

func (r *Replica) set(s *site.State) {
	r.state.Store(s)
	if !r.held {
		r.show(s)
	}
}

// Rebuilding implements consensus.StateMachine.
func (r *Replica) Rebuilding(on bool) {
	r.held = on
	if !on {
		r.show(r.state.Load())
	}
}

func (r *Replica) show(s *site.State) {
	r.shown.Store(s)
	r.mu.Lock()
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
}

// Snapshot implements consensus.StateMachine: the state is immutable, so taking it
// is a pointer, and writing it delays nobody.
func (r *Replica) Snapshot() (consensus.Snapshot, error) { return r.state.Load(), nil }

// Restore implements consensus.StateMachine.
func (r *Replica) Restore(src io.Reader, index uint64) error {
	var b bytes.Buffer
	if _, err := b.ReadFrom(src); err != nil {
		return forgeyard.E("restore", forgeyard.Other, err)
	}
	if b.Len() == 0 {
		r.set(&site.State{Index: index, Step: index})
		return nil
	}
	s, err := site.DecodeState(b.Bytes())
	if errors.Is(err, site.ErrUnreadable) {
		return &consensus.Halt{Err: err}
	}
	if err != nil {
		return err
	}
	r.set(s)
	return nil
}

// Hasher implements consensus.StateMachine.
func (r *Replica) Hasher() func() [32]byte {
	s := r.state.Load()
	return func() [32]byte { return s.Hash() }
}

// Hash names the state that the log has built.
func (r *Replica) Hash() [32]byte { return r.Hasher()() }
