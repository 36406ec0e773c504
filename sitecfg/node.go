// Package sitecfg decides what a configuration may say: node.yaml, which is one
// machine's, and the site's policy, which lives in the log.
//
// A configuration is parsed strictly, validated against bounds, and then frozen:
// it is a value without pointers into anything that changes. Effective tells for
// each value whether it came from a flag, the environment, the file or the
// default, which is what `doctor` shows. Reload tells which changes of node.yaml
// a running node may take over and which need a restart (07§220).
//
// Local policy only tightens (07§217): a node may allow less than a job asks, and
// then does not take it; it cannot make the site's rules weaker.
//
// The package is pure: it reads no file, no environment and no clock; callers do.
package sitecfg

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/strictyaml"
	"github.com/forgeyard/forgeyard-node/job"
)

// Size is a number of bytes, written `2GiB`.
type Size = strictyaml.Size

// MilliCPU is thousandths of a core, written `2`, `0.5` or `500m`.
type MilliCPU = strictyaml.MilliCPU

// Node is node.yaml.
type Node struct {
	// DataDir holds everything the node keeps. Default: chosen by the caller from
	// the platform. A wrong value starts an empty node beside the enrolled one.
	DataDir string `yaml:"data_dir"`
	// Name is what people call the node. Default: the host's name, taken by the
	// caller. It is never identity (07§203).
	Name string `yaml:"name"`
	// Listen is HOST:PORT of the mesh, TCP and QUIC on one number. Default :7444;
	// an empty host is every address, port 0 takes a free one.
	Listen string `yaml:"listen"`
	// Gossip is HOST:PORT of the membership gossip, TCP and UDP. Default :7445.
	Gossip string `yaml:"gossip"`
	// HTTP is HOST:PORT of the API and dashboard. Default 127.0.0.1:7440; an
	// address that is not loopback demands tokens of every caller.
	HTTP string `yaml:"http"`
	// Advertise are the HOST:PORT that other nodes are told to dial. Default: what
	// Listen binds. Needed behind NAT or with several networks.
	Advertise []string `yaml:"advertise"`
	// Labels are hints for placement, never trust (decision 12).
	Labels map[string]string `yaml:"labels"`
	// Executors are what may run work here. Default [sandbox]. `process` is weaker
	// and off unless listed (decision 9); with an empty list the node runs nothing.
	Executors []string `yaml:"executors" enum:"sandbox|process"`
	// Users are the accounts of the machine that work runs as under a root daemon.
	Users UsersConfig `yaml:"users"`
	// Process is for the process executor only.
	Process ProcessConfig `yaml:"process"`
	// Limits bound what jobs may use of this machine.
	Limits LimitsConfig `yaml:"limits"`
	// CAS bounds the content store.
	CAS CASConfig `yaml:"cas"`
	// CacheAPI is the door for build tools that cache what they make.
	CacheAPI CacheAPIConfig `yaml:"cache_api"`
	// Spool bounds the log spool.
	Spool SpoolConfig `yaml:"spool"`
	// Sandbox opens the sandbox where the machine needs it.
	Sandbox SandboxConfig `yaml:"sandbox"`
	// Toolchains are tools that are named here rather than found by probing.
	Toolchains []ToolchainConfig `yaml:"toolchains"`
	// Devices are the devices that this node hosts.
	Devices []DeviceConfig `yaml:"devices"`
	// Secrets are files of this machine, by the name under which jobs ask for them. Default
	// none. Whoever may submit a job can have what is named here.
	Secrets map[string]string `yaml:"secrets"`
	// Policy is what this node allows; it only tightens.
	Policy PolicyConfig `yaml:"policy"`
	// Reconnect paces the return to the site.
	Reconnect ReconnectConfig `yaml:"reconnect"`
	// Shutdown bounds an orderly end.
	Shutdown ShutdownConfig `yaml:"shutdown"`
	// Retention is how long what work leaves stays on this machine.
	Retention RetentionConfig `yaml:"retention"`
	// Raft is how this node keeps its copy of the site's log.
	Raft RaftConfig `yaml:"raft"`
	// Log is what the daemon writes about itself.
	Log LogConfig `yaml:"log"`
	// Traces says which collector is told how long the parts of executions took.
	Traces TracesConfig `yaml:"traces"`
	// Checkpoints bounds what those of this node's executions take at once.
	Checkpoints CheckpointsConfig `yaml:"checkpoints"`
	// Preemption says who knows that this machine will be taken away.
	Preemption PreemptionConfig `yaml:"preemption"`
}

