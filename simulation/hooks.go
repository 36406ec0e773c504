package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// hooks are the places where a test can put a fault into the rules or the shell, to
// see its checker fail. The honest ones change nothing.
type hooks struct {
	apply   func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply)
	counted func(n *node, sent forgeyard.Instant) forgeyard.Instant // from when a holder counts
	base    func(committed, used time.Duration) time.Duration       // of a new leader's count of silence
	config  func(*sitecfg.Site)                                     // what the site believes of itself

	// Of the leader.
	unconfirmed bool // renewals are answered without a majority
	// Of the log.
	amnesia      int  // entries that a disk loses with its power, synced or not
	ackFirst     bool // entries are acknowledged before they are on disk
	forgetsVote  bool // a restart forgets whom it voted for
	oldTermCount bool // entries of earlier terms are committed by counting copies
	skipsRest    bool // what follows a refused command in its entry is answered and not kept
	writesEarly  bool // a command is written before the log's format allows it
	readsOn      bool // a program goes on that the log's format has left behind
	// Of a person.
	offAtOnce bool // a node that was removed is switched off while its vote counts
	// Of a forced recovery.
	dropsTail   bool // what the node does not know to be committed is left out
	fromBackup  bool // a restored site counts on from the backup's incarnation
	sameLineage bool // the second one has the lineage of the first
	// Of a runner.
	slowKill    bool // a forced stop takes longer than it may
	orphans     bool // workloads outlive their agent, and nobody kills them
	bestGuess   bool // an epoch restores the newest state that was saved, committed or not
	everSaved   bool // an epoch restores the newest state that was committed in any incarnation
	boundless   bool // what the daemon's grant leaves is not listened to
	neverResets bool // a device is never reset
	tellsEarly  bool // it says that a tree is dead before it is
	oldTerms    bool // an epoch that goes on in place is counted by the terms of the one before
	looksNot    bool // nobody looks for what an earlier epoch left open
	// Of a device's host.
	openGate  bool // any token is admitted
	blankGate bool // a restart forgets the highest token
	// Of the content.
	ignorePins  bool // a collection takes what is pinned
	noCopies    bool // a copy is counted that was never made
	eagerUnpin  bool // pins of jobs that go on are let go
	unsafeStore bool // a copy is acknowledged before it is on disk
	// Of the daemon.
	forgetful bool // it forgets which records it has
	readsOnce bool // its clock is read at the first contact, and never again
	hasty     bool // it acknowledges before its disk has it
}

func honest() hooks {
	return hooks{
		apply:   (*site.State).ApplyEntry,
		counted: func(_ *node, sent forgeyard.Instant) forgeyard.Instant { return sent },
		base:    func(_, used time.Duration) time.Duration { return used },
	}
}
