//go:build linux

package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// siteLog is the log of a site of one member: the real rules, and nobody else to wait for.
// It keeps the ledger of one job, as package node does.
type siteLog struct {
	b     *bench
	mu    sync.Mutex
	s     *site.State
	at    time.Time
	index uint64
	job   forgeyard.JobID
	sp    job.Spec
	// down: nobody decides.
	down    bool
	refused chan struct{} // one for a proposal that nobody decided; nil: nobody waits for it
	// silent: what was decided is not answered.
	silent bool
	// taken: the first intent says when it is written down, and waits to be answered.
	taken chan struct{}
}

const (
	logRunner  = "01J0000000000000000000000R"
	logSession = "S1"
)

func (b *bench) log(sp job.Spec) *siteLog {
	b.t.Helper()
	l := &siteLog{b: b, s: &site.State{}, at: time.Date(2027, 1, 1, 8, 0, 0, 0, time.UTC), sp: sp}
	l.must(site.Init{Site: "01J0000000000000000000000S", Name: "lab", Config: sitecfg.DefaultSite(), Runner: logRunner, Node: "n1", Peer: "p1"})
	l.must(site.Register{Runner: logRunner, Session: logSession, Version: "1", Formats: site.Formats})
	l.must(site.FormatRaise{To: site.FormatNow, Voters: []forgeyard.RunnerID{logRunner}})
	raw := sp.Canonical()
	v, err := site.Value[site.Submitted](l.must(site.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}))
	if err != nil {
		b.t.Fatal(err)
	}
	l.job = v.Job
	return l
}

func (l *siteLog) apply(b site.Body) site.Reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		select {
		case l.refused <- struct{}{}:
		default:
		}
		return site.Reply{Kind: forgeyard.Unavailable, Error: "no quorum"}
	}
	l.index++
	l.at = l.at.Add(time.Second)
	next, r := l.s.Apply(l.index, site.Command{ID: forgeyard.MessageID(fmt.Sprint("r", l.index)), At: forgeyard.WallOf(l.at), By: "ana", Body: b}.Encode())
	l.s = next
	return r
}

func (l *siteLog) must(b site.Body) site.Reply {
	l.b.t.Helper()
	r := l.apply(b)
	if err := r.Err(); err != nil {
		l.b.t.Fatalf("%T: %v", b, err)
	}
	return r
}

func (l *siteLog) now() site.Job {
	l.mu.Lock()
	defer l.mu.Unlock()
	j, _ := l.s.Jobs.Get(l.job)
	return j
}

// grant opens the next epoch and makes its task.
func (l *siteLog) grant() Task {
	l.b.t.Helper()
	j := l.now()
	l.must(site.Offer{Job: l.job, Runner: logRunner, Session: logSession, Epoch: j.Epoch})
	l.must(site.Accept{Authority: l.now().Lease.Authority})
	j = l.now()
	t := Task{Spec: l.sp, Authority: j.Lease.Authority, Ledger: l, FenceToken: j.Lease.Token, FirstLogSeq: 1}
	for _, e := range j.Unreconciled(j.Epoch) {
		t.Intents = append(t.Intents, Intent{Key: e.Key, Kind: e.Kind, Idem: e.Idem, Epoch: e.Epoch, Reconcile: l.sp.Effect(e.Key).Reconcile})
	}
	for _, c := range j.Steps {
		i := slices.IndexFunc(l.sp.Steps, func(s job.Step) bool { return s.Name == c.Name })
		t.Committed = append(t.Committed, CommittedStep{Index: i, Evidence: c.Evidence, Outputs: c.Outputs, Result: c.Result})
	}
	return t
}

// lost ends the epoch as the loss of its runner does.
func (l *siteLog) lost() {
	l.b.t.Helper()
	l.must(site.Expire{Job: l.job, Lease: l.now().Lease.Authority.Lease, Certain: true})
}

func (l *siteLog) Begin(_ context.Context, key, kind, idem string, ask uint64) (Begun, error) {
	r := l.apply(site.EffectIntent{Authority: l.now().Lease.Authority, Key: key, Kind: kind, Idem: idem, Ask: ask})
	if taken := l.taken; taken != nil {
		l.taken = nil
		taken <- struct{}{}
		<-taken
	}
	if l.silent { // it is written down, and its answer is lost
		return Begun{}, forgeyard.Errorf("propose", forgeyard.Unknown, "nobody knows")
	}
	v, err := site.Value[site.EffectBegun](r)
	return Begun{Already: v.Already, Open: v.Open, Evidence: v.Evidence}, err
}

