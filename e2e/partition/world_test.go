package partition

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/lab"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

type m = map[string]any

// How long a thing may take on two cores that do other things too.
const (
	soon  = 30 * time.Second
	later = 90 * time.Second
)

// world is a site whose nodes and central daemon have a machine each.
type world struct {
	dir      string
	lab      *lab.Lab
	site     *localsite.Site
	machines []*lab.Machine // by number, hq last where there is one
	boards   []*board
	side     *sideLog
}

// options of a world. Zero: three voters, and no central daemon.
type options struct {
	seed    uint64
	nodes   int                            // default 3
	voters  int                            // wanted; default 3. Nodes beyond them never vote
	central bool                           // there is one, and the site is enrolled with it
	alone   time.Duration                  // what it allows; default 1h
	lease   m                              // default quickLease
	devices map[string][]string            // by name of the host
	base    func(from, to int) lab.Weather // of the cables; nil: none
	silent  bool                           // build the machines and the central daemon, but no site
}

var quickLease = m{"ttl": "3s", "renew": "1s", "grace": "2s"}

const (
	diskSize    = 320 << 20
	meshPort    = 7444
	gossipPort  = 7445
	centralPort = 7446
)

// newWorld makes the machines and brings the site up. Everything is gone when the test
// has ended.
func newWorld(t *testing.T, o options) *world {
	t.Helper()
	if err := refused(); err != nil {
		needs.Lacking(t, "no partitions here: %v", err)
	}
	o = o.defaulted()
	w, err := build(t, o)
	if err == nil && !o.silent {
		err = w.found(t.Context(), o)
	}
	if err != nil {
		if w != nil {
			t.Log(w.site.Tails(30))
		}
		t.Fatal(err)
	}
	return w
}

func (o options) defaulted() options {
	if o.nodes == 0 {
		o.nodes = 3
	}
	if o.voters == 0 {
		o.voters = 3
	}
	if o.alone == 0 {
		o.alone = time.Hour
	}
	if o.lease == nil {
		o.lease = quickLease
	}
	return o
}

// refused says why this machine has no lab, or no sandbox for the work.
var refused = sync.OnceValue(func() error {
	if err := lab.Refused(); err != nil {
		return err
	}
	_, err := exec.LookPath("bwrap")
	return err
})

