package explore

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// Company is what takes part in an exploration, and how often each kind of trouble may
// come: two runners, one job, one device, one uplink, or those of them that a question
// needs. What may come less often leaves room for more depth.
type Company struct {
	Name         string
	Connectivity job.Connectivity
	Protected    bool // the job's effects must not be doubled
	Device       bool // the job needs the device
	Saves        int  // checkpoints that it takes, each ending one epoch and beginning the next
	Submits      bool // its submission is still under way, and may come twice
	Delegated    bool // it comes from the central daemon
	FastLeader   bool // the leader's clock is the fast one; the runners' are slow

	Ticks   int  // of the clocks
	Beats   int  // heartbeats of the runners, all together
	Syncs   int  // exchanges with the daemon
	Figures int  // of silence that the leader commits
	Losses  int  // messages that are lost
	Copies  int  // messages that come twice
	Crashes int  // processes that begin anew
	Elects  int  // changes of the leader
	Lingers bool // the leader before goes on deciding, on what it saw
	Cancels int
	Drains  int // runners that are told to drain, and to give back what they hold
	Bans    int // runners that are disabled
	Revokes int // leases that a person takes away
	Cuts    int // of the uplink, each healed or not
	Raises  int // the daemon gives the job anew
}

// Small are companies that are explored to the end: each kind of work, with as many kinds
// of trouble at once as asked for, each of which comes once.
func Small(troubles int) []Company {
	var out []Company
	for _, k := range kinds() {
		out = append(out, with(k, allTroubles, troubles)...)
	}
	return out
}

func kinds() []Company {
	continuous := job.Connectivity{Policy: job.Continuous}
	grace := job.Connectivity{Policy: job.Grace, For: slowTick}
	offline := job.Connectivity{Policy: job.OfflineAuthorized, For: 4 * slowTick}
	return []Company{
		{Name: "continuous", Connectivity: continuous, Protected: true, FastLeader: true, Ticks: 3, Beats: 1},
		{Name: "grace", Connectivity: grace, Protected: true, FastLeader: true, Ticks: 4, Beats: 1},
		{Name: "offline", Connectivity: offline, Protected: true, FastLeader: true, Ticks: 6, Beats: 1},
		{Name: "fence", Connectivity: offline, FastLeader: true, Ticks: 3, Beats: 1},
		{Name: "device", Connectivity: continuous, Device: true, FastLeader: true, Ticks: 3, Beats: 1},
		{Name: "checkpoint", Connectivity: continuous, Protected: true, Saves: 1, FastLeader: true, Ticks: 3, Beats: 1},
		{Name: "uplink", Connectivity: offline, Protected: true, Delegated: true, Ticks: 3, Beats: 1, Syncs: 1},
	}
}

type trouble struct {
	name string
	in   func(*Company)
}

var allTroubles = []trouble{
	{"loss", func(c *Company) { c.Losses = 1 }},
	{"copy", func(c *Company) { c.Copies = 1 }},
	{"crash", func(c *Company) { c.Crashes = 1 }},
	{"election", func(c *Company) { c.Elects = 1 }},
	{"late leader", func(c *Company) { c.Elects, c.Lingers = 1, true }},
	{"cancel", func(c *Company) { c.Cancels = 1 }},
	{"drain", func(c *Company) { c.Drains = 1 }},
	{"ban", func(c *Company) { c.Bans = 1 }},
	{"revocation", func(c *Company) { c.Revokes = 1 }},
}

// with is the company with each choice of n of the troubles.
func with(c Company, ts []trouble, n int) []Company {
	if n == 0 {
		return []Company{c}
	}
	var out []Company
	for i, t := range ts {
		d := c
		t.in(&d)
		d.Name += ", " + t.name
		out = append(out, with(d, ts[i+1:], n-1)...)
	}
	return out
}

// Companies are too large to be explored to the end: each has all of what its name
// says, and the last has everything.
func Companies() []Company {
	continuous := job.Connectivity{Policy: job.Continuous}
	grace := job.Connectivity{Policy: job.Grace, For: slowTick}
	offline := job.Connectivity{Policy: job.OfflineAuthorized, For: 4 * slowTick}
	return []Company{
		{Name: "silence", Connectivity: continuous, Protected: true, FastLeader: true, Ticks: 6, Beats: 4, Losses: 2, Copies: 1, Crashes: 1, Elects: 1, Cancels: 1},
		{Name: "grace", Connectivity: grace, Protected: true, FastLeader: true, Ticks: 6, Beats: 3, Losses: 1, Crashes: 1, Elects: 1},
		{Name: "offline", Connectivity: offline, Protected: true, FastLeader: true, Ticks: 7, Beats: 3, Losses: 1, Copies: 1, Elects: 1, Lingers: true},
		{Name: "fence", Connectivity: offline, FastLeader: true, Ticks: 5, Beats: 3, Losses: 1, Copies: 1, Crashes: 1, Cancels: 1, Drains: 1},
		{Name: "device", Connectivity: offline, Device: true, FastLeader: true, Ticks: 5, Beats: 3, Losses: 1, Copies: 1, Crashes: 1, Elects: 1},
		{Name: "checkpoint", Connectivity: continuous, Saves: 2, Submits: true, FastLeader: true, Ticks: 4, Beats: 2, Losses: 1, Copies: 1, Crashes: 1, Cancels: 1},
		{Name: "checkpoint on a device", Connectivity: continuous, Saves: 1, Device: true, Protected: true, FastLeader: true, Ticks: 4, Beats: 2, Losses: 1, Copies: 1, Crashes: 1},
		{Name: "uplink", Connectivity: offline, Protected: true, Delegated: true, Ticks: 5, Beats: 3, Syncs: 2, Figures: 2, Losses: 1, Copies: 1, Elects: 2, Cuts: 1},
		{Name: "given anew", Connectivity: continuous, Protected: true, Delegated: true, FastLeader: true, Ticks: 4, Beats: 3, Syncs: 2, Losses: 1, Copies: 1, Crashes: 1, Cancels: 1, Raises: 1},
		{Name: "all", Connectivity: grace, Protected: true, Device: true, Saves: 1, Delegated: true, FastLeader: true,
			Ticks: 6, Beats: 4, Syncs: 2, Figures: 1, Losses: 2, Copies: 1, Crashes: 1, Elects: 1, Cancels: 1, Drains: 1, Revokes: 1, Cuts: 1, Raises: 1},
	}
}

