package node

import (
	"log/slog"
	"os"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/consensus"
)

// LogMoved tells where the log of a data dir is, and what was moved.
type LogMoved struct {
	Store   string // boltdb or wal; empty: there is no log yet
	From    string // where it was
	Entries uint64 // that were copied and compared
}

// LogStoreAt tells where the log of a data dir is; the daemon may run.
func LogStoreAt(dataDir string) (string, error) {
	d := unlocked(dataDir)
	k, err := consensus.LogStoreOf(d.join(dirRaft))
	return string(k), err
}

// MoveLog moves the log of a data dir whose daemon does not run: Conflict if it does,
// NotFound if there is no log. It may be cut short at any instant and done again.
func MoveLog(dataDir, to string, log *slog.Logger) (LogMoved, error) {
	const op = "log-store"
	kind, err := consensus.ParseLogStore(to)
	if err != nil {
		return LogMoved{}, err
	}
	if _, err := os.Stat(unlocked(dataDir).join(dirRaft)); err != nil {
		return LogMoved{}, forgeyard.Errorf(op, forgeyard.NotFound, "%s holds no node", dataDir)
	}
	d, err := openDataDir(dataDir)
	if err != nil {
		return LogMoved{}, err
	}
	defer d.close()
	m, err := consensus.MoveLog(d.join(dirRaft), kind, log)
	return LogMoved{Store: string(m.To), From: string(m.From), Entries: m.Entries}, err
}

// unlocked only joins paths.
func unlocked(path string) *dataDir { return &dataDir{path: path} }

// checkLogStore says whether the log is kept where the configuration wants it.
func (n *Node) checkLogStore() *forgeyardv1.Health_Check {
	c := check("log_store")
	at, err := consensus.LogStoreOf(n.dir.join(dirRaft))
	want := n.settings().Raft.LogStore
	switch {
	case err != nil:
		c.Status, c.Detail, c.Fix = checkWarn, err.Error(), "look at the disk: which kind of log the data dir has cannot be told"
	case string(at) != want:
		c.Detail = "the log is in " + string(at) + ", the configuration says " + want + " for new data dirs"
		c.Fix = "to move it, stop the daemon and run: forgeyard-node log-store --move " + want
	default:
		c.Detail = "the log is in " + string(at)
	}
	return c
}
