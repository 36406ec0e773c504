// Package executor is the contract between an attempt and what holds its
// workload: start one program in a tree that can be bounded, signalled and ended
// for certain.
//
//	Start ─→ running ─→ main program ended (Wait) ─→ tree gone (Kill)
//
// Providers: executor/sandbox (namespaces) and executor/process (own session,
// process group and cgroup; weaker, and it says so). exectest is the suite that
// both pass.
//
// Invariants: a workload sees only the environment and files of its request; what
// a provider cannot enforce it refuses and does not list in its capability; after
// Kill has returned nil nothing of the tree runs, background daemons included
// (07§174–175, E18).
//
// It knows no leases, steps or logs.
package executor

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Folders of a workspace. The runner makes them, the executor shows them.
const (
	SourceDir  = "source"  // inputs, read-only
	BuildDir   = "build"   // work and outputs, writable; the working directory
	TmpDir     = "tmp"     // TMPDIR; /tmp where the executor can put it there
	CkptDir    = "ckpt"    // staging of checkpoints, writable
	CtlDir     = "ctl"     // control files, writable
	RestoreDir = "restore" // a verified checkpoint, read-only
	DevicesDir = "devices" // leased devices
	BinDir     = "bin"     // the job helper, read-only
	// ToolchainsDir has toolchains of the store that found no place among those that several jobs
	// share. The workload sees either at the same path.
	ToolchainsDir = job.ToolchainsDir
)

// Limits are hard bounds of the whole tree. Zero means no bound of that kind.
type Limits struct {
	MilliCPU int64 // thousandths of a core
	Memory   int64 // bytes, swap included where the machine accounts it
	Pids     int64 // processes and threads
}

// Bind shows a host path inside. Providers without a file namespace ignore
// read-only binds (the host path is visible as it is) and refuse others.
type Bind struct {
	Host   string // absolute
	Inside string // absolute
}

// File is one that a program sees, read-only, and that is in memory alone. Providers without
// a file namespace refuse it.
type File struct {
	Inside string // absolute
	Bytes  []byte // at most MaxFile
}

// MaxFile bounds a File: a pipe's buffer takes it whole.
const MaxFile = 48 << 10

// Request says what to run. The executor does not keep it after Start.
type Request struct {
	ID       string     // "<attempt>-<epoch>"; names the cgroup, so an ID is started once at a time
	Root     string     // workspace on the host, absolute, with the folders above
	User     users.User // of the executor's Users, and owner of the writable folders
	Argv     []string
	Dir      string   // as the workload sees it, absolute; empty: the build folder
	Env      []string // complete; nothing is added but what the provider documents
	Limits   Limits
	Network  job.Network
	ReadOnly []Bind
	Files    []File
	Devices  []Bind // Inside is the name below the devices folder's view
	// Stdout and Stderr get the output. A writer that blocks holds the workload
	// back and never delays a signal or a kill.
	Stdout, Stderr io.Writer
}

// Exit is how the main program ended.
type Exit struct {
	Code   int            // exit code; 128+n when signal n ended it
	Signal syscall.Signal // zero when it exited by itself
	OOM    bool           // the kernel killed something of the tree for memory
	CPU    time.Duration  // processor time that the tree took till then; zero: not told
}

// Handle is a started tree. It is safe for concurrent use. Kill must be called
// in the end, whatever happened, and is the only thing that frees the tree.
type Handle interface {
	// PID is the process whose end ends the tree; Birth is its start time in clock
	// ticks since boot, which tells it from a later process of the same number.
	PID() int
	Birth() uint64
	// Orphan is what another process of this runner needs to end the tree.
	Orphan() Orphan
	// Wait returns when the main program has ended; background processes may live on.
	Wait() Exit
	// Done is closed when Wait would return.
	Done() <-chan struct{}
	// Signal signals the main program alone; one that has ended is no error.
	Signal(s syscall.Signal) error
	// SignalAll signals every process of the tree.
	SignalAll(s syscall.Signal) error
	// Kill ends the whole tree, again and again until it is empty, and returns nil only
	// when that is confirmed and the output has been handed over. Unavailable
	// means that ctx ended first; call it again. It is idempotent.
	Kill(ctx context.Context) error
}

// Executor starts workloads. It is safe for concurrent use.
type Executor interface {
	Kind() job.Sandbox
	// Probe starts something real and says what holds here. An executor whose
	// probe fails must not be advertised.
	Probe(ctx context.Context) (job.SandboxCapability, error)
	// View is the path under which the workload sees the workspace root.
	View(root string) string
	// Users lends the host user of a request; writable workspace folders belong to it. Nil:
	// everything runs as the runner's own user.
	Users() *users.Pool
	// Start returns when the program really runs. Errors: Invalid (the request, or what
	// this provider cannot enforce), NotFound (no such program inside: the workload's own
	// fault), Unavailable (the machine did not give what is needed). After an
	// error nothing runs.
	Start(ctx context.Context, r Request) (Handle, error)
	// Named is what ends the tree of a request with that ID, started or not: it can be
	// told to who is to end it before anything of the tree exists.
	Named(id string) Orphan
	// Reap ends what an earlier process of this runner left. It never harms a
	// process that only has the same number.
	Reap(ctx context.Context, o Orphan) error
}

// Orphan names a started tree across restarts of the runner.
type Orphan struct {
	ID      string   `json:"id"`
	PID     int      `json:"pid"`
	Birth   uint64   `json:"birth"`
	Boot    string   `json:"boot"` // the boot in which the two above mean something
	Cgroups []string `json:"cgroups,omitempty"`
}

// Check says why a request is not one.
func (r *Request) Check() error {
	bad := func(format string, args ...any) error {
		return forgeyard.Errorf("execute", forgeyard.Invalid, format, args...)
	}
	switch {
	case r.ID == "" || strings.ContainsAny(r.ID, "/\x00") || strings.HasPrefix(r.ID, "."):
		return bad("request id %q cannot name a group", forgeyard.Clip(r.ID, 80))
	case !filepath.IsAbs(r.Root):
		return bad("workspace root %q is not absolute", forgeyard.Clip(r.Root, 200))
	case len(r.Argv) == 0 || r.Argv[0] == "":
		return bad("there is no program to run")
	case r.Dir != "" && !filepath.IsAbs(r.Dir):
		return bad("working directory %q is not absolute", forgeyard.Clip(r.Dir, 200))
	case r.Limits.MilliCPU < 0 || r.Limits.Memory < 0 || r.Limits.Pids < 0:
		return bad("limits %+v are negative", r.Limits)
	}
	for _, b := range slices.Concat(r.ReadOnly, r.Devices) {
		if !filepath.IsAbs(b.Host) || !filepath.IsAbs(b.Inside) {
			return bad("bind %q on %q: both must be absolute", b.Host, b.Inside)
		}
	}
	for _, f := range r.Files {
		if !filepath.IsAbs(f.Inside) || len(f.Bytes) > MaxFile {
			return bad("file %q with %d bytes: its place must be absolute, the bound is %d", f.Inside, len(f.Bytes), MaxFile)
		}
	}
	for _, e := range r.Env {
		if !strings.Contains(e, "=") || strings.ContainsRune(e, 0) {
			return bad("environment entry %q has no name", forgeyard.Clip(e, 40))
		}
	}
	return nil
}

// Lookup returns the value of name in an environment list.
func Lookup(env []string, name string) string {
	for _, e := range env {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			return v
		}
	}
	return ""
}