// Clocks: one tick of true time is slow on the slow ones and a tenth more on the fast
// ones, which is what the site's bound allows. A lease of two ticks is the shortest in
// which the bound can be seen to matter.
const (
	slowTick = 11 * time.Second
	fastTick = 12100 * time.Millisecond
	driftPPM = 100_000
	ttl      = 2 * slowTick
)

// boot is every clock's reading at the beginning.
const boot = forgeyard.Instant(time.Hour)

// wall is the time that people see; nothing is decided by it.
var wall = forgeyard.WallOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

// uplinkTerms let delegated work go on for two ticks without the daemon.
var uplinkTerms = lease.UplinkTerms{SilentAfter: slowTick, Grace: slowTick / 2, Allowance: 2 * slowTick}

const (
	hostNode  = 2 // hosts the device and takes no work
	nodes     = 3
	deviceID  = forgeyard.DeviceID("board")
	joinToken = forgeyard.TokenID("T")
)

func sessionID(node int, n uint8) forgeyard.SessionID {
	return forgeyard.SessionID(fmt.Sprintf("%s/%d", nodeName(node), n))
}

func nodeName(node int) string { return []string{"r1", "r2", "host"}[node] }

func (c Company) caps(node int) job.Capabilities {
	k := job.Capabilities{
		OS: "linux", Arch: "amd64", MilliCPU: 4000, Memory: 16 << 30, Disk: 200 << 30, MaxJobs: 1,
		Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}}, Networks: []job.Network{job.NetworkNone},
	}
	if node == hostNode {
		k.MaxJobs = 0
		if c.Device {
			k.Devices = []job.DeviceFact{{ID: deviceID, Kind: "board"}}
		}
	}
	return k
}

func (c Company) spec() job.Spec {
	sp := job.Spec{Title: "job", Steps: []job.Step{{Name: "work", Run: []string{"work"}}}, Connectivity: c.Connectivity}
	sp.Interruption = job.Interruption{Tolerance: job.ToleranceRestartable, Budget: 3, Retry: job.RetryResumeOrRestart}
	sp.Stop.Grace = time.Second
	if c.Protected {
		sp.Effects = job.EffectsProtected
	}
	if c.Device {
		sp.Devices = []job.DeviceRequest{{Kind: "board", As: "dut"}}
	}
	if c.Saves > 0 {
		sp.Resume.Mode, sp.Resume.Checkpoint.Files = job.ResumeApplication, []string{"state"}
	}
	return sp.Defaulted()
}

func (c Company) submit() site.Submit {
	raw := c.spec().Canonical()
	return site.Submit{Kind: job.Build, Title: "job", Spec: raw, SpecID: cas.Sum(raw)}
}

// delegation is the daemon's record of the job under a term; the number is the term's.
func (c Company) delegation(term uint64) site.Delegation {
	raw := c.spec().Canonical()
	g := lease.Grant{ID: "G1", Term: term, Policy: job.Connectivity{Policy: job.OfflineAuthorized, For: 2 * slowTick}}
	return site.Delegation{Seq: term, Grant: g, Title: "job", Spec: raw, SpecID: cas.Sum(raw)}
}

// founding are the entries of a site that was formed before: its host, two runners,
// perhaps an uplink, and the job where the daemon gave it.
func (c Company) founding() []site.Body {
	cfg := sitecfg.DefaultSite()
	cfg.Lease.TTL, cfg.Lease.Renew, cfg.Lease.Drift, cfg.Lease.Grace = ttl, ttl/3, driftPPM, 0
	cfg.Durability.AcceptFewer = true
	id := forgeyard.SiteID(forgeyard.NewULID(wall.Time(), [10]byte{1}))
	host := forgeyard.RunnerID(forgeyard.NewULID(wall.Time(), [10]byte{9}))
	hash := [32]byte{7}
	out := []site.Body{
		site.Init{Site: id, Name: "explored", Config: cfg, Runner: host, Node: nodeName(hostNode), Peer: "peer-host"},
		site.TokenCreate{Token: joinToken, Hash: hash, Expires: wall + 1, Uses: 2, MayVote: true},
		site.Join{Token: joinToken, Hash: hash, Peer: "peer-r1", Name: "r1"},
		site.Join{Token: joinToken, Hash: hash, Peer: "peer-r2", Name: "r2"},
	}
	if c.Delegated {
		out = append(out, site.UplinkConnect{Central: site.Central{Peer: "central", Name: "central"}, Terms: uplinkTerms})
	}
	return out
}
