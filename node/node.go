// Package node is one running node: it starts the parts in order, keeps them going,
// and stops them in order.
//
// It acts. What it carries out is decided elsewhere: by the leader's controllers
// (node/controllers), by the agent (node/agent) and by the site's rules (site).
//
//	start   data dir ▸ orphans killed ▸ store ▸ mesh ▸ log ▸ exchange ▸ services ▸ session ▸ agent, leader
//	stop    agent (running work ends or is handed back) ▸ services ▸ leader ▸ log ▸ exchange ▸ mesh ▸ store
//
// Goroutines: session (registers, renews), agent (steps), leader (one leadership at a
// time), upkeep (peers, gossip, credential, pins), janitor (what ended work left), the build cache's and the servers, under one group; one
// per running attempt and per report, awaited before anything is closed; and short calls
// to peers, each with a deadline. Each loop owns its own state; the site's is immutable.
//
// Invariants: what an earlier process left running is dead before this one registers
// (07§249); a finished result is on disk before it is proposed and until it is
// answered (07§94).
package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/layer"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/cas/scrub"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/devices/supervisor"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/capability"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/ender"
	"github.com/forgeyard/forgeyard-node/node/executor/keeper"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
	"github.com/forgeyard/forgeyard-node/node/leading"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/node/trace"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
	"github.com/forgeyard/forgeyard-node/uplink"
)

type peerID = peer.ID

// Config is what a node is made of.
type Config struct {
	Version  string       // of the program
	DataDir  string       // absolute or relative; locked while the node runs
	Settings sitecfg.Node // node.yaml with flags and environment applied
	Sources  []sitecfg.Setting
	// Load reads the settings anew, and Reload asks for it, as SIGHUP does. Nil: they are those of
	// the start.
	Load     func() (sitecfg.Node, []sitecfg.Setting, error)
	Reload   <-chan os.Signal
	Level    *slog.LevelVar // what Log lets through; nil: it cannot be changed
	Clock    clock.Clock    // nil: the system's
	Log      *slog.Logger   // nil: nowhere
	Helper   string         // path of the fyjob binary that workloads get; empty: they get none
	Own      string         // path of this program, for the children that carry out ingest and garden runs; empty: there are none
	Keeper   string         // path of the program that is a keeper under its other name; empty: deadlines are held by this process alone
	Ready    func(*Node)    // called once the node answers
	Platform Platform       // nil: the one that this program was compiled for
	// Committed is called at each entry of the log that was just committed; it must return
	// at once. It may be nil.
	Committed func()
}

// Node is a running node.
type Node struct {
	cfg        Config
	clock      clock.Clock
	log        *slog.Logger
	dir        *dataDir
	enrolment  mesh.Enrolment
	identity   mesh.Identity
	credential credential                      // the current one; the enrolment keeps the one of the start
	heldKey    atomic.Pointer[mesh.Secret]     // the site key, which an approval may bring: see siteKey
	noting     sync.Mutex                      // held while the enrolment is changed: see note
	noted      atomic.Pointer[[]mesh.PeerAddr] // see notedAddrs
	session    forgeyard.SessionID
	ports      *ports
	started    time.Time

	store     *disk.Store
	mesh      *mesh.Mesh
	gossip    *mesh.Gossip
	replica   *replica.Replica
	hints     hints
	group     *consensus.Group
	proposer  *replica.Proposer
	exchange  *caspeer.Exchange
	scrub     *scrub.Scrubber
	cache     *cacheapi.Cache // nil: it is off
	peers     *peers
	executors map[job.Sandbox]executor.Executor
	layers    *layer.Cache // nil: none is kept
	runner    *runner.Runner
	strain    atomic.Pointer[strain] // nil: not looked at yet
	users     *users.Pool            // nil: work runs as the daemon's own user
	keeper    *keeper.Keeper         // nil: there is none
	ender     *ender.Ender           // of trees; knows which do not die
	devices   *supervisor.Supervisor
	witness   *uplink.Witness
	link      *uplink.Link
	recovered []runner.Recovered
	metrics   *metrics
	tracer    *trace.Tracer // nil: off

	caps       atomic.Pointer[job.Capabilities] // all of them: see capsNow
	notice     atomic.Pointer[agent.Notice]     // nil: no source of its own says that the machine is being taken away
	saying     atomic.Bool                      // a word of it is on its way to the log
	gone       time.Time                        // by it, as its source says; preemptLoop's alone
	said       string                           // the source that the log was told; preemptLoop's alone
	uploads    *admission                       // of checkpoints
	probing    sync.Mutex                       // held while the machine is looked at
	state      atomic.Value                     // string: node state of 07§12
	leading    atomic.Pointer[leading.Leadership]
	hint       atomic.Pointer[leaderHint]
	way        *link // to the leader
	backlog    *backlog
	local      *local // the agent's book and the running attempts
	kick       chan struct{}
	fatal      chan error     // why this node must end; capacity 1
	work       sync.WaitGroup // executions, and calls that answer for them
	stopping   atomic.Bool
	lastFacts  atomic.Pointer[factsAt]
	refusedAs  atomic.Pointer[refusal]  // why this process is not let in as its runner; nil: nothing stands against it
	rival      atomic.Pointer[string]   // who asks to be this runner besides, says the leader; empty: nobody
	registered atomic.Uint64            // number of our own registration, once seen applied
	reloaded   atomic.Pointer[reloaded] // nil: the settings are those of the start

	opened     atomic.Bool   // group is set
	caughtUp   atomic.Bool   // see current
	currentIn  atomic.Uint64 // the leadership in which this node was up to date: see current
	told       atomic.Pointer[toldFormat]
	recovering sync.Mutex    // held through a forced recovery
	refreshing sync.Mutex    // held while what the machine is is seen and told again
	warm       chan struct{} // a toolchain came: see warmLoop; capacity 1

	selfChecks   selfChecks
	graphics     capability.Graphics // what their vendor said of graphics processors
	keeperMissed int                 // times in a row that the keeper did not answer; of selfCheckLoop
	storage      lately[storage]
	onDisk       lately[[]*forgeyardv1.Health_Check]
	lacking      lately[[]string] // toolchains
	running      context.Context  // of the loops: what was asked of a disk ends with them
	tried        tried
	raftDisk     raftDisk

	mu        sync.Mutex
	servers   serverAddrs
	strangers map[string]forgeyard.Instant // peers of another lineage, and when they were last talked to
}

