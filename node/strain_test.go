//go:build linux

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/pressure"
)

// stalls is this machine, which feels what a test wants it to.
type stalls struct {
	native
	memory *atomic.Int64
	others *atomic.Int64 // cores that other programs keep busy; nil: not told
	since  time.Time
}

func (s stalls) Strain() pressure.Sample {
	p := pressure.Sample{HasStall: true, CPU: 99, Memory: float64(s.memory.Load())}
	if s.others != nil {
		p.CPU = 10 * float64(min(9, s.others.Load()))
		p.Busy = time.Hour + time.Duration(s.others.Load())*time.Since(s.since)
	}
	return p
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

// alone is a machine on which nothing runs but this process and what it started, and on which work
// waits for a core.
type alone struct{ native }

func (a alone) Strain() pressure.Sample {
	s := pressure.Sample{HasStall: true, CPU: 99, Own: a.native.Strain().Own}
	self, err := executor.ReadProc(os.Getpid())
	if err != nil {
		return s
	}
	if use, err := executor.Used(map[int]uint64{self.PID: self.Birth}); err == nil {
		s.Busy = time.Hour + use[self.PID].CPU // with those that ended
	}
	return s
}

// RA-131: a node withholds no core for its own sake: neither for jobs that came and went between
// two looks nor for itself.
func TestOwnShortJobsWithholdNothing(t *testing.T) {
	needs.Root(t, "run jobs as its own children")
	dir := filepath.Join(t.TempDir(), "data")
	for at := filepath.Dir(dir); at != os.TempDir() && at != "/"; at = filepath.Dir(at) { // whom jobs run as passes through
		if err := os.Chmod(at, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	p := startNode(t, dir, "n1", func(c *Config) {
		c.Platform = alone{}
		c.Settings.Executors = []string{"process"}
		c.Settings.Limits.ShareCPU = true
	})
	p.wait("the machine was asked", func() bool { return p.node.caps.Load() != nil && p.node.strain.Load() != nil })
	looks, last := 0, p.node.strain.Load().at
	for looks < 3 {
		_, id := p.submit(strings.NewReplacer("echo hello", "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo hello", "cpu: 0.1", "cpu: 1", "  steps:", "  sandbox: process\n  steps:").Replace(helloJob))
		p.waitDone(id)
		s := p.node.strain.Load()
		if s.at == last {
			continue
		}
		if looks, last = looks+1, s.at; s.withheld != 0 {
			t.Errorf("look %d: %d thousandths of a core are withheld from new work", looks, s.withheld)
		}
	}
}

// RA-128, RA-131: while other programs use the machine's cores a node that shares them offers less, says so to
// everybody, keeps what runs, and offers all again by itself.
func TestCoresAreWithheld(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	var stalled, others atomic.Int64
	p := startNode(t, dir, "n1", func(c *Config) {
		c.Platform = stalls{memory: &stalled, others: &others, since: time.Now()}
		c.Settings.Limits.ShareCPU = true
	})
	p.wait("the machine was probed", func() bool { return p.node.caps.Load() != nil && p.node.strain.Load() != nil })
	all := p.node.caps.Load().MilliCPU
	half := func(sh string) string {
		return strings.NewReplacer("echo hello from $FORGEYARD_EPOCH", sh, "; echo made > out.txt", "", "  outputs: [{path: out.txt}]\n", "", "cpu: 0.1", fmt.Sprintf("cpu: %g", float64(all)/2000)).Replace(helloJob)
	}
	_, first := p.submit(half("until [ -e go ]; do sleep 0.05; done"))
	p.wait("it runs", func() bool { return p.show(first).Status == "running" })
	others.Store(1000)
	p.wait("the leader heard of it", func() bool {
		h, err := p.node.Heard(t.Context(), p.node.enrolment.RunnerID)
		return err == nil && h.Resources.MilliCpuWithheld == all/2
	})
	s := p.node.Status(t.Context())
	if w := s.Withheld; w == nil || w.MilliCpu != all/2 || !strings.Contains(w.Why, "other programs") || len(s.NotTakingWork) > 0 {
		t.Errorf("%+v, not taking: %v", w, s.NotTakingWork)
	}
	if c := p.node.checkPressure(); c.Status != checkOK || !strings.Contains(c.Detail, "withheld from new work") {
		t.Errorf("%+v", c)
	}
	_, second := p.submit(half("true"))
	p.wait("the second waits", func() bool {
		j := p.show(second)
		return len(j.Candidates) == 1 && strings.Contains(strings.Join(j.Candidates[0].Reasons, " "), "withheld")
	})
	if j := p.show(first); j.Status != "running" || j.Epoch != 1 {
		t.Errorf("what runs was touched: %v", j)
	}
	others.Store(0)
	p.waitDone(second)
	if s := p.node.Status(t.Context()); s.Withheld != nil {
		t.Errorf("%+v", s.Withheld)
	}
	spaces, err := filepath.Glob(filepath.Join(p.dir, dirWorkspaces, p.show(first).AttemptId+"-*", "build"))
	if err != nil || len(spaces) != 1 {
		t.Fatalf("%v %v", spaces, err)
	}
	if err := os.WriteFile(filepath.Join(spaces[0], "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p.waitDone(first)
}

// narrowed is this machine, with as much room and as cool as a test wants it to be.
type narrowed struct {
	native
	free, below *atomic.Int64
}

func (m narrowed) Free(string) (int64, error) { return m.free.Load(), nil }

func (m narrowed) Strain() pressure.Sample {
	return pressure.Sample{HasStall: true, HasHeat: true, Heat: float64(m.below.Load())}
}

// RA-130, RA-131: a disk without room and a machine that gets hot take no more work either, say
// which of both it is and what to do, and take work again by themselves.
func TestDiskAndHeatTakeTheNodeOut(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	var free, below atomic.Int64
	p := startNode(t, dir, "n1", func(c *Config) { c.Platform = narrowed{free: &free, below: &below} })
	for _, c := range []struct {
		level       string
		free, below int64 // then
		check       func() *forgeyardv1.Health_Check
		reject      job.RejectReason
		detail, fix string
	}{
		{"disk", minFreeDisk - 1, 40, p.node.checkDisk, job.RejectDisk, "64 MiB are free", "cas gc"},
		{"thermal", 1 << 40, 3, p.node.checkPressure, job.RejectPressure, "slow down for heat", "cooling"},
	} {
		free.Store(1 << 40)
		below.Store(40)
		p.wait("it takes work", func() bool { return p.node.caps.Load() != nil && len(p.node.refusing()) == 0 })
		free.Store(c.free)
		below.Store(c.below)
		p.wait(c.level, func() bool { return p.node.pressure() == c.level })
		if got := p.node.refusing(); len(got) != 1 || got[0].Reason != c.reject || !strings.Contains(got[0].Detail, c.detail) {
			t.Errorf("%s: an offer is answered %+v", c.level, got)
		}
		if h := c.check(); h.Status == checkOK || !strings.Contains(h.Fix, c.fix) {
			t.Errorf("%s: %+v", c.level, h)
		}
		if s := p.node.Status(t.Context()); s.Pressure != c.level {
			t.Errorf("status says %s, not %s", s.Pressure, c.level)
		}
		_, id := p.submit(helloJob)
		p.wait("the leader heard of it", func() bool {
			j := p.show(id)
			return len(j.Candidates) == 1 && slices.Contains(j.Candidates[0].Reasons, "pressure")
		})
		free.Store(1 << 40)
		below.Store(40)
		p.waitDone(id)
	}
}
