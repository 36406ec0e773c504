package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/cgroup"
	"github.com/forgeyard/forgeyard-node/node/executor/ptree"
	"github.com/forgeyard/forgeyard-node/node/executor/seccomp"
	"github.com/forgeyard/forgeyard-node/node/executor/sitenet"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Executor implements executor.Executor.
type Executor struct {
	cfg           Config
	bwrap         string
	version       string
	disableUserns bool                                                            // this bubblewrap knows --disable-userns
	filter        []byte                                                          // of system calls; empty: there is no list for this machine
	dial          func(ctx context.Context, network, to string) (net.Conn, error) // for tests, as is way
	way           func(netip.Addr) string
	cg            *cgroup.Hierarchy
	why           string // why there is none
}

// New finds bubblewrap. It starts no workload. Unavailable: there is none.
func New(cfg Config) (*Executor, error) {
	switch {
	case !root():
		cfg.Users = nil
	case cfg.Users == nil:
		p, err := users.New(users.Config{Seat: os.Getpid()})
		if err != nil {
			return nil, err
		}
		cfg.Users = p
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e := &Executor{cfg: cfg}
	if err := e.findBwrap(); err != nil {
		return nil, err
	}
	if p, err := seccomp.Program(runtime.GOARCH, seccomp.Options{}); err == nil {
		e.filter = seccomp.Bytes(p)
	}
	h, err := cgroup.Detect(cgroup.Options{})
	if err != nil {
		e.why = err.Error()
		return e, nil
	}
	e.cg = h
	return e, nil
}

func (e *Executor) findBwrap() error {
	places := []string{"/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"}
	if e.cfg.Bwrap != "" {
		places = []string{e.cfg.Bwrap}
	}
	for _, p := range places {
		if unix.Access(p, unix.X_OK) == nil {
			e.bwrap = p
			break
		}
	}
	if e.bwrap == "" {
		return forgeyard.Errorf("sandbox", forgeyard.Unavailable, "bubblewrap is not at %s", strings.Join(places, ", ")).
			WithHint("install it: apt-get install bubblewrap, or dnf install bubblewrap")
	}
	out, err := exec.Command(e.bwrap, "--version").Output()
	if err != nil {
		return forgeyard.E("sandbox", forgeyard.Unavailable, fmt.Errorf("%s --version: %w", e.bwrap, err))
	}
	e.version = strings.TrimSpace(string(out))
	help, err := exec.Command(e.bwrap, "--help").Output()
	if err != nil {
		return forgeyard.E("sandbox", forgeyard.Unavailable, fmt.Errorf("%s --help: %w", e.bwrap, err))
	}
	e.disableUserns = bytes.Contains(help, []byte("--disable-userns"))
	if !bytes.Contains(help, []byte("--json-status-fd")) {
		return forgeyard.Errorf("sandbox", forgeyard.Unavailable, "%s is too old: it has no --json-status-fd", e.version).WithHint("install bubblewrap 0.3 or later")
	}
	return nil
}

func root() bool { return os.Geteuid() == 0 }

// Users implements executor.Executor.
func (e *Executor) Users() *users.Pool { return e.cfg.Users }

func (e *Executor) canEnforce(r executor.Request) error {
	refuse := func(format string, args ...any) error {
		return forgeyard.Errorf("sandbox", forgeyard.Invalid, format, args...)
	}
	if e.cfg.Users != nil && !r.User.Lent() {
		return refuse("user %s is not one that work may run as", r.User)
	}
	switch r.Network {
	case job.NetworkNone, "":
	case job.NetworkHost:
		if e.cfg.HostNetwork == nil || !e.cfg.HostNetwork() {
			return refuse("network %q is not allowed on this node", r.Network)
		}
	case job.NetworkSite:
		if len(e.siteNetworks()) == 0 {
			return refuse("network %q is not allowed on this node", r.Network)
		}
	default:
		return refuse("network %q cannot be enforced here", r.Network)
	}
	var have []string
	if e.cg != nil {
		have = e.cg.Enforces()
	}
	for name, v := range map[string]int64{"cpu": r.Limits.MilliCPU, "memory": r.Limits.Memory, "pids": r.Limits.Pids} {
		if v > 0 && !slices.Contains(have, name) {
			return refuse("a %s limit of %d cannot be enforced here: %s", name, v, e.why)
		}
	}
	return nil
}

// Start implements executor.Executor.
func (e *Executor) Start(ctx context.Context, r executor.Request) (executor.Handle, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := e.canEnforce(r); err != nil {
		return nil, err
	}
	made := e.files(r)
	data, err := e.pipes(made, r.Files)
	if err != nil {
		return nil, err
	}
	g, err := newGate(r.Network)
	if err != nil {
		closeAll(data)
		return nil, err
	}
	ms := e.mounts(r)
	st := newStage(ms)
	errTap := &tap{next: r.Stderr}
	user := users.Own
	if e.cfg.Users != nil {
		user = r.User
	}
	spec := ptree.Spec{
		ID: r.ID, Program: e.bwrap, Env: r.Env, Dir: "/", Stdout: r.Stdout, Stderr: errTap,
		Extra: append(data, g.inside()...), User: user, Limits: r.Limits, Cgroups: e.cg,
		Forsakes: true, // bubblewrap outside ends with what is inside, and does not collect it
	}
	if root() {
		spec.Prepare, spec.NoNewPrivs = st.mountAll, true
		spec.Argv = e.args(r, ms, made, st.path, 3, 3+len(data))
	} else {
		spec.Argv = e.args(r, ms, made, func(m mount) string { return m.host }, 3, 3+len(data))
	}
	t, err := ptree.Start(spec)
	if err != nil {
		g.close()
		if forgeyard.KindOf(err) == forgeyard.NotFound { // bubblewrap itself, not the workload
			err = forgeyard.E("sandbox", forgeyard.Unavailable, errors.Unwrap(err))
		}
		return nil, err
	}
	h := &handle{Tree: t, done: make(chan struct{}), born: make(chan struct{}), tap: errTap}
	h.begin(g.status)
	if err := h.connect(ctx, g, sitenet.Config{Rules: e.site(), Log: e.cfg.Log, Dial: e.dial}); err != nil {
		return nil, err
	}
	if err := h.awaitStart(ctx); err != nil {
		return nil, err
	}
	return h, nil
}

// site are the rules of the site's network.
func (e *Executor) site() sitenet.Rules { return sitenet.Rules{Allow: e.siteNetworks()} }

// siteNetworks is what policy allows of it now.
func (e *Executor) siteNetworks() []netip.Prefix {
	if e.cfg.SiteNetworks == nil {
		return nil
	}
	return e.cfg.SiteNetworks()
}

// pipeWait is far more than it takes to fill a pipe that has room.
const pipeWait = time.Second

// pipes gives one pipe for each made file, for the filter, and for each file of the
// request, filled and closed for writing.
func (e *Executor) pipes(made []madeFile, more []executor.File) ([]*os.File, error) {
	texts := make([][]byte, 0, len(made)+1+len(more))
	for _, m := range made {
		texts = append(texts, []byte(m.text))
	}
	if len(e.filter) > 0 {
		texts = append(texts, e.filter)
	}
	for _, f := range more {
		texts = append(texts, f.Bytes)
	}
	var fs []*os.File
	for _, text := range texts {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(fs)
			return nil, forgeyard.E("sandbox", forgeyard.Unavailable, err)
		}
		// No more than a pipe holds; but where this user has many pipes already the kernel gives
		// one of a page, and nobody reads before the start.
		err = w.SetWriteDeadline(time.Now().Add(pipeWait))
		if err == nil {
			_, err = w.Write(text)
		}
		fs = append(fs, r)
		if err = errors.Join(err, w.Close()); err != nil {
			closeAll(fs)
			return nil, forgeyard.E("sandbox", forgeyard.Unavailable, err)
		}
	}
	return fs, nil
}

