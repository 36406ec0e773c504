// Package job decides what work is: the immutable spec of a planned job, the
// record of a run and its ordered events, the phases of an attempt, and how a
// result is written down.
//
//	run      queued → running → done | failed | cancelled          (RSE; terminal once)
//	job      queued → leased → running → done | failed | cancelled
//	           ↑        │         ├→ suspended ─→ queued
//	           └────────┴─────────┴→ unknown ──→ queued            (decision 5)
//	attempt  offered → accepted → preparing → running → uploading → completed
//	           └→ rejected          └────── lost · unknown ──────┘
//
// Invariants: a terminal status is written once and nothing follows it; a spec
// is named by the digest of its canonical bytes and never changes (07§228); event
// sequence numbers start at 1, have no gap and never repeat.
//
// The package is pure. It places nothing and runs nothing.
package job

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// RunKind says which lifecycle operation a run records (RS-011).
type RunKind string

// The run kinds; there is no other.
const (
	Build  RunKind = "build"
	Ingest RunKind = "ingest"
	Garden RunKind = "garden"
)

// Status is the state of a job; a run uses only those that RSE names. Append only.
type Status string

// Statuses of jobs and runs.
const (
	Queued    Status = "queued"
	Leased    Status = "leased"
	Running   Status = "running"
	Suspended Status = "suspended"
	Unknown   Status = "unknown"
	Done      Status = "done"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// Terminal reports whether nothing may follow the status.
func (s Status) Terminal() bool { return s == Done || s == Failed || s == Cancelled }

// ForRun maps a job's status to the run's: a suspended or unknown job leaves its
// run running, a leased one leaves it queued (decision 5).
func (s Status) ForRun() Status {
	switch s {
	case Leased:
		return Queued
	case Suspended, Unknown:
		return Running
	}
	return s
}

// Phase is what an attempt is doing. Phases only move forward within an epoch;
// a repeated phase is safe (07§68).
type Phase string

// Phases in their order.
const (
	PhaseOffered   Phase = "offered"
	PhaseAccepted  Phase = "accepted"
	PhasePreparing Phase = "preparing"
	PhaseRunning   Phase = "running"
	PhaseUploading Phase = "uploading"
	PhaseCompleted Phase = "completed"
	PhaseRejected  Phase = "rejected"
	PhaseLost      Phase = "lost"
	PhaseUnknown   Phase = "unknown"
)

// Order is the phase's place in the forward order; zero for those outside it.
func (p Phase) Order() int {
	switch p {
	case PhaseOffered:
		return 1
	case PhaseAccepted:
		return 2
	case PhasePreparing:
		return 3
	case PhaseRunning:
		return 4
	case PhaseUploading:
		return 5
	case PhaseCompleted:
		return 6
	}
	return 0
}

// FailureCategory says in one word why work failed (decision 24). Append only.
type FailureCategory string

// Failure categories.
const (
	WorkloadFailed    FailureCategory = "workload_failed"
	TimedOut          FailureCategory = "timeout"
	OutOfMemory       FailureCategory = "out_of_memory"
	DiskFull          FailureCategory = "disk_full"
	InputFetch        FailureCategory = "input_fetch"
	CorruptInput      FailureCategory = "corrupt_input"
	PreparationFailed FailureCategory = "preparation_failed"
	SandboxSetup      FailureCategory = "sandbox_setup"
	OutputInvalid     FailureCategory = "output_invalid"
	DeviceFailed      FailureCategory = "device_failed"
	DeviceHostLost    FailureCategory = "device_host_lost"
	RunnerLost        FailureCategory = "runner_lost"
	InterruptedBudget FailureCategory = "interrupted_budget"
	SpecInvalid       FailureCategory = "spec_invalid"
	AuthorityEnded    FailureCategory = "authority_ended"
	Internal          FailureCategory = "internal"
)

// Known reports whether the category is one of those above: the ledger holds no other.
func (c FailureCategory) Known() bool {
	switch c {
	case WorkloadFailed, TimedOut, OutOfMemory, DiskFull, InputFetch, CorruptInput, PreparationFailed, SandboxSetup,
		OutputInvalid, DeviceFailed, DeviceHostLost, RunnerLost, InterruptedBudget, SpecInvalid, AuthorityEnded, Internal:
		return true
	}
	return false
}

// RetryElsewhere reports whether a failure says nothing about the work itself,
// so that another runner may try without charging the failure budget (decision 6).
func (c FailureCategory) RetryElsewhere() bool {
	switch c {
	case PreparationFailed, SandboxSetup, InputFetch, DiskFull, DeviceHostLost:
		return true
	}
	return false
}

// EventKind is the kind of a run's event (RSE).
type EventKind string

// Event kinds; there is no other.
const (
	EventStatus  EventKind = "status"
	EventMessage EventKind = "message"
	EventTool    EventKind = "tool"
	EventOutput  EventKind = "output"
	EventError   EventKind = "error"
)

// Event is one entry of a run's ordered log.
type Event struct {
	Seq     uint64         `cbor:"1,keyasint"`
	At      forgeyard.Wall `cbor:"2,keyasint"`
	Kind    EventKind      `cbor:"3,keyasint"`
	Message string         `cbor:"4,keyasint,omitempty"`  // at most MaxEventMessage bytes
	Status  Status         `cbor:"5,keyasint,omitempty"`  // for status events
	Tool    *Tool          `cbor:"6,keyasint,omitempty"`  // for tool events
	Output  *Printed       `cbor:"7,keyasint,omitempty"`  // for output events
	Type    EventType      `cbor:"80,keyasint,omitempty"` // of log format 2
}

// Outcome is how an attempt ended, as its runner says. Apply turns it into a status.
type Outcome string

// Outcomes.
const (
	OutcomeDone      Outcome = "done"
	OutcomeFailed    Outcome = "failed"
	OutcomeCancelled Outcome = "cancelled"
)

// Output is one declared output that was captured, hashed and stored.
type Output struct {
	Path     string           `cbor:"1,keyasint"`
	Tree     bool             `cbor:"2,keyasint,omitempty"` // a directory: Digest names its tree
	Digest   forgeyard.Digest `cbor:"3,keyasint"`
	Manifest forgeyard.Digest `cbor:"4,keyasint,omitzero"`
	Size     int64            `cbor:"5,keyasint"`
}

// Diagnostic is one path of Spec.OnFailure: what was captured of it, or why it was not.
type Diagnostic struct {
	Path      string           `cbor:"1,keyasint"`
	Tree      bool             `cbor:"2,keyasint,omitempty"` // a directory: Digest names its tree
	Digest    forgeyard.Digest `cbor:"3,keyasint,omitzero"`  // zero: it was left out
	Manifest  forgeyard.Digest `cbor:"4,keyasint,omitzero"`
	Size      int64            `cbor:"5,keyasint,omitempty"`
	Sensitive bool             `cbor:"6,keyasint,omitempty"`
	LeftOut   string           `cbor:"7,keyasint,omitempty"` // why; at most MaxLeftOut bytes
}

// Output is the diagnostic as the store and its peers know content.
func (d Diagnostic) Output() Output {
	return Output{Path: d.Path, Tree: d.Tree, Digest: d.Digest, Manifest: d.Manifest, Size: d.Size}
}

// StepResult is the end of one step.
type StepResult struct {
	Name     string        `cbor:"1,keyasint"`
	ExitCode int           `cbor:"2,keyasint"`
	Signal   string        `cbor:"3,keyasint,omitempty"` // the signal that ended it
	Took     time.Duration `cbor:"4,keyasint"`
}

// LogChunk is a flushed part of an attempt's log, stored as a blob of frames.
type LogChunk struct {
	Digest   forgeyard.Digest `cbor:"1,keyasint"`
	Manifest forgeyard.Digest `cbor:"2,keyasint,omitzero"`
	Size     int64            `cbor:"3,keyasint"`
	FirstSeq uint64           `cbor:"4,keyasint"`
	LastSeq  uint64           `cbor:"5,keyasint"`
}

// Result is what a runner hands back with its completion.
type Result struct {
	Outcome  Outcome         `cbor:"1,keyasint"`
	Category FailureCategory `cbor:"2,keyasint,omitempty"` // for failed
	Message  string          `cbor:"3,keyasint,omitempty"`
	ExitCode int             `cbor:"4,keyasint,omitempty"`
	Steps    []StepResult    `cbor:"5,keyasint,omitempty"`
	Outputs  []Output        `cbor:"6,keyasint,omitempty"`
	Log      []LogChunk      `cbor:"7,keyasint,omitempty"`
	// Replicas lists the nodes that acknowledged a durable copy of all outputs before
	// this completion was proposed; Short says that policy accepted fewer than asked.
	Replicas []forgeyard.RunnerID `cbor:"8,keyasint,omitempty"`
	Short    bool                 `cbor:"9,keyasint,omitempty"`
	// Told are events that the log does not have yet; they come before the terminal one.
	Told Told `cbor:"10,keyasint,omitzero"`
	// Overran: the work took more of the disk than it asked for, which it would elsewhere too.
	Overran bool `cbor:"11,keyasint,omitempty"`
	// Diagnostics are what Spec.OnFailure asks for, of work that failed. Those that are not
	// sensitive are on Replicas too, the others on the runner alone.
	Diagnostics []Diagnostic `cbor:"12,keyasint,omitempty"`
}
