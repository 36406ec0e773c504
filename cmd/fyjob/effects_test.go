//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/docs/examples/registry"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	rules "github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// publisher is one job that publishes five files: the real scripts and helper as processes, a
// registry behind HTTP, and the site's own rules as its log. It does what node/runner does
// around them.
type publisher struct {
	t     *testing.T
	reg   *registry.Registry
	url   string
	bin   string
	files string
	dir   string // of the current epoch

	mu    sync.Mutex
	s     *rules.State
	index uint64
	job   forgeyard.JobID
	down  bool // no quorum

	points int // that were passed
	killAt int // kill the program at this one; 0: never
	kill   func()
	passed []string
}

var published = []string{"a", "b", "c", "d", "e"}

func newPublisher(t *testing.T) *publisher {
	if _, err := exec.LookPath("curl"); err != nil {
		needs.Lacking(t, "curl is not installed")
	}
	p := &publisher{t: t, reg: &registry.Registry{}, s: &rules.State{}, bin: t.TempDir(), files: t.TempDir()}
	p.reg.Hook = func(point, _ string) { p.at(point) }
	srv := httptest.NewServer(p.reg)
	t.Cleanup(srv.Close)
	p.url = srv.URL
	self, err := os.Executable()
	check(t, err)
	check(t, os.Symlink(self, filepath.Join(p.bin, "fyjob")))
	for _, name := range published {
		check(t, os.WriteFile(filepath.Join(p.files, name), []byte("content of "+name), 0o644))
	}
	p.must(rules.Init{Site: "01J0000000000000000000000S", Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R", Node: "n1", Peer: "p1"})
	p.must(rules.Register{Runner: "R", Session: "S", Version: "1", Formats: rules.Formats})
	p.must(rules.FormatRaise{To: rules.FormatNow, Voters: []forgeyard.RunnerID{"R"}})
	sp := job.Spec{Steps: []job.Step{{Name: "publish", Run: []string{"publish"}}}, EffectRules: job.EffectRules{Keys: []job.EffectDecl{{Key: "publish/*", Policy: job.EffectReconcile, Reconcile: []string{"there"}}}}}
	sp.Interruption.Tolerance, sp.Interruption.Budget = job.ToleranceRestartable, 100
	raw := sp.Defaulted().Canonical()
	v, err := rules.Value[rules.Submitted](p.must(rules.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}))
	check(t, err)
	p.job = v.Job
	return p
}

func (p *publisher) apply(b rules.Body) rules.Reply {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return rules.Reply{Kind: forgeyard.Unavailable, Error: "no quorum"}
	}
	p.index++
	next, r := p.s.Apply(p.index, rules.Command{ID: forgeyard.MessageID(fmt.Sprint("r", p.index)), At: forgeyard.Wall(1_800_000_000_000 + p.index), By: "ana", Body: b}.Encode())
	p.s = next
	return r
}

func (p *publisher) must(b rules.Body) rules.Reply {
	p.t.Helper()
	r := p.apply(b)
	if err := r.Err(); err != nil {
		p.t.Fatalf("%T: %v", b, err)
	}
	return r
}

func (p *publisher) now() rules.Job {
	p.mu.Lock()
	defer p.mu.Unlock()
	j, _ := p.s.Jobs.Get(p.job)
	return j
}

// at is a point of the protocol: the program may die here.
func (p *publisher) at(point string) {
	p.mu.Lock()
	p.points++
	p.passed = append(p.passed, point)
	now, kill := p.points == p.killAt, p.kill
	p.mu.Unlock()
	if now && kill != nil {
		kill()
	}
}

// grant opens the next epoch, and its folders.
func (p *publisher) grant() rules.Job {
	p.t.Helper()
	p.must(rules.Offer{Job: p.job, Runner: "R", Session: "S", Epoch: p.now().Epoch})
	p.must(rules.Accept{Authority: p.now().Lease.Authority})
	p.dir = p.t.TempDir()
	for _, d := range []string{"ckpt", "ctl", "build"} {
		check(p.t, os.Mkdir(filepath.Join(p.dir, d), 0o755))
	}
	check(p.t, capture.Prepare(filepath.Join(p.dir, "ctl")))
	return p.now()
}