// Node states (07§12). Append only.
const (
	StateStarting     = "starting"
	StateConnecting   = "connecting"
	StateRegistering  = "registering"
	StateOnline       = "online"
	StateDraining     = "draining"
	StateReconnecting = "reconnecting"
	StateShuttingDown = "shutting_down"
	StateOffline      = "offline"
)

// proposeTimeout is how long a call that a person waits for tries to reach a majority.
const proposeTimeout = 8 * time.Second

// Run runs the node until ctx ends, then stops it in order. A data dir that belongs
// to no site gives NotFound.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	n := &Node{cfg: cfg, clock: cfg.Clock, log: cfg.Log, kick: make(chan struct{}, 1), warm: make(chan struct{}, 1), fatal: make(chan error, 1), strangers: map[string]forgeyard.Instant{}, started: cfg.Clock.Wall()}
	n.session = forgeyard.SessionID(NewID(n.clock))
	n.setState(StateStarting)
	var closers closers
	defer func() { err = errors.Join(err, closers.close()) }()
	if err := n.open(ctx, &closers); err != nil {
		return err
	}
	return n.serve(ctx)
}

// credential is the member credential that is shown now.
type credential struct{ p atomic.Pointer[[]byte] }

func (c *credential) Load() []byte   { return *c.p.Load() }
func (c *credential) Store(b []byte) { c.p.Store(&b) }

// siteKey is the key that signs credentials; zero on a node that may not vote.
func (n *Node) siteKey() mesh.Secret {
	if k := n.heldKey.Load(); k != nil {
		return *k
	}
	return n.enrolment.SiteKey
}

// enrolmentNow is the enrolment with what came since the start.
func (n *Node) enrolmentNow() mesh.Enrolment {
	e := n.enrolment
	e.Credential, e.SiteKey, e.Peers = n.credential.Load(), n.siteKey(), n.notedAddrs()
	if !e.SiteKey.IsZero() && !slices.Contains(e.Roles, mesh.RoleVoter) {
		e.Roles = append(slices.Clone(e.Roles), mesh.RoleVoter)
	}
	return e
}

// closers run in the reverse order of their opening.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close() error {
	var errs []error
	for i := len(*c) - 1; i >= 0; i-- {
		errs = append(errs, (*c)[i]())
	}
	return errors.Join(errs...)
}

func (n *Node) open(ctx context.Context, c *closers) error {
	steps := []func(context.Context, *closers) error{
		n.openData, n.openStore, n.openRunner, n.openMesh, n.openLog, n.openExchange, n.openBuildCache, n.openGossip, n.openDevices,
	}
	for _, step := range steps {
		if err := step(ctx, c); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return forgeyard.E("start", forgeyard.Interrupted, err)
		}
	}
	return nil
}

