package runner

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// Ledger is what the site's log holds of a job's effects and committed steps, for one epoch.
// Errors have the kinds of a proposal: Stale ends the epoch, Unavailable and Unknown say that
// nobody decided. Calls may overlap.
type Ledger interface {
	// Begin writes down that an effect is about to be performed. One request has one number,
	// however often it is repeated for want of an answer.
	Begin(ctx context.Context, key, kind, idem string, ask uint64) (Begun, error)
	// Settle writes down what became of one.
	Settle(ctx context.Context, s Settled) error
	// CommitStep keeps the result of a step for later epochs, its outputs copied first.
	CommitStep(ctx context.Context, s CommittedStep) error
}

// Begun is the answer to an intent. Already: it is done, and not to be done again. Open: an
// earlier request of this epoch began it, and nobody has said what became of it.
type Begun struct {
	Already  bool
	Open     bool
	Evidence []byte
}

// Outcome is what is known of an effect.
type Outcome string

// Outcomes.
const (
	EffectDone    Outcome = "done"
	EffectAborted Outcome = "aborted"
	EffectUnknown Outcome = "unknown"
)

// Settled is one outcome. Reconciled: of an effect of an earlier epoch, looked for here.
type Settled struct {
	Key        string
	Outcome    Outcome
	Evidence   []byte
	Why        string
	Reconciled bool
}

// Intent is an effect of an earlier epoch that has no outcome.
type Intent struct {
	Key, Kind, Idem string
	Epoch           uint64
	Reconcile       []string // argv that finds out
}

// CommittedStep is the result of a step that later epochs need not run again.
type CommittedStep struct {
	Index    int
	Evidence forgeyard.Digest
	Outputs  []job.Output
	Result   job.StepResult
}

// reconcile finds out what became of what earlier epochs began, before anything of this one
// runs: each under the new epoch's authority, so that a holder of the old one is shut out
// where the outside looks at the fence; nil: all is known.
func (a *Attempt) reconcile() *verdict {
	for _, in := range a.task.Intents {
		if v := a.interrupted(); v != nil {
			return v
		}
		s, v := a.lookOutside(in)
		if v != nil {
			return v
		}
		a.note("effect %s of epoch %d: %s %s", in.Key, in.Epoch, s.Outcome, s.Why)
		a.event(0, map[string]any{"event": "reconcile", "effect": in.Key, "of_epoch": in.Epoch, "outcome": s.Outcome, "why": a.clean(s.Why)})
		if v := a.settle(s); v != nil {
			return v
		}
		if s.Outcome == EffectUnknown {
			return &verdict{end: EndReconcile, message: fmt.Sprintf("effect %s of epoch %d: %s", in.Key, in.Epoch, s.Why)}
		}
	}
	return nil
}

// lookOutside runs the reconcile command of one intent to the confirmed end of its tree.
func (a *Attempt) lookOutside(in Intent) (Settled, *verdict) {
	s := Settled{Key: in.Key, Outcome: EffectUnknown, Reconciled: true}
	if len(in.Reconcile) == 0 {
		s.Why = "its rule has no reconcile command"
		return s, nil
	}
	if a.Lost() {
		return s, a.interrupted()
	}
	r := a.request(0, job.Step{Name: "reconcile", Run: in.Reconcile, Env: map[string]string{}})
	r.Env = append(r.Env, "FORGEYARD_EFFECT_KEY="+in.Key, "FORGEYARD_EFFECT_KIND="+in.Kind, "FORGEYARD_EFFECT_IDEM="+in.Idem, fmt.Sprintf("FORGEYARD_EFFECT_EPOCH=%d", in.Epoch))
	said := &head{most: job.MaxEvidence}
	r.Stdout = io.MultiWriter(r.Stdout, said)
	h, err := a.exec.Start(a.ctx, r)
	if err != nil {
		s.Why = a.clean(fmt.Sprintf("its reconcile command did not start: %v", err))
		return s, a.interrupted()
	}
	late := false
	select {
	case <-h.Done():
	case <-a.ctx.Done():
	case <-a.halt():
	case <-a.run.cfg.Clock.After(a.task.Spec.Timeouts.Prepare):
		late = true
	}
	a.run.cfg.Ender.End(a.id, h)
	x := h.Wait()
	a.endStreams()
	if v := a.interrupted(); v != nil {
		return s, v
	}
	s.Outcome, s.Why = a.answer(x, late)
	if s.Outcome == EffectDone {
		s.Evidence = []byte(a.clean(said.text(in)))
	}
	return s, nil
}

// answer reads the exit code of a reconcile command.
func (a *Attempt) answer(x executor.Exit, late bool) (Outcome, string) {
	switch {
	case late:
		return EffectUnknown, fmt.Sprintf("its reconcile command did not end within %v", a.task.Spec.Timeouts.Prepare)
	case x.Signal != 0:
		return EffectUnknown, "its reconcile command was ended by " + signalName(x.Signal)
	case x.Code == 0:
		return EffectDone, ""
	case x.Code == 1:
		return EffectAborted, ""
	}
	return EffectUnknown, fmt.Sprintf("its reconcile command exited with %d", x.Code)
}

