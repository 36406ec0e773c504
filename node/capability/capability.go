// Package capability finds out what this machine is and can enforce: facts, probed,
// with what is reserved for the node and its admin taken off (decision 18).
//
// Usage, pressure and health are not here: two probes of an unchanged machine give
// the same bytes and so the same digest, and only a changed digest travels. A sandbox
// is listed only if one was really started. It grants nothing: a label here
// is a hint, and a toolchain is a claim of the host.
package capability

import (
	"context"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
)

// DefaultPath is the PATH of workloads, and where toolchains are looked for: what
// is advertised must be what a job finds (RA-214).
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin"

// Prober is the part of an executor that matters here.
type Prober interface {
	Kind() job.Sandbox
	Probe(ctx context.Context) (job.SandboxCapability, error)
}

// Config says what to probe and what to leave for others.
type Config struct {
	// ReserveMilliCPU, ReserveMemory (bytes) and ReserveDisk (bytes) are not offered to jobs.
	// Zero reserves nothing; too little lets jobs starve the node.
	ReserveMilliCPU, ReserveMemory, ReserveDisk int64
	// MaxJobs bounds concurrent attempts. Zero: one a core that is left.
	MaxJobs int
	// DataDir is on the disk that workspaces use.
	DataDir string
	// Labels are the hints of the node's configuration.
	Labels map[string]string
	// Executors are probed; those that fail are left out and told to Log.
	Executors []Prober
	// Devices as the configuration declares them.
	Devices []job.DeviceFact
	// HostNetwork is local policy: a spec may ask for it.
	HostNetwork bool
	// Discover reads the machine's bounds. Nil: Discover of this package.
	Discover func(dir string) (Totals, error)
	// Path is where toolchains are looked for. Empty: DefaultPath.
	Path string
	// Again is asked where an executor failed: true tries it once more, and then that counts.
	// Nil: the first try counts.
	Again func(job.Sandbox, error) bool
	// LeftOut is told each executor that failed and why. Nil: nobody is.
	LeftOut func(job.Sandbox, error)
	// Graphics keeps what a vendor's tool said, from one probe to the next. Nil: it is asked at
	// each, and what it knows alone is not there when it is slow.
	Graphics *Graphics
	// Log gets what was left out and why. Nil: nobody.
	Log *slog.Logger
}

// Graphics is what a vendor's tool said of graphics processors when it answered last. A tool
// that waits for its driver answers once in time and once not: if it were asked at each probe,
// the machine would be another one each time.
type Graphics struct {
	mu   sync.Mutex // guards all below
	of   string     // the processors that were there
	said map[string]vendorSaid
}

// vendorSaid is of the processor at one bus. Zero where it did not say.
type vendorSaid struct {
	model  string
	memory int64
}

// Totals are the physical bounds, before reserves. Zero where unknown.
type Totals struct{ MilliCPU, Memory, Disk int64 }

// Discover reads them from this machine, whose disk holds dir (NotFound: it is not there).
func Discover(dir string) (Totals, error) { return totals(dir) }

// Probe looks at the machine. It returns what it found even when a part could not be
// read; only a data folder that is not there is an error.
func Probe(ctx context.Context, cfg Config) (job.Capabilities, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Path == "" {
		cfg.Path = DefaultPath
	}
	if cfg.Discover == nil {
		cfg.Discover = Discover
	}
	t, err := cfg.Discover(cfg.DataDir)
	if err != nil {
		return job.Capabilities{}, err
	}
	c := job.Capabilities{
		OS: runtime.GOOS, Arch: runtime.GOARCH,
		MilliCPU: max(t.MilliCPU-cfg.ReserveMilliCPU, 0),
		Memory:   max(t.Memory-cfg.ReserveMemory, 0),
		Disk:     max(t.Disk-cfg.ReserveDisk, 0),
		MaxJobs:  cfg.MaxJobs,
		Labels:   maps.Clone(cfg.Labels),
		Devices:  slices.SortedFunc(slices.Values(cfg.Devices), func(a, b job.DeviceFact) int { return strings.Compare(string(a.ID), string(b.ID)) }),
	}
	if c.MaxJobs == 0 {
		c.MaxJobs = int(max(c.MilliCPU/1000, 1))
	}
	for _, e := range cfg.Executors {
		s, err := e.Probe(ctx)
		if err != nil && cfg.Again != nil && cfg.Again(e.Kind(), err) {
			s, err = e.Probe(ctx)
		}
		if err != nil {
			cfg.Log.Warn("executor is not offered", "kind", string(e.Kind()), "err", err)
			if cfg.LeftOut != nil {
				cfg.LeftOut(e.Kind(), err)
			}
			continue
		}
		slices.Sort(s.Limits)
		c.Sandboxes = append(c.Sandboxes, s)
	}
	slices.SortFunc(c.Sandboxes, func(a, b job.SandboxCapability) int { return strings.Compare(string(a.Kind), string(b.Kind)) })
	c.Toolchains = toolchains(ctx, cfg.Path)
	c.GPUs = gpus(ctx, machineGraphics, cfg.Graphics)
	c.Machine = machineFacts()
	c.Networks = networks(c.Sandboxes, cfg.HostNetwork)
	return c, nil
}

// networks lists what can be kept: none needs somebody who keeps the network out, site
// somebody who looks at every destination.
func networks(sandboxes []job.SandboxCapability, host bool) []job.Network {
	keeps := func(limit string) bool {
		return slices.ContainsFunc(sandboxes, func(s job.SandboxCapability) bool { return slices.Contains(s.Limits, limit) })
	}
	var n []job.Network
	if keeps("network") {
		n = append(n, job.NetworkNone)
	}
	if keeps(job.LimitSiteNetwork) {
		n = append(n, job.NetworkSite)
	}
	if host {
		n = append(n, job.NetworkHost)
	}
	return n
}

// Digest names a set of facts.
func Digest(c job.Capabilities) forgeyard.Digest { return cas.Sum(cborx.Marshal(c)) }
