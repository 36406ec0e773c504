package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// hooks are the places where a test can put a fault into the rules or the shell, to
// see its checker fail. The honest ones change nothing.
type hooks struct {
	apply       func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply)
	counted     func(n *node, sent forgeyard.Instant) forgeyard.Instant // from when a holder counts
	base        func(used time.Duration) time.Duration                  // of a new leader's count of silence
	shape       func(*shape)                                            // narrows a run to the company that the fault needs; nil: as drawn
	forgetful   bool                                                    // the daemon forgets which records it has
	openGate    bool                                                    // a device's host admits any token
	amnesia     int                                                     // entries that a disk loses with its power, synced or not
	unconfirmed bool                                                    // renewals are answered without a majority
}

func honest() hooks {
	return hooks{
		apply:   (*site.State).ApplyEntry,
		counted: func(_ *node, sent forgeyard.Instant) forgeyard.Instant { return sent },
		base:    func(used time.Duration) time.Duration { return used },
	}
}