// head keeps the first bytes of an output, and names all of it.
type head struct {
	most int
	b    []byte
	n    int64
	sum  *cas.Hasher
}

func (h *head) Write(p []byte) (int, error) {
	if h.sum == nil {
		h.sum = cas.NewHasher()
	}
	h.n += int64(len(p))
	h.b = append(h.b, p[:min(len(p), h.most-len(h.b))]...)
	return h.sum.Write(p)
}

// text is what a command that found the effect done shows for it.
func (h *head) text(in Intent) string {
	switch {
	case h.n == 0:
		return fmt.Sprintf("%s said that %s is done", in.Reconcile[0], in.Key)[:min(job.MaxEvidence, len(in.Reconcile[0])+len(in.Key)+19)]
	case h.n > int64(h.most):
		return fmt.Sprintf("%d bytes, %s", h.n, h.sum.Sum())
	}
	return string(h.b)
}

// settle writes down an outcome, again and again while there is time; nil: it is in the log.
func (a *Attempt) settle(s Settled) *verdict {
	ctx, cancel := a.bounded(a.task.Spec.Timeouts.Upload, a.cancelled)
	defer cancel()
	err := a.retry(ctx, "write down effect "+s.Key, func(ctx context.Context) error { return a.task.Ledger.Settle(ctx, s) }, decided)
	if v := a.interruptedByEnd(); v != nil {
		return v
	}
	switch {
	case err == nil:
		return nil
	case forgeyard.KindOf(err) == forgeyard.Stale:
		a.endLease()
		return a.interrupted()
	}
	return &verdict{end: EndReconcile, message: forgeyard.Clip(err.Error(), maxMessage)}
}

// decided reports that the log has answered, so that asking again brings nothing.
func decided(err error) bool {
	k := forgeyard.KindOf(err)
	return k != forgeyard.Unavailable && k != forgeyard.Unknown && k != forgeyard.Interrupted
}

// speaks reports whether programs of the attempt talk to their runner: FYCP/1 is there.
func (a *Attempt) speaks() bool {
	return a.contract.Speaks() || a.task.Spec.HasEffects()
}

// followEffects begins to answer what a step tells of its effects. The function that it
// returns is called when the tree is gone: what was told to be done by then counts still.
func (a *Attempt) followEffects(f Folders) (end func()) {
	if !a.speaks() || a.task.Spec.Own() {
		return func() {}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		a.serveEffects(f, stop)
	}()
	return func() {
		close(stop)
		<-ended
		if !a.Lost() {
			a.effects(f, true)
		}
	}
}

// serveEffects answers what the running program tells of its effects, until stop is closed.
// It is a goroutine of its own: a checkpoint that is being stored must not delay it.
func (a *Attempt) serveEffects(f Folders, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-a.ctx.Done():
			return
		case <-a.run.cfg.Clock.After(effectEvery):
			a.effects(f, false)
		}
	}
}

// effects looks once. over: the tree is gone, so that an intent would be of nobody.
func (a *Attempt) effects(f Folders, over bool) {
	var last context.Context // one bound for all that is left
	if over {
		ctx, cancel := a.bounded(a.task.Spec.Timeouts.Upload, a.cancelled)
		defer cancel()
		last = ctx
		if !a.settleOwed(last, "") {
			return
		}
	}
	auth := a.task.Authority
	all, err := capture.EffectMessages(f.Ctl, auth.Attempt, auth.Fence.Epoch, !a.contract.Speaks())
	if err != nil {
		if a.ctx.Err() == nil {
			a.said().Warn("what the program tells of effects cannot be read", "err", err)
		}
		return
	}
	for _, m := range all {
		begins := m.Kind == checkpoint.MessageEffectBegin
		if begins && over {
			continue
		}
		if begins && !a.settleOwed(last, m.Effect.Key) {
			return
		}
		ans := a.answerEffect(last, m)
		if !begins {
			a.owe(m, ans)
		}
		heard, err := capture.Tell(f.Ctl, m.N, ans)
		if err != nil {
			a.said().Warn("an answer about an effect was not written", "err", err)
		}
		if begins && heard && ans.Status != checkpoint.StatusStaged {
			a.heard(*m.Effect)
		}
		if ans.Status == checkpoint.StatusStale {
			a.endLease()
			return
		}
	}
}

// owe keeps an outcome that nobody decided, in place of what was said of the effect before:
// the program may not live to say it again.
func (a *Attempt) owe(m checkpoint.Message, ans checkpoint.Answer) {
	a.owed = slices.DeleteFunc(a.owed, func(o checkpoint.Message) bool { return o.Effect.Key == m.Effect.Key })
	if ans.Status == checkpoint.StatusStaged && len(a.owed) < job.MaxEffects {
		a.owed = append(a.owed, m)
	}
}

