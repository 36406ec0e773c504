package checkpoint

import "time"

// The bounds, each because somebody hostile or unlucky stands on the other side.
const (
	// MaxFiles bounds one checkpoint: a marker line has about 150 bytes, so a full one
	// has about 8 MiB, which a node parses in a blink.
	MaxFiles = 50_000
	// MaxMarkerBytes holds MaxFiles of usual names.
	MaxMarkerBytes = 16 << 20
	// MaxManifestBytes bounds what a peer may hand us as a manifest.
	MaxManifestBytes = 64 << 10
	// MaxControlBytes bounds one control file: request, message, answer, progress.
	MaxControlBytes = 64 << 10
	// MaxPath bounds one path of a payload, in bytes, as job.MaxPath does.
	MaxPath = 1024
	// MaxDepth bounds how deep a payload nests, and with it open directories.
	MaxDepth = 64
	// MaxSeq is the largest number a slot's six digits hold.
	MaxSeq = 999_999
	// MaxText bounds a reason, a unit, a format's name.
	MaxText = 512
	// MaxMark bounds a mark.
	MaxMark = 128
	// MaxEffects bounds effects_open: a list that is refused anyway unless empty.
	MaxEffects = 256
	// MaxHistory bounds the commits that one attempt's history keeps in the log's
	// state; the oldest that are not needed go first.
	MaxHistory = 64
	// MaxOpeners bounds the nodes for which one is sealed.
	MaxOpeners = 128
	// MaxReplicas bounds the nodes one commit names.
	MaxReplicas = 32

	// MaxCritical bounds how long a critical section may hold a stop back.
	MaxCritical = 10 * time.Minute

	jsonDepth = 8 // the deepest of our values nests three
)

// Defaults that stand in for what neither job nor site says.
const (
	DefaultExitCode       = 85 // HTCondor's, so that its scripts run unchanged
	DefaultRejectCode     = 86
	DefaultMaxBytes       = 4 << 30
	DefaultWindow         = time.Minute
	DefaultKeep           = 3
	DefaultOnFailure      = 24 * time.Hour // a working day to look at what failed
	DefaultResumeFailures = 2
)