func (l *siteLog) Settle(_ context.Context, s Settled) error {
	return l.apply(site.EffectOutcome{Authority: l.now().Lease.Authority, Key: s.Key, State: site.EffectState(s.Outcome), Evidence: s.Evidence, Why: s.Why, Reconciled: s.Reconciled}).Err()
}

func (l *siteLog) CommitStep(_ context.Context, s CommittedStep) error {
	return l.apply(site.StepCommit{Authority: l.now().Lease.Authority, Step: site.CommittedStep{Name: l.sp.Steps[s.Index].Name, Evidence: s.Evidence, Outputs: s.Outputs, Result: s.Result}}).Err()
}

func (l *siteLog) state(key string) site.EffectState {
	for _, e := range l.now().Effects {
		if e.Key == key {
			return e.State
		}
	}
	return ""
}

// tell is fyjob for these tests: it posts a message and prints the answer's status.
const tell = `tell() { n=$(($(cat n 2>/dev/null || echo 0)+1)); echo $n > n; f=$(printf %06d $n).json; printf '{"v":1,"n":%d,"kind":"%s","attempt":"%s","epoch":%d,"effect":%s}' $n $1 $FORGEYARD_ATTEMPT_ID $FORGEYARD_EPOCH "$2" > $FORGEYARD_CTL_DIR/outbox/$f.tmp; mv $FORGEYARD_CTL_DIR/outbox/$f.tmp $FORGEYARD_CTL_DIR/outbox/$f
while [ ! -f $FORGEYARD_CTL_DIR/inbox/$f ]; do sleep 0.01; done; sed 's/.*"status":"\([a-z]*\)".*/\1/' $FORGEYARD_CTL_DIR/inbox/$f; }
`

func effectSpec(rules job.EffectRules, steps ...string) job.Spec {
	s := spec(steps...)
	s.EffectRules = rules
	s.Effects = ""
	s.Timeouts.Upload = patience
	return s.Defaulted()
}

// A program tells of its effects, and hears what the site's log says: an intent that is
// there, one that is done already, a limit, and that nobody decides (CK-160, CK-165, CK-307).
func TestProgramTellsOfEffects(t *testing.T) {
	b := newBench(t)
	l := b.log(effectSpec(job.EffectRules{Default: job.EffectReconcile}, tell+`
echo begin $(tell effect-begin '{"key":"a","kind":"publish","idem":"k"}')
echo again $(tell effect-begin '{"key":"a","kind":"publish","idem":"k"}')
echo other $(tell effect-begin '{"key":"a","kind":"publish","idem":"x"}')
echo done $(tell effect-done '{"key":"a","evidence":"cmVjZWlwdA=="}')
echo already $(tell effect-begin '{"key":"a","kind":"publish","idem":"k"}')
echo bad $(tell effect-begin '{"key":"a b","idem":"k"}')
echo late $(tell effect-begin '{"key":"c","idem":"k"}')
echo abort $(tell effect-abort '{"key":"c"}')
echo token $FORGEYARD_FENCE_TOKEN $FORGEYARD_FENCE`))
	a := b.start(l.grant())
	if r, _ := b.wait(a); r.Outcome != job.OutcomeDone {
		t.Fatalf("%+v %s", r, b.text(a))
	}
	auth := l.now().Lease.Authority
	want := fmt.Sprintf("begin committed\nagain open\nother rejected\ndone committed\nalready already\nbad rejected\nlate committed\nabort committed\ntoken %d site.%s.1\n", l.now().Lease.Token, auth.Attempt)
	if got := b.stdout(a); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if l.state("a") != site.EffectDone || l.state("c") != site.EffectAborted {
		t.Errorf("%+v", l.now().Effects)
	}
}