// settleOwed says again what is owed of an effect, or of all. It reports whether the epoch is
// still the current one.
func (a *Attempt) settleOwed(last context.Context, key string) bool {
	for _, m := range slices.Clone(a.owed) {
		if key != "" && m.Effect.Key != key {
			continue
		}
		ans := a.answerEffect(last, m)
		a.owe(m, ans)
		if ans.Status == checkpoint.StatusStale {
			a.endLease()
			return false
		}
	}
	return true
}

// answerEffect carries one message out. While the program runs, the time is bounded: it may
// ask again. With last its tree is gone, nobody else knows what it knew, and it is tried
// until the site has decided or last ends.
func (a *Attempt) answerEffect(last context.Context, m checkpoint.Message) (ans checkpoint.Answer) {
	if last == nil {
		ctx, cancel := a.bounded(effectTime, nil)
		defer cancel()
		return a.tellLedger(ctx, m)
	}
	_ = a.retry(last, "say what became of effect "+m.Effect.Key, func(ctx context.Context) error {
		if ans = a.tellLedger(ctx, m); ans.Status == checkpoint.StatusStaged {
			return forgeyard.Errorf("effect", forgeyard.Unavailable, "%s", ans.Reason)
		}
		return nil
	}, nil) // what it could not say stands in the answer
	return ans
}

// tellLedger carries one message out.
func (a *Attempt) tellLedger(ctx context.Context, m checkpoint.Message) checkpoint.Answer {
	e := *m.Effect
	ans := checkpoint.Answer{Status: checkpoint.StatusCommitted}
	var err error
	switch {
	case a.clean(string(e.Evidence)+e.Key+e.Idem) != string(e.Evidence)+e.Key+e.Idem:
		return checkpoint.Answer{Status: checkpoint.StatusRejected, Reason: string(checkpoint.CodeSecret) + ": the value of a secret stands in it"}
	case a.task.Ledger == nil:
		return checkpoint.Answer{Status: checkpoint.StatusRejected, Reason: "the job declares no effects: say effects: protected, or give rules, in the job file"}
	case m.Kind == checkpoint.MessageEffectBegin:
		var b Begun
		b, err = a.begin(ctx, e)
		switch {
		case b.Already:
			ans.Status, ans.Evidence = checkpoint.StatusAlready, b.Evidence
		case b.Open:
			ans.Status = checkpoint.StatusOpen
		}
	case m.Kind == checkpoint.MessageEffectDone:
		err = a.task.Ledger.Settle(ctx, Settled{Key: e.Key, Outcome: EffectDone, Evidence: e.Evidence})
	default:
		err = a.task.Ledger.Settle(ctx, Settled{Key: e.Key, Outcome: EffectAborted})
	}
	if err == nil {
		a.note("%s %s: %s", m.Kind, e.Key, ans.Status)
		return ans
	}
	ans = checkpoint.Answer{Status: checkpoint.StatusRejected, Reason: err.Error()}
	switch forgeyard.KindOf(err) {
	case forgeyard.Stale:
		ans.Status = checkpoint.StatusStale
	case forgeyard.Limit:
		ans.Status = checkpoint.StatusLimit
	case forgeyard.Unavailable, forgeyard.Unknown, forgeyard.Interrupted:
		ans.Status = checkpoint.StatusStaged
	}
	a.note("%s %s: %s: %s", m.Kind, e.Key, ans.Status, ans.Reason)
	return ans
}

// begin asks for one effect. Until the program has heard the answer, it is asked again as the
// same request: the program was told not to perform it.
func (a *Attempt) begin(ctx context.Context, e checkpoint.EffectNote) (Begun, error) {
	name := requestName(e)
	a.mu.Lock()
	ask, again := a.unheard[name]
	if !again {
		a.lastAsk++
		ask = a.lastAsk
		if a.unheard == nil {
			a.unheard = map[string]uint64{}
		}
		if len(a.unheard) < job.MaxEffects {
			a.unheard[name] = ask
		}
	}
	a.mu.Unlock()
	return a.task.Ledger.Begin(ctx, e.Key, e.Kind, e.Idem, ask)
}

// heard notes that whoever asked for an effect has the site's answer: who asks for it once
// more is another.
func (a *Attempt) heard(e checkpoint.EffectNote) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unheard, requestName(e))
}

// requestName is the name of a request.
func requestName(e checkpoint.EffectNote) string { return e.Key + "\x00" + e.Idem }

const (
	// effectEvery is how often the outbox is looked at: each effect waits for it twice.
	effectEvery = 50 * time.Millisecond
	// effectTime is how long the site has to decide, before a program is told that nobody did.
	effectTime = 10 * time.Second
)
