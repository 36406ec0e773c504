package job

import "time"

// The bounds of a spec, each because the log carries it.
const (
	MaxSpecBytes    = 256 << 10 // one entry must replicate in a blink on a thin link
	MaxSteps        = 256
	MaxInputs       = 256
	MaxOutputs      = 256
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
	MaxTimeout      = 30 * 24 * time.Hour
	MaxOffline      = 90 * 24 * time.Hour
)
