package job

import (
	"fmt"
	"time"
)

// Tolerances of interruption (CK-149).
const (
	ToleranceNone           = "none"
	ToleranceRestartable    = "restartable"
	ToleranceCheckpointable = "checkpointable"
)

// What follows an interruption.
const (
	RetryResumeOrRestart = "resume-or-restart"
	RetryResumeLatest    = "resume-latest"
	RetryResumeOnly      = "resume-only" // the same, as earlier versions call it
	RetryRestart         = "restart"     // from nothing, whatever was saved
	RetryNever           = "never"
)

// The defaults of a job. They are written into the spec at submit, so that a
// later version with other defaults runs an old spec as it was meant.
const (
	DefaultMilliCPU   = 1000
	DefaultMemory     = 1 << 30
	DefaultDisk       = 10 << 30
	DefaultPids       = 512
	DefaultPrepare    = 5 * time.Minute
	DefaultRun        = 2 * time.Hour
	DefaultUpload     = 10 * time.Minute
	DefaultGrace      = 2 * time.Minute // connectivity (decision 19)
	DefaultStopSignal = "TERM"
	DefaultStopGrace  = 30 * time.Second
	DefaultBudget     = 5
	DefaultExitCode   = 85 // HTCondor's own, see FYCP/1 §1
	DefaultRejectCode = 86
	DefaultWindow     = time.Minute
	DefaultCkptBytes  = 4 << 30
	DefaultKeep       = 3
	DefaultCkptSignal = "none"

	// A cursor is committed after so many results, or so long after one that waits.
	DefaultResults        = 50
	DefaultCursorInterval = 10 * time.Second
	slurmSignal           = "USR1" // what Slurm's scripts trap before the end of their time

	OwnMilliCPU = 100
	OwnMemory   = 64 << 20
	OwnPids     = 64
	OwnRun      = 24 * time.Hour
)

// Defaulted fills every zero that has a default. A zero interruption budget
// stays zero when a tolerance is set: it means that the first interruption ends
// the job.
func (s Spec) Defaulted() Spec {
	set(&s.Version, SpecVersion)
	if s.Own() {
		s.defaultOwn()
	}
	set(&s.Resources.MilliCPU, DefaultMilliCPU)
	set(&s.Resources.Memory, DefaultMemory)
	set(&s.Resources.Disk, DefaultDisk)
	set(&s.Resources.Pids, DefaultPids)
	set(&s.Timeouts.Prepare, DefaultPrepare)
	set(&s.Timeouts.Run, DefaultRun)
	set(&s.Timeouts.Upload, DefaultUpload)
	set(&s.Sandbox, SandboxStrict)
	set(&s.Network, NetworkNone)
	set(&s.Connectivity.Policy, Grace)
	set(&s.Durability, DurSite)
	if s.protects() {
		set(&s.Effects, EffectsProtected)
	}
	set(&s.Effects, EffectsNone)
	set(&s.Stop.Signal, DefaultStopSignal)
	set(&s.Stop.Grace, DefaultStopGrace)
	s.defaultResume()
	s.Steps = append([]Step(nil), s.Steps...)
	for i := range s.Steps {
		set(&s.Steps[i].Name, fmt.Sprintf("step %d", i+1))
	}
	return s
}

// defaultOwn is little: the work is reading and hashing, and the store reserves for itself
// what it takes in. It may take long: an instrument's disk has what it has.
func (s *Spec) defaultOwn() {
	set(&s.Resources.MilliCPU, OwnMilliCPU)
	set(&s.Resources.Memory, OwnMemory)
	set(&s.Resources.Disk, MinDisk)
	set(&s.Resources.Pids, OwnPids)
	set(&s.Timeouts.Run, OwnRun)
	set(&s.Sandbox, SandboxOwn)
}

func (s *Spec) defaultResume() {
	set(&s.Resume.Mode, ResumeNone)
	if s.Resume.Mode == ResumeFramework {
		set(&s.Resume.Isolation, Isolated)
		set(&s.Resume.Checkpoint.Results, DefaultResults)
		set(&s.Resume.Checkpoint.Interval, DefaultCursorInterval)
	}
	i := &s.Interruption
	if i.Tolerance == "" {
		set(&i.Budget, DefaultBudget)
		i.Tolerance = ToleranceRestartable
		if s.Resume.TakesCheckpoints() {
			i.Tolerance = ToleranceCheckpointable
		}
	}
	if i.Tolerance == ToleranceNone {
		set(&i.Retry, RetryNever)
	}
	set(&i.Retry, RetryResumeOrRestart)
	if !s.Resume.Speaks() {
		return
	}
	c := &s.Resume.Checkpoint
	if s.Resume.Profile == ProfileSlurm {
		set(&c.Signal, slurmSignal)
	}
	set(&c.ExitCode, DefaultExitCode)
	set(&c.RejectCode, DefaultRejectCode)
	set(&c.Window, DefaultWindow)
	set(&c.MaxBytes, DefaultCkptBytes)
	set(&c.Keep, DefaultKeep)
	set(&c.Signal, DefaultCkptSignal)
}

func set[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}
