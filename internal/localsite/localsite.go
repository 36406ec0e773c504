// Package localsite runs a site on this machine: the real programs as real
// processes, each node with a data dir of its own and free ports on loopback.
//
// It starts, kills and ends processes, speaks to daemons over their control sockets,
// and waits for what they say of themselves. It decides nothing and claims nothing:
// the demonstration and the measurements do.
//
// Every process that it starts it knows by its handle, and ends by it: never by a
// name. What it waits for has a bound, and a daemon that ends unasked ends every wait.
package localsite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

// Programs are the built binaries.
type Programs struct {
	Node    string // forgeyard-node; fyjob stands beside it
	Central string // forgeyard-central
}

// FindPrograms finds the programs that stand in a folder, each of which must be there.
func FindPrograms(dir string) (Programs, error) {
	p := Programs{Node: filepath.Join(dir, "forgeyard-node"), Central: filepath.Join(dir, "forgeyard-central")}
	for _, f := range []string{p.Node, p.Central, filepath.Join(dir, "fyjob")} {
		if st, err := os.Stat(f); err != nil || !st.Mode().IsRegular() {
			return p, forgeyard.Errorf("programs", forgeyard.NotFound, "%s is not there", f).WithHint("build all three: make build")
		}
	}
	return p, nil
}

// Site is what runs in one folder.
type Site struct {
	Dir      string
	Programs Programs
	Nodes    []*Node
	Central  *Central
	// Launch starts a daemon's process; nil: as any process. A test starts it on a machine
	// of its own with it.
	Launch func(name string, c *exec.Cmd) error

	mu      sync.Mutex
	daemons []*Daemon // every one that was ever started
}

// Node is one node of the site.
type Node struct {
	Name   string
	Dir    string // data dir
	API    API
	Daemon *Daemon // nil: not started, or ended
	site   *Site
}

// Central is the central daemon.
type Central struct {
	Dir    string
	API    CentralAPI
	Daemon *Daemon
}

// New makes a site in a folder. Nothing is started.
func New(dir string, p Programs) *Site { return &Site{Dir: dir, Programs: p} }

// Settings are a node's own, as node.yaml has them. Addresses are filled in.
type Settings map[string]any

// SiteFile writes site.yaml and returns its path.
func (s *Site) SiteFile(policy map[string]any) (string, error) { return s.file("site.yaml", policy) }

func (s *Site) file(name string, v any) (string, error) {
	b, err := yaml.Marshal(v)
	if err != nil {
		return "", err
	}
	p := filepath.Join(s.Dir, name)
	return p, os.WriteFile(p, b, 0o644)
}

// AddNode writes a node's file and gives it its place among Nodes; it is not enrolled.
func (s *Site) AddNode(name string, set Settings) (n *Node, config string, err error) {
	all := Settings{"name": name, "listen": "127.0.0.1:0", "gossip": "127.0.0.1:0", "http": "127.0.0.1:0"}
	for k, v := range set {
		all[k] = v
	}
	config, err = s.file(name+".yaml", map[string]any(all))
	n = &Node{Name: name, Dir: filepath.Join(s.Dir, name), site: s}
	n.API = newAPI(filepath.Join(n.Dir, "control.sock"))
	s.Nodes = append(s.Nodes, n)
	return n, config, err
}

// Env is what makes a command line reach this node.
func (n *Node) Env() []string { return []string{"FORGEYARD_DATA_DIR=" + n.Dir} }

// Up starts the node's daemon. It returns before the daemon answers.
func (n *Node) Up() error {
	d, err := n.site.start(n.Name, n.site.Programs.Node, n.Env(), "up")
	if err == nil {
		n.Daemon = d
	}
	return err
}

// UpCentral starts the central daemon. It returns before the daemon answers.
func (s *Site) UpCentral(name string) error { return s.UpCentralAt(name, "127.0.0.1:0") }

// UpCentralAt is UpCentral with an address to listen at.
func (s *Site) UpCentralAt(name, listen string) error {
	c := &Central{Dir: filepath.Join(s.Dir, "central")}
	c.API = newCentralAPI(filepath.Join(c.Dir, "control.sock"))
	d, err := s.start("central", s.Programs.Central, nil, "--data-dir", c.Dir, "up", "--listen", listen, "--name", name)
	if err != nil {
		return err
	}
	c.Daemon, s.Central = d, c
	return nil
}

// Remove removes the site's folder with all that is in it. Nothing may run there.
func (s *Site) Remove() error {
	parts, err := filepath.Glob(filepath.Join(s.Dir, "*", "*"))
	if err != nil {
		return err
	}
	var g errgroup.Group // a store has ten thousand files, and each waits for the disk
	for _, p := range parts {
		g.Go(func() error { return os.RemoveAll(p) })
	}
	return errors.Join(g.Wait(), os.RemoveAll(s.Dir))
}

// Node finds a node by its name.
func (s *Site) Node(name string) (*Node, error) {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, forgeyard.Errorf("site", forgeyard.NotFound, "there is no node %q", name)
}

// pollEvery is how often a daemon is asked for what is awaited; a call takes well
// below a millisecond.
const pollEvery = 25 * time.Millisecond

// final is an error after which nothing more is to be awaited.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final marks an error of a look that ends the wait; nil stays nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err}
}