// UsersConfig is a range of user numbers that nothing else of the machine has: each attempt
// gets one of its own, so that no job can read another's memory or files. A range with an
// account in it opens that account's files to jobs.
type UsersConfig struct {
	// First default 0: 70000, or what a container has of such numbers.
	First uint32 `yaml:"first"`
	// Count default 0: 1024 with First 0, else it must be given. As many as max_jobs are
	// needed at least.
	Count uint32 `yaml:"count"`
}

// ProcessConfig is the account that the process executor runs work under.
type ProcessConfig struct {
	// UID and GID of all workloads together when the daemon is root, for machines on which
	// they need the rights of an account; they can then read each other's memory. Default 0:
	// a user of its own from Users. GID default 65534 (nogroup).
	// A daemon that is not root runs work as itself.
	UID uint32 `yaml:"uid"`
	GID uint32 `yaml:"gid"`
}

// LimitsConfig bounds all jobs of this node together.
type LimitsConfig struct {
	// MaxJobs is a hard local guard (07§224). Default 4; 0 runs nothing.
	MaxJobs int `yaml:"max_jobs"`
	// CPU, Memory and Disk for jobs. Default 0: what the machine has, less Reserve.
	CPU    MilliCPU `yaml:"cpu"`
	Memory Size     `yaml:"memory"`
	Disk   Size     `yaml:"disk"`
	// ShareCPU offers fewer cores to new work while other programs of the machine use them and
	// work waits for one. Default false: all that is offered is for jobs.
	ShareCPU bool `yaml:"share_cpu"`
	// Layers bounds the trees that are kept so that the next job with the same sources gets
	// them at once. Default 8GiB; 0 keeps none. They go when a job needs the room.
	Layers Size `yaml:"layers"`
	// Reserve is never given to jobs (07§222).
	Reserve ReserveConfig `yaml:"reserve"`
}

// ReserveConfig is kept back for the node and the machine's owner.
type ReserveConfig struct {
	// CPU defaults to 0: the daemon's share is small and comes by priority.
	CPU MilliCPU `yaml:"cpu"`
	// Memory defaults to 256MiB. Too little, and a job's peak kills the daemon.
	Memory Size `yaml:"memory"`
	// Disk defaults to 1GiB. A full disk stops commits on a voter.
	Disk Size `yaml:"disk"`
}

// CASConfig bounds the content store.
type CASConfig struct {
	// Limit in bytes. Default 0: bounded by Reserve alone.
	Limit Size `yaml:"limit"`
	// Reserve is the free space below which the store takes no more. Default 0: 2 % of
	// the disk, at most 256MiB.
	Reserve Size `yaml:"reserve"`
	// ScrubEvery is how long after all stored bytes were read they are read again. Default
	// 168h; 0: only when asked for. Longer, and a copy that rotted may be the last one.
	ScrubEvery time.Duration `yaml:"scrub_every"`
	// ScrubRate bounds that reading, in bytes a second. Default 32MiB; a quarter of it while
	// jobs run. Too low for the store, and doctor says that the reading is overdue.
	ScrubRate Size `yaml:"scrub_rate"`
	// Rates bound what content takes of the lines.
	Rates RatesConfig `yaml:"rates"`
	// Deadlines are how long each tier of sources may be silent.
	Deadlines DeadlinesConfig `yaml:"deadlines"`
}