// build makes the machines with their disks; nothing of the product runs yet.
func build(t *testing.T, o options) (*world, error) {
	programs, err := localsite.FindPrograms(os.Getenv("FORGEYARD_BIN"))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fyp") // short: a socket's path has at most 108 bytes
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })  // after everything below
	if err := os.Chmod(dir, 0o755); err != nil { // work runs as another user
		return nil, err
	}
	l, err := lab.New(lab.Config{Dir: dir, Seed: o.seed})
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, lab: l, site: localsite.New(dir, programs)}
	w.site.Launch = func(name string, c *exec.Cmd) error { return w.machine(name).Start(c) }
	t.Cleanup(func() {
		w.site.Stop()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	total := o.nodes
	if o.central {
		total++
	}
	for i := range total {
		name := nameOf(i)
		if i == o.nodes {
			name = nameOf(hq)
		}
		mm, err := l.Machine(name)
		if err != nil {
			return w, err
		}
		w.machines = append(w.machines, mm)
	}
	w.weather(o.base)
	return w, w.furnish(t, o)
}

// weather sets the cables to what they are when nothing is wrong.
func (w *world) weather(base func(from, to int) lab.Weather) {
	for i, a := range w.machines {
		for j, b := range w.machines {
			if i != j && base != nil {
				w.lab.Weather(a, b, base(i, j))
			}
		}
	}
}

// furnish gives each machine its disk, and makes the boards and the side log.
func (w *world) furnish(t *testing.T, o options) error {
	var g errgroup.Group
	for i := range o.nodes {
		g.Go(func() error { return w.machines[i].Mount(filepath.Join(w.dir, nameOf(i)), diskSize) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, name := range []string{jobsDevice, peoplesDevice} {
		b, err := newBoard(name, w.tty(name))
		if err != nil {
			return err
		}
		w.boards = append(w.boards, b)
		t.Cleanup(b.close)
	}
	s, err := newSideLog(filepath.Join(w.dir, "side"))
	w.side = s
	if err == nil {
		t.Cleanup(s.close)
	}
	return err
}

const (
	jobsDevice    = "dut"
	peoplesDevice = "desk"
)

func (w *world) tty(device string) string { return filepath.Join(w.dir, device+"-tty") }

// serial is a device as node.yaml has it.
func (w *world) serial(device string) m {
	return m{
		"id": device, "kind": "serial", "path": w.tty(device), "labels": m{"board": device},
		"reset": m{"send": "\nreset\n", "expect": "baseline", "timeout": "5s"},
	}
}

func (w *world) machine(name string) *lab.Machine {
	if name == "central" {
		name = nameOf(hq)
	}
	for _, m := range w.machines {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// settings are a node's file.
func (w *world) settings(name string, o options) localsite.Settings {
	addr := w.machine(name).Addr
	s := localsite.Settings{
		"listen": fmt.Sprintf("%s:%d", addr, meshPort), "gossip": fmt.Sprintf("%s:%d", addr, gossipPort), "http": "127.0.0.1:7440",
		"executors": []string{"sandbox", "process"},
		"cas":       m{"reserve": "1MiB"}, "limits": m{"reserve": m{"memory": "16MiB", "disk": "1MiB"}},
		"shutdown": m{"grace": "1s"}, "reconnect": m{"max_backoff": "2s"},
	}
	var devices []m
	for _, d := range o.devices[name] {
		devices = append(devices, w.serial(d))
	}
	if len(devices) > 0 {
		s["devices"] = devices
	}
	return s
}

// found makes the site of all nodes, and enrols it with the central daemon.
func (w *world) found(ctx context.Context, o options) error {
	policy, err := w.site.SiteFile(m{"lease": o.lease, "voters": o.voters})
	if err != nil {
		return err
	}
	first, config, err := w.site.AddNode(nameOf(0), w.settings(nameOf(0), o))
	if err != nil {
		return err
	}
	if _, err := first.Command(ctx, "", "init", "--site", "lab", "--config", config, "--site-config", policy); err != nil {
		return err
	}
	if err := first.Up(); err != nil {
		return err
	}
	if err := w.site.AwaitOnline(ctx, later, first); err != nil {
		return err
	}
	if err := w.joinRest(ctx, first, o); err != nil {
		return err
	}
	if _, err := w.site.AwaitVoters(ctx, first, o.voters, later); err != nil {
		return err
	}
	if !o.central {
		return nil
	}
	return w.enrol(ctx, first, o.alone)
}

func (w *world) joinRest(ctx context.Context, first *localsite.Node, o options) error {
	var g errgroup.Group
	for i := 1; i < o.nodes; i++ {
		role := "voter"
		if i >= o.voters {
			role = "runner"
		}
		token, err := first.Command(ctx, "", "token", "create", "--role", role)
		if err != nil {
			return err
		}
		n, config, err := w.site.AddNode(nameOf(i), w.settings(nameOf(i), o))
		if err != nil {
			return err
		}
		g.Go(func() error {
			if _, err := n.Command(ctx, token, "join", "-", "--config", config); err != nil {
				return err
			}
			return n.Up()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return w.site.AwaitOnline(ctx, later, w.site.Nodes...)
}

// upCentral starts the central daemon and waits until it answers.
func (w *world) upCentral(ctx context.Context) error {
	addr := w.machine("central").Addr
	if err := w.site.UpCentralAt("hq", fmt.Sprintf("%s:%d", addr, centralPort)); err != nil {
		return err
	}
	return w.site.Await(ctx, "the central daemon", later, func(ctx context.Context) (bool, error) {
		_, err := w.site.Central.API.Status(ctx, connect.NewRequest(&forgeyardv1.CentralStatusRequest{}))
		return err == nil, err
	})
}

func (w *world) enrol(ctx context.Context, first *localsite.Node, alone time.Duration) error {
	if err := w.upCentral(ctx); err != nil {
		return err
	}
	ticket, err := w.central(ctx, "ticket", "create", "--silent-after", "2s", "--grace", "1s", "--offline-for", alone.String())
	if err != nil {
		return err
	}
	if _, err := first.Command(ctx, strings.TrimSpace(ticket), "uplink", "connect", "-"); err != nil {
		return err
	}
	return w.awaitUplink(ctx, first, later, "online")
}

// central runs a command line of the central daemon's program.
func (w *world) central(ctx context.Context, args ...string) (string, error) {
	return w.site.Command(ctx, w.site.Programs.Central, nil, "", append([]string{"--data-dir", w.site.Central.Dir}, args...)...)
}

func (w *world) awaitUplink(ctx context.Context, at *localsite.Node, bound time.Duration, states ...string) error {
	return w.site.Await(ctx, "uplink "+strings.Join(states, " or "), bound, func(ctx context.Context) (bool, error) {
		st, err := at.SiteStatus(ctx)
		if err != nil {
			return false, err
		}
		for _, s := range states {
			if st.Connectivity.GetState() == s {
				return true, nil
			}
		}
		return false, fmt.Errorf("it is %s", st.Connectivity.GetState())
	})
}

// hears makes every machine of a group deaf to every one of another, or mends it.
func (w *world) hears(to, from []int, yes bool) error {
	var errs []error
	for _, t := range to {
		for _, f := range from {
			if t != f {
				errs = append(errs, w.machines[t].Hears(w.machines[f], yes))
			}
		}
	}
	return errors.Join(errs...)
}

// apart cuts two groups off from each other, both ways.
func (w *world) apart(a, b []int) error {
	return errors.Join(w.hears(a, b, false), w.hears(b, a, false))
}

// beat is one line of the side log.
type beat struct {
	Class string `json:"class"` // protected, or not
	Key   string `json:"key"`
	Epoch string `json:"epoch"`
	N     string `json:"n"`
	After int64  `json:"after"` // it was done between these two, as op has times
	By    int64  `json:"by"`

	after, by time.Time
}

// sideLog is what work does to the world outside: one pipe for all, whose order is the
// true one.
type sideLog struct {
	pipe      *os.File
	empty, by time.Time // of the reader: when the pipe was last seen empty, and last read

	mu    sync.Mutex
	beats []beat
}

func newSideLog(path string) (*sideLog, error) {
	if err := unix.Mkfifo(path, 0o666); err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil { // whatever the umask says
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0) // for writing too: it never comes to an end
	if err != nil {
		return nil, err
	}
	s := &sideLog{pipe: f, empty: time.Now()}
	go s.read()
	return s, nil
}

func (s *sideLog) read() {
	for in := bufio.NewScanner(s); in.Scan(); {
		if f := strings.Fields(in.Text()); len(f) == 4 {
			s.mu.Lock()
			s.beats = append(s.beats, beat{Class: f[0], Key: f[1], Epoch: f[2], N: f[3], after: s.empty, by: s.by})
			s.mu.Unlock()
		}
	}
}

// Read is the scanner's: a line is written at once, so it was written after the pipe was
// empty.
func (s *sideLog) Read(p []byte) (n int, err error) {
	now := time.Now()
	c, err := s.pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = c.Control(func(fd uintptr) {
		if waiting, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && waiting == 0 {
			s.empty = now
		}
	})
	if err != nil {
		return 0, err
	}
	n, err = s.pipe.Read(p)
	s.by = time.Now()
	return n, err
}

// log is what was done, by the times of a run that began then.
func (s *sideLog) log(began time.Time) []beat {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append([]beat(nil), s.beats...)
	for i, b := range out {
		out[i].After, out[i].By = int64(b.after.Sub(began)), int64(b.by.Sub(began))
	}
	return out
}

func (s *sideLog) close() { _ = s.pipe.Close() } // nobody writes any more
