package site

import (
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// Faults of checkpoints that a person is told (69§250). Append only.
const (
	FaultOrphan    = "orphan"    // a payload that no job has
	FaultChain     = "chain"     // what it builds on, or what is needed, is not there
	FaultSuspended = "suspended" // a job waits for a person who forgot it
	FaultLoop      = "loop"      // it is gone on from again and again, and nothing comes of it
	FaultRevoked   = "revoked"   // somebody still works from what was revoked
	FaultRetention = "retention" // more is kept than is to be kept
)

// When something is looked at as forgotten, or as a loop.
const (
	forgottenAfter = 7 * 24 * time.Hour
	loopEpochs     = 3
)

// CheckpointFault is one thing that is wrong with checkpoints, and what helps.
type CheckpointFault struct {
	What       string
	Job        forgeyard.JobID
	Checkpoint forgeyard.Digest // zero: of the job
	Detail     string
	Fix        string
}

// CheckpointFaults are those that the state shows. What lies in the store of a node, that node
// knows.
func (s *State) CheckpointFaults(now forgeyard.Wall) []CheckpointFault {
	var out []CheckpointFault
	for id := range s.Open.All() {
		j, _ := s.Jobs.Get(id)
		for _, find := range []func(Job, forgeyard.Wall) (CheckpointFault, bool){forgotten, loops, fromRevoked, fromNothing, overflows} {
			if f, ok := find(j, now); ok {
				f.Job = j.ID
				out = append(out, f)
			}
		}
	}
	return out
}

// forgotten: a person suspended it, and that was long ago (CK-283).
func forgotten(j Job, now forgeyard.Wall) (CheckpointFault, bool) {
	if j.Status != job.Suspended || j.Hold == nil || now.Time().Sub(j.Hold.At.Time()) < forgottenAfter {
		return CheckpointFault{}, false
	}
	return CheckpointFault{
		What: FaultSuspended, Detail: fmt.Sprintf("suspended by %s %s ago", j.Hold.By, now.Time().Sub(j.Hold.At.Time()).Round(time.Hour)),
		Fix: fmt.Sprintf("let it go on: forgeyard-node job resume %s; or end it: forgeyard-node job cancel %s", j.ID, j.ID),
	}, true
}

// loops: the last executions went on from one checkpoint, and none committed another (CK-284).
func loops(j Job, _ forgeyard.Wall) (CheckpointFault, bool) {
	if len(j.History) < loopEpochs || len(j.Checkpoints) == 0 {
		return CheckpointFault{}, false
	}
	last := j.History[len(j.History)-loopEpochs:]
	from := last[0].Resumed
	newest := j.Checkpoints[len(j.Checkpoints)-1].Epoch
	if from.IsZero() || newest >= last[0].Epoch || slices.ContainsFunc(last, func(e EpochRecord) bool { return e.Resumed != from }) {
		return CheckpointFault{}, false
	}
	return CheckpointFault{
		What: FaultLoop, Checkpoint: from, Detail: fmt.Sprintf("epochs %d to %d went on from it and committed nothing", last[0].Epoch, last[loopEpochs-1].Epoch),
		Fix: fmt.Sprintf("see why they ended: forgeyard-node job show %s; then go on from an older one: forgeyard-node checkpoint revoke %s --reason 'resume loop'", j.ID, from.Short()),
	}, true
}

// fromRevoked: an execution works from what nobody trusts any more (CK-285).
func fromRevoked(j Job, _ forgeyard.Wall) (CheckpointFault, bool) {
	why := j.startedFromRevoked()
	if why == "" || !j.Lease.Live() {
		return CheckpointFault{}, false
	}
	return CheckpointFault{
		What: FaultRevoked, Checkpoint: j.ResumeFrom, Detail: fmt.Sprintf("epoch %d went on from it before it was revoked: %s", j.Epoch, why),
		Fix: fmt.Sprintf("it was asked back; if its runner does not follow: forgeyard-node lease revoke %s --security --reason 'works from a revoked checkpoint'", j.ID),
	}, true
}

// fromNothing: the epoch that runs now went on from what the record does not have (CK-282).
func fromNothing(j Job, _ forgeyard.Wall) (CheckpointFault, bool) {
	if j.ResumeFrom.IsZero() || !j.Lease.Live() {
		return CheckpointFault{}, false
	}
	if _, ok := j.CheckpointOf(j.ResumeFrom); ok {
		return CheckpointFault{}, false
	}
	return CheckpointFault{
		What: FaultChain, Checkpoint: j.ResumeFrom, Detail: fmt.Sprintf("epoch %d went on from it, and the job's record has it no longer", j.Epoch),
		Fix: fmt.Sprintf("its next checkpoint stands for itself: forgeyard-node job checkpoint %s", j.ID),
	}, true
}

// overflows: more is kept than the job's retention keeps (CK-286).
func overflows(j Job, now forgeyard.Wall) (CheckpointFault, bool) {
	r, ok := j.Retention()
	if !ok {
		return CheckpointFault{}, false
	}
	over := r.Surplus(j.Checkpoints, j.owner(), now)
	if len(over) == 0 {
		return CheckpointFault{}, false
	}
	var bytes int64
	for _, s := range over {
		bytes += s.Commit.Bytes
	}
	first := over[0]
	return CheckpointFault{
		What: FaultRetention, Checkpoint: first.Commit.Manifest, Detail: fmt.Sprintf("%d checkpoints of %d bytes are kept that need not be: of the first, %s", len(over), bytes, first.Why),
		Fix: fmt.Sprintf("they go with its next checkpoint, or now: forgeyard-node checkpoint delete %s", first.Commit.Manifest.Short()),
	}, true
}