// DeadlinesConfig is how long a source of content may send no byte while something is wanted
// from it, and how long it may take to answer a dial or a question, before it is given up
// for the next and asked last for a while. Too small, and sources on long lines are given up
// that would have come; too large, and each that died silently costs so much.
type DeadlinesConfig struct {
	// Peers is for members of the site. Default 2s.
	Peers time.Duration `yaml:"peers"`
	// Uplink is for the central daemon. Default 10s.
	Uplink time.Duration `yaml:"uplink"`
}

// RatesConfig is in bytes a second, each 0 for no bound, which is the default, or at least
// 256KiB: below it a block takes longer than others wait for one. Checkpoints are counted
// and wait for nothing.
type RatesConfig struct {
	// ToPeer bounds what is sent to one member.
	ToPeer Size `yaml:"to_peer"`
	// ToPeers bounds what is sent to all members together.
	ToPeers Size `yaml:"to_peers"`
	// FromPeers bounds what is asked of all members together.
	FromPeers Size `yaml:"from_peers"`
	// ToUplink bounds what is sent over the uplink. Without it content may fill a thin line
	// that people work over too.
	ToUplink Size `yaml:"to_uplink"`
	// FromUplink bounds what is asked over the uplink.
	FromUplink Size `yaml:"from_uplink"`
}

// CacheOff is the listen address of a cache API that is off.
const CacheOff = "off"

// CacheAPIConfig is the build cache: the remote execution API's caching half and HTTP.
type CacheAPIConfig struct {
	// Listen is HOST:PORT, for gRPC and HTTP alike. Default off. On a loopback address
	// every account of this machine may read; on another nobody may without a token.
	// Nobody writes without one.
	Listen string `yaml:"listen"`
	// Peers says whether misses are looked for at the other members. Default true; without
	// it the cache is this machine's.
	Peers bool `yaml:"peers"`
	// Keep is how long content stays from the moment a client was told that it is there.
	// Default 12h, at most 23h. Shorter than a build, and the build may fail at its end.
	Keep time.Duration `yaml:"keep"`
	// ForgetAfter is how long a name that nobody uses is remembered. Default 720h.
	ForgetAfter time.Duration `yaml:"forget_after"`
	// MaxNames bounds the names of each kind: aliases, results, values. Default 1000000,
	// about 150 bytes of index each; the longest unused go first.
	MaxNames int `yaml:"max_names"`
}

// On reports whether there is a cache API.
func (c CacheAPIConfig) On() bool { return c.Listen != "" && c.Listen != CacheOff }

// SpoolConfig bounds the log spool.
type SpoolConfig struct {
	// Limit in bytes of logs that the store has not taken yet. Default 1GiB; when it
	// is reached the workload's pipe fills and it waits (decision 17).
	Limit Size `yaml:"limit"`
	// PerJob bounds what the programs of one job write into its log, in bytes. Default 448MiB,
	// about what the 512 parts hold that a job's record can name. What comes after it, or
	// finds no part, is counted and left out, and the work goes on. 0: nothing bounds it, and
	// a job that prints without end fills the store with parts that no record names.
	PerJob Size `yaml:"per_job"`
}

// SandboxConfig opens the sandbox.
type SandboxConfig struct {
	// ReadOnlyBinds are absolute host paths that every sandbox sees, read-only.
	// Default none beyond the system directories. What stands there is visible to
	// every job.
	ReadOnlyBinds []string `yaml:"read_only_binds"`
}

// ToolchainConfig names a tool.
type ToolchainConfig struct {
	Name    string `yaml:"name" strict:"required"`
	Version string `yaml:"version"`
	// Path is the absolute path of the program. Default: found in the sandbox's PATH.
	Path string `yaml:"path"`
	// Digest names a tree of the store that has the tool. It is fetched and made when the first
	// job requires the name, and shown read-only as /work/toolchains/<name>.
	Digest forgeyard.Digest `yaml:"digest"`
}

