package checkpoint

import (
	"cmp"
	"slices"

	"github.com/forgeyard/forgeyard-node"
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
)

func (s State) String() string {
	switch s {
	case Good:
		return "good"
	case Quarantined:
		return "quarantined"
	case Withdrawn:
		return "revoked"
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
}

// CommitOf makes the record of a manifest that has been replicated.
func CommitOf(m Manifest, at forgeyard.Wall, replicas []forgeyard.RunnerID) Commit {
	return Commit{
		Seq: m.Seq, Manifest: m.ID(), Payload: m.Payload, Bytes: m.Bytes, Attempt: m.Attempt, Epoch: m.Epoch, At: at,
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
	case len(c.Replicas) > MaxReplicas || c.Bytes < 0 || len(c.Progress.Unit) > MaxText:
		return history, bad(forgeyard.Invalid, "%d replicas, %d bytes: out of bounds", len(c.Replicas), c.Bytes)
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
	c.State, c.Failures, c.Why = Good, 0, ""
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

// Revoke withdraws one commit for ever.
func Revoke(history []Commit, manifest forgeyard.Digest, why string) ([]Commit, error) {
	return change(history, manifest, func(c *Commit) {
		if c.State != Withdrawn {
			c.State, c.Why = Withdrawn, forgeyard.Clip(why, MaxText)
		}
	})
}

// RevokeEpoch withdraws all that an epoch committed: a security stop (69§59).
func RevokeEpoch(history []Commit, epoch uint64, why string) []Commit {
	next := slices.Clone(history)
	for i := range next {
		if next[i].Epoch == epoch && next[i].State != Withdrawn {
			next[i].State, next[i].Why = Withdrawn, forgeyard.Clip(why, MaxText)
		}
	}
	return next
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

// Keep divides a history into what must stay stored, the newest keep good commits, and
// what may go. It never names a commit that Select would choose as one that may go.
func Keep(history []Commit, keep int) (stay, drop []Commit) {
	keep = max(keep, 1)
	for _, c := range slices.Backward(history) {
		if c.State == Good && len(stay) < keep {
			stay = append(stay, c)
		} else {
			drop = append(drop, c)
		}
	}
	return stay, drop
}

// NoProgress reports whether b brought nothing over a: a workload that exits with 85
// again and again without moving is a loop, not a checkpoint (FYCP/1 §6).
func NoProgress(a, b Commit) bool { return a.Payload == b.Payload && a.Progress == b.Progress }
