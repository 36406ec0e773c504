package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
	"github.com/forgeyard/forgeyard-node/site"
)

// logSender sends the frames of a job's log, each once, one epoch after the other.
type logSender struct {
	n      *Node
	send   func(*forgeyardv1.LogFrame) error
	after  uint64            // who reads has all up to here
	last   uint64            // of what is saved or runs, all up to here was sent
	epoch  uint64            // that of the last frame
	sent   map[uint64]uint64 // by epoch: the last number that was sent
	aside  map[uint64]bool   // epochs whose unsaved log was read: once is enough
	silent map[forgeyard.RunnerID]bool
	told   uint64 // the epoch of which was said that its newest part is elsewhere
}

// frame sends what is in the store or comes from a runner.
func (s *logSender) frame(ctx context.Context, j site.Job, f *forgeyardv1.LogFrame) error {
	if f.Seq <= s.last {
		return nil // seen before: from the store and from the spool alike
	}
	if f.Epoch != s.epoch {
		if err := s.putAside(ctx, j, f.Epoch, missingBefore(f)); err != nil {
			return err
		}
		s.epoch = f.Epoch
	}
	s.last, s.sent[f.Epoch] = f.Seq, f.Seq
	return s.send(f)
}

// missingBefore is how many numbers were lost before an epoch, as its first frame says.
func missingBefore(f *forgeyardv1.LogFrame) uint64 {
	var mark struct {
		Event   string `json:"event"`
		Missing uint64 `json:"missing"`
	}
	if f.Stream != spool.Structured.String() || json.Unmarshal(f.Data, &mark) != nil || mark.Event != "epoch" {
		return 0
	}
	return mark.Missing
}

// putAside sends what could not be saved of the epochs before one: it is on the node that ran
// them alone. Its numbers were given anew, so those of one epoch say nothing of another. lost
// is how much of the last of them the site knows to be missing.
func (s *logSender) putAside(ctx context.Context, j site.Job, before, lost uint64) error {
	for i, e := range j.History {
		if e.Epoch >= before || s.aside[e.Epoch] {
			continue
		}
		if e.Runner == s.n.enrolment.RunnerID || e.Runner == "" {
			if err := s.asideHere(j, e); err != nil {
				return err
			}
			continue
		}
		s.aside[e.Epoch] = true
		reached, err := s.asideThere(ctx, j, e)
		if err != nil {
			return err
		}
		if last := i+1 == len(j.History) || j.History[i+1].Epoch >= before; !reached && last && lost > 0 {
			if err := s.say(j, e.Attempt, e.Epoch, fmt.Sprintf("the rest of the log of epoch %d (%d numbers) is on %s, which does not answer", e.Epoch, lost, s.n.memberName(e.Runner))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *logSender) asideHere(j site.Job, e site.EpochRecord) error {
	if !s.n.runner.HasUnsaved(e.Attempt, e.Epoch) {
		return nil
	}
	s.aside[e.Epoch] = true
	return s.n.unsavedHere(j, e.Attempt, e.Epoch, func(f *forgeyardv1.LogFrame) error { return s.unsaved(e, f) })
}

// unsaved sends a frame that was put aside.
func (s *logSender) unsaved(e site.EpochRecord, f *forgeyardv1.LogFrame) error {
	if f.Epoch != e.Epoch { // a node of an older version answers with what runs there now
		return nil
	}
	if f.Seq <= max(s.after, s.sent[e.Epoch]) {
		return nil
	}
	s.sent[e.Epoch] = f.Seq
	return s.send(f)
}

// asideThere asks the node that ran an epoch, and reports whether it answered. One of an older
// version knows of nothing.
func (s *logSender) asideThere(ctx context.Context, j site.Job, e site.EpochRecord) (reached bool, err error) {
	if s.silent[e.Runner] {
		return false, nil
	}
	c, err := s.n.peers.runner(e.Runner)
	if err != nil {
		return false, nil // it left the site
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(askedWithin, cancel) // for its first word alone: a log may be long
	defer late.Stop()
	st, err := c.Log(ctx, connect.NewRequest(&forgeyardv1.PeerLogRequest{JobId: string(j.ID), AttemptId: string(e.Attempt), Epoch: e.Epoch, After: max(s.after, s.sent[e.Epoch])}))
	if err != nil {
		s.silent[e.Runner] = true
		return false, nil
	}
	defer func() { _ = st.Close() }() // it was only read
	for st.Receive() {
		reached = true
		late.Stop()
		if err := s.unsaved(e, st.Msg()); err != nil {
			return true, err
		}
	}
	if err := st.Err(); err == nil || forgeyard.KindOf(err) == forgeyard.NotFound {
		return true, nil
	}
	s.silent[e.Runner] = true
	return reached, nil
}

// newestElsewhere says, once for an epoch, that the end of a log is with a runner that does not
// give it.
func (s *logSender) newestElsewhere(j site.Job, why error) error {
	a := j.Lease.Authority
	if s.told == a.Fence.Epoch {
		return nil
	}
	s.told = a.Fence.Epoch
	s.n.log.Info("the newest part of a log cannot be read", "job", j.ID, "err", why)
	if forgeyard.KindOf(why) == forgeyard.NotFound {
		return nil // it answers: the work has not begun there, or is over
	}
	return s.say(j, a.Attempt, a.Fence.Epoch, fmt.Sprintf("the newest part of this log is on %s, which does not answer", s.n.memberName(a.Runner)))
}

// say sends a word about the log that is no part of it: its number is that of the frame before.
func (s *logSender) say(j site.Job, a forgeyard.AttemptID, epoch uint64, text string) error {
	return s.send(&forgeyardv1.LogFrame{AttemptId: string(a), Epoch: epoch, Seq: max(s.after, s.last, s.sent[epoch]), Stream: spool.Agent.String(), At: timestamppb.New(s.n.clock.Wall()), Data: []byte(text)})
}

// unsavedHere sends what this node put aside of an epoch's log.
func (n *Node) unsavedHere(j site.Job, a forgeyard.AttemptID, epoch uint64, send func(*forgeyardv1.LogFrame) error) error {
	for f, err := range n.runner.UnsavedLog(a, epoch) {
		if err != nil {
			n.log.Info("what was put aside of a log cannot be read", "job", j.ID, "epoch", epoch, "err", err)
			return nil
		}
		v := frame(j, f)
		v.AttemptId = string(a)
		if err := send(v); err != nil {
			return err
		}
	}
	return nil
}