// DeviceConfig declares a device that this node hosts.
type DeviceConfig struct {
	ID     forgeyard.DeviceID `yaml:"id" strict:"required"`
	Kind   string             `yaml:"kind" strict:"required" enum:"serial"`
	Path   string             `yaml:"path" strict:"required"` // absolute; prefer /dev/serial/by-id/…
	Labels map[string]string  `yaml:"labels"`
	// Serial is the serial number that must be found at Path. Default none: then
	// the path alone is the identity.
	Serial string `yaml:"serial"`
	// Baud of a serial console. Default 115200.
	Baud  int         `yaml:"baud"`
	Reset ResetConfig `yaml:"reset"`
}

// ResetConfig is how a device is brought back to its baseline. Without Send and
// Expect the reset only ends the streams and drops what is buffered, and its
// evidence says so.
type ResetConfig struct {
	Send   string `yaml:"send"`   // bytes to write; default none
	Expect string `yaml:"expect"` // text that must then be read; default none
	// Timeout of the whole reset. Default 30s; a reset that does not end in it failed.
	Timeout time.Duration `yaml:"timeout"`
}

// PolicyConfig is what this node allows.
type PolicyConfig struct {
	// Network is the widest network that a job may have here. Default none: a job
	// that asks for more is not taken.
	Network job.Network `yaml:"network" enum:"none|site|host"`
	// SiteNetworks are what a job of `network: site` reaches, as prefixes or addresses;
	// this node itself is never of them. Default none: then no such job is taken.
	SiteNetworks []string `yaml:"site_networks"`
	// Ingest are absolute folders below which an ingest may read that was submitted on
	// another node. Default none: then only who has this node's control socket brings its
	// files in. What stands there can be read by the whole site.
	Ingest []string `yaml:"ingest"`
	// Diagnostics is what may be kept of a job that failed, of the paths that it names for that
	// (on_failure). Default all; plain is all that is not marked sensitive.
	Diagnostics string `yaml:"diagnostics" enum:"none|plain|all"`
}

// Allows reports whether a job's network is within the policy.
func (p PolicyConfig) Allows(n job.Network) bool { return width(n) <= width(p.Network) }

// Networks lists what the policy allows, for the node's capabilities.
func (p PolicyConfig) Networks() []job.Network {
	all := []job.Network{job.NetworkNone, job.NetworkSite, job.NetworkHost}
	return all[:width(p.Network)+1]
}

func width(n job.Network) int {
	switch n {
	case job.NetworkSite:
		return 1
	case job.NetworkHost:
		return 2
	}
	return 0
}

// ReconnectConfig paces the return to the site (07§132).
type ReconnectConfig struct {
	// MaxBackoff is the longest wait between tries. Default 30s.
	MaxBackoff time.Duration `yaml:"max_backoff"`
}

// CheckpointsConfig bounds the checkpoints that this node brings to others. Their bandwidth is
// that of all content: cas.rates.
type CheckpointsConfig struct {
	// Uploads at a time. Default 2; those of jobs with a higher priority come first.
	Uploads int `yaml:"uploads"`
}

// PreemptionConfig names the sources of notices that this machine will be taken away; each is
// asked again and again, and one that has a notice is enough. None is the default.
type PreemptionConfig struct {
	// File is a notice while it exists; what it holds may name the time (RFC 3339).
	File string `yaml:"file"`
	// Command is a notice when it exits with 0, and none when it exits with 1; what it prints
	// may name the time. It runs as the daemon's user.
	Command []string `yaml:"command"`
	// HTTP is a metadata service.
	HTTP PreemptionHTTP `yaml:"http"`
	// Every is the time between two looks. Default 5s.
	Every time.Duration `yaml:"every"`
}

// PreemptionHTTP is a metadata service: it answers 404 while there is no notice, and 200 with
// a yes, a no, a time, or the objects of the large clouds.
type PreemptionHTTP struct {
	URL     string            `yaml:"url"`
	Headers map[string]string `yaml:"headers"`
}

