package runner

import (
	"context"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/quota"
)

// stage is how far a stop has come.
//
//	none → asked (a checkpoint) → waiting (a critical section) → signalled → killed
//
// Stages are skipped where there is nothing to wait for; they never go back, but
// for a suspend that was refused.
type stage uint8

const (
	stageNone stage = iota
	stageAsked
	stageWaiting
	stageSignalled
	stageKilled
)

// watch follows one running step. One goroutine owns it.
type watch struct {
	a       *Attempt
	h       executor.Handle
	folders Folders
	late    <-chan time.Time // the run time is over

	order order
	stage stage
	timer <-chan time.Time  // of the stage
	due   forgeyard.Instant // when it comes

	counting chan string // the files are being counted

	looking chan looked        // a look is under way
	stop    context.CancelFunc // of the look
}

type looked struct {
	c   Captured
	err error
}

// run returns when the main program has ended or its tree was killed.
func (w *watch) run() {
	tick, disk := w.tick(), w.diskTick()
	w.obey()
	for {
		select {
		case <-w.h.Done():
			return
		case <-w.a.ctx.Done():
			w.strike()
			return
		case <-w.a.bell:
			w.obey()
		case <-w.late:
			w.a.give(order{kind: checkpoint.StopTimeout, reason: "the run time of " + w.a.task.Spec.Timeouts.Run.String() + " is over"})
			w.obey()
		case <-w.timer:
			w.expired()
		case <-tick:
			tick = w.tick()
			w.look()
		case <-disk:
			disk = w.diskTick()
			w.countDisk()
		case over := <-w.counting:
			w.counted(over)
		case l := <-w.looking:
			w.saw(l)
		}
	}
}

// tick comes when a look is due; never without checkpoints.
func (w *watch) tick() <-chan time.Time {
	if w.a.task.Checkpoints == nil || !w.a.contract.Speaks() {
		return nil
	}
	return w.a.run.cfg.Clock.After(pollEvery)
}

// diskTick comes when the disk is to be looked at; never where nothing is counted.
func (w *watch) diskTick() <-chan time.Time {
	if w.a.disk == nil {
		return nil
	}
	return w.a.run.cfg.Clock.After(quota.Look)
}

// look begins a look in a goroutine of its own: it may store gigabytes and wait for a
// quorum, and neither may delay a signal.
func (w *watch) look() {
	if w.looking != nil {
		return
	}
	ctx, cancel := context.WithCancel(w.a.ctx)
	w.stop, w.looking = cancel, make(chan looked, 1)
	f := w.folders
	f.Now = w.stage == stageAsked || w.order.kind == checkpoint.StopCheckpoint
	go func(out chan<- looked) {
		c, err := w.a.task.Checkpoints.Poll(ctx, f, false)
		out <- looked{c, err}
	}(w.looking)
}

// saw takes what a look brought.
func (w *watch) saw(l looked) {
	w.stop()
	w.looking, w.stop = nil, nil
	w.take(l)
}

func (w *watch) take(l looked) {
	if l.c.Unusable != "" {
		w.a.unusable, l.c.Unusable = l.c.Unusable, ""
	}
	if l.err != nil {
		if w.a.ctx.Err() == nil {
			w.a.note("checkpoint folders: %v", l.err)
		}
		return
	}
	switch l.c.Verdict {
	case VerdictNone:
		return
	case VerdictStale:
		w.a.endLease()
	case VerdictCommitted, VerdictContinue:
		if w.order.kind == checkpoint.StopCheckpoint {
			w.a.withdraw(w.order)
			w.reset()
		} else if w.stage == stageAsked {
			w.signal()
		}
	}
	w.a.taken = l.c
	w.a.tellCheckpoint(l.c)
}

// obey begins the order in force if it is stronger than the one being followed.
func (w *watch) obey() {
	o := w.a.asked()
	if o.strength() <= w.order.strength() {
		if o.strength() == w.order.strength() && o.until != w.order.until {
			w.hasten(o.until)
		}
		return
	}
	w.order = o
	if o.force {
		w.strike()
		return
	}
	window := w.window()
	asks := w.a.contract.Resumable() && w.savesFor(o) && window >= checkpoint.MinWindow
	w.request(checkpoint.Request{Kind: o.kind, Reason: o.reason, WantCheckpoint: asks, WantExit: o.kind != checkpoint.StopCheckpoint, Deadline: w.deadline()})
	if o.cancel {
		w.tellStopping(false)
	}
	switch {
	case o.kind == checkpoint.StopSuspend && !asks:
		w.refuse("the job has no checkpoints")
	case asks:
		w.nudge()
		if o.kind != checkpoint.StopCheckpoint && w.stage < stageAsked {
			w.enter(stageAsked, window)
		}
	case o.kind == checkpoint.StopCheckpoint:
		w.a.withdraw(o)
		w.reset()
	default:
		w.signal()
	}
}

// enter begins a stage that has so much time.
func (w *watch) enter(s stage, d time.Duration) {
	w.stage, w.timer, w.due = s, w.a.run.cfg.Clock.After(d), w.a.run.cfg.Clock.Now().Add(d)
}

// hasten gives the stage that is under way no more time than a nearer end of the machine leaves.
func (w *watch) hasten(until forgeyard.Instant) {
	w.order.until = until
	window, grace := w.budget()
	var most time.Duration
	switch w.stage {
	case stageAsked:
		most = window
		w.request(checkpoint.Request{Kind: w.order.kind, Reason: w.order.reason, WantCheckpoint: true, WantExit: true, Deadline: w.deadline()})
	case stageWaiting:
		most = w.untilSignal()
	case stageSignalled:
		most = grace
	default:
		return
	}
	w.enter(w.stage, max(0, min(most, w.due.Sub(w.a.run.cfg.Clock.Now()))))
}

