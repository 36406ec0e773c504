package keeper

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// How a tree that is over is swept.
const (
	reapLook   = 10 * time.Second       // one try to end a tree; the kernel may hold a process longer
	sweepGroup = 100 * time.Millisecond // between two sweeps of a control group
	sweepScan  = time.Second            // the same where all of /proc must be read
)

// parts are what a keeper needs of its machine.
type parts struct {
	now   func() forgeyard.Instant
	alarm alarm
	reap  func(context.Context, executor.Orphan) error
	say   io.Writer // what happened, for people
}

// alarm wakes the keeper. Set moves it; a past instant rings at once.
type alarm interface {
	set(at forgeyard.Instant) error
	rings() <-chan struct{}
}

// hold is one tree.
type hold struct {
	orphan  executor.Orphan
	until   forgeyard.Instant
	over    bool
	reaping bool
	next    forgeyard.Instant // of the sweep
}

func (h *hold) due() forgeyard.Instant {
	if h.over {
		return h.next
	}
	return h.until
}

// keep is the keeper's life: orders until the pipe ends, then what is still held is
// ended. Its one goroutine owns the holds and waits for nobody; each reaping has one of its
// own, so have the two ways out.
func keep(in io.Reader, out io.Writer, p parts) error {
	answers, said := newSpout(out), newSpout(p.say)
	defer answers.finish()
	defer said.finish()
	p.say = said
	k := &keeping{parts: p, held: map[string]*hold{}, reaped: make(chan reaped)}
	orders, ended := make(chan order), make(chan error, 1)
	go func() {
		r := bufio.NewReaderSize(in, maxLine)
		for {
			o, err := readOrder(r)
			if err != nil {
				ended <- err
				return
			}
			orders <- o
		}
	}()
	for {
		if err := k.look(); err != nil {
			return err
		}
		select {
		case o := <-orders:
			// An answer that nobody reads is no reason to stop counting.
			_ = writeLine(answers, k.obey(o))
		case err := <-ended:
			k.orphaned(err)
			return nil
		case r := <-k.reaped:
			k.swept(r)
		case <-p.alarm.rings():
		}
	}
}

type keeping struct {
	parts
	held   map[string]*hold
	reaped chan reaped
}

type reaped struct {
	id  string
	err error
}

func (k *keeping) obey(o order) answer {
	id := o.Orphan.ID
	h := k.held[id]
	switch o.Op {
	case opHold:
		if h == nil {
			h = &hold{}
			k.held[id] = h
		}
		h.orphan, h.until = o.Orphan, o.Until
	case opMove:
		if h != nil {
			h.until = o.Until
		}
	case opRelease:
		delete(k.held, id)
	}
	return answer{Seq: o.Seq, Now: k.now(), Over: h != nil && h.over, Held: len(k.held)}
}

// look ends what is due and sets the alarm for what is next.
func (k *keeping) look() error {
	now := k.now()
	var first forgeyard.Instant
	for id, h := range k.held {
		if h.due() <= now && !h.reaping {
			if !h.over {
				fmt.Fprintf(k.say, "keeper: %s has passed its deadline and is ended\n", id)
			}
			k.end(id, h)
		}
		if !h.reaping && (first == 0 || h.due() < first) {
			first = h.due()
		}
	}
	if first == 0 {
		return nil
	}
	return k.alarm.set(first)
}

func (k *keeping) end(id string, h *hold) {
	h.over, h.reaping = true, true
	o := h.orphan
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), reapLook)
		defer cancel()
		k.reaped <- reaped{id, k.reap(ctx, o)}
	}()
}

func (k *keeping) swept(r reaped) {
	h := k.held[r.id]
	if h == nil {
		return // released meanwhile: the daemon has confirmed its end
	}
	h.reaping = false
	every := sweepGroup
	if len(h.orphan.Cgroups) == 0 {
		every = sweepScan
	}
	h.next = k.now().Add(every)
	if r.err != nil {
		fmt.Fprintf(k.say, "keeper: %s does not end yet: %v\n", r.id, r.err)
	}
}

// orphaned ends everything that is still held, until it is gone: the daemon died, or
// said what no daemon says.
func (k *keeping) orphaned(why error) {
	if len(k.held) > 0 {
		fmt.Fprintf(k.say, "keeper: the daemon is gone (%v), %d trees are ended\n", why, len(k.held))
	}
	for id, h := range k.held {
		if !h.reaping {
			k.end(id, h)
		}
	}
	for len(k.held) > 0 {
		r := <-k.reaped
		h := k.held[r.id]
		if r.err == nil {
			delete(k.held, r.id)
			continue
		}
		fmt.Fprintf(k.say, "keeper: %s does not end yet: %v\n", r.id, r.err)
		k.end(r.id, h)
	}
}
