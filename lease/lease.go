// Package lease decides who may act, until when, and under which fence.
//
//	lease   offer ──▶ offered ──accept──▶ accepted ◀── the next epoch, granted in place of one
//	                     │                   │         that was continued from its checkpoint
//	                     └─────▶ ended ◀─────┘
//	        once, and with its first reason: rejected only when offered, continued only when
//	        accepted, every other reason in either state
//
//	uplink  standalone
//	        online ──silent──▶ grace ──▶ offline_authorized ──▶ exhausted
//	           ▲                  └──────────────┴──────┬──────────┘
//	           └── outbox empty ── reconciling ◀── contact
//
// Invariants:
//   - the holder stops early and the granter waits long: a holder counts from the
//     moment it sent what was granted, the granter from the moment it applied it,
//     stretched by the drift bound (decision 1);
//   - an authority is good only if every part of it equals the current one;
//   - what was used of an offline allowance only grows until the link is back.
//
// The package is pure: time enters as an argument. It moves no message, and what
// to do about an expired lease is the controllers' business.
package lease

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// State is where a lease is in its life.
type State string

// Lease states. Append only.
const (
	Offered  State = "offered"
	Accepted State = "accepted"
	Ended    State = "ended"
)

// EndReason says why a lease ended. Append only.
type EndReason string

// End reasons.
const (
	EndCompleted  EndReason = "completed"
	EndRejected   EndReason = "rejected"
	EndExpired    EndReason = "expired"        // silence beyond what the policy allows
	EndReleased   EndReason = "released"       // given back by its holder
	EndSuperseded EndReason = "superseded"     // a new session of the same runner (E09)
	EndContinued  EndReason = "continued"      // a checkpoint was committed and the next epoch granted in place
	EndRevoked    EndReason = "revoked"        // an operator or the central daemon took it
	EndRecovered  EndReason = "site_recovered" // the incarnation grew
)

// Policy is what the holder may do when it hears nothing (07§112).
type Policy = job.Connectivity

// Terms are the lengths that both sides count with. They are stored with each
// lease (E04), so a change of the site's settings never stretches a promise
// that was given.
type Terms struct {
	TTL      time.Duration `cbor:"1,keyasint"` // silence after which a Continuous holder stops
	Reassign time.Duration `cbor:"2,keyasint"` // OfflineAuthorized without protected effects: silence after which others may run it
	DriftPPM int64         `cbor:"3,keyasint"` // clock rates differ by at most this many parts in a million
	Epsilon  time.Duration `cbor:"4,keyasint"` // reading and scheduling error the granter adds
	KillMax  time.Duration `cbor:"5,keyasint"` // the longest a forced stop takes
}

// DefaultTerms are those of decision 19.
func DefaultTerms() Terms {
	return Terms{TTL: 15 * time.Second, Reassign: 15*time.Second + 2*time.Minute, DriftPPM: 10_000, Epsilon: 100 * time.Millisecond, KillMax: 2 * time.Second}
}

// Lease binds one epoch of an attempt to one session of a runner.
type Lease struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Token     uint64              `cbor:"2,keyasint"` // number of the command that granted it: the fencing token
	State     State               `cbor:"3,keyasint"`
	Policy    Policy              `cbor:"4,keyasint"`
	Terms     Terms               `cbor:"5,keyasint"`
	Protected bool                `cbor:"6,keyasint,omitempty"` // the job has protected effects
	Granted   forgeyard.Wall      `cbor:"7,keyasint"`
	EndedAt   forgeyard.Wall      `cbor:"8,keyasint,omitempty"`
	Reason    EndReason           `cbor:"9,keyasint,omitempty"`
	Detail    string              `cbor:"10,keyasint,omitempty"`
}

// Live reports whether somebody may act under the lease.
func (l Lease) Live() bool { return l.State == Offered || l.State == Accepted }

// silence is how long a holder may go on after what it last sent was granted.
func silence(p Policy, t Terms) time.Duration {
	switch p.Policy {
	case job.Grace:
		return t.TTL + p.For
	case job.OfflineAuthorized:
		return max(t.TTL, p.For)
	}
	return t.TTL
}