func (p *publisher) command(script string, env ...string) *exec.Cmd {
	j := p.now()
	a := j.Lease.Authority
	cmd := exec.CommandContext(p.t.Context(), "/bin/sh", example(p.t, script), p.url, p.files)
	cmd.Dir = filepath.Join(p.dir, "build")
	cmd.Env = append([]string{
		"PATH=" + p.bin + ":/usr/bin:/bin", checkpoint.EnvProtocol + "=1", checkpoint.EnvAttempt + "=" + string(a.Attempt), checkpoint.EnvEpoch + "=" + strconv.FormatUint(j.Epoch, 10),
		checkpoint.EnvCtlDir + "=" + filepath.Join(p.dir, "ctl"), checkpoint.EnvCkptDir + "=" + filepath.Join(p.dir, "ckpt"), "FORGEYARD_FENCE_TOKEN=" + strconv.FormatUint(j.Lease.Token, 10),
	}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// reconcile looks for what earlier epochs began, as the runner does before the first step.
func (p *publisher) reconcile() bool {
	p.t.Helper()
	j := p.now()
	for _, e := range j.Unreconciled(j.Epoch) {
		cmd := p.command("there.sh", "FORGEYARD_EFFECT_KEY="+e.Key)
		out, err := cmd.Output()
		b := rules.EffectOutcome{Authority: j.Lease.Authority, Key: e.Key, State: rules.EffectDone, Evidence: out, Reconciled: true}
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			b.State, b.Evidence, b.Why = rules.EffectUnknown, nil, "exit "+strconv.Itoa(exit.ExitCode())+": "+string(exit.Stderr)
			if exit.ExitCode() == 1 {
				b.State = rules.EffectAborted
			}
		} else {
			check(p.t, err)
		}
		p.must(b)
		if b.State == rules.EffectUnknown {
			p.must(rules.Release{Authority: j.Lease.Authority, Kind: rules.ReleasedReconcile})
			return false
		}
	}
	return true
}

// epoch runs the program once, and answers it until it ends.
func (p *publisher) epoch() int {
	cmd := p.command("publish.sh")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	check(p.t, cmd.Start())
	p.mu.Lock()
	p.kill = func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // gone already is as good
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(p.t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		for ctx.Err() == nil {
			p.serve()
			time.Sleep(2 * time.Millisecond)
		}
	})
	err := cmd.Wait()
	cancel()
	serving.Wait()
	p.t.Logf("epoch %d: %v\n%s", p.now().Epoch, err, out.String())
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	check(p.t, err)
	return 0
}

func (p *publisher) serve() {
	a := p.now().Lease.Authority
	ctl := filepath.Join(p.dir, "ctl")
	all, err := capture.EffectMessages(ctl, a.Attempt, a.Fence.Epoch, false)
	check(p.t, err)
	for _, m := range all {
		p.at(string(m.Kind) + " asked")
		var r rules.Reply
		if m.Kind == checkpoint.MessageEffectBegin {
			r = p.apply(rules.EffectIntent{Authority: a, Key: m.Effect.Key, Kind: m.Effect.Kind, Idem: m.Effect.Idem})
		} else {
			r = p.apply(rules.EffectOutcome{Authority: a, Key: m.Effect.Key, State: rules.EffectDone, Evidence: m.Effect.Evidence})
		}
		p.at(string(m.Kind) + " logged")
		ans := checkpoint.Answer{Status: checkpoint.StatusCommitted}
		if b, err := rules.Value[rules.EffectBegun](r); err != nil {
			ans = checkpoint.Answer{Status: checkpoint.StatusRejected, Reason: err.Error()}
			if forgeyard.KindOf(err) == forgeyard.Unavailable {
				ans.Status = checkpoint.StatusStaged
			}
		} else if b.Already {
			ans = checkpoint.Answer{Status: checkpoint.StatusAlready, Evidence: b.Evidence}
		}
		check(p.t, capture.WriteAnswer(ctl, m.N, ans))
		p.at(string(m.Kind) + " answered")
	}
}

// lost is the end of an epoch whose program was killed with its runner.
func (p *publisher) lost() {
	p.t.Helper()
	p.must(rules.Expire{Job: p.job, Lease: p.now().Lease.Authority.Lease, Certain: true})
}

// finish runs epochs until the program ends well.
func (p *publisher) finish() {
	p.t.Helper()
	for range 5 {
		p.grant()
		if !p.reconcile() {
			p.t.Fatalf("nobody can tell: %+v", p.now().Effects)
		}
		if p.epoch() == 0 {
			return
		}
		p.lost()
	}
	p.t.Fatal("it does not end")
}

