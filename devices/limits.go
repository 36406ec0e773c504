package devices

import "time"

// The bounds, each because the log or a person's patience carries it.
const (
	MaxTTL          = 7 * 24 * time.Hour // a forgotten lease comes back within a week
	MaxResets       = 2                  // a clean that failed twice needs more than a third try
	MaxRecoveries   = 3                  // automatic tries to leave a quarantine
	MaxFlaps        = 5                  // returns before a device must be quiet first
	MaxPrepareFails = 3                  // D17: the images differ, the device is the same
	MaxReason       = 256                // bytes of a reason in words
	MaxDetail       = 256                // bytes of a step's detail
	MaxSteps        = 16
	MaxGang         = 16 // devices granted in one log entry
)
