package roll

const (
	// MaxChain is how many processes a voter says were before it: a listener that was away
	// for more starts than that sees no fork in them.
	MaxChain = 16

	// MaxRefused bounds the refusals that are remembered of one voter.
	MaxRefused = 16

	// MaxVoters bounds the voters that a hello names; a speaker of a larger group names none.
	MaxVoters = 16

	// MaxHello bounds what stands at the head of a connection: a claim of 16 nonces has
	// about 300 bytes, 16 voters have 450.
	MaxHello = 1024

	// MaxRecords bounds the voters that are remembered, far above any group.
	MaxRecords = 4096

	// maxName bounds ids and lineages.
	maxName = 256
)
