package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/cgroup"
	"github.com/forgeyard/forgeyard-node/node/executor/ptree"
	"github.com/forgeyard/forgeyard-node/node/executor/seccomp"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Executor implements executor.Executor.
type Executor struct {
	cfg Config
	cg  *cgroup.Hierarchy // nil: none usable
	// filter of system calls; empty: there is no list for this machine, or the program is the node's own
	filter []seccomp.Instruction
	why    string // why there is none
}

// New makes the executor. It starts nothing.
func New(cfg Config) (*Executor, error) {
	switch {
	case !root() || cfg.Own:
		cfg.Users = nil
	case cfg.Users == nil:
		p, err := users.New(users.Config{Seat: os.Getpid()})
		if err != nil {
			return nil, err
		}
		cfg.Users = p
	}
	e := &Executor{cfg: cfg}
	if !cfg.Own {
		// The tree is forked through the filter, with clone3 where groups are of version 2.
		e.filter, _ = seccomp.Program(runtime.GOARCH, seccomp.Options{Clone3: true})
	}
	if cfg.NoCgroups {
		e.why = "switched off"
		return e, nil
	}
	h, err := cgroup.Detect(cgroup.Options{})
	if err != nil {
		e.why = err.Error()
		return e, nil
	}
	e.cg = h
	return e, nil
}

func root() bool { return os.Geteuid() == 0 }

// Kind implements executor.Executor.
func (e *Executor) Kind() job.Sandbox {
	if e.cfg.Own {
		return job.SandboxOwn
	}
	return job.SandboxProcess
}

// View implements executor.Executor: the workload sees host paths.
func (e *Executor) View(root string) string { return root }

// Users implements executor.Executor.
func (e *Executor) Users() *users.Pool { return e.cfg.Users }

// Start implements executor.Executor.
func (e *Executor) Start(_ context.Context, r executor.Request) (executor.Handle, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := e.canEnforce(r); err != nil {
		return nil, err
	}
	dir := r.Dir
	if dir == "" {
		dir = filepath.Join(r.Root, executor.BuildDir)
	}
	prog, err := lookPath(r.Argv[0], dir, executor.Lookup(r.Env, "PATH"))
	if err != nil {
		return nil, err
	}
	user := users.Own
	if e.cfg.Users != nil {
		user = r.User
	}
	t, err := ptree.Start(ptree.Spec{
		ID: r.ID, Program: prog, Argv: r.Argv, Dir: dir, Env: r.Env,
		Stdout: r.Stdout, Stderr: r.Stderr, User: user,
		Limits: r.Limits, Cgroups: e.cg, NoNewPrivs: true, Filter: e.filter,
		OwnNetwork: r.Network == job.NetworkNone && root(),
	})
	if forgeyard.KindOf(err) == forgeyard.NotFound && unix.Access(dir, unix.F_OK) == nil && user.Lent() {
		return nil, withPathHint(err, dir, user)
	}
	if err != nil {
		return nil, err
	}
	return handle{t}, nil
}

// withPathHint tells a program that is missing from one that the dedicated user
// cannot reach, which is the machine's fault and not the workload's.
func withPathHint(err error, dir string, u users.User) error {
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	for p := dir; ; p = filepath.Dir(p) {
		st, serr := os.Stat(p)
		if serr == nil && st.Mode().Perm()&0o001 == 0 {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != u.UID && (int(sys.Gid) != u.GID || st.Mode().Perm()&0o010 == 0) {
				return forgeyard.E("execute", forgeyard.Unavailable, err).
					WithHint("user %d cannot pass through %s: chmod o+x it, or move the workspaces", u.UID, p)
			}
		}
		if p == filepath.Dir(p) {
			return err
		}
	}
}

func (e *Executor) canEnforce(r executor.Request) error {
	refuse := func(format string, args ...any) error {
		return forgeyard.Errorf("process executor", forgeyard.Invalid, format, args...)
	}
	if !root() && !e.cfg.SameUser && !e.cfg.Own {
		return forgeyard.Errorf("process executor", forgeyard.Denied, "the daemon is not root, so a workload would run as the daemon's own user").
			WithHint("run the daemon as root, or allow same_user and accept that jobs can read its credentials")
	}
	switch {
	case e.cfg.Users != nil && !r.User.Lent():
		return refuse("user %s is not one that work may run as", r.User)
	case len(r.Files) > 0:
		return refuse("%d files that are in memory alone cannot be shown here", len(r.Files))
	case r.Network == job.NetworkSite:
		return refuse("network %q cannot be enforced here", r.Network)
	case r.Network != job.NetworkHost && !root():
		return refuse("network %q cannot be enforced by a daemon that is not root", r.Network)
	}
	have := e.limits()
	for name, v := range map[string]int64{"cpu": r.Limits.MilliCPU, "memory": r.Limits.Memory, "pids": r.Limits.Pids} {
		if v > 0 && !have[name] {
			return refuse("a %s limit of %d cannot be enforced here: %s", name, v, e.why)
		}
	}
	for _, b := range r.Devices {
		if b.Host != b.Inside {
			return refuse("device %s cannot be shown as %s: this executor has no file namespace", b.Host, b.Inside)
		}
	}
	return nil
}

func (e *Executor) limits() map[string]bool {
	m := map[string]bool{}
	if e.cg != nil {
		for _, l := range e.cg.Enforces() {
			m[l] = true
		}
	}
	return m
}

// Probe implements executor.Executor.
func (e *Executor) Probe(ctx context.Context) (job.SandboxCapability, error) {
	c := job.SandboxCapability{Kind: job.SandboxProcess, Version: "no cgroups: " + e.why}
	r := executor.Request{Argv: []string{"/bin/sh", "-c", "exit 42"}, Network: job.NetworkHost}
	if e.cg != nil {
		c.Version, c.Limits = "cgroup "+e.cg.Describe(), e.cg.Enforces()
	}
	if root() {
		c.Limits, r.Network = append(c.Limits, "network"), job.NetworkNone
	}
	if len(e.filter) > 0 {
		c.Version += ", seccomp"
		r.Argv[2] = "grep -q '^Seccomp:.2$' /proc/self/status && exit 42"
	}
	exit, err := executor.Try(ctx, e, r, e.cfg.ScratchDir)
	if err != nil {
		return job.SandboxCapability{}, err
	}
	if exit.Code != 42 {
		return job.SandboxCapability{}, forgeyard.Errorf("probe", forgeyard.Unavailable, "a shell that should exit with 42 ended with %+v", exit)
	}
	return c, nil
}

// Named implements executor.Executor.
func (e *Executor) Named(id string) executor.Orphan { return ptree.Named(e.cg, id) }

// Reap implements executor.Executor.
func (e *Executor) Reap(ctx context.Context, o executor.Orphan) error {
	return ptree.Reap(ctx, e.cg, o)
}

// lookPath finds a program as execvp does, in the workload's PATH and never in
// the daemon's.
func lookPath(name, dir, path string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			return filepath.Join(dir, name), nil
		}
		return name, nil
	}
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue
		}
		p := filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return p, nil
		}
	}
	return "", forgeyard.E("execute", forgeyard.NotFound, fmt.Errorf("%s: not found in PATH %q", name, path))
}

type handle struct{ *ptree.Tree }

// SignalAll implements executor.Handle.
func (h handle) SignalAll(s syscall.Signal) error { return h.Tree.SignalAll(s, nil) }
