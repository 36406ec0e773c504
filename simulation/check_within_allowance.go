package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/simulation/scenario"
)

// allowance is within-allowance: delegated work never runs past the authority that was
// given, through any number of leader changes and restarts. The daemon is the granter:
// it counts from the moment at which it last heard the site, in true time, and waits
// as a granter waits: the drift bound, ε, and the time that a forced stop takes.
type allowance struct{ silent }

func newAllowance() *allowance { return &allowance{} }

// changeCost is what one change of the leader may add: the way from the reading of a
// figure to its application elsewhere, where a wall clock that is wrong by less than
// scenario.MaxWallError had to tell how long that took.
const changeCost = 2 * scenario.MaxWallError

func (c *allowance) ran(s *sim, x *execution) {
	g := x.job.Grant
	if g == nil {
		return
	}
	terms := s.terms
	span := g.Span(terms)
	limit := lease.Stretch(span, lease.Terms{DriftPPM: int64(s.config.Lease.Drift), Epsilon: 100 * time.Millisecond}) + killMax
	limit += time.Duration(s.electionsSinceContact()) * changeCost
	silent := time.Duration(s.now - s.up.contact)
	if silent > limit {
		s.fail("within-allowance", "%s of %s runs on %s, %s after the daemon was last heard; %s were allowed", short(x.authority), g.ID, x.n.name, silent, span)
	}
	if g.End != 0 {
		c.hard(s, x, silent, limit-span)
	}
}

// hard looks at a hard end: no contact renews it, and the site counts to it as it counts
// the silence since the reading of the daemon's clock that it has.
func (c *allowance) hard(s *sim, x *execution, silent, margin time.Duration) {
	margin += lease.Stretch(silent, lease.Terms{DriftPPM: int64(s.config.Lease.Drift)}) - silent
	if over := time.Duration(s.up.clock()-x.job.Grant.End) * time.Millisecond; over > margin {
		s.fail("within-allowance", "%s of %s runs on %s, %s after its hard end", short(x.authority), x.job.Grant.ID, x.n.name, over)
	}
}

// electionsSinceContact counts the leaders since the daemon last heard the site.
func (s *sim) electionsSinceContact() int { return s.elections - s.up.electionsAtContact }