// untilSignal is how long the stop signal may wait, for the grace after it to have its time.
func (w *watch) untilSignal() time.Duration {
	if w.order.until == 0 {
		return maxCritical
	}
	_, grace := w.budget()
	return max(0, w.order.until.Sub(w.a.run.cfg.Clock.Now())-grace)
}

// savesFor reports whether the job wants a checkpoint before it follows an order.
func (w *watch) savesFor(o order) bool {
	if o.kind == checkpoint.StopPreempt && w.a.task.Spec.Resume.Checkpoint.NoneOnNotice {
		return false
	}
	return o.gives() || o.save || o.kind == checkpoint.StopCheckpoint
}

// window is how long a checkpoint may take.
func (w *watch) window() time.Duration {
	window, _ := w.budget()
	return window
}

// budget is how long a checkpoint may take, and after it the end of the work.
func (w *watch) budget() (window, grace time.Duration) {
	window, grace = w.a.contract.Window, w.a.task.Spec.Stop.Grace
	if most := w.a.task.MaxGrace; most > 0 {
		grace = min(grace, most)
	}
	if w.order.save && w.order.within > 0 {
		window = min(window, w.order.within)
	}
	if w.order.until == 0 {
		return window, grace
	}
	left := w.order.until.Sub(w.a.run.cfg.Clock.Now())
	return checkpoint.Budget(window, grace, max(left, time.Millisecond))
}

// deadline is for the program to read: when the machine may be gone, and no promise.
func (w *watch) deadline() time.Time {
	if w.order.until == 0 {
		return time.Time{}
	}
	return w.a.run.cfg.Clock.Wall().Add(w.order.until.Sub(w.a.run.cfg.Clock.Now()))
}

// tellStopping tells the node how far the end of cancelled work has come.
func (w *watch) tellStopping(force bool) {
	w.a.tell(func(ctx context.Context) { w.a.hooks.Stopping(ctx, force) })
}

// request replaces request.json; a workload that spoiled its own folder is not asked.
func (w *watch) request(r checkpoint.Request) {
	if !w.a.contract.Speaks() {
		return
	}
	w.a.requests++
	r.Seq = w.a.requests
	if err := capture.WriteRequest(w.folders.Ctl, r); err != nil {
		w.a.note("request not written: %v", err)
	}
}

// nudge tells the main program alone that there is a request (K05).
func (w *watch) nudge() {
	if sig := signals[w.a.contract.Signal]; sig != 0 {
		if err := w.h.Signal(sig); err != nil {
			w.a.note("nudge: %v", err)
		}
	}
}

// reset goes back to running.
func (w *watch) reset() {
	w.order, w.stage, w.timer = order{}, stageNone, nil
	w.request(checkpoint.Request{Kind: checkpoint.StopNone})
}

func (w *watch) refuse(why string) {
	o := w.order
	w.reset()
	w.a.refuse(o, why)
}

// expired is the end of a stage's time.
func (w *watch) expired() {
	w.timer = nil
	switch w.stage {
	case stageAsked:
		if w.order.kind == checkpoint.StopSuspend {
			w.refuse("no checkpoint within " + w.window().String())
			return
		}
		w.signal()
	case stageWaiting:
		w.terminate()
	case stageSignalled:
		w.strike()
	}
}

// signal leads to the stop signal; a critical section may put it off once, by its
// own length and ours.
func (w *watch) signal() {
	if w.stage >= stageWaiting {
		return
	}
	c, in, err := capture.ReadCritical(w.folders.Ctl)
	if w.a.contract.Speaks() && err == nil && in {
		w.enter(stageWaiting, min(time.Duration(max(c.MaxMillis, 0))*time.Millisecond, maxCritical, w.untilSignal()))
		return
	}
	w.terminate()
}

func (w *watch) terminate() {
	sig, ok := signals[w.a.task.Spec.Stop.Signal]
	if !ok {
		sig = signals["TERM"]
	}
	if err := w.h.SignalAll(sig); err != nil {
		w.a.note("stop signal: %v", err)
	}
	_, grace := w.budget()
	w.enter(stageSignalled, grace)
}

func (w *watch) strike() {
	w.stage, w.timer = stageKilled, nil
	if w.order.cancel && !w.a.Lost() {
		w.tellStopping(true)
	}
	w.a.run.cfg.Ender.End(w.a.id, w.h)
}

// last, after the tree is confirmed gone, waits for a look that is under way and takes what was
// sealed before the end. A stop that ends the job does not wait for a quorum.
func (w *watch) last() {
	if w.looking != nil {
		select {
		case l := <-w.looking:
			w.saw(l)
		case <-w.a.cancelled:
			w.stop()
			w.saw(<-w.looking)
		}
	}
	if w.tick() == nil || (w.a.interruptedByEnd() != nil && (!w.a.asked().save || w.a.Lost())) {
		return
	}
	if w.a.contract.Mode == checkpoint.ModeFramework && w.h.Wait().Code == w.a.contract.ExitCode {
		return // the exit takes the cursor itself, and goes on with it
	}
	ctx, cancel := w.a.bounded(w.a.task.Spec.Timeouts.Upload, w.a.cancelled)
	defer cancel()
	c, err := w.a.task.Checkpoints.Poll(ctx, w.folders, true)
	w.take(looked{c, err})
}
