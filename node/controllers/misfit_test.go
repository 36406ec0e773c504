package controllers

import (
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
	"github.com/forgeyard/forgeyard-node/site"
)

// CK-080 081 146 147 350 384 385: a runner that a checkpoint does not fit gets no job that goes on from it,
// even if it alone has the content; it says why. One that begins anew may go anywhere.
func TestMisfits(t *testing.T) {
	made := machine.Facts{Kernel: "6.1", CPU: []string{"avx"}, Devices: []string{"dut=board1"}}
	runner := func(arch, kernel string, cpu ...string) site.Member {
		return site.Member{Runner: "R", Caps: job.Capabilities{OS: "linux", Arch: arch, Machine: &machine.Facts{Kernel: kernel, CPU: cpu}}}
	}
	j := site.Job{Checkpoints: []checkpoint.Commit{{Manifest: forgeyard.Digest{1}, Consistency: checkpoint.Application, Replicas: []forgeyard.RunnerID{"R"}, Where: &machine.Place{OS: "linux", Arch: "amd64", Machine: &made}}}}
	for name, c := range map[string]struct {
		m    site.Member
		want string
	}{
		"the same":          {runner("amd64", "6.1", "avx"), ""},
		"another platform":  {runner("arm64", "6.1", "avx"), "(arch): taken on amd64, this is arm64"},
		"another kernel":    {runner("amd64", "5.10", "avx"), "(baseline)"},
		"another processor": {runner("amd64", "6.1", "avx", "avx2"), "(cpu)"},
		"one that is older": {site.Member{Caps: job.Capabilities{OS: "linux", Arch: "amd64"}}, "does not say what machine"},
	} {
		got := strings.Join(misfits(j, c.m), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := misfits(site.Job{}, c.m); got != nil {
			t.Errorf("%s, of a job that begins: %q", name, got)
		}
	}
	// What counts is what the next epoch starts from, not what was saved last.
	for name, k := range map[string]site.Job{
		"one that always begins anew": {Spec: job.Spec{Interruption: job.Interruption{Retry: job.RetryRestart}}},
		"one whose effect came before it": {
			Spec:    job.Spec{EffectRules: job.EffectRules{Default: job.EffectPrior}},
			Effects: []site.Effect{{Key: "a", State: site.EffectOpen}},
		},
	} {
		k.Checkpoints = slices.Clone(j.Checkpoints)
		k.Checkpoints[0].Seq = 1
		if got := misfits(k, runner("arm64", "6.1", "avx")); got != nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	j.Spec.Resume.Compatibility = machine.Compatibility{CPU: machine.Compatible}
	if got := misfits(j, runner("amd64", "6.1", "avx", "avx2")); got != nil {
		t.Errorf("one that has more, where that is enough: %q", got)
	}
	if got := onlyDevices(j); got != nil {
		t.Errorf("bound to %v, and nothing binds it", got)
	}
	j.Spec.Resume.Compatibility.Device = machine.Exact
	if got := onlyDevices(j); len(got) != 1 || !got["board1"] {
		t.Errorf("bound to %v", got)
	}
}

// CK-182 384: a restricted checkpoint is offered to nobody who cannot open it, and the reason says so.
func TestSealedForOthers(t *testing.T) {
	j := site.Job{Checkpoints: []checkpoint.Commit{
		{Seq: 1, Epoch: 1, Manifest: [32]byte{1}, Consistency: checkpoint.Application},
		{Seq: 2, Epoch: 1, Manifest: [32]byte{2}, Consistency: checkpoint.Application, For: []forgeyard.RunnerID{"one", "two"}},
	}}
	for who, ok := range map[forgeyard.RunnerID]bool{"one": true, "two": true, "three": false} {
		got := strings.Join(misfits(j, site.Member{Runner: who}), "; ")
		if (got == "") != ok || !ok && !strings.Contains(got, "restricted") {
			t.Errorf("%s: %q", who, got)
		}
	}
}