// HolderStop is the instant at which the holder must have stopped, counted from
// its own send of the request that was granted. left bounds it further for work
// whose authority comes from the central daemon; negative means no such bound.
func HolderStop(p Policy, t Terms, sent forgeyard.Instant, left time.Duration) forgeyard.Instant {
	d := silence(p, t)
	if left >= 0 && left < d {
		d = left
	}
	return sent.Add(d)
}

// Stretch is what a granter waits for d of a holder's time.
func Stretch(d time.Duration, t Terms) time.Duration {
	drift := time.Duration(int64(d) / 1_000_000 * t.DriftPPM)
	return d + drift + t.Epsilon
}

// WaitsForCertain reports whether nobody else may have the work before its holder has
// certainly stopped: its effects are protected, or it asks for no replacement (E04). The
// fence alone is enough for all other work.
func (l Lease) WaitsForCertain() bool { return l.Protected || l.Policy.NoReplace }

// ReassignAt is when the granter, counting from the last sign of the holder that
// it applied, may give the work to another: at once where the fence is enough, else only
// when the holder has certainly stopped.
func ReassignAt(l Lease, heard forgeyard.Instant) forgeyard.Instant {
	if l.WaitsForCertain() {
		return CertainAt(l, heard)
	}
	d := silence(l.Policy, l.Terms)
	if l.Policy.Policy == job.OfflineAuthorized {
		d = min(d, max(l.Terms.TTL, l.Terms.Reassign))
	}
	return heard.Add(Stretch(d, l.Terms))
}

// UnknownAt is when silence makes the execution unknown: the same instant as
// reassignment for unprotected work, and never later than the certain one.
func UnknownAt(l Lease, heard forgeyard.Instant) forgeyard.Instant {
	l.Protected, l.Policy.NoReplace = false, false
	return ReassignAt(l, heard)
}

// CertainAt is when the granter is certain that the holder has stopped.
func CertainAt(l Lease, heard forgeyard.Instant) forgeyard.Instant {
	return heard.Add(Stretch(silence(l.Policy, l.Terms), l.Terms) + l.Terms.KillMax)
}

// Check compares an authority with the current one, part by part, and names
// the first part that differs. Nothing commits without it.
func Check(current, a forgeyard.Authority) error {
	stale := func(what, got, want any) error {
		return forgeyard.Errorf("authority", forgeyard.Stale, "%s is %v, the current one is %v", what, got, want)
	}
	switch {
	case a.Job != current.Job:
		return stale("job", a.Job, current.Job)
	case a.Fence != current.Fence:
		return stale("fence", a.Fence, current.Fence)
	case a.Attempt != current.Attempt:
		return stale("attempt", a.Attempt, current.Attempt)
	case a.Lease != current.Lease:
		return stale("lease", a.Lease, current.Lease)
	case a.Spec != current.Spec:
		return stale("spec", a.Spec.Short(), current.Spec.Short())
	case a.Runner != current.Runner:
		return stale("runner", a.Runner, current.Runner)
	case a.Session != current.Session:
		return stale("session", a.Session, current.Session)
	}
	return nil
}

// Accept moves an offered lease to accepted. A repeat is the same acceptance.
func (l Lease) Accept(a forgeyard.Authority) (Lease, error) {
	if err := Check(l.Authority, a); err != nil {
		return l, err
	}
	switch l.State {
	case Offered:
		l.State = Accepted
		return l, nil
	case Accepted:
		return l, nil
	}
	return l, forgeyard.Errorf("accept", forgeyard.Stale, "lease %s ended: %s", l.Authority.Lease, l.Reason)
}

// End ends a lease once; a lease that has ended keeps its first reason.
func (l Lease) End(at forgeyard.Wall, why EndReason, detail string) Lease {
	if l.State == Ended {
		return l
	}
	l.State, l.EndedAt, l.Reason, l.Detail = Ended, at, why, forgeyard.Clip(detail, maxDetail)
	return l
}

// maxDetail bounds words that the log carries for people.
const maxDetail = 300

// Answer is what the leader tells a holder that asks to renew (07§119).
type Answer string

// Renewal answers. Append only.
const (
	Continue Answer = "continue"
	Cancel   Answer = "cancel" // stop, and report the cancellation
	Stale    Answer = "stale"  // stop at once, and finalise nothing
	Wait     Answer = "wait"   // not counted, nothing changes: ask again soon
)