func closeAll(fs []*os.File) {
	for _, f := range fs {
		f.Close()
	}
}

// Probe implements executor.Executor: it starts one, and looks from inside.
func (e *Executor) Probe(ctx context.Context) (job.SandboxCapability, error) {
	c := job.SandboxCapability{Kind: job.SandboxStrict, Version: e.version, Limits: []string{"network"}}
	r := executor.Request{Argv: []string{"/bin/sh", "-c", probeScript}, Network: job.NetworkNone, Env: []string{"PATH=/usr/bin:/bin"}}
	if e.cg != nil {
		c.Version += ", cgroup " + e.cg.Describe()
		c.Limits = append(e.cg.Enforces(), c.Limits...)
		if slices.Contains(c.Limits, "pids") {
			r.Limits.Pids = 64
		}
	}
	if len(e.filter) > 0 {
		c.Version += ", seccomp"
		r.Argv[2] = probeFilter + probeScript
	}
	out := &limited{max: 4096}
	r.Stdout, r.Stderr = out, out
	exit, err := executor.Try(ctx, e, r, e.cfg.ScratchDir)
	if err != nil {
		return job.SandboxCapability{}, err
	}
	if exit.Code != 42 {
		return job.SandboxCapability{}, forgeyard.Errorf("probe", forgeyard.Unavailable, "the sandbox does not hold: %+v: %s", exit, out)
	}
	if len(e.siteNetworks()) > 0 {
		if err := e.trySite(ctx, r); err != nil {
			e.cfg.Log.Warn("network site is not offered", "err", err)
		} else {
			c.Limits = append(c.Limits, job.LimitSiteNetwork)
		}
	}
	return c, nil
}

