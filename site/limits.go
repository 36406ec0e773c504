package site

// The bounds of the replicated state, each because every voter holds it in memory
// and every follower that starts anew must receive it.
const (
	maxCommand      = 1 << 20 // one log entry
	maxRequestID    = 64
	maxRequests     = 8192   // remembered request ids: far more than can be in flight
	maxHistory      = 512    // site events
	maxNote         = 400    // bytes of the text of one
	maxLeaseLog     = 1024   // lease events: some hundred leases from offer to end
	maxLacks        = 64     // shortfalls of the site's readiness
	maxEnded        = 10_000 // ended jobs that stay listed; older ones are forgotten with their runs
	maxForgotten    = 16     // of them at once
	maxMembers      = 256
	maxTokens       = 1024
	maxPastSessions = 16 // of a member: more often no process ends while one registration is on its way
	maxOpenJobs     = 10_000
	maxEpochs       = 32 // epoch records a job keeps
	maxLate         = 8
	maxAvoid        = 16
	maxRetries      = 5     // runner-side failures of one job before it fails for good
	MaxLogChunks    = 512   // parts of a log that a job's record has
	MaxReportedLog  = 256   // parts of a log in one report: 23 KB of an entry
	maxEvents       = 2_000 // events of one run; what follows the last is summed up in its terminal event
	maxOutbox       = 100_000
	maxRecoveries   = 16
	maxTold         = 1_500 // events of one run when its executions stop telling: its own statuses have the rest
	maxSecrets      = 256
	MaxSealed       = 64 << 10 // bytes of one secret, sealed
	maxSealedTotal  = 2 << 20
	maxNames        = 10_000 // names of content
	maxEarlier      = 8      // sets that a name pointed at before, and keeps a while
)
