package sitecfg

import "time"

// The bounds of configuration values. They catch a slip of a unit, and keep what
// goes into the log small.
const (
	minUser       = 1000    // below it are the accounts of the system
	maxUser       = 1 << 31 // above it some programs take a number for an error
	maxJobs       = 1024
	maxMilliCPU   = 4096 * 1000
	maxBytes      = 1 << 60
	maxList       = 64
	maxText       = 256
	maxPath       = 1024
	maxDevices    = 256
	maxKeep       = 365 * 24 * time.Hour
	minScrub      = 64 << 10 // bytes a second: 5 GiB a day
	maxBackoff    = 10 * time.Minute
	minCacheKeep  = time.Minute
	maxCacheKeep  = 23 * time.Hour // what the store keeps without a pin, less the grain of the cache
	maxCacheNames = 100_000_000
	maxShutdown   = 24 * time.Hour
	maxRetention  = 30 * 24 * time.Hour
	maxReset      = 10 * time.Minute
	maxBaud       = 12_000_000
	maxSend       = 4 << 10
	minRate       = 256 << 10              // a block then takes four seconds, and a peer that is paced says so four times in each
	minSilence    = 250 * time.Millisecond // below it a busy peer is taken for a dead one
	maxQuiet      = 5 * time.Minute
	minSpool      = 1 << 20 // below it a single noisy job fills the spool at once
	minTTL        = time.Second
	maxTTL        = 10 * time.Minute
	maxGrace      = 24 * time.Hour
	maxDrift      = 100_000 // ppm; a clock that is 10 % off is broken
	maxVoters     = 7       // each voter more makes every commit slower
	maxCopies     = 7
	maxSilence    = time.Hour
	maxUpload     = 1 << 50
	maxReconcile  = time.Hour
)
