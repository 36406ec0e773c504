//go:build linux

package runner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
)

// CK-131, CK-133: a cancellation that saves is told to the program as what it is, with its
// reason and before any signal; its checkpoint is committed without going on, and the job is
// cancelled. CK-113: the node is told that the end has begun.
func TestCancelAfterCheckpoint(t *testing.T) {
	b := newBench(t)
	tk := task(resumable([]string{"n"}, `trap 'echo a signal' TERM; echo up; until grep -q '"want_checkpoint":true' $FORGEYARD_CTL_DIR/request.json; do sleep 0.05; done
grep -o '"kind":"[a-z]*","reason":"[^"]*"' $FORGEYARD_CTL_DIR/request.json; echo 1 > n; exit 85`))
	k := b.book(tk)
	k.exit = VerdictCommitted
	tk.Checkpoints = k
	a := b.start(tk)
	b.await(a, "up")
	a.End(Ending{Kind: checkpoint.StopCancel, Reason: "cancelled by ana: budget", Save: true})
	res, end := b.wait(a)
	if end.Kind != EndCompleted || res.Outcome != job.OutcomeCancelled || len(k.yields) != 1 || !k.yields[0] {
		t.Errorf("%+v %+v, yields %v", res, end, k.yields)
	}
	log := b.stdout(a)
	if !strings.Contains(log, `"kind":"cancel","reason":"cancelled by ana: budget"`) || strings.Contains(log, "a signal") {
		t.Errorf("it was told: %s", log)
	}
	if got := b.hooks.stops(); !slices.Equal(got, []bool{false}) {
		t.Errorf("the node was told %v", got)
	}
}

// Where no checkpoint comes within its time the work is ended all the same; where somebody
// presses harder at once. CK-299: graceful, then force.
func TestCancelDoesNotWaitForever(t *testing.T) {
	deaf := `trap '' TERM; echo up; while :; do sleep 0.05; done`
	for name, c := range map[string]struct {
		script string
		within time.Duration
		then   func(*Attempt)
		told   []bool
	}{
		"its time is over": {`trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done`, checkpoint.MinWindow, func(*Attempt) {}, []bool{false}},
		"plainly":          {`trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done`, patience, func(a *Attempt) { a.Cancel("now", false) }, []bool{false, false}},
		"by force":         {deaf, patience, func(a *Attempt) { a.Cancel("now", true) }, []bool{false, true}},
		"security":         {deaf, patience, func(a *Attempt) { a.End(Ending{Kind: checkpoint.StopSecurity, Reason: "a leak"}) }, []bool{false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := resumable([]string{"n"}, c.script)
			s.Resume.Checkpoint.Window = patience
			tk := task(s)
			tk.Checkpoints = b.book(tk)
			a := b.start(tk)
			b.await(a, "up")
			a.End(Ending{Kind: checkpoint.StopCancel, Reason: "enough", Save: true, Within: c.within})
			b.awaitStop()
			c.then(a)
			res, end := b.wait(a)
			if end.Kind != EndCompleted || res.Outcome != job.OutcomeCancelled {
				t.Errorf("%+v %+v", res, end)
			}
			if got := b.hooks.stops(); !slices.Equal(got, c.told) {
				t.Errorf("the node was told %v, want %v", got, c.told)
			}
		})
	}
}

// FYCP/1 §6, CK-308, CK-340: a preemption asks for a checkpoint when there is time, tells the program
// the deadline and that it is no promise, and where there is not goes straight to the signal:
// the last committed one is used, as where the job wants none for a notice (CK-064). CK-129: the
// site bounds the grace.
func TestPreemptWithinItsTime(t *testing.T) {
	script := `trap 'echo a signal; exit 9' TERM; echo up; until grep -q '"want_checkpoint":true' $FORGEYARD_CTL_DIR/request.json; do sleep 0.05; done
grep -o '"deadline":"[^"]*","deadline_reliable":false' $FORGEYARD_CTL_DIR/request.json; echo 1 > n; exit 85`
	for name, c := range map[string]struct {
		left time.Duration
		none bool
		want string
		code int
	}{
		"time":          {time.Hour, false, `"deadline":"20`, 85},
		"no time":       {2 * time.Second, false, "a signal", 9},
		"none is asked": {time.Hour, true, "a signal", 9},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := resumable([]string{"n"}, script)
			s.Resume.Checkpoint.NoneOnNotice = c.none
			tk := task(s)
			k := b.book(tk)
			k.exit = VerdictCommitted
			tk.Checkpoints = k
			a := b.start(tk)
			b.await(a, "up")
			a.Preempt("spot", b.clock().Now().Add(c.left))
			res, end := b.wait(a)
			if end.Kind != EndYielded || res.ExitCode != c.code || !strings.Contains(b.stdout(a), c.want) {
				t.Errorf("%+v %+v: %s", res, end, b.stdout(a))
			}
		})
	}
	t.Run("grace", func(t *testing.T) {
		b := newBench(t)
		s := spec(`trap '' TERM; echo up; while :; do sleep 0.05; done`)
		s.Stop.Grace = patience
		tk := task(s)
		tk.MaxGrace = 100 * time.Millisecond
		a := b.start(tk)
		b.await(a, "up")
		began := time.Now()
		a.Cancel("enough", false)
		res, _ := b.wait(a)
		if took := time.Since(began); res.ExitCode != 137 || took > patience/2 {
			t.Errorf("%+v after %s", res, took)
		}
	})
}

