package uplink

import "time"

// The bounds of the exchange, each with its reason.
const (
	// MaxBatchRecords and MaxBatchBytes bound what one Sync sends and what a daemon
	// reads: a second of a thin link, and small enough to repeat after a cut.
	MaxBatchRecords = 256
	MaxBatchBytes   = 1 << 20
	// minBatchBytes is where halving after timeouts ends: one record always goes.
	minBatchBytes = 4 << 10

	// MaxMessage bounds one message in either direction: a batch of records or of
	// delegations (a spec has at most 256 KiB), with room.
	MaxMessage = 4 << 20

	// MaxDelegations bounds the delegations of one answer.
	MaxDelegations = 256
	// maxDelegateBytes bounds one Delegate command; a log entry has at most 1 MiB.
	maxDelegateBytes = 512 << 10

	// MaxCancelled bounds the grants that one answer takes back first.
	MaxCancelled = 1024

	// MaxHolders and MaxHolderText bound where objects are said to be.
	MaxHolders    = 64
	MaxHolderText = 400

	// maxTicketText: people paste it into a shell.
	maxTicketText = 4 << 10
	// SecretSize: 256 bits cannot be guessed, so failed enrolments need no lockout.
	SecretSize     = 32
	maxTicketAddrs = 16
	// MaxName bounds the names of sites and daemons.
	MaxName = 64

	// commitEvery is how often the figure is committed when no threshold asks for it.
	commitEvery = 5 * time.Second
	// minInterval: more frequent exchanges say nothing new and wake the disk.
	minInterval = 200 * time.Millisecond
	// intervalsPerSilence: so many exchanges fit into SilentAfter, so that one or
	// two that are lost do not end Online.
	intervalsPerSilence = 5
	// pollEvery is how soon a change of the state (a drill, a new daemon) is seen
	// where nobody calls Changed.
	pollEvery = 500 * time.Millisecond
	// vouchTimeout bounds the question to the voters: one that hangs says nothing.
	vouchTimeout = 3 * time.Second
	// proposeTimeout bounds one proposal; it is repeated.
	proposeTimeout = 10 * time.Second
	// minCall and maxCall bound one exchange; between them it is half of SilentAfter,
	// doubled while calls time out, so that a thin link gets through in the end.
	minCall = time.Second
	maxCall = time.Minute
	// enrolTimeout bounds Connect: dial, hello and one small call.
	enrolTimeout = 30 * time.Second

	// lateBy: a figure that is applied later than this after it was proposed, by the
	// wall clock, is not taken as seen live: its reader was paused or cut off.
	lateBy = 10 * time.Second
	// maxWitnessFile: the file holds five small fields.
	maxWitnessFile = 4 << 10
)
