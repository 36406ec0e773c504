package uplink

import "time"

// The bounds of the exchange, each with its reason.
const (
	// MaxMessage bounds one message in either direction: a batch of records or of
	// delegations (a spec has at most 256 KiB), with room.
	MaxMessage = 4 << 20

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

	// pollEvery is how soon a change of the state (a drill, a new daemon) is seen
	// where nobody calls Changed.
	pollEvery = 500 * time.Millisecond
	// vouchTimeout bounds the question to the voters: one that hangs says nothing.
	vouchTimeout = 3 * time.Second
	// proposeTimeout bounds one proposal; it is repeated.
	proposeTimeout = 10 * time.Second
	// enrolTimeout bounds Connect: dial, hello and one small call.
	enrolTimeout = 30 * time.Second

	// maxWitnessFile: the file holds five small fields.
	maxWitnessFile = 4 << 10
)
