package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/lab"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
)

// weatherman does a plan to a world, and undoes it.
type weatherman struct {
	w    *world
	rec  *recorder
	base func(from, to int) lab.Weather
	plan []act

	stop  sync.WaitGroup
	turns [nodes + 1]sync.Mutex // of each machine, held by the act that it bears alone
	mu    sync.Mutex            // guards errs
	errs  []error
}

// run returns when the last act is undone.
func (x *weatherman) run(ctx context.Context) error {
	began := time.Now()
	for _, a := range x.plan {
		x.stop.Go(func() {
			if !pause(ctx, a.At-time.Since(began)) {
				return
			}
			x.bear(ctx, a)
		})
	}
	x.stop.Wait()
	return errors.Join(x.errs...)
}

// bear does an act and undoes it. The plan leaves room between acts of which a machine
// bears one at a time, but to fill a table of files takes a busy machine longer than the
// plan knows: the next one waits for it.
func (x *weatherman) bear(ctx context.Context, a act) {
	if a.alone() {
		turn := &x.turns[a.On[0]]
		turn.Lock()
		defer turn.Unlock()
		if ctx.Err() != nil {
			return
		}
	}
	undo, err := x.do(ctx, a)
	x.note(a, "", err)
	pause(ctx, a.For)
	if undo != nil {
		x.note(a, "over: ", undo())
	}
}

// pause waits, unless the run is over.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (x *weatherman) note(a act, prefix string, err error) {
	line := fmt.Sprintf("%8.2fs %s%s", float64(x.rec.now())/1e9, prefix, a)
	if err != nil {
		line += ": " + err.Error()
	}
	x.rec.did(line)
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		x.errs = append(x.errs, errors.New(line))
	}
}

func (x *weatherman) do(ctx context.Context, a act) (undo func() error, err error) {
	w := x.w
	switch a.What {
	case cutOneWay:
		return func() error { return w.hears(a.To, a.On, true) }, w.hears(a.To, a.On, false)
	case cutBothWays:
		return func() error { return errors.Join(w.hears(a.To, a.On, true), w.hears(a.On, a.To, true)) }, w.apart(a.On, a.To)
	case cableDown:
		return x.air(a.On, a.To, lab.Weather{Down: true}), nil
	case storm:
		return x.air(a.On, everybody(), lab.Weather{Loss: float64(a.N) / 100, Delay: 20 * time.Millisecond, Jitter: 60 * time.Millisecond}), nil
	case thinLink:
		m := w.machines[a.On[0]]
		return func() error { return m.Thin(0) }, m.Thin(int(a.N))
	case wrongClock:
		m := w.machines[a.On[0]]
		return func() error { return m.SetWall(0) }, m.SetWall(time.Duration(a.N) * time.Second)
	case fillDisk, fillInodes:
		return x.fill(a)
	case centralGone:
		return func() error { return w.upCentral(ctx) }, w.site.Central.Daemon.Kill()
	}
	return x.stopNode(a, w.site.Nodes[a.On[0]])
}

func everybody() []int {
	var all []int
	for i := range nodes + 1 {
		all = append(all, i)
	}
	return all
}

// air changes the weather of a group's frames to another.
func (x *weatherman) air(from, to []int, bad lab.Weather) func() error {
	set := func(what func(f, t int) lab.Weather) {
		for _, f := range from {
			for _, t := range to {
				if f != t {
					x.w.lab.Weather(x.w.machines[f], x.w.machines[t], what(f, t))
				}
			}
		}
	}
	set(func(int, int) lab.Weather { return bad })
	return func() error { set(x.base); return nil }
}

// fill fills a disk. The daemon may not end of it.
func (x *weatherman) fill(a act) (func() error, error) {
	m := x.w.machines[a.On[0]]
	if a.What == fillInodes {
		return m.Empty, m.FillInodes()
	}
	return m.Empty, m.Fill(a.N)
}

// stopNode ends or stops a node's daemon.
func (x *weatherman) stopNode(a act, n *localsite.Node) (func() error, error) {
	d := n.Daemon
	if d == nil {
		return nil, fmt.Errorf("%s does not run", n.Name)
	}
	switch a.What {
	case pauseProcess, pauseMachine:
		wake, err := lab.Pause(d.PID, a.What == pauseMachine)
		if wake == nil {
			return nil, err
		}
		return func() error { wake(); return nil }, err
	case kill9:
		return n.Up, n.Kill()
	case powerCut:
		err := n.Kill()
		if err == nil {
			err = x.w.machines[a.On[0]].PowerCut()
		}
		return n.Up, err
	}
	return nil, fmt.Errorf("nobody knows how to do %s", a.What)
}
