package node

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
)

// RA-111: hardware that speaks and speaks, and is the same each time, is looked at ever less, and
// as often as the clock looks in the end; one change, or a quiet while, and it is heard at once.
func TestLooksBecomeRare(t *testing.T) {
	var p pace
	now := forgeyard.Instant(time.Hour)
	var got []time.Duration
	for range 9 { // a word comes as soon as the wait is over, and a look takes 3 s
		d := p.after(now, false)
		got, now = append(got, d/time.Second), now.Add(d+3*time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}; !slices.Equal(got, want) {
		t.Errorf("waits of %d s, want %d", got, want)
	}
	if d := p.after(now, true); d != lookFloor {
		t.Errorf("after a change: %s", d)
	}
	for range 9 {
		now = now.Add(p.after(now, false))
	}
	if d := p.after(now.Add(2*lookCeiling+time.Second), false); d != lookFloor {
		t.Errorf("after a quiet while: %s", d)
	}
}

// RA-110: that a toolchain became ready is told without a look at the machine, which would start
// every sandbox, and changes nothing else of what was seen.
func TestWhatIsWarmTakesNoLook(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	there := elsewhere{full: &atomic.Bool{}, prepared: &atomic.Int64{}, looks: &atomic.Int64{}}
	p := startNode(t, dir, "n1", func(c *Config) { c.Platform = there })
	member := func() job.Capabilities {
		m, _ := p.node.replica.State().Members.Get(p.node.enrolment.RunnerID)
		return m.Caps
	}
	p.wait("the site has what it is", func() bool { return member().MilliCPU == 3000 && !p.node.capsUntold() })
	// As if two toolchains had gone since: neither is ready here.
	before := member()
	seen := before
	seen.Toolchains = append(slices.Clone(before.Toolchains), job.Toolchain{Name: "tool", Source: job.ToolchainStore, Digest: forgeyard.Digest{1}, Warm: true})
	seen.WarmToolchains = []forgeyard.Digest{{2}}
	looks := there.looks.Load()
	p.node.caps.Store(&seen)
	p.node.warmed()
	p.wait("it is told", func() bool {
		c := member()
		return len(c.Toolchains) == len(before.Toolchains)+1 && !c.Toolchains[len(before.Toolchains)].Warm && len(c.WarmToolchains) == 0
	})
	now := *p.node.caps.Load()
	if now.Toolchains = now.Toolchains[:len(before.Toolchains)]; capsDigest(now) != capsDigest(before) {
		t.Errorf("it is %+v now, was %+v", now, before)
	}
	if n := there.looks.Load() - looks; n != 0 {
		t.Errorf("the machine was looked at %d times for it", n)
	}
}