// A machine that goes sooner than was thought bounds what was asked already: the window of a
// drain or of a cancellation that saves, a critical section and the grace after the signal.
func TestHastened(t *testing.T) {
	const asked = `trap 'echo a signal; exit 9' TERM; echo up; until grep -q '"want_exit":true' $FORGEYARD_CTL_DIR/request.json; do sleep 0.05; done; echo asked
`
	const loop = `while :; do sleep 0.05; done`
	drain := func(a *Attempt) { a.Stop(checkpoint.StopDrain, "drained") }
	for name, c := range map[string]struct {
		script, ready string
		first         func(*Attempt)
		want          string
	}{
		"drain":   {asked + `until grep -q '"want_checkpoint":true.*"deadline":"20' $FORGEYARD_CTL_DIR/request.json; do sleep 0.05; done; echo told; ` + loop, "asked", drain, "told\na signal"},
		"cancel":  {asked + loop, "asked", func(a *Attempt) { a.End(Ending{Kind: checkpoint.StopCancel, Reason: "enough", Save: true}) }, "a signal"},
		"section": {`echo '{"v":1,"pid":1,"max_ms":20000}' > $FORGEYARD_CTL_DIR/critical; ` + asked + loop, "asked", drain, "a signal"},
		"grace":   {`trap 'echo deaf' TERM; echo up; ` + loop, "deaf", func(a *Attempt) { a.Cancel("enough", false) }, "deaf"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := resumable([]string{"n"}, c.script)
			s.Resume.Checkpoint.Window, s.Stop.Grace = 10*time.Minute, 10*time.Minute
			tk := task(s)
			tk.Checkpoints = b.book(tk)
			a := b.start(tk)
			b.await(a, "up")
			c.first(a)
			b.await(a, c.ready)
			began := time.Now()
			a.Hasten(b.clock().Now().Add(4 * time.Second))
			b.wait(a)
			if took := time.Since(began); took > 15*time.Second || !strings.Contains(b.stdout(a), c.want) {
				t.Errorf("after %s: %s", took, b.stdout(a))
			}
		})
	}
}

// stops are what the node was told of the end of cancelled work.
func (h *hooks) stops() []bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.stopping)
}

// awaitStop waits until the node was told that the end has begun.
func (b *bench) awaitStop() {
	b.t.Helper()
	for began := time.Now(); len(b.hooks.stops()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patience {
			b.t.Fatal("the node was told of no end")
		}
	}
}

func (b *bench) clock() clock.Clock { return b.r.cfg.Clock }

// CK-113 CK-116 to CK-123: whatever ends work, the program can read why when the signal comes: a run
// time that is over by itself, and each reason that a person or a rule gives. What is over in
// time fails as timed out; what is cancelled is cancelled.
func TestReasonComesBeforeTheSignal(t *testing.T) {
	script := `trap 'grep -o "\"kind\":\"[a-z]*\",\"reason\":\"[^\"]*\"" $FORGEYARD_CTL_DIR/request.json; exit 9' TERM; echo up; while :; do sleep 0.05; done`
	for name, c := range map[string]struct {
		end     *Ending
		want    string
		outcome job.Outcome
		why     job.FailureCategory
	}{
		"run time":   {nil, `"kind":"timeout","reason":"the run time of 2s is over"`, job.OutcomeFailed, job.TimedOut},
		"timeout":    {&Ending{Kind: checkpoint.StopTimeout, Reason: "cancelled by site: timeout"}, `"kind":"timeout","reason":"cancelled by site: timeout"`, job.OutcomeCancelled, ""},
		"budget":     {&Ending{Kind: checkpoint.StopCancel, Reason: "cancelled by site: budget"}, `"kind":"cancel","reason":"cancelled by site: budget"`, job.OutcomeCancelled, ""},
		"incident":   {&Ending{Kind: checkpoint.StopCancel, Reason: "cancelled by site: incident"}, `"kind":"cancel","reason":"cancelled by site: incident"`, job.OutcomeCancelled, ""},
		"shutdown":   {&Ending{Kind: checkpoint.StopCancel, Reason: "cancelled by site: shutdown"}, `"kind":"cancel","reason":"cancelled by site: shutdown"`, job.OutcomeCancelled, ""},
		"policy":     {&Ending{Kind: checkpoint.StopCancel, Reason: "cancelled by site: policy"}, `"kind":"cancel","reason":"cancelled by site: policy"`, job.OutcomeCancelled, ""},
		"superseded": {&Ending{Kind: checkpoint.StopSuperseded, Reason: "a newer run"}, `"kind":"superseded","reason":"a newer run"`, job.OutcomeCancelled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := resumable([]string{"n"}, script)
			if c.end == nil {
				s.Timeouts.Run = 2 * time.Second
			}
			tk := task(s)
			tk.Checkpoints = b.book(tk)
			a := b.start(tk)
			b.await(a, "up")
			if c.end != nil {
				a.End(*c.end)
			}
			res, _ := b.wait(a)
			if res.Outcome != c.outcome || res.Category != c.why || !strings.Contains(b.stdout(a), c.want) {
				t.Errorf("%+v: %s", res, b.stdout(a))
			}
		})
	}
}