// ShutdownConfig bounds an orderly end (07§104).
type ShutdownConfig struct {
	// Grace is what running work gets before it is killed. Default 30s.
	Grace time.Duration `yaml:"grace"`
}

// RetentionConfig is how long what work leaves stays on this machine.
type RetentionConfig struct {
	// Finalize is how long a workspace waits for the site to take its result. Default 30m;
	// after it the folder goes, and the result goes on waiting. Longer, and a site without a
	// majority fills the disks of its nodes.
	Finalize time.Duration `yaml:"finalize"`
	// StaleWorkspace is how long a folder that no work names is left alone. Default 1h.
	StaleWorkspace time.Duration `yaml:"stale_workspace"`
	// DebugFailed is how long the workspace of a job that failed is kept for a person to look
	// at. Default 0: not at all. It holds what the job had, inputs included; the workspace of a
	// job with secrets is never kept.
	DebugFailed time.Duration `yaml:"debug_failed"`
}

// RaftConfig is how a node keeps its copy of the site's log.
type RaftConfig struct {
	// LogStore keeps the log of a new data dir. Default wal. One that has a log keeps it
	// where it is: `log-store --move` moves it.
	LogStore string `yaml:"log_store" enum:"boltdb|wal"`
}

// LogConfig is what the daemon writes about itself.
type LogConfig struct {
	Level  string `yaml:"level" enum:"debug|info|warn|error"` // default info
	Format string `yaml:"format" enum:"text|json"`            // default text
}

// TracesConfig is an OpenTelemetry collector that speaks OTLP over HTTP, in JSON.
type TracesConfig struct {
	// Endpoint is its URL, without /v1/traces. Default empty: nothing is traced. Names of jobs'
	// steps and ids go there, in the clear with http.
	Endpoint string `yaml:"endpoint"`
	// Sample is the share of jobs that are told of, in (0, 1]. Default 1.
	Sample float64 `yaml:"sample"`
}

// DefaultNode is a node of which nothing was said.
func DefaultNode() Node {
	return Node{
		Listen:    ":7444",
		Gossip:    ":7445",
		HTTP:      "127.0.0.1:7440",
		Executors: []string{job.HarnessSandbox},
		Process:   ProcessConfig{GID: nobody},
		Limits:    LimitsConfig{MaxJobs: 4, Layers: 8 << 30, Reserve: ReserveConfig{Memory: 256 << 20, Disk: 1 << 30}},
		CAS:       CASConfig{ScrubEvery: 7 * 24 * time.Hour, ScrubRate: 32 << 20, Deadlines: DeadlinesConfig{Peers: 2 * time.Second, Uplink: 10 * time.Second}},
		CacheAPI:  CacheAPIConfig{Listen: CacheOff, Peers: true, Keep: 12 * time.Hour, ForgetAfter: 30 * 24 * time.Hour, MaxNames: 1_000_000},
		Spool:     SpoolConfig{Limit: 1 << 30, PerJob: 448 << 20},
		Policy:    PolicyConfig{Network: job.NetworkNone, Diagnostics: "all"},
		Reconnect: ReconnectConfig{MaxBackoff: 30 * time.Second},
		Shutdown:  ShutdownConfig{Grace: 30 * time.Second},
		Retention: RetentionConfig{Finalize: 30 * time.Minute, StaleWorkspace: time.Hour},
		Raft:      RaftConfig{LogStore: "wal"},
		Log:       LogConfig{Level: "info", Format: "text"},
		Traces:    TracesConfig{Sample: 1},

		Checkpoints: CheckpointsConfig{Uploads: 2},
		Preemption:  PreemptionConfig{Every: 5 * time.Second},
	}
}

// Runs reports whether the executor is listed.
func (n Node) Runs(executor string) bool {
	for _, e := range n.Executors {
		if e == executor {
			return true
		}
	}
	return false
}

// nobody is the account without rights on Linux and the BSDs.
const nobody = 65534

const (
	defaultBaud         = 115200
	defaultResetTimeout = 30 * time.Second
)
