// Package process runs a workload as an ordinary process of this machine: session,
// process group and control group of its own, no inherited environment, no new
// privileges, no core dumps, the system calls that package seccomp lets through, and, under a root daemon, a user of its own that can
// read none of the daemon's files, and nothing of another job's.
//
// It is the weaker executor and says so (decision 9): the workload sees the host's
// files and processes, and inputs are read-only only by ownership. A spec that
// asks for strict is never served by it. A network of its own is given where
// the daemon may make one; elsewhere a spec without network is refused.
package process

import (
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Config of the process executor.
type Config struct {
	// Users are those that workloads run as when the daemon is root. Nil: a pool of its own.
	// Executors of one node share a pool, so that no two trees have one user.
	Users *users.Pool
	// SameUser lets a daemon that is not root run workloads as its own user, who can
	// read the daemon's credentials. Default false: Start and Probe refuse.
	SameUser bool
	// NoCgroups ignores control groups; then no limit holds. Default false.
	NoCgroups bool
	// Own makes it the executor of the node's own program, for job.SandboxOwn: as the
	// daemon's user, with its network, and with nothing else.
	Own bool
	// ScratchDir is where Probe makes its workspace. Empty: the system's.
	ScratchDir string
}

var _ executor.Executor = (*Executor)(nil)
