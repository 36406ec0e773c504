package consensus

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Preparer is a StateMachine that can work out what a command will make of the state before
// it is applied, because that depends on nothing but the state before it and the command.
type Preparer interface {
	// Prepare is given, by another goroutine than the one that calls Apply and beside it, what
	// will most likely be applied next after all that it was given so far. False: it cannot be
	// prepared. Nobody may see anything of it before it is applied, which may be never.
	Prepare(e Entry) bool
}

// preparer has a leader's state machine work while the disks write: what Apply would begin
// with once an entry is committed is done by then. What is prepared was not promised to
// anybody, and counts for nothing: Apply alone decides whether it is of use.
type preparer struct {
	m  *machine
	to Preparer

	mu   sync.Mutex
	logs []*raft.Log // to be prepared
	runs bool

	done uint64 // the last entry that was prepared whole; of the goroutine that runs
}

// take takes what the disk gets now. It reports true if somebody has to call run.
func (p *preparer) take(logs []*raft.Log) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.logs) > maxAhead {
		return false // it is far behind, and better begins anew where it can
	}
	p.logs = append(p.logs, logs...)
	begins := !p.runs
	p.runs = true
	return begins
}

// run prepares what there is.
func (p *preparer) run() {
	for {
		p.mu.Lock()
		logs := p.logs
		p.logs, p.runs = nil, len(logs) > 0
		p.mu.Unlock()
		if len(logs) == 0 {
			return
		}
		for _, l := range logs {
			if p.follows(l) && p.prepare(l) {
				p.done = l.Index
			}
		}
	}
}

// follows says that what an entry will be applied to is known: all before it is prepared, or
// applied. What is applied already needs nothing.
func (p *preparer) follows(l *raft.Log) bool {
	applied := p.m.applied.Load()
	return applied < l.Index && (applied == l.Index-1 || p.done == l.Index-1)
}

// prepare reports whether all of an entry is prepared.
func (p *preparer) prepare(l *raft.Log) bool {
	if l.Type != raft.LogCommand {
		return true // the state machine does not see it
	}
	f, err := decodeFrame(l.Data)
	if err != nil {
		return false // Apply says what is to be said
	}
	commands := f.batch
	if f.kind == frameCommand {
		commands = [][]byte{f.data}
	}
	for _, data := range commands {
		if !p.to.Prepare(Entry{Index: l.Index, Term: l.Term, Data: data}) {
			return false
		}
	}
	return true
}
