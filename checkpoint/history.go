package checkpoint

import (
	"cmp"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// State of a commit. It travels: append only.
type State uint8

const (
	// Good: may be resumed from.
	Good State = iota
	// Quarantined: resumes from it failed, or its bytes proved corrupt.
	Quarantined
	// Withdrawn: revoked after an incident (69§59). For ever.
	Withdrawn
	// Gone: nobody keeps its payload any more. What it was stays known.
	Gone
)

func (s State) String() string {
	switch s {
	case Good:
		return "good"
	case Quarantined:
		return "quarantined"
	case Withdrawn:
		return "revoked"
	case Gone:
		return "gone"
	}
	return "unknown"
}

// Commit is the log's record of one checkpoint. An attempt's history is a slice of
// them in the order of the log, which is the order of (Epoch, Seq). All functions
// below return a new slice and leave theirs alone, so that readers keep snapshots.
type Commit struct {
	Seq         int                  `cbor:"1,keyasint"`
	Manifest    forgeyard.Digest     `cbor:"2,keyasint"` // the checkpoint's identity
	Payload     forgeyard.Digest     `cbor:"3,keyasint"` // tree
	Bytes       int64                `cbor:"4,keyasint"`
	Attempt     forgeyard.AttemptID  `cbor:"5,keyasint"`
	Epoch       uint64               `cbor:"6,keyasint"`
	At          forgeyard.Wall       `cbor:"7,keyasint"`
	Replicas    []forgeyard.RunnerID `cbor:"8,keyasint,omitempty"` // acknowledged a durable copy before the commit
	Consistency Consistency          `cbor:"9,keyasint"`
	Marker      forgeyard.Digest     `cbor:"10,keyasint"`
	Progress    Progress             `cbor:"11,keyasint"`
	State       State                `cbor:"12,keyasint,omitempty"`
	Failures    int                  `cbor:"13,keyasint,omitempty"` // resumes from it that died unproductive, in a row
	Why         string               `cbor:"14,keyasint,omitempty"` // of State
	By          string               `cbor:"20,keyasint,omitempty"` // whose word State is; empty: a rule's
	Where       *machine.Place       `cbor:"22,keyasint,omitempty"` // it was taken; nil: of log format 1
	Took        time.Duration        `cbor:"23,keyasint,omitempty"` // from the seal to the proposal
	Dropped     bool                 `cbor:"21,keyasint,omitempty"` // nobody keeps its payload
	Origin      Origin               `cbor:"24,keyasint,omitzero"`  // set by Apply; zero: of log format 1
	For         []forgeyard.RunnerID `cbor:"85,keyasint,omitempty"` // who can open it; empty: it is not sealed
	Same        bool                 `cbor:"86,keyasint,omitempty"` // its files are those of the one before, which ciphertext does not show
}

// OpenTo reports whether a node can read the payload.
func (c Commit) OpenTo(r forgeyard.RunnerID) bool {
	return len(c.For) == 0 || slices.Contains(c.For, r)
}

// CommitOf makes the record of a manifest that has been replicated.
func CommitOf(m Manifest, at forgeyard.Wall, replicas []forgeyard.RunnerID) Commit {
	var where *machine.Place
	if m.Machine != nil {
		p := m.place()
		where = &p
	}
	return Commit{
		Where: where,
		Seq:   m.Seq, Manifest: m.ID(), Payload: m.Payload, Bytes: m.Bytes, Attempt: m.Attempt, Epoch: m.Epoch, At: at,
		Replicas: replicas, Consistency: m.Consistency, Marker: m.Marker, Progress: m.Progress,
	}
}

func (c Commit) order(d Commit) int {
	return cmp.Or(cmp.Compare(c.Epoch, d.Epoch), cmp.Compare(c.Seq, d.Seq))
}

// Record adds a commit. Apply has compared the fence; here the slot is checked. The
// same commit again changes nothing, so a repeated proposal is safe; another manifest
// in a used slot, or a slot out of order, is Conflict (K04). An epoch that is not the
// newest is Stale even if Apply forgot.
func Record(history []Commit, c Commit) ([]Commit, error) {
	bad := func(kind forgeyard.Kind, format string, args ...any) error {
		return forgeyard.Errorf("commit checkpoint", kind, format, args...)
	}
	switch {
	case c.Manifest.IsZero() || c.Payload.IsZero() || c.Marker.IsZero() || c.Attempt == "" || c.Epoch == 0 || c.Seq < 1 || c.Seq > MaxSeq:
		return history, bad(forgeyard.Invalid, "epoch %d seq %d: manifest, payload, marker, attempt, epoch and seq are each needed", c.Epoch, c.Seq)
	case !c.Consistency.Meets(Crash):
		return history, bad(forgeyard.Invalid, "consistency %q is never committed", forgeyard.Clip(string(c.Consistency), 40))
	case len(c.Replicas) > MaxReplicas || len(c.For) > MaxOpeners || c.Bytes < 0 || len(c.Progress.Unit) > MaxText:
		return history, bad(forgeyard.Invalid, "%d replicas, %d bytes: out of bounds", len(c.Replicas), c.Bytes)
	}
	if c.Where != nil {
		if err := c.Where.Bounded(); err != nil {
			return history, bad(forgeyard.Limit, "where it was taken: %v", err)
		}
	}
	for _, h := range history {
		if h.Attempt != c.Attempt {
			return history, bad(forgeyard.Invalid, "attempt %s, the history is of %s", forgeyard.Short(c.Attempt), forgeyard.Short(h.Attempt))
		}
		if h.order(c) == 0 && h.Manifest == c.Manifest {
			return history, nil
		}
	}
	if n := len(history); n > 0 {
		switch last := history[n-1]; {
		case c.Epoch < last.Epoch:
			return history, bad(forgeyard.Stale, "epoch %d, and epoch %d has committed", c.Epoch, last.Epoch)
		case c.order(last) <= 0:
			return history, bad(forgeyard.Conflict, "slot %d, and slot %d of epoch %d is committed", c.Seq, last.Seq, c.Epoch)
		}
	}
	c.State, c.Failures, c.Why, c.By, c.Dropped = Good, 0, "", "", false
	return trim(append(slices.Clip(slices.Clone(history)), c)), nil
}

// trim bounds the history. Commits that nobody can resume from go first, then the oldest;
// the newest stays in any case.
func trim(history []Commit) []Commit {
	for len(history) > MaxHistory {
		i := slices.IndexFunc(history[:len(history)-1], func(c Commit) bool { return c.State != Good })
		history = slices.Delete(history, max(i, 0), max(i, 0)+1)
	}
	return history
}

// Skipped says why a commit was not chosen.
type Skipped struct {
	Commit  Commit
	Finding Finding
}

// Select picks the newest good commit, whatever epoch made it (K03). exclude holds
// manifests that the caller has tried and could not use. skipped is newest first.
func Select(history []Commit, exclude ...forgeyard.Digest) (best Commit, ok bool, skipped []Skipped) {
	for _, c := range slices.Backward(history) {
		f := Finding{Verdict: Valid}
		switch {
		case c.State == Withdrawn:
			f = found(Revoked, CodeRevoked, "%s", c.Why)
		case c.State == Gone:
			f = found(Incomplete, CodeGone, "%s", c.Why)
		case c.State != Good:
			f = found(Revoked, CodeQuarantined, "%s", c.Why)
		case slices.Contains(exclude, c.Manifest):
			f = found(Unknown, CodeManifest, "it was tried and could not be used")
		case !c.Consistency.Meets(Crash):
			f = found(Incompatible, CodeConsistency, "%q is never resumed from", c.Consistency)
		}
		if f.OK() {
			return c, true, skipped
		}
		skipped = append(skipped, Skipped{c, f})
	}
	return Commit{}, false, skipped
}

// ResumeFailed counts a resume that died before it was productive, and not by a cause
// from outside: those are charged to the interruption budget. At the limit the commit
// is quarantined. rejected: the program itself said that the state is unusable (exit 86
// or `restore reject`), which counts for all at once.
func ResumeFailed(history []Commit, manifest forgeyard.Digest, c Contract, rejected bool) ([]Commit, bool, error) {
	limit := orInt(c.ResumeFailures, DefaultResumeFailures)
	quarantined := false
	next, err := change(history, manifest, func(c *Commit) {
		c.Failures++
		if c.State == Good && (rejected || c.Failures >= limit) {
			c.State, quarantined = Quarantined, true
			c.Why = "the program rejected it"
			if !rejected {
				c.Why = found(Unknown, "", "%d resumes failed, the bound is %d", c.Failures, limit).Detail
			}
		}
	})
	return next, quarantined, err
}

// ResumedWell forgets earlier failures: a resume from it was productive, that is, it
// told `restore ok` or made progress, and then committed a later checkpoint or its end.
func ResumedWell(history []Commit, manifest forgeyard.Digest) ([]Commit, error) {
	return change(history, manifest, func(c *Commit) { c.Failures = 0 })
}

// Quarantine takes a commit out of use, for a copy that proved corrupt. A revoked one
// stays revoked.
func Quarantine(history []Commit, manifest forgeyard.Digest, why string) ([]Commit, error) {
	return change(history, manifest, func(c *Commit) {
		if c.State == Good {
			c.State, c.Why = Quarantined, forgeyard.Clip(why, MaxText)
		}
	})
}

// Choose makes a commit the newest good one by a person's word: the good ones after it are set
// aside for that reason, and it is taken up again if it was set aside so itself. It returns those
// that it has set aside.
func Choose(history []Commit, manifest forgeyard.Digest, by, why string) (next, over []Commit, err error) {
	next, err = change(history, manifest, func(c *Commit) {
		if c.PassedOver() {
			c.State, c.By, c.Why, c.Failures = Good, "", "", 0
		}
	})
	if err != nil {
		return history, nil, err
	}
	i := slices.IndexFunc(next, func(c Commit) bool { return c.Manifest == manifest })
	for k := range next[i+1:] {
		if c := &next[i+1+k]; c.State == Good {
			c.State, c.By, c.Why = Quarantined, by, forgeyard.Clip("passed over: "+why, MaxText)
			over = append(over, *c)
		}
	}
	return next, over, nil
}

// PassedOver reports that a person set it aside, and that nothing else speaks against it.
func (c Commit) PassedOver() bool { return c.State == Quarantined && c.By != "" && !c.Dropped }

// Cause says which commits are withdrawn: one, all that a runner took, or all of an epoch.
type Cause struct {
	Manifest forgeyard.Digest
	Runner   forgeyard.RunnerID
	Epoch    uint64
}

// Origins are the epochs of an attempt that are still known. A commit that has its own Origin
// needs none: it is older than what a job keeps of its epochs.
type Origins map[uint64]Origin

// Origin is where one epoch came from: who ran it, and from which commit it went on.
type Origin struct {
	Runner forgeyard.RunnerID `cbor:"1,keyasint,omitempty"`
	From   forgeyard.Digest   `cbor:"2,keyasint,omitzero"` // zero: from nothing
}

// Revoke withdraws commits for ever (69§59), and with them all that came of them: what an
// epoch committed that went on from a withdrawn one. It returns how many are withdrawn now
// that were not.
func Revoke(history []Commit, cause Cause, from Origins, by, why string) ([]Commit, int) {
	next, n := slices.Clone(history), 0
	bad := map[forgeyard.Digest]bool{}
	for i := range next {
		c := &next[i]
		o := c.Origin
		if o.Runner == "" {
			o = from[c.Epoch]
		}
		of := c.Manifest == cause.Manifest || (cause.Runner != "" && o.Runner == cause.Runner) || (cause.Epoch != 0 && c.Epoch == cause.Epoch)
		if c.State == Withdrawn {
			bad[c.Manifest] = true
			continue
		}
		switch {
		case of:
			c.Why = forgeyard.Clip(why, MaxText)
		case !o.From.IsZero() && bad[o.From]:
			c.Why = forgeyard.Clip("it came of "+o.From.Short()+", which was revoked: "+why, MaxText)
		default:
			continue
		}
		c.State, c.By, bad[c.Manifest] = Withdrawn, by, true
		n++
	}
	return next, n
}

// LetGo gives up the payload of a commit; what it was stays known. One that was revoked or
// quarantined stays that.
func LetGo(history []Commit, manifest forgeyard.Digest, by, why string) ([]Commit, error) {
	return change(history, manifest, func(c *Commit) {
		c.Dropped = true
		if c.State == Good {
			c.State, c.By, c.Why = Gone, by, forgeyard.Clip(why, MaxText)
		}
	})
}

func change(history []Commit, manifest forgeyard.Digest, f func(*Commit)) ([]Commit, error) {
	i := slices.IndexFunc(history, func(c Commit) bool { return c.Manifest == manifest })
	if i < 0 {
		return history, forgeyard.Errorf("checkpoint", forgeyard.NotFound, "no commit %s in this attempt", manifest.Short())
	}
	next := slices.Clone(history)
	f(&next[i])
	return next, nil
}

// NoProgress reports whether b brought nothing over a: a workload that exits with 85
// again and again without moving is a loop, not a checkpoint (FYCP/1 §6).
func NoProgress(a, b Commit) bool {
	return (a.Payload == b.Payload || b.Same) && a.Progress == b.Progress
}
