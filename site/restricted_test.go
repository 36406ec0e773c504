package site

import (
	"fmt"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// CK-182: a restricted checkpoint is sealed for who takes it and for those that could go on with
// the job, and for nobody else of the site.
func TestOpeners(t *testing.T) {
	s := &State{}
	add := func(id forgeyard.RunnerID, edit func(*Member)) {
		m := Member{Runner: id, Peer: "key-of-" + string(id), Session: Session{ID: "s"}, Caps: job.Capabilities{Arch: "amd64", Networks: []job.Network{job.NetworkNone}, Sandboxes: []job.SandboxCapability{{Kind: job.SandboxProcess}}}}
		edit(&m)
		s.Members = s.Members.Put(id, m)
	}
	add("taker", func(m *Member) { m.Caps.Arch = "arm64" })
	add("fits", func(*Member) {})
	add("draining", func(m *Member) { m.Draining = true }) // it may take work again
	add("other arch", func(m *Member) { m.Caps.Arch = "arm64" })
	add("no sandbox", func(m *Member) { m.Caps.Sandboxes = nil })
	add("removed", func(m *Member) { m.Removed = true })
	add("waits", func(m *Member) { m.Waiting = true })
	add("never came", func(m *Member) { m.Session.ID = "" })
	add("no key", func(m *Member) { m.Peer = "" })
	j := Job{Spec: job.Spec{Sandbox: job.SandboxProcess, Network: job.NetworkNone, Requires: job.Requires{Arch: "amd64"}}}
	names := func(j Job) (out []string) {
		for _, m := range s.Openers(j, "taker") {
			out = append(out, string(m.Runner))
		}
		return out
	}
	if got := names(j); !slices.Equal(got, []string{"draining", "fits", "taker"}) {
		t.Errorf("%q", got)
	}
	j.Spec.Node = "fits" // a run of that node alone
	if got := names(j); !slices.Equal(got, []string{"fits", "taker"}) {
		t.Errorf("%q", got)
	}
	j.Spec.Node = ""
	for i := range 2 * maxOpeners {
		add(forgeyard.RunnerID(fmt.Sprintf("n%03d", i)), func(*Member) {})
	}
	if got := names(j); len(got) != maxOpeners+1 || !slices.Contains(got, "taker") {
		t.Errorf("%d, with %v", len(got), got)
	}
}

// CK-182: the log takes no checkpoint of a restricted job that is open to all, that its taker
// cannot go on from or that others than members can open, and of another job none that is sealed.
func TestCommitIsSealedRight(t *testing.T) {
	restricted := job.Spec{Resume: job.Resume{Mode: job.ResumeApplication, Sensitivity: job.SensRestricted}}
	open := job.Spec{Resume: job.Resume{Mode: job.ResumeApplication}}
	for name, row := range map[string]struct {
		format Format
		spec   job.Spec
		to     []forgeyard.RunnerID
		want   forgeyard.Kind
		taken  bool
	}{
		"sealed":            {FormatCheckpoints, restricted, []forgeyard.RunnerID{"R", "S"}, 0, true},
		"open to all":       {FormatCheckpoints, restricted, nil, forgeyard.Invalid, false},
		"not for its taker": {FormatCheckpoints, restricted, []forgeyard.RunnerID{"S"}, forgeyard.Invalid, false},
		"for a stranger":    {FormatCheckpoints, restricted, []forgeyard.RunnerID{"R", "stranger"}, forgeyard.Denied, false},
		"for one removed":   {FormatCheckpoints, restricted, []forgeyard.RunnerID{"R", "gone"}, forgeyard.Denied, false},
		"for one who waits": {FormatCheckpoints, restricted, []forgeyard.RunnerID{"R", "waits"}, forgeyard.Denied, false},
		"not restricted":    {FormatCheckpoints, open, nil, 0, true},
		"sealed for no use": {FormatCheckpoints, open, []forgeyard.RunnerID{"R"}, forgeyard.Invalid, false},
		"of an older log":   {1, restricted, nil, 0, true},
	} {
		c := change{State: State{Format: row.format, Config: sitecfg.DefaultSite()}}
		c.Config.Durability.AcceptFewer = true
		for _, m := range []Member{{Runner: "R"}, {Runner: "S"}, {Runner: "gone", Removed: true}, {Runner: "waits", Waiting: true}} {
			m.Session.ID = "s"
			c.Members = c.Members.Put(m.Runner, m)
		}
		a := forgeyard.Authority{Job: "J", Runner: "R", Session: "s", Attempt: "A", Lease: "L", Fence: forgeyard.Fence{Epoch: 1}}
		j := Job{ID: "J", Status: job.Running, Attempt: "A", Epoch: 1, Spec: row.spec}
		j.Lease.Authority, j.Lease.State = a, lease.Accepted
		c.Jobs = c.Jobs.Put("J", j)
		d := forgeyard.Digest{1}
		rec := checkpoint.Commit{Seq: 1, Manifest: d, Payload: d, Marker: d, Attempt: "A", Epoch: 1, Replicas: []forgeyard.RunnerID{"R"}, Consistency: checkpoint.Application, For: row.to}
		_, err := c.checkpoint(Checkpoint{Authority: a, Commit: rec})
		got, _ := c.Jobs.Get("J")
		if (err == nil) != row.taken || (err != nil && forgeyard.KindOf(err) != row.want) || (len(got.Checkpoints) == 1) != row.taken {
			t.Errorf("%s: %v, %d checkpoints", name, err, len(got.Checkpoints))
		}
	}
}
