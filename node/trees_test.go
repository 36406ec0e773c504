package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/executor/ender"
	"github.com/forgeyard/forgeyard-node/node/fitness"
)

// E18: a tree that does not die is a failed check that names it and says what to do.
func TestCheckTrees(t *testing.T) {
	now := forgeyard.Instant(time.Hour)
	if c := checkTrees(nil, now); c.Status != checkOK || c.Fix != "" {
		t.Errorf("%+v", c)
	}
	c := checkTrees([]ender.Stuck{
		{ID: "A-1", PID: 42, Since: now.Add(-90 * time.Second), Why: "it waits for the kernel"}, {ID: "B-1", PID: 43, Since: now.Add(-time.Second), Why: "no"},
	}, now)
	if c.Status != checkFail || c.Detail != "the process tree of A-1 (process 42) was killed 1m30s ago and does not end, nor do 1 others: it waits for the kernel" {
		t.Errorf("%+v", c)
	}
	if !strings.Contains(c.Fix, "/proc/42/stack") {
		t.Errorf("%+v", c)
	}
}

// hung is a tree that does not die until it is let go.
type hung chan struct{}

func (h hung) PID() int { return 42 }

func (h hung) Kill(context.Context) error {
	select {
	case <-h:
		return nil
	default:
		return forgeyard.Errorf("kill", forgeyard.Unavailable, "it waits for the kernel")
	}
}

// E18: while a tree that was killed lives, this node takes no new work, and everybody is
// told why; once it is dead, work goes on by itself.
func TestStuckTreeTakesTheNodeOut(t *testing.T) {
	p := makeSite(t, 1)[0]
	p.wait("the machine was probed", func() bool { return p.node.caps.Load() != nil })
	h, dead := make(hung), make(chan struct{})
	go func() { p.node.ender.End("A-1", h); close(dead) }()
	p.wait("the tree does not die", func() bool { return len(p.node.stuckTrees()) == 1 })
	if got := p.node.refusingWords(); !slices.Contains(got, "unhealthy") {
		t.Errorf("not taking work: %v", got)
	}
	if got := p.node.refusing(); len(got) != 1 || got[0].Reason != job.RejectPreparation || !strings.Contains(got[0].Detail, "the process tree of A-1 (process 42) was killed") {
		t.Errorf("an offer is answered %+v", got)
	}
	health := p.node.health(t.Context())
	i := slices.IndexFunc(health.Checks, func(c *forgeyardv1.Health_Check) bool { return c.Name == "trees" })
	if health.Status != string(fitness.Unhealthy) || i < 0 || health.Checks[i].Status != checkFail {
		t.Errorf("%+v", health)
	}
	_, id := p.submit(helloJob)
	p.wait("the leader heard of it", func() bool {
		j := p.show(id)
		return len(j.Candidates) == 1 && slices.Contains(j.Candidates[0].Reasons, "unhealthy")
	})
	close(h)
	<-dead
	if got := p.node.refusing(); len(got) != 0 {
		t.Errorf("it is dead, and work is refused: %+v", got)
	}
	done := p.waitDone(id)
	for _, e := range done.Epochs[:len(done.Epochs)-1] { // offered before the leader had heard of it
		if e.Reason != string(lease.EndRejected) {
			t.Errorf("%+v", e)
		}
	}
}