// Await asks again and again until look says yes. An error of look is a no, and is
// told when the time is over: what is awaited may begin with a daemon that does not
// answer yet. A Final one ends the wait at once, and so does a daemon that ended
// without being asked to.
func (s *Site) Await(ctx context.Context, what string, bound time.Duration, look func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var last error
	for {
		call, done := context.WithTimeout(ctx, callTimeout)
		ok, err := look(call)
		done()
		if err == nil && ok {
			return nil
		}
		if f := (final{}); errors.As(err, &f) {
			return f.error
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		if err := s.Unasked(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			if context.Cause(ctx) == context.DeadlineExceeded {
				return notSeen(what, bound, last)
			}
			return forgeyard.E(what, forgeyard.Interrupted, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func notSeen(what string, bound time.Duration, last error) error {
	if last != nil {
		return forgeyard.Errorf(what, forgeyard.Unavailable, "not seen within %s; the last answer was: %v", bound, last)
	}
	return forgeyard.Errorf(what, forgeyard.Unavailable, "not seen within %s", bound)
}

// AwaitOnline waits until nodes answer, are registered, and stand behind a leader.
func (s *Site) AwaitOnline(ctx context.Context, bound time.Duration, nodes ...*Node) error {
	for _, n := range nodes {
		err := s.Await(ctx, n.Name+" online", bound, func(ctx context.Context) (bool, error) {
			st, err := n.Status(ctx)
			return err == nil && st.State == "online" && st.Quorum, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// AwaitVoters waits until that many members vote, are alive and take work.
func (s *Site) AwaitVoters(ctx context.Context, at *Node, want int, bound time.Duration) (st *forgeyardv1.SiteStatus, err error) {
	err = s.Await(ctx, fmt.Sprintf("%d voters", want), bound, func(ctx context.Context) (bool, error) {
		st, err = at.SiteStatus(ctx)
		if err != nil {
			return false, err
		}
		alive := 0
		for _, m := range st.Members {
			if m.Voter && m.State == "alive" && m.SessionId != "" {
				alive++
			}
		}
		return st.Quorum && st.Leader.GetName() != "" && alive == want, nil
	})
	return st, err
}

// Status asks the node about itself.
func (n *Node) Status(ctx context.Context) (*forgeyardv1.NodeStatus, error) {
	return call(ctx, n.API.Node.Status, &forgeyardv1.NodeStatusRequest{})
}

// SiteStatus asks the node about its site.
func (n *Node) SiteStatus(ctx context.Context) (*forgeyardv1.SiteStatus, error) {
	return call(ctx, n.API.Site.Status, &forgeyardv1.SiteStatusRequest{})
}

// Job asks the node about a job.
func (n *Node) Job(ctx context.Context, id string) (*forgeyardv1.Job, error) {
	return call(ctx, n.API.Job.Show, &forgeyardv1.ShowJobRequest{JobId: id})
}

// JobOfGrant finds the job that a delegation became.
func (n *Node) JobOfGrant(ctx context.Context, grant string) (*forgeyardv1.Job, error) {
	l, err := call(ctx, n.API.Job.List, &forgeyardv1.ListJobsRequest{All: true})
	if err != nil {
		return nil, err
	}
	for _, j := range l.Jobs {
		if j.GrantId == grant {
			return n.Job(ctx, j.JobId)
		}
	}
	return nil, forgeyard.Errorf("job", forgeyard.NotFound, "the site has not taken in grant %s yet", grant)
}

// Events are the site's, as the node has them, after an index of the log.
func (n *Node) Events(ctx context.Context, after uint64) ([]*forgeyardv1.SiteEvent, error) {
	st, err := n.API.Site.Events(ctx, connect.NewRequest(&forgeyardv1.SiteEventsRequest{After: after}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }() // everything was read, or the error says why not
	var out []*forgeyardv1.SiteEvent
	for st.Receive() {
		out = append(out, st.Msg())
	}
	return out, st.Err()
}

// Log is a stream of a job's log, by epoch.
func (n *Node) Log(ctx context.Context, id, stream string) (map[uint64]string, error) {
	st, err := n.API.Job.Log(ctx, connect.NewRequest(&forgeyardv1.LogRequest{JobId: id, Stream: stream}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }() // as above
	parts := map[uint64]*strings.Builder{}
	for st.Receive() {
		f := st.Msg()
		if parts[f.Epoch] == nil {
			parts[f.Epoch] = &strings.Builder{}
		}
		parts[f.Epoch].Write(f.Data) // a strings.Builder never fails
	}
	out := map[uint64]string{}
	for e, b := range parts {
		out[e] = b.String()
	}
	return out, st.Err()
}

// Content reads an output as a whole.
func (n *Node) Content(ctx context.Context, o *forgeyardv1.Output) ([]byte, error) {
	st, err := n.API.Content.Get(ctx, connect.NewRequest(&forgeyardv1.GetRequest{Digest: o.Digest, Manifest: o.Manifest, Size: o.Size}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }() // as above
	var b []byte
	for st.Receive() {
		b = append(b, st.Msg().Data...)
	}
	return b, st.Err()
}

// Has reports whether a node's own store has an object whole.
func (n *Node) Has(ctx context.Context, digest string) (bool, error) {
	o, err := call(ctx, n.API.Content.Stat, &forgeyardv1.StatRequest{Digest: digest})
	if forgeyard.KindOf(err) == forgeyard.NotFound {
		return false, nil
	}
	return err == nil && o.Complete, err
}

// SpooledCompletion reports whether the node has written down the result of an
// attempt that no leader has answered yet: the recovery file that its next process reads.
func (n *Node) SpooledCompletion(attempt string) (bool, error) {
	files, err := filepath.Glob(filepath.Join(n.Dir, "agent", attempt+"-*.json"))
	if err != nil {
		return false, err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return false, err
		}
		if strings.Contains(string(b), `"completion":`) {
			return true, nil
		}
	}
	return false, nil
}