// once fails unless each file was stored exactly once, and the ledger says that it is done.
func (p *publisher) once() {
	p.t.Helper()
	stored := p.reg.Stored()
	for _, name := range published {
		if stored[name] != 1 {
			p.t.Errorf("%s was stored %d times; points %v", name, stored[name], p.passed)
		}
	}
	j := p.now()
	if len(j.Effects) != len(published) {
		p.t.Errorf("%+v", j.Effects)
	}
	for _, e := range j.Effects {
		want := registry.Digest([]byte("content of " + strings.TrimPrefix(e.Key, "publish/")))
		if e.State != rules.EffectDone || !strings.Contains(string(e.Evidence)+want, want) {
			p.t.Errorf("%+v", e)
		}
	}
}

// K13: publish five files, kill -9 at every point of the protocol: each appears exactly once
// (CK-165, CK-306, CK-307).
func TestPublishOnceWhereverKilled(t *testing.T) {
	whole := newPublisher(t)
	whole.finish()
	whole.once()
	// begin: asked, logged, answered; received, stored; done: asked, logged, answered.
	if whole.points != 8*len(published) {
		t.Fatalf("%d points: %v", whole.points, whole.passed)
	}
	for at := 1; at <= whole.points; at++ {
		t.Run(fmt.Sprintf("%02d %s", at, whole.passed[at-1]), func(t *testing.T) {
			t.Parallel()
			p := newPublisher(t)
			p.killAt = at
			p.finish()
			p.once()
			if e := p.now().Epoch; e != 2 && at != whole.points {
				t.Errorf("it took %d epochs", e)
			}
		})
	}
}

// K09: a request of the old epoch that was held up on its way comes after the new epoch has
// looked. The registry has seen the higher token, and refuses it.
func TestLateRequestIsFenced(t *testing.T) {
	p := newPublisher(t)
	let, arrived, decided := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var first, last sync.Once
	p.reg.Hook = func(point, name string) {
		if point == "stored" && name == "c" {
			last.Do(func() { close(decided) })
		}
		if point != "received" || name != "c" {
			return
		}
		held := false
		first.Do(func() { held = true })
		if held {
			p.mu.Lock()
			kill := p.kill
			p.mu.Unlock()
			kill()
			close(arrived)
			<-let // the client is dead, its request is not
		}
	}
	p.grant()
	if p.epoch() == 0 {
		t.Fatal("it was not killed")
	}
	<-arrived
	p.lost()
	p.grant()
	if !p.reconcile() || p.now().Effects[2].State != rules.EffectAborted {
		t.Fatalf("%+v", p.now().Effects)
	}
	close(let)
	<-decided
	if n := p.reg.Stored()["c"]; n != 0 {
		t.Fatalf("a request of the old epoch was carried out after the new one had looked: %d", n)
	}
	if p.epoch() != 0 {
		t.Fatal("the new epoch fails")
	}
	p.once()
}

// K13: the same version is out with other bytes: nothing is overwritten, and a person decides.
func TestOtherBytesStopForAPerson(t *testing.T) {
	p := newPublisher(t)
	p.killAt = 2*8 + 2 // the intent of c is in the log
	p.grant()
	if p.epoch() == 0 {
		t.Fatal("it was not killed")
	}
	p.reg.Preset("c", []byte("other bytes"))
	p.lost()
	p.grant()
	if p.reconcile() {
		t.Fatal("other bytes pass for done")
	}
	if j := p.now(); !j.AwaitsReconcile() || !strings.Contains(j.Reason, "other bytes are there") {
		t.Fatalf("%s: %s", j.Status, j.Reason)
	}
	if r := p.apply(rules.Offer{Job: p.job, Runner: "R", Session: "S", Epoch: p.now().Epoch}); r.Kind != forgeyard.Conflict {
		t.Errorf("%+v", r)
	}
	p.must(rules.EffectResolve{Job: p.job, Key: "publish/c", State: rules.EffectDone, Reason: "ours is 1.1 now"})
	p.finish()
	if got := p.reg.Stored(); got["c"] != 0 || got["d"] != 1 || got["e"] != 1 {
		t.Errorf("%v", got)
	}
}

// Without a quorum begin exits with 3, and nothing is performed.
func TestNoEffectWithoutQuorum(t *testing.T) {
	p := newPublisher(t)
	p.grant()
	p.down = true
	if code := p.epoch(); code != 1 || len(p.reg.Stored()) != 0 {
		t.Errorf("exit %d, stored %v", code, p.reg.Stored())
	}
	p.down = false
	p.lost()
	p.finish()
	p.once()
}
