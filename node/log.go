package node

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
	"github.com/forgeyard/forgeyard-node/site"
)

// Log yields the frames of a job's log in their order: first what reached the store,
// then, from the node that runs it, what is newer. With follow it goes on through
// epochs until the job has ended and all was sent. What could not be saved of an epoch comes
// at that epoch's end. Where a part is on a node that does not answer, that is said.
func (n *Node) Log(ctx context.Context, id forgeyard.JobID, after uint64, follow bool, send func(*forgeyardv1.LogFrame) error) error {
	s := &logSender{n: n, after: after, last: after, sent: map[uint64]uint64{}, aside: map[uint64]bool{}, silent: map[forgeyard.RunnerID]bool{}, send: send}
	epoch := uint64(0)
	for {
		changed := n.replica.Changed()
		j, ok := n.replica.State().Jobs.Get(id)
		if !ok {
			return nil
		}
		if epoch != 0 && j.Epoch != epoch {
			// The numbers of a lost runner's tail are given anew (decision 17); the epoch tells
			// them apart.
			s.last = min(s.last, j.LogSeq)
		}
		epoch = j.Epoch
		forward := func(f *forgeyardv1.LogFrame) error { return s.frame(ctx, j, f) }
		if err := n.logFromStore(ctx, j, s.last, forward); err != nil {
			return err
		}
		if !j.Lease.Live() {
			if err := s.putAside(ctx, j, j.Epoch+1, max(j.Tail, j.LogSeq)-j.LogSeq); err != nil {
				return err
			}
		} else if err := n.logFromRunner(ctx, j, s.last, follow, forward); err != nil && ctx.Err() == nil {
			if err := s.newestElsewhere(j, err); err != nil {
				return err
			}
		}
		if !follow || j.Status.Terminal() {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-n.clock.After(logRetry): // the stream from the runner may have broken
		}
	}
}

// logRetry is how soon a follower looks for its log again when nothing else happens.
const logRetry = time.Second

func (n *Node) logFromStore(ctx context.Context, j site.Job, after uint64, send func(*forgeyardv1.LogFrame) error) error {
	for _, c := range j.Log {
		if c.LastSeq <= after {
			continue
		}
		if err := n.sendChunk(ctx, j, c, send); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) sendChunk(ctx context.Context, j site.Job, c job.LogChunk, send func(*forgeyardv1.LogFrame) error) error {
	if err := n.fetch(ctx, cas.Ref{Digest: c.Digest, Size: c.Size, Manifest: c.Manifest}); err != nil {
		return err
	}
	o, err := n.store.Open(ctx, c.Digest)
	if err != nil {
		return err
	}
	defer o.Close()
	for f, err := range spool.DecodeFrames(o) {
		if err != nil {
			return err
		}
		if err := send(frame(j, f)); err != nil {
			return err
		}
	}
	return nil
}

func frame(j site.Job, f spool.Frame) *forgeyardv1.LogFrame {
	v := &forgeyardv1.LogFrame{AttemptId: string(j.Attempt), Seq: f.Seq, Epoch: f.Epoch, Stream: f.Stream.String(), At: timestamppb.New(f.At.Time()), Data: f.Bytes}
	if i := int(f.Step) - 1; i >= 0 && i < len(j.Spec.Steps) {
		v.Step = j.Spec.Steps[i].Name
	}
	return v
}

// logFromRunner reads what only the runner has, until the epoch's log ends.
func (n *Node) logFromRunner(ctx context.Context, j site.Job, after uint64, follow bool, send func(*forgeyardv1.LogFrame) error) error {
	holder := j.Lease.Authority.Runner
	if holder == n.enrolment.RunnerID {
		return n.tailHere(ctx, j.Attempt, after, follow, send)
	}
	c, err := n.peers.runner(holder)
	if err != nil {
		return err
	}
	// The stream ends with the epoch's log, or when the runner is gone for good: the
	// mesh pings idle connections.
	st, err := c.Log(ctx, connect.NewRequest(&forgeyardv1.PeerLogRequest{AttemptId: string(j.Attempt), After: after, Follow: follow}))
	if err != nil {
		return err
	}
	for st.Receive() {
		if err := send(st.Msg()); err != nil {
			return errors.Join(err, st.Close())
		}
	}
	return errors.Join(st.Err(), st.Close())
}

// tailHere reads the log of an attempt that runs here.
func (n *Node) tailHere(ctx context.Context, a forgeyard.AttemptID, after uint64, follow bool, send func(*forgeyardv1.LogFrame) error) error {
	for _, x := range n.local.executions() {
		if x.authority.Attempt != a {
			continue
		}
		sp := x.spool()
		if sp == nil {
			return nil // not prepared yet
		}
		for f, err := range sp.Tail(ctx, after+1, follow) {
			if err != nil {
				return err
			}
			if err := send(frame(x.job, f)); err != nil {
				return err
			}
		}
		return nil
	}
	return forgeyard.Errorf("log", forgeyard.NotFound, "attempt %s does not run on %s", a, n.enrolment.Name)
}

func (x *execution) spool() *spool.Spool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.attempt == nil {
		return nil
	}
	return x.attempt.Log()
}