func (n *Node) openData(_ context.Context, c *closers) error {
	if _, err := os.Stat(n.cfg.DataDir); errors.Is(err, os.ErrNotExist) {
		return notEnrolled(n.cfg.DataDir)
	}
	d, err := openDataDir(n.cfg.DataDir)
	if err != nil {
		return err
	}
	c.add(d.close)
	n.dir = d
	if n.enrolment, err = mesh.LoadEnrolment(d.path); err != nil {
		if forgeyard.KindOf(err) == forgeyard.NotFound {
			return notEnrolled(d.path)
		}
		return err
	}
	if n.identity, err = mesh.LoadOrCreateIdentity(d.path); err != nil {
		return err
	}
	if err := n.enrolment.Check(n.identity.PeerID()); err != nil {
		return err
	}
	n.credential.Store(n.enrolment.Credential)
	n.log = n.log.With("runner", n.enrolment.RunnerID, "session", forgeyard.Short(n.session))
	n.openTracer()
	n.metrics = newMetrics(n)
	n.uploads = newAdmission(n.cfg.Settings.Checkpoints.Uploads)
	n.local, n.backlog, n.ender = newLocal(), newBacklog(), ender.New(n.clock, n.log)
	return n.checkSuperseded()
}

func notEnrolled(dir string) error {
	return forgeyard.Errorf("up", forgeyard.NotFound, "%s belongs to no site", dir).
		WithHint("start a site with `forgeyard-node init --site NAME`, or enter one with `forgeyard-node join TOKEN`")
}

func (n *Node) openStore(_ context.Context, c *closers) error {
	s, err := disk.Open(disk.Config{Dir: n.dir.join(dirCAS), Limit: int64(n.settings().CAS.Limit), Reserve: int64(n.settings().CAS.Reserve), Log: n.log, Clock: n.clock})
	if err != nil {
		return err
	}
	n.store = s
	c.add(s.Close)
	return n.openScrub()
}

// serve runs the loops until ctx ends or one of them fails.
func (n *Node) serve(ctx context.Context) error {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	g, run := errgroup.WithContext(run)
	n.running = run
	servers, err := n.listen(run, g)
	if err != nil {
		return err
	}
	g.Go(func() error { return n.leaderLoop(run) })
	g.Go(func() error { return n.upkeepLoop(run) })
	g.Go(func() error { return n.selfCheckLoop(run) })
	if n.tracer != nil {
		g.Go(func() error { n.tracer.Run(run); return nil })
	}
	g.Go(func() error { return n.agentLoop(run) })
	g.Go(func() error { return n.sessionLoop(run) })
	g.Go(func() error { return n.lookLoop(run) })
	g.Go(func() error { return n.warmLoop(run) })
	g.Go(func() error { return n.drainLoop(run) })
	g.Go(func() error { return n.preemptLoop(run) })
	g.Go(func() error { return n.janitorLoop(run) })
	g.Go(func() error { return n.reloadLoop(run) })
	g.Go(func() error { return n.cacheLoop(run) })
	g.Go(func() error { n.scrub.Run(run); return nil })
	n.setState(StateConnecting)
	if n.cfg.Ready != nil {
		n.cfg.Ready(n)
	}
	var fatal error
	select {
	case <-ctx.Done():
		n.log.Info("stopping")
		n.shutdown(context.WithoutCancel(ctx))
	case fatal = <-n.fatal:
		n.log.Error("this node cannot go on", "err", fatal)
	case <-run.Done():
	}
	cancel()
	servers.close()
	err = g.Wait()
	n.work.Wait() // every tree is dead, every workspace settled
	n.setState(StateOffline)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(fatal, err)
}

func (n *Node) setState(s string) { n.state.Store(s) }

// State is the node's state (07§12).
func (n *Node) State() string { return n.state.Load().(string) }

// Site returns the newest state of the site that this node has.
func (n *Node) Site() *site.State { return n.replica.State() }

// nudge makes the agent look again.
func (n *Node) nudge() {
	select {
	case n.kick <- struct{}{}:
	default: // one look is due already
	}
}

// propose proposes in the name of this node; the error is the command's own too.
func (n *Node) propose(ctx context.Context, body site.Body) (site.Reply, error) {
	reply, err := n.proposer.Propose(ctx, body)
	if err != nil {
		return reply, err
	}
	return reply, reply.Err()
}
