// Package seam names what a simulation may put in the place of a group's own parts: the
// disk under its log, something between it and its transport, and the lack of a guard.
//
// The product never sets any of it (the rule "seam" of internal/arch sees to that). The
// simulation does: it shows with a guard taken out that the fault which the guard holds
// back is real, and would be found.
package seam

import (
	"io"

	"github.com/hashicorp/raft"
)

// Store keeps the log, the term and the vote.
type Store interface {
	raft.LogStore
	raft.StableStore
	io.Closer
}

// Transport carries raft's calls.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// Guards says which guards of decision 26 are off.
type Guards struct {
	Heartbeats bool // (a) heartbeats take raft's fast path
	Transfer   bool // (b) a transfer that hangs is not noticed
	Loop       bool // (c) a snapshot that is installed again and again is not noticed
	Confirm    bool // (d) VerifyLeader stands for a majority's terms
	Deadline   bool // (e) a write of the log store may hang
	Hash       bool // (g) state hashes are not compared
	Tail       bool // a failed write does not condemn the store
	Alone      bool // who loses its connection to the leader stands without asking anybody
	Pipelines  bool // a pipeline that nobody reads holds up its sender for ever
	Boots      bool // a voter is not told from a copy of its disk
	Ahead      bool // a follower's word counts though the leader's disk does not have the entry
}

// Parts is what replaces a group's own parts. The zero value replaces nothing.
type Parts struct {
	Off Guards
	// Open gives the store in the place of the database at path. Nil: the database.
	Open func(path string) (Store, error)
	// Between stands between the group's guards and the transport. Nil: nothing does.
	Between func(Transport) Transport
}
