package node

import (
	"context"
	"errors"
	"fmt"
	"time"

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
		notice, err := lookAt(ctx, sources)
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

// lookAt asks all sources; one that has a notice is enough.
func lookAt(ctx context.Context, sources []preempt.Source) (*preempt.Notice, error) {
	var all []error
	for _, s := range sources {
		notice, err := s.Look(ctx)
		if notice != nil {
			return notice, nil
		}
		if err != nil {
			all = append(all, fmt.Errorf("%s: %w", s.Name(), err))
		}
	}
	return nil, errors.Join(all...)
}

// noticed follows what the sources say now. A source that cannot be asked takes nothing back.
func (n *Node) noticed(ctx context.Context, now *preempt.Notice, err error) {
	had := n.notice.Load()
	switch {
	case now != nil && had == nil:
		v := &agent.Notice{Source: now.Source}
		if !now.Deadline.IsZero() {
			// A time that has passed is as near as can be; no time at all is 0.
			v.Until = n.clock.Now().Add(max(now.Deadline.Sub(n.clock.Wall()), time.Millisecond))
		}
		n.notice.Store(v)
		n.metrics.notices.Inc()
		n.log.Warn("this machine is being taken away", "source", now.Source, "deadline", now.Deadline)
		n.nudge()
	case now == nil && err == nil && had != nil:
		n.notice.Store(nil)
		n.log.Info("this machine is no longer being taken away", "source", had.Source)
		n.tellNotice(ctx, site.Preempt{Source: had.Source, Off: true})
		n.nudge()
	}
	if v := n.notice.Load(); v != nil {
		b := site.Preempt{Source: v.Source}
		if v.Until != 0 {
			b.Left = int64(max(v.Until.Sub(n.clock.Now()), time.Millisecond))
		}
		n.tellNotice(ctx, b)
	}
}

// tellNotice brings a word of this machine into the log, once.
func (n *Node) tellNotice(ctx context.Context, b site.Preempt) {
	st := n.replica.State()
	m, ok := st.Members.Get(n.enrolment.RunnerID)
	if !ok || !st.Allows(site.FormatLeases) || (m.Notice != nil) != b.Off {
		return
	}
	b.Runner, b.Session = m.Runner, n.session
	n.tell(ctx, b)
}

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
