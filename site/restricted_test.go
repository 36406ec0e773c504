package site

import (
	"fmt"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
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
