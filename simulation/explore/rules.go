package explore

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// Rules are the functions that decide, and the few words of the shell that safety
// stands on. The honest ones are those of the product; a test puts a fault in the place
// of one of them, to see an invariant break.
type Rules struct {
	Apply func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply)
	Agent func(now forgeyard.Instant, in agent.Input, b *agent.Book) ([]agent.Effect, forgeyard.Instant)
	Lead  func(now forgeyard.Instant, in controllers.Input) ([]controllers.Effect, forgeyard.Instant)
	Renew func(m *controllers.Memory, arrived forgeyard.Instant, in controllers.Input, batch []controllers.Renewal) []controllers.RenewalAnswer

	// Counted is the instant from which a holder counts what was granted.
	Counted func(sent, received forgeyard.Instant) forgeyard.Instant
	// Base is where a new leader's count of silence begins.
	Base func(used time.Duration) time.Duration
	// Admit is the gate of a device's host: the highest token that it has seen, and whether
	// it is closed to that one because a reset has begun.
	Admit func(d devices.Device, token, highest uint64, closed bool) bool
	// New says whether the daemon takes a record for one that it has not got.
	New func(last, seq uint64) bool
	// Deposed lets a leader that was deposed answer renewals: nobody asked a majority.
	Deposed bool
}

// Honest are the rules of the product.
func Honest() Rules {
	return Rules{
		Apply: (*site.State).ApplyEntry, Agent: agent.Step, Lead: controllers.Step, Renew: (*controllers.Memory).Renew,
		Counted: func(sent, _ forgeyard.Instant) forgeyard.Instant { return sent },
		Base:    func(used time.Duration) time.Duration { return used },
		Admit: func(d devices.Device, token, highest uint64, closed bool) bool {
			return d.Admit(token) == nil && token >= highest && !(closed && token == highest)
		},
		New: func(last, seq uint64) bool { return seq == last+1 },
	}
}
