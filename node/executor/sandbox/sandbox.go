// Package sandbox runs a workload in namespaces of its own, through bubblewrap.
//
// Inside there are: the host's toolchain folders, read-only; a /etc of a few files;
// private /tmp, /dev and /proc; /work with the workspace. There are not: the host's
// other files, its processes, its network (unless the spec asks and policy allows),
// its sockets (/run and /var do not exist), capabilities, set-uid programs, more
// user namespaces, a terminal to inject into, or the system calls that package seccomp refuses.
//
//	/work/source  read-only     /work/build  writable, HOME and working directory
//	/work/ckpt    writable      /work/ctl    writable, files of the runner excepted
//	/work/restore read-only     /work/bin    read-only, the job helper
//	/work/devices/<as>          /tmp         writable, counts to the workspace
//
// A root daemon starts it as a user that nothing else runs as, so that what leaks out of the
// sandbox is still nobody, and no other job either. The workspace is then handed over through a mount
// namespace of the start alone, so that user needs no way through the daemon's
// folders. Limits come from control groups. A daemon that is not root works where the
// machine lets users make namespaces.
package sandbox

import (
	"log/slog"
	"net/netip"

	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Config of the sandbox.
type Config struct {
	// Bwrap is the path of bubblewrap. Empty: looked for in /usr/bin, /usr/local/bin, /bin.
	Bwrap string
	// Users are those that workloads run as under a root daemon. Nil: a pool of its own.
	// Executors of one node share a pool, so that no two trees have one user.
	Users *users.Pool
	// ReadOnly are more host paths to show, such as a toolchain outside /usr. A wrong
	// one shows host files to every workload. Default none.
	ReadOnly []executor.Bind
	// HostNetwork says whether a spec may ask for the host's network; it is asked at each
	// start. Nil: none may.
	HostNetwork func() bool
	// SiteNetworks are what a spec that asks for the site's network reaches (package
	// sitenet), asked for like that. None: it cannot ask for it.
	SiteNetworks func() []netip.Prefix
	// Log tells what such a job was refused. Nil: nothing does.
	Log *slog.Logger
	// ScratchDir is where Probe makes its workspace. Empty: the system's.
	ScratchDir string
}

// What a workload sees.
const (
	viewRoot = "/work"
	hostname = "forgeyard"
	// innerID is the user inside; a plain user number, because programs treat 0 and
	// 65534 specially.
	innerID = 1000
)

var _ executor.Executor = (*Executor)(nil)

// Kind implements executor.Executor.
func (*Executor) Kind() job.Sandbox { return job.SandboxStrict }

// View implements executor.Executor.
func (*Executor) View(string) string { return viewRoot }