// Without a quorum nothing is begun, and an outcome is not lost: what was told before the
// program was killed is written down when its tree is gone.
func TestEffectsWithoutQuorum(t *testing.T) {
	b := newBench(t)
	l := b.log(effectSpec(job.EffectRules{Default: job.EffectReconcile}, tell+`
echo first $(tell effect-begin '{"key":"a","idem":"k"}')
while [ ! -f go ]; do sleep 0.01; done
echo second $(tell effect-begin '{"key":"b","idem":"k"}')
while [ -f go ]; do sleep 0.01; done
printf '{"v":1,"n":90,"kind":"effect-done","attempt":"%s","epoch":%d,"effect":{"key":"a","evidence":"cmVjZWlwdA=="}}' $FORGEYARD_ATTEMPT_ID $FORGEYARD_EPOCH > t; mv t $FORGEYARD_CTL_DIR/outbox/000090.json
kill -9 $$`))
	a := b.start(l.grant())
	b.await(a, "first committed")
	set := func(down bool) { l.mu.Lock(); l.down = down; l.mu.Unlock() }
	set(true)
	build := a.folders().Build
	if err := os.WriteFile(build+"/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.await(a, "second staged")
	l.refused = make(chan struct{})
	if err := os.Remove(build + "/go"); err != nil {
		t.Fatal(err)
	}
	<-l.refused // whether it was heard while the program ran, or after: it is said until somebody decides
	set(false)
	if r, _ := b.wait(a); r.Outcome != job.OutcomeFailed {
		t.Fatalf("%+v", r)
	}
	if l.state("a") != site.EffectDone || l.state("b") != "" {
		t.Errorf("%+v", l.now().Effects)
	}
	// What a program that is gone was about to begin is of nobody: it is not written down.
	m := checkpoint.Message{N: 92, Kind: checkpoint.MessageEffectBegin, Attempt: a.Authority().Attempt, Epoch: 1, Effect: &checkpoint.EffectNote{Key: "y", Idem: "k"}}
	if err := os.WriteFile(a.folders().Ctl+"/outbox/"+checkpoint.MessageName(92), m.Encode(), 0o644); err != nil {
		t.Fatal(err)
	}
	a.effects(a.folders(), true)
	if l.state("y") != "" {
		t.Errorf("%+v", l.now().Effects)
	}
}

// All that a program has said of its effects without a quorum is said again: before the same
// effect is begun once more, and when the program is gone.
func TestOutcomesThatAreOwed(t *testing.T) {
	b := newBench(t)
	l := b.log(effectSpec(job.EffectRules{Default: job.EffectReconcile}, tell+`
for k in a b c; do echo begin $k $(tell effect-begin '{"key":"'$k'","idem":"k"}'); done
while [ ! -f down ]; do sleep 0.01; done
for k in a b c; do echo done $k $(tell effect-done '{"key":"'$k'","evidence":"cmVjZWlwdA=="}'); done
while [ -f down ]; do sleep 0.01; done
echo again $(tell effect-begin '{"key":"b","idem":"k"}')
kill -9 $$`))
	a := b.start(l.grant())
	b.await(a, "begin c committed")
	set := func(down bool) { l.mu.Lock(); l.down = down; l.mu.Unlock() }
	set(true)
	flag := a.folders().Build + "/down"
	if err := os.WriteFile(flag, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.await(a, "done c staged")
	set(false)
	if err := os.Remove(flag); err != nil {
		t.Fatal(err)
	}
	b.await(a, "again already")
	if r, _ := b.wait(a); r.Outcome != job.OutcomeFailed {
		t.Fatalf("%+v", r)
	}
	for _, key := range []string{"a", "b", "c"} {
		if l.state(key) != site.EffectDone {
			t.Errorf("%s: %+v", key, l.now().Effects)
		}
	}
}

// A request that the program took back, since no answer came in time, is made again as the
// same: it was told not to perform the effect, and performs it when it is told to.
func TestBegunAndTakenBack(t *testing.T) {
	b := newBench(t)
	l := b.log(effectSpec(job.EffectRules{Default: job.EffectReconcile}, tell+`
echo waits
while [ ! -f go ]; do sleep 0.01; done
echo again $(tell effect-begin '{"key":"a","idem":"k"}')
echo more $(tell effect-begin '{"key":"a","idem":"k"}')`))
	taken := make(chan struct{})
	l.taken = taken
	a := b.start(l.grant())
	m := checkpoint.Message{N: 92, Kind: checkpoint.MessageEffectBegin, Attempt: a.Authority().Attempt, Epoch: 1, Effect: &checkpoint.EffectNote{Key: "a", Idem: "k"}}
	b.await(a, "waits")
	name := a.folders().Ctl + "/outbox/" + checkpoint.MessageName(92)
	if err := errors.Join(os.WriteFile(name+".t", m.Encode(), 0o644), os.Rename(name+".t", name)); err != nil {
		t.Fatal(err)
	}
	<-taken // the site writes it down
	if err := errors.Join(os.Remove(name), os.WriteFile(a.folders().Build+"/go", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	taken <- struct{}{}
	if r, _ := b.wait(a); r.Outcome != job.OutcomeDone || !strings.Contains(b.text(a), "again committed") || !strings.Contains(b.text(a), "more open") {
		t.Fatalf("%+v %s", r, b.text(a))
	}
}

// A program that begins one effect twice in an epoch is not told to go twice; one that was
// given no answer asks again, and is.
func TestBegunTwiceInAnEpoch(t *testing.T) {
	b := newBench(t)
	l := b.log(effectSpec(job.EffectRules{Default: job.EffectReconcile}, "sleep 600"))
	a := b.start(l.grant())
	tell := func(kind checkpoint.MessageKind, key string) checkpoint.Status {
		e := checkpoint.EffectNote{Key: key}
		if kind == checkpoint.MessageEffectBegin {
			e.Idem = "k1"
		}
		st := a.tellLedger(t.Context(), checkpoint.Message{Kind: kind, Effect: &e}).Status
		if st != checkpoint.StatusStaged {
			a.heard(e)
		}
		return st
	}
	for i, step := range []struct {
		kind   checkpoint.MessageKind
		key    string
		silent bool
		want   checkpoint.Status
	}{
		{checkpoint.MessageEffectBegin, "a", false, checkpoint.StatusCommitted},
		{checkpoint.MessageEffectBegin, "a", false, checkpoint.StatusOpen},
		{checkpoint.MessageEffectAbort, "a", false, checkpoint.StatusCommitted},
		{checkpoint.MessageEffectBegin, "a", false, checkpoint.StatusCommitted},
		{checkpoint.MessageEffectBegin, "b", true, checkpoint.StatusStaged},
		{checkpoint.MessageEffectBegin, "b", true, checkpoint.StatusStaged},
		{checkpoint.MessageEffectBegin, "b", false, checkpoint.StatusCommitted},
		{checkpoint.MessageEffectBegin, "b", false, checkpoint.StatusOpen},
	} {
		l.silent = step.silent
		if got := tell(step.kind, step.key); got != step.want {
			t.Errorf("%d: %s %s: %s, not %s", i, step.kind, step.key, got, step.want)
		}
	}
	a.LeaseEnded()
	b.wait(a)
}

// Before anything of a new epoch runs, the runner looks for what became of every intent, in
// the job's own sandbox and under the new epoch (CK-164, CK-306).
func TestReconcileBeforeTheFirstStep(t *testing.T) {
	b := newBench(t)
	rules := job.EffectRules{Default: job.EffectReconcile}
	for _, key := range []string{"gone", "here", "large", "other", "slow"} {
		rules.Keys = append(rules.Keys, job.EffectDecl{Key: key, Policy: job.EffectReconcile, Reconcile: []string{"/bin/sh", "-c",
			`echo "looked for $FORGEYARD_EFFECT_KEY $FORGEYARD_EFFECT_KIND $FORGEYARD_EFFECT_IDEM of $FORGEYARD_EFFECT_EPOCH in $FORGEYARD_EPOCH"; case $FORGEYARD_EFFECT_KEY in gone) exit 1;; here) exit 0;; large) seq 1 2000;; other) exit 3;; slow) sleep 600;; esac`}})
	}
	l := b.log(effectSpec(rules, `echo ran in $FORGEYARD_EPOCH`))
	begin := func(keys ...string) {
		for _, k := range keys {
			if _, err := l.Begin(t.Context(), k, "publish", "k1", 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.grant()
	begin("gone", "here", "large")
	l.lost()
	a := b.start(l.grant())
	if r, _ := b.wait(a); r.Outcome != job.OutcomeDone {
		t.Fatalf("%+v %s", r, b.text(a))
	}
	out := b.stdout(a)
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	if got := out; !strings.HasPrefix(got, "looked for gone publish k1 of 1 in 2\nlooked for here publish k1 of 1 in 2\nlooked for large") || !strings.HasSuffix(got, "\nran in 2\n") {
		t.Error(got)
	}
	for _, e := range l.now().Effects {
		want := map[string]string{"gone": "", "here": "looked for here publish k1 of 1 in 2\n", "large": fmt.Sprintf("8%d bytes, b3:", 0)}[e.Key]
		if e.Key == "large" {
			want = "bytes, b3:"
		}
		if !strings.Contains(string(e.Evidence), want) || (e.State == site.EffectAborted) != (e.Key == "gone") || e.By != "reconcile in epoch 2" {
			t.Errorf("%+v", e)
		}
	}
	// What nobody can tell stays unknown: nothing runs, and a person is asked.
	for key, why := range map[string]string{"other": "exited with 3", "slow": "did not end within"} {
		sp := effectSpec(rules, `echo ran`)
		sp.Timeouts.Prepare = 2 * time.Second
		l = b.log(sp)
		l.grant()
		begin(key)
		l.lost()
		a := b.start(l.grant())
		_, end := b.wait(a)
		if end.Kind != EndReconcile || strings.Contains(b.stdout(a), "ran") || l.state(key) != site.EffectUnknown || !end.Clean {
			t.Fatalf("%s: %+v %s %s", key, end, l.state(key), b.text(a))
		}
		l.must(site.Release{Authority: l.now().Lease.Authority, Kind: site.ReleasedReconcile})
		if j := l.now(); !j.AwaitsReconcile() || !strings.Contains(j.Reason, why) {
			t.Errorf("%s: %s %s", key, j.Status, j.Reason)
		}
		if err := a.Finish(false); err != nil {
			t.Fatal(err)
		}
	}
}

// A lease that is lost while the runner looks ends the look, and nothing is written down.
func TestLeaseLostWhileReconciling(t *testing.T) {
	b := newBench(t)
	l := b.log(effectSpec(job.EffectRules{Keys: []job.EffectDecl{{Key: "a", Policy: job.EffectReconcile, Reconcile: []string{"/bin/sh", "-c", "echo looks; sleep 600"}}}}, "echo ran"))
	l.grant()
	if _, err := l.Begin(t.Context(), "a", "", "k", 1); err != nil {
		t.Fatal(err)
	}
	l.lost()
	a := b.start(l.grant())
	b.await(a, "looks")
	a.LeaseEnded()
	if _, end := b.wait(a); end.Kind != EndLease || l.state("a") != site.EffectOpen {
		t.Errorf("%+v %+v", end, l.now().Effects)
	}
}

// A step whose result is committed is not run again, and what it made is there (CK-168,
// CK-169): only with exact evidence. One that is an effect is looked for.
func TestCommittedSteps(t *testing.T) {
	b := newBench(t)
	sp := spec(`mkdir -p bin; echo "made in $FORGEYARD_EPOCH" > bin/tool; chmod +x bin/tool; echo compiled`, `cat bin/tool > lib; echo linked`, `echo published`, `cat bin/tool lib; [ $FORGEYARD_EPOCH -ge 4 ] || exit 1`)
	sp.Steps[0].Resume, sp.Steps[0].Outputs = job.StepCommitted, []string{"bin"}
	sp.Steps[1].Resume, sp.Steps[1].Outputs = job.StepCommitted, []string{"lib"}
	sp.Steps[2].Resume, sp.Steps[2].Reconcile = job.StepReconcile, []string{"/bin/sh", "-c", "exit 1"}
	sp.Effects = ""
	sp = sp.Defaulted()
	if err := sp.Validate(); err != nil {
		t.Fatal(err)
	}
	l := b.log(sp)
	epoch := func(change func(*Task)) string {
		t.Helper()
		tk := l.grant()
		if change != nil {
			change(&tk)
		}
		a := b.start(tk)
		b.wait(a)
		out := b.stdout(a)
		if err := a.Finish(false); err != nil {
			t.Fatal(err)
		}
		l.lost()
		return out
	}
	if got := epoch(nil); got != "compiled\nlinked\npublished\nmade in 1\nmade in 1\n" {
		t.Fatalf("%q", got)
	}
	if len(l.now().Steps) != 2 || l.state("step/step_3") != site.EffectDone {
		t.Fatalf("%+v %+v", l.now().Steps, l.now().Effects)
	}
	if got := epoch(nil); got != "made in 1\nmade in 1\n" {
		t.Fatalf("what is committed runs again: %q", got)
	}
	// Evidence of something else is none, and a step whose output is lost runs again.
	if got := epoch(func(tk *Task) { tk.Committed[0].Evidence[0]++ }); got != "compiled\nlinked\nmade in 3\nmade in 3\n" {
		t.Fatalf("%q", got)
	}
	lib := l.now().Steps[1].Outputs[0].Digest
	if got := epoch(func(tk *Task) {
		tk.Committed[0].Outputs = []job.Output{{Path: "bin", Tree: true, Digest: cas.Sum([]byte("gone"))}}
	}); !strings.HasPrefix(got, "compiled\n") {
		t.Fatalf("%q of %s", got, lib.Short())
	}
}

// Nobody decides: the step's result is not committed, and the work goes on.
func TestStepIsNotCommittedWithoutQuorum(t *testing.T) {
	b := newBench(t)
	sp := spec(`echo x > out`, `echo second`)
	sp.Steps[0].Resume, sp.Steps[0].Outputs = job.StepCommitted, []string{"out"}
	sp.Timeouts.Upload = 300 * time.Millisecond
	l := b.log(sp)
	tk := l.grant()
	l.down = true
	a := b.start(tk)
	if r, _ := b.wait(a); r.Outcome != job.OutcomeDone || b.stdout(a) != "second\n" || !strings.Contains(b.text(a), "is not committed") {
		t.Errorf("%+v %s", r, b.text(a))
	}
	if len(l.now().Steps) != 0 {
		t.Errorf("%+v", l.now().Steps)
	}
}
