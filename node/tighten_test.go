package node

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// RA-380, RA-381: what node.yaml says of its machine only tightens. A bound below what is there
// lowers it, one above it gives nothing, and a machine that allows no network, or forbids
// nothing, is no wider for it than what was seen to hold.
func TestLocalPolicyOnlyTightens(t *testing.T) {
	probed := job.Capabilities{MilliCPU: 4000, Memory: 8 << 30, Disk: 100 << 30, Networks: []job.Network{job.NetworkNone}, Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict}}}
	for name, c := range map[string]struct {
		limits sitecfg.LimitsConfig
		want   [3]int64
	}{
		"no bound":      {sitecfg.LimitsConfig{MaxJobs: 2}, [3]int64{4000, 8 << 30, 100 << 30}},
		"below":         {sitecfg.LimitsConfig{MaxJobs: 2, CPU: 1500, Memory: 1 << 30, Disk: 9 << 30}, [3]int64{1500, 1 << 30, 9 << 30}},
		"above":         {sitecfg.LimitsConfig{MaxJobs: 2, CPU: 64000, Memory: 1 << 40, Disk: 1 << 50}, [3]int64{4000, 8 << 30, 100 << 30}},
		"above and not": {sitecfg.LimitsConfig{MaxJobs: 2, CPU: 64000, Memory: 1 << 30}, [3]int64{4000, 1 << 30, 100 << 30}},
	} {
		t.Run(name, func(t *testing.T) {
			caps := probed
			n := &Node{cfg: Config{Settings: sitecfg.Node{Limits: c.limits}}}
			n.tighten(&caps)
			if got := [3]int64{caps.MilliCPU, caps.Memory, caps.Disk}; got != c.want || caps.MaxJobs != 2 {
				t.Errorf("%v with %d jobs, want %v", got, caps.MaxJobs, c.want)
			}
		})
	}
	// RA-139: reserves that are more than there is leave nothing, and never less than that.
	n := &Node{dir: &dataDir{path: t.TempDir()}, cfg: Config{Settings: sitecfg.Node{Limits: sitecfg.LimitsConfig{MaxJobs: 1, Reserve: sitecfg.ReserveConfig{CPU: 1 << 40, Memory: 1 << 60, Disk: 1 << 60}}}}, log: slog.New(slog.DiscardHandler)}
	if err := n.probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := n.caps.Load(); c.MilliCPU != 0 || c.Memory != 0 || c.Disk != 0 {
		t.Errorf("offered are %d, %d and %d", c.MilliCPU, c.Memory, c.Disk)
	}
	for _, policy := range []job.Network{"", job.NetworkNone, job.NetworkSite, job.NetworkHost} {
		n := &Node{dir: &dataDir{}, cfg: Config{Settings: sitecfg.Node{Policy: sitecfg.PolicyConfig{Network: policy}}}}
		if got, want := n.capabilityConfig().HostNetwork, policy == job.NetworkHost; got != want {
			t.Errorf("policy %q: host network allowed is %t", policy, got)
		}
	}
	s := job.Spec{Network: job.NetworkHost}.Defaulted()
	if why := strings.Join(probed.Lacks(s, job.Assignment{}), "; "); !strings.Contains(why, `its policy does not allow network "host"`) {
		t.Errorf("a job that asks for the host's network is served: %q", why)
	}
}
