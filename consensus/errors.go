package consensus

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// NotLeader is in the chain of the Unavailable error that a call gets which
// only the leader can serve. Both fields are empty when no leader is known.
type NotLeader struct{ LeaderID, LeaderAddr string }

func (e *NotLeader) Error() string {
	if e.LeaderID == "" {
		return "this node is not the leader, and none is known"
	}
	return fmt.Sprintf("this node is not the leader: %s at %s is", e.LeaderID, e.LeaderAddr)
}

var (
	errStopped     = errors.New("raft stopped while it was under way")
	errWriteHung   = errors.New("a write of the log store did not end in time")
	errDeposed     = errors.New("a voter is in a newer term: another leader was elected or is being elected")
	errNoMajority  = errors.New("no majority of voters confirmed the term")
	errQuarantined = errors.New("this node's state differs from the group's and is being rebuilt")
	errDisputed    = errors.New("voters' states differ, and none is that of most voters")
	errClosed      = errors.New("the group is closed")
)

// proposalError maps what raft says about an entry. Only what certainly never
// entered the log may be Unavailable; all else may yet commit (decision 26f).
func (g *Group) proposalError(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case isOurs(err):
		return err
	case errors.Is(err, raft.ErrNotLeader):
		return g.notLeader(op)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return forgeyard.E(op, forgeyard.Unavailable, err).WithHint("leadership is being handed over: try again")
	case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrNotVoter), errors.Is(err, raft.ErrCantBootstrap):
		return forgeyard.E(op, forgeyard.Unavailable, err)
	}
	if g.cfg.off.unknown {
		return forgeyard.E(op, forgeyard.Unavailable, err)
	}
	return forgeyard.E(op, forgeyard.Unknown, err).WithHint("it may have been committed: repeat it with the same message id")
}

// isOurs: the call never reached raft. Only the outermost counts: a disk's
// error further in says nothing about the entry's fate.
func isOurs(err error) bool {
	_, ours := err.(*forgeyard.Error)
	return ours
}

func (g *Group) notLeader(op string) error {
	id, addr, _ := g.Leader()
	if id == g.cfg.LocalID { // it was the leader a moment ago
		id, addr = "", ""
	}
	return forgeyard.E(op, forgeyard.Unavailable, &NotLeader{LeaderID: id, LeaderAddr: addr})
}

// waitError says why a wait that promises nothing about the log has ended.
func waitError(op string, ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return forgeyard.E(op, forgeyard.Unavailable, err)
	}
	return forgeyard.E(op, forgeyard.Interrupted, err)
}

func diskKind(err error) (EventKind, forgeyard.Kind) {
	switch {
	case isNoSpace(err):
		return DiskFull, forgeyard.NoSpace
	case errors.Is(err, errWriteHung):
		return DiskHung, forgeyard.Unavailable
	}
	return DiskFailed, forgeyard.Unavailable
}
