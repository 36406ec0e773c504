package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/preempt"
	"github.com/forgeyard/forgeyard-node/site"
)

// preemptLoop asks the machine's own sources whether it is being taken away. The first word
// counts: what runs is asked for at once, with or without a quorum, and the site is told until
// it has heard it, so that nobody places more work here.
func (n *Node) preemptLoop(ctx context.Context) error {
	cfg := n.settings().Preemption
	var sources []preempt.Source
	if cfg.File != "" {
		sources = append(sources, preempt.File(cfg.File))
	}
	if len(cfg.Command) > 0 {
		sources = append(sources, preempt.Command(cfg.Command))
	}
	if cfg.HTTP.URL != "" {
		sources = append(sources, preempt.HTTP{URL: cfg.HTTP.URL, Header: cfg.HTTP.Headers})
	}
	if len(sources) == 0 {
		return nil
	}
	trouble := ""
	for {
		notice, err := lookAt(ctx, sources, n.clock.Wall().Add(site.MaxNotice))
		if said := errText(err); said != trouble && ctx.Err() == nil {
			trouble = said
			if err != nil {
				n.log.Warn("a source of preemption notices cannot be understood", "err", err)
			}
		}
		n.noticed(ctx, notice, err)
		select {
		case <-ctx.Done():
			return nil
		case <-n.clock.After(cfg.Every):
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// lookAt asks all sources; one that has a notice is enough, and the nearest time counts. One
// that names a time further away than a notice tells is none yet.
func lookAt(ctx context.Context, sources []preempt.Source, far time.Time) (*preempt.Notice, error) {
	var all []error
	var first *preempt.Notice
	for _, s := range sources {
		notice, err := s.Look(ctx)
		switch {
		case err != nil:
			all = append(all, fmt.Errorf("%s: %w", s.Name(), err))
		case notice != nil && !notice.Deadline.After(far) && (first == nil || nearer(notice.Deadline, first.Deadline)):
			first = notice
		}
	}
	if first != nil {
		return first, nil
	}
	return nil, errors.Join(all...)
}

// nearer reports whether a time was named that is before the other, or where there was none.
func nearer(at, was time.Time) bool {
	return !at.IsZero() && (was.IsZero() || at.Before(was))
}

// noticed follows what the sources say now. A source that cannot be asked takes nothing back.
func (n *Node) noticed(ctx context.Context, now *preempt.Notice, err error) {
	had := n.notice.Load()
	switch {
	case now != nil && (had == nil || nearer(now.Deadline, n.gone)):
		// A source may say yes first and then when, and another may know of a nearer time.
		v := &agent.Notice{Source: now.Source}
		if !now.Deadline.IsZero() {
			// A time that has passed is as near as can be; no time at all is 0.
			v.Until = n.clock.Now().Add(max(now.Deadline.Sub(n.clock.Wall()), time.Millisecond))
		}
		n.gone = now.Deadline
		n.notice.Store(v)
		if had == nil {
			n.metrics.notices.Inc()
		}
		n.log.Warn("this machine is being taken away", "source", now.Source, "deadline", now.Deadline)
		n.nudge()
	case now == nil && err == nil && had != nil:
		n.notice.Store(nil)
		n.log.Info("this machine is no longer being taken away", "source", had.Source)
		n.nudge()
	}
	b, ok := n.wordOfNotice()
	if !ok || !n.saying.CompareAndSwap(false, true) {
		return
	}
	// Without a quorum it waits, and the sources are asked all the same.
	n.work.Go(func() {
		defer n.saying.Store(false)
		ctx, cancel := context.WithTimeout(ctx, noticeWait)
		defer cancel()
		n.tell(ctx, b)
	})
}

// noticeWait is how long one word of a notice waits for a quorum; then what holds now is said.
const noticeWait = 10 * time.Second

// wordOfNotice is what the log has to be told of this machine now, if anything. A word of our
// own that was given up may be committed after it was taken back, and then is taken back again;
// one of a person stays.
func (n *Node) wordOfNotice() (site.Preempt, bool) {
	st := n.replica.State()
	m, ok := st.Members.Get(n.enrolment.RunnerID)
	if !ok || !st.Allows(site.FormatLeases) {
		return site.Preempt{}, false
	}
	b := site.Preempt{Runner: m.Runner, Session: n.session}
	v := n.notice.Load()
	if v == nil {
		b.Source, b.Off = n.said, true
		return b, m.Notice != nil && n.said != "" && m.Notice.Source == n.said
	}
	if m.Notice != nil {
		return b, false
	}
	b.Source = forgeyard.Clip(v.Source, maxSource)
	n.said = b.Source
	if v.Until != 0 {
		b.Left = int64(max(v.Until.Sub(n.clock.Now()), time.Millisecond))
	}
	return b, true
}

// maxSource is of a source's name what the log takes whole.
const maxSource = 160

// Stopping implements runner.Hooks: the site shows how far a cancellation has come.
func (x *execution) Stopping(ctx context.Context, force bool) {
	stage := site.CancelGraceful
	if force {
		stage = site.CancelForced
		x.n.metrics.forced.Inc()
	}
	if x.n.replica.State().Allows(site.FormatLeases) {
		x.n.work.Go(func() { x.n.tell(ctx, site.Stopping{Authority: x.authority, Stage: stage}) })
	}
}
