package job

import "slices"

// CancelReason is why work is ended for good (69§65). It travels: append only.
type CancelReason string

// Reasons for a cancellation (CK-115 to CK-123).
const (
	CancelUser       CancelReason = "user"
	CancelSuperseded CancelReason = "superseded" // a newer run replaces it
	CancelTimeout    CancelReason = "timeout"
	CancelBudget     CancelReason = "budget" // it has used what it may
	CancelIncident   CancelReason = "incident"
	CancelSecurity   CancelReason = "security" // at once, and what it saved is not trusted
	CancelShutdown   CancelReason = "shutdown"
	CancelPreemption CancelReason = "preemption" // its place is taken, and it is not to go on elsewhere
	CancelPolicy     CancelReason = "policy"
)

// CancelReasons are all of them.
var CancelReasons = []CancelReason{CancelUser, CancelSuperseded, CancelTimeout, CancelBudget, CancelIncident, CancelSecurity, CancelShutdown, CancelPreemption, CancelPolicy}

// Known reports a reason of this version.
func (r CancelReason) Known() bool { return slices.Contains(CancelReasons, r) }

// Saves reports whether work that is cancelled for the reason may be asked for a checkpoint
// first: nobody goes on from what was superseded, and what an incident is about is not given
// the time (CK-131).
func (r CancelReason) Saves() bool {
	return r != CancelSuperseded && r != CancelIncident && r != CancelSecurity
}

// InterruptionClass says how likely it is that a runner is taken away (69§93).
type InterruptionClass string

// Classes of runners. The site says them; empty is Stable.
const (
	Stable      InterruptionClass = "stable"
	Preemptible InterruptionClass = "preemptible" // taken with a notice
	Spot        InterruptionClass = "spot"        // taken with a short notice, at a price that moves
	BestEffort  InterruptionClass = "best-effort" // taken at any time, without one
)

// MayVanish reports a runner that is not stable.
func (c InterruptionClass) MayVanish() bool { return c != "" && c != Stable }

// DefaultStableAfter is how many interruptions a job takes before it goes to stable runners
// only, unless it says otherwise.
const DefaultStableAfter = 3

// Escalated reports whether a job that was interrupted so often goes to stable runners only:
// what is interrupted again and again costs more than it saves (CK-203).
func (i Interruption) Escalated(interruptions int) bool {
	after := i.StableAfter
	if after == 0 {
		after = DefaultStableAfter
	}
	return interruptions >= after
}

// Priority is how much a checkpoint of the job is worth when there is not time for all.
type Priority string

// Priorities (69§103); empty is Normal.
const (
	PriorityCritical Priority = "critical"
	PriorityHigh     Priority = "high"
	PriorityNormal   Priority = "normal"
	PriorityLow      Priority = "low"
)
