package node

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/pressure"
)

// stalls is this machine, which feels what a test wants it to.
type stalls struct {
	native
	memory *atomic.Int64
}

func (s stalls) Strain() pressure.Sample {
	return pressure.Sample{HasStall: true, CPU: 99, Memory: float64(s.memory.Load())}
}

// RA-130, RA-131: while all work on a machine waits for memory it takes no more, says so to
// everybody, and takes work again by itself.
func TestPressureTakesTheNodeOut(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	var stalled atomic.Int64
	p := startNode(t, dir, "n1", func(c *Config) {
		c.Platform = stalls{memory: &stalled}
	})
	p.wait("the machine was probed", func() bool { return p.node.caps.Load() != nil && p.node.strain.Load() != nil })
	if got := p.node.refusing(); len(got) != 0 {
		t.Errorf("a busy processor is no reason: %+v", got)
	}
	stalled.Store(35)
	p.wait("the machine was asked again", func() bool { return p.node.pressure() == "memory" })
	if got := p.node.refusing(); len(got) != 1 || got[0].Reason != job.RejectPressure || !strings.Contains(got[0].Detail, "waits for memory") {
		t.Errorf("an offer is answered %+v", got)
	}
	if got := p.node.refusingWords(); !slices.Contains(got, "pressure") {
		t.Errorf("not taking work: %v", got)
	}
	if c := p.node.checkPressure(); c.Status != checkWarn || c.Fix == "" || !strings.Contains(c.Detail, "35 %") {
		t.Errorf("%+v", c)
	}
	if h := p.node.health(t.Context()); !slices.ContainsFunc(h.Checks, func(c *forgeyardv1.Health_Check) bool { return c.Name == "pressure" && c.Status == checkWarn }) {
		t.Errorf("doctor does not say it: %+v", h)
	}
	_, id := p.submit(helloJob)
	p.wait("the leader heard of it", func() bool {
		j := p.show(id)
		return len(j.Candidates) == 1 && slices.Contains(j.Candidates[0].Reasons, "pressure")
	})
	stalled.Store(0)
	p.waitDone(id)
	if c := p.node.checkPressure(); c.Status != checkOK {
		t.Errorf("%+v", c)
	}
}
