package node

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/capability"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
	"github.com/forgeyard/forgeyard-node/site"
)

// elsewhere is another operating system: a small machine that once has no room for a workspace.
type elsewhere struct {
	native
	unknown  bool // it cannot even tell how large it is
	full     *atomic.Bool
	prepared *atomic.Int64
	changes  chan struct{}
	cores    *atomic.Int64 // in thousandths
	looks    *atomic.Int64 // counted; nil: they are not
}

func (e elsewhere) Changes(context.Context) <-chan struct{} { return e.changes }

func (e elsewhere) Discover(string) (capability.Totals, error) {
	if e.looks != nil {
		e.looks.Add(1)
	}
	if e.unknown {
		return capability.Totals{}, forgeyard.Errorf("probe", forgeyard.Unavailable, "this machine does not tell what it has")
	}
	if e.cores != nil {
		return capability.Totals{MilliCPU: e.cores.Load(), Memory: 3 << 30, Disk: 5 << 30}, nil
	}
	return capability.Totals{MilliCPU: 3000, Memory: 3 << 30, Disk: 5 << 30}, nil
}

func (e elsewhere) Prepare(u users.User, root string) error {
	e.prepared.Add(1)
	if e.full.Swap(false) {
		return forgeyard.Errorf("workspace", forgeyard.NoSpace, "no room for its folders")
	}
	return e.native.Prepare(u, root)
}

// RA-065, RA-063, RA-568: a node knows its machine through its platform alone. What it offers is
// composed of what that discovered, less what is reserved; workspaces are made by it; and what
// it cannot do is an error with a kind, in the same words wherever it comes from.
func TestNodeAsksItsPlatform(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	there := elsewhere{full: &atomic.Bool{}, prepared: &atomic.Int64{}}
	p := startNode(t, dir, "n1", func(c *Config) {
		c.Platform = there
		c.Settings.Limits.Reserve.CPU, c.Settings.Limits.Reserve.Memory = 500, 1<<30
	})
	p.wait("the machine was probed", func() bool { return p.node.caps.Load() != nil })
	if c := p.node.caps.Load(); c.MilliCPU != 2500 || c.Memory != 2<<30 || c.Disk != 5<<30 {
		t.Errorf("it offers %+v", c)
	}
	_, id := p.submit(helloJob)
	if j := p.waitDone(id); j.Status != string(job.Done) || there.prepared.Load() != 1 {
		t.Errorf("%s after %d workspaces: %s", j.Status, there.prepared.Load(), j.Reason)
	}
	there.full.Store(true)
	_, id = p.submit(helloJob)
	p.wait("why the second was not prepared", func() bool {
		j := p.show(id)
		return j.Epoch == 1 && slices.ContainsFunc(j.Events, func(e *forgeyardv1.Job_Event) bool { return strings.Contains(e.Text, "no room for its folders") })
	})
	blind := &Node{dir: p.node.dir, cfg: Config{Platform: elsewhere{unknown: true}}, log: p.node.log}
	if err := blind.probe(t.Context()); forgeyard.KindOf(err) != forgeyard.Unavailable || blind.caps.Load() != nil {
		t.Errorf("a machine that tells nothing offers %+v: %v", blind.caps.Load(), err)
	}
}

// RA-111, RA-112, RA-115: when hardware came or went the machine is looked at at once, and not
// when its minute is over. The others hear the digest of what it is now by gossip, and the log
// has the whole of it, once for each change: heartbeats in between say the digest alone.
func TestChangesAreSeenAtOnce(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	there := elsewhere{full: &atomic.Bool{}, prepared: &atomic.Int64{}, changes: make(chan struct{}), cores: &atomic.Int64{}}
	there.cores.Store(3000)
	p := startNode(t, dir, "n1", func(c *Config) { c.Platform = there })
	me := func() site.Member {
		m, _ := p.node.replica.State().Members.Get(p.node.enrolment.RunnerID)
		return m
	}
	gossiped := func() forgeyard.Digest {
		for _, m := range p.node.gossip.Members() {
			if m.RunnerID == p.node.enrolment.RunnerID {
				return m.Meta.Capabilities
			}
		}
		return forgeyard.Digest{}
	}
	p.wait("the site has what it is", func() bool {
		return !me().Digest.IsZero() && me().Digest == capsDigest(p.node.capsNow()) && gossiped() == me().Digest
	})
	before := me()
	p.wait("heartbeats", func() bool { // they register nothing
		h, err := p.node.Heard(t.Context(), p.node.enrolment.RunnerID)
		return err == nil && h.CapabilityDigest == before.Digest.String()
	})
	there.cores.Store(5000)
	there.changes <- struct{}{}
	p.wait("the change is registered", func() bool {
		m := me()
		return m.Caps.MilliCPU == before.Caps.MilliCPU+2000 && m.Digest != before.Digest && m.Digest == capsDigest(m.Caps) && gossiped() == m.Digest
	})
	if after := me(); after.Session.ID != before.Session.ID {
		t.Errorf("it took session %s for that, not %s", after.Session.ID, before.Session.ID)
	}
	there.changes <- struct{}{} // it was looked at, and is the same: nothing is registered
	there.changes <- struct{}{} // taken when the look before is over
	changes := 0
	for _, e := range p.node.replica.State().History {
		if e.Kind == "capability" {
			changes++
		}
	}
	if changes != 1 {
		t.Errorf("%d changes are told", changes)
	}
}