// trySite starts a workload on the site's network, which sees that and no other.
func (e *Executor) trySite(ctx context.Context, r executor.Request) error {
	out := &limited{max: 4096}
	r.Network, r.Stdout, r.Stderr = job.NetworkSite, out, out
	r.Argv = []string{"/bin/sh", "-c", probeSite}
	exit, err := executor.Try(ctx, e, r, e.cfg.ScratchDir)
	if err != nil {
		return err
	}
	if exit.Code != 42 {
		return forgeyard.Errorf("probe", forgeyard.Unavailable, "the site's network does not hold: %+v: %s", exit, out)
	}
	return nil
}

// probeSite exits with 42 when there is a loopback, the way to the site, and nothing else.
const probeSite = `[ "$(tail -n +3 /proc/net/dev | cut -d: -f1 | sort | tr -d ' \n')" = losite0 ] || { cat /proc/net/dev; exit 1; }
exit 42`

// probeFilter exits with 1 where system calls are not filtered.
const probeFilter = `grep -q '^Seccomp:.2$' /proc/self/status || { echo "system calls are not filtered"; exit 1; }
`

// probeScript exits with 42 when the walls stand.
const probeScript = `set -eu
[ "$(id -u)" = 1000 ] || { echo "runs as $(id -u)"; exit 1; }
[ ! -e /run ] && [ ! -e /var/run ] && [ ! -e /root ] && [ ! -e /home ] || { echo "sees host folders"; exit 1; }
[ "$(tail -n +3 /proc/net/dev | wc -l)" = 1 ] || { echo "sees host network devices"; exit 1; }
if (: > /work/source/x) 2>/dev/null || (: > /x) 2>/dev/null; then echo "can write where it must not"; exit 1; fi
: > /work/build/x
grep -q '^NoNewPrivs:.1$' /proc/self/status || { echo "can gain privileges"; exit 1; }
exit 42`

// Named implements executor.Executor.
func (e *Executor) Named(id string) executor.Orphan { return ptree.Named(e.cg, id) }

// Reap implements executor.Executor. Killing bubblewrap ends its namespace.
func (e *Executor) Reap(ctx context.Context, o executor.Orphan) error {
	return ptree.Reap(ctx, e.cg, o)
}

// limited keeps the first bytes of an output.
type limited struct {
	mu  sync.Mutex
	b   []byte
	max int
}

func (l *limited) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, b[:min(len(b), l.max-len(l.b))]...)
	return len(b), nil
}

func (l *limited) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.b))
}

// tap passes stderr on and keeps its beginning, where bubblewrap says why it
// could not start.
type tap struct {
	next io.Writer
	head limited
}

func (t *tap) Write(b []byte) (int, error) {
	if t.head.max == 0 {
		t.head.max = 1024
	}
	_, _ = t.head.Write(b)
	if t.next == nil {
		return len(b), nil
	}
	return t.next.Write(b)
}

// status is what bubblewrap reports, one JSON object at a time.
type status struct {
	ChildPID int  `json:"child-pid"`
	ExitCode *int `json:"exit-code"`
}

// readStatus hands over the reports until the pipe ends.
func readStatus(r *os.File, got func(status)) {
	defer r.Close()
	d := json.NewDecoder(r)
	for {
		var s status
		if d.Decode(&s) != nil {
			return
		}
		got(s)
	}
}

var _ executor.Handle = (*handle)(nil)
