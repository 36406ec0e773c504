package job

import "time"

// The bounds of a spec, each because the log carries it.
const (
	MaxSpecBytes    = 256 << 10 // one entry must replicate in a blink on a thin link
	MaxSteps        = 256
	MaxInputs       = 256
	MaxOutputs      = 256
	MaxDiagnostics  = 32
	MaxEnv          = 256
	MaxEnvBytes     = 64 << 10
	MaxSecrets      = 64
	MaxDevices      = 16
	MaxTitle        = 200
	MaxName         = 64
	MaxPath         = 1024 // one path, in bytes
	MaxArgv         = 4096
	MaxStepBytes    = 128 << 10 // what execve takes for one argument
	MaxEventMessage = 1 << 10   // bulk output never passes through Raft (decision 24)
	MaxValue        = 256       // a label's value, a model's name, in bytes
	MaxLabels       = 64
	MaxGuidance     = 16 << 10 // a page of words; more belongs in an input
	MaxExplained    = 20       // faults named in one error
	MaxTimeout      = 30 * 24 * time.Hour
	MaxOffline      = 90 * 24 * time.Hour
	MaxGrace        = time.Hour // signal to kill; a stop that takes longer is a checkpoint
	MaxBudget       = 1000
	MaxFinishWithin = 30 * 24 * time.Hour
	MaxKeep         = 1000
	MaxResults      = 100_000 // ended tests between two commits of a cursor
	MaxMilliCPU     = 4096 * 1000
	MaxBytes        = 1 << 50 // memory, disk, checkpoint: a petabyte is a slip of the unit
	MinMemory       = 1 << 20
	MinDisk         = 1 << 20
	MaxPids         = 1 << 22 // the kernel's own limit
	MaxRunInputs    = 256
	MaxTold         = 64 // happenings in one command
	// What is kept of an attempt that failed, all together: a test report, crash logs, a few
	// pictures. Whoever needs more has an output to make of it.
	MaxDiagnosticBytes = 64 << 20
	MaxDiagnosticFiles = 1000
	MaxLeftOut         = 200 // why one was left out, in bytes
)
