package central

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// This file only decides: no I/O, no clock, no lock.

// Status is where a delegated job stands, as far as this daemon knows. Append only.
type Status string

// Statuses.
const (
	Delegated Status = "delegated" // written down; the site has not said that it took it
	Taken     Status = "accepted"  // the site has it in its log
	Done      Status = "done"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

func (s Status) terminal() bool { return s == Done || s == Failed || s == Cancelled }

// Job is one delegation and what came of it.
type Job struct {
	Grant      forgeyard.GrantID  `cbor:"1,keyasint"`
	Site       forgeyard.SiteID   `cbor:"2,keyasint"`
	Seq        uint64             `cbor:"3,keyasint"` // of the delegation
	Title      string             `cbor:"4,keyasint,omitempty"`
	Spec       forgeyard.Digest   `cbor:"5,keyasint"`
	Durability job.Durability     `cbor:"6,keyasint"`
	Term       uint64             `cbor:"7,keyasint"`
	Status     Status             `cbor:"8,keyasint"`
	Delegated  forgeyard.Wall     `cbor:"9,keyasint"`
	Job        forgeyard.JobID    `cbor:"10,keyasint,omitempty"` // at the site
	Fence      forgeyard.Fence    `cbor:"11,keyasint"`           // the highest that a record came under
	Result     *job.Result        `cbor:"12,keyasint,omitempty"`
	Runner     forgeyard.RunnerID `cbor:"13,keyasint,omitempty"`
	Ended      forgeyard.Wall     `cbor:"14,keyasint,omitempty"` // at the site
	Received   forgeyard.Wall     `cbor:"15,keyasint,omitempty"`
	Record     uint64             `cbor:"16,keyasint,omitempty"` // that brought the outcome
	Outcomes   int                `cbor:"17,keyasint,omitempty"` // accepted: none or one
	Objects    bool               `cbor:"18,keyasint,omitempty"` // all that the result names is here
	ObjectsErr string             `cbor:"19,keyasint,omitempty"` // of the last try
	CancelAt   forgeyard.Wall     `cbor:"20,keyasint,omitempty"`
	CancelSeq  uint64             `cbor:"21,keyasint,omitempty"` // delegation record that takes it back
	CancelSeen forgeyard.Wall     `cbor:"22,keyasint,omitempty"` // when the site had taken that in
	End        forgeyard.Wall     `cbor:"23,keyasint,omitempty"` // hard end of the authority, by this daemon's clock
}

// judge decides what becomes of a record that follows the last one without a gap.
// known says that the grant was given to this site. The job is changed only with
// Accepted.
func judge(j Job, known bool, r site.Record, at forgeyard.Wall) (Job, site.Verdict, string) {
	switch {
	case !known:
		return j, site.InvalidRejected, "the grant was not given to this site"
	case r.Fence.Term < j.Term:
		return j, site.StaleRejected, "it is of term " + r.Fence.String() + ", the job was given anew since"
	case r.Fence.Term > j.Term:
		return j, site.InvalidRejected, "it is of term " + r.Fence.String() + ", which was never given"
	case r.Fence.Compare(j.Fence) < 0:
		return j, site.StaleRejected, "its fence " + r.Fence.String() + " is below " + j.Fence.String() + ", under which a record was accepted"
	}
	switch r.Kind {
	case site.RecordAccepted:
		if j.Status.terminal() {
			return j, site.DuplicateAccepted, "the job has ended already"
		}
		j.Status, j.Job, j.Fence = Taken, r.Job, r.Fence
		return j, site.Accepted, ""
	case site.RecordOutcome:
		return outcome(j, r, at)
	}
	return j, site.InvalidRejected, "records of kind " + forgeyard.Clip(r.Kind, 32) + " are not known"
}

// outcome writes the terminal status, once.
func outcome(j Job, r site.Record, at forgeyard.Wall) (Job, site.Verdict, string) {
	status, ok := map[job.Status]Status{job.Done: Done, job.Failed: Failed, job.Cancelled: Cancelled}[r.Status]
	switch {
	case !ok:
		return j, site.InvalidRejected, "status " + forgeyard.Clip(string(r.Status), 32) + " is no outcome"
	case j.Status.terminal() && r.Fence == j.Fence && status == j.Status:
		return j, site.DuplicateAccepted, fmt.Sprintf("the same outcome was accepted with record %d", j.Record)
	case j.Status.terminal():
		return j, site.InvalidRejected, "the job has its outcome already: " + string(j.Status) + " under " + j.Fence.String()
	}
	j.Status, j.Job, j.Fence, j.Result, j.Runner = status, r.Job, r.Fence, r.Result, r.Runner
	j.Ended, j.Received, j.Record, j.Outcomes = r.At, at, r.Seq, j.Outcomes+1
	j.Objects = len(objectsOf(j)) == 0
	return j, site.Accepted, ""
}

// object is something that a result names.
type object struct {
	digest, manifest forgeyard.Digest
	size             int64
	tree             bool
}

// objectsOf lists what the daemon fetches: outputs and log. What is ephemeral stays
// where it was made.
func objectsOf(j Job) []object {
	if j.Result == nil || j.Durability == job.Ephemeral {
		return nil
	}
	var all []object
	for _, o := range j.Result.Outputs {
		all = append(all, object{digest: o.Digest, manifest: o.Manifest, size: o.Size, tree: o.Tree})
	}
	for _, c := range j.Result.Log {
		all = append(all, object{digest: c.Digest, manifest: c.Manifest, size: c.Size})
	}
	return all
}
