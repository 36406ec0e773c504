//go:build linux

package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
)

// book is a Checkpointer over the real capture, with a log that says yes.
type book struct {
	b        *bench
	contract checkpoint.Contract
	auth     forgeyard.Authority
	w        *capture.Watcher

	mu       sync.Mutex
	commits  []Captured
	exit     Verdict // what Exit is answered with
	exitHold chan struct{}
	yields   []bool
}

func (b *bench) book(t Task) *book {
	b.t.Helper()
	c, err := checkpoint.NewContract(t.Spec.Resume, checkpoint.Limits{})
	if err != nil {
		b.t.Fatal(err)
	}
	return &book{b: b, contract: c, auth: t.Authority, exit: VerdictContinue}
}

func (k *book) expect() capture.Expect {
	last := 0
	for _, c := range k.commits {
		last = max(last, c.Seq)
	}
	return capture.Expect{Authority: k.auth, Contract: k.contract, LastSeq: last}
}

func (k *book) Poll(ctx context.Context, f Folders, _ bool) (Captured, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.w == nil {
		k.w = capture.NewWatcher(f.Ckpt, f.Ctl, k.auth.Attempt, k.auth.Fence.Epoch)
	}
	found, err := k.w.Poll()
	var last Captured
	for _, m := range found.Messages {
		if m.Kind == checkpoint.MessageRestoreReject {
			last.Unusable = m.Reason
		}
	}
	if err != nil || len(found.Sealed) == 0 {
		return last, err
	}
	for _, seq := range found.Sealed {
		g, err := capture.IngestSealed(ctx, k.b.store, f.Ckpt+"/"+checkpoint.SlotName(seq), k.expect())
		if err != nil {
			last = Captured{Verdict: VerdictRejected, Seq: seq, Reason: err.Error()}
			if err := k.w.Settle(checkpoint.Answer{Seq: seq, Status: checkpoint.StatusRejected, Reason: err.Error()}); err != nil {
				return last, err
			}
			continue
		}
		last = Captured{Verdict: VerdictCommitted, Seq: seq, ID: g.ID}
		k.commits = append(k.commits, last)
		if err := k.w.Settle(checkpoint.Answer{Seq: seq, Status: checkpoint.StatusCommitted}); err != nil {
			return last, err
		}
	}
	return last, nil
}

func (k *book) Exit(ctx context.Context, f Folders, yield bool) (Captured, error) {
	if k.exitHold != nil {
		<-ctx.Done()
		return Captured{}, forgeyard.E("commit", forgeyard.Unavailable, ctx.Err())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.yields = append(k.yields, yield)
	g, err := capture.IngestExit(ctx, k.b.store, f.Build, k.expect())
	if err != nil {
		return Captured{Verdict: VerdictRejected, Reason: err.Error()}, nil
	}
	c := Captured{Verdict: k.exit, Seq: g.Manifest.Seq, ID: g.ID}
	k.commits = append(k.commits, c)
	return c, nil
}

// resumable is a spec with the application contract.
func resumable(files []string, steps ...string) job.Spec {
	s := spec(steps...)
	s.Resume = job.Resume{Mode: job.ResumeApplication, FormatName: "count", FormatVersion: 2, Checkpoint: job.CheckpointDecl{Files: files, Window: patience}}
	return s.Defaulted()
}

// Way 2 of FYCP/1: exit 85, commit, a new epoch with the files where they were. The whole tree is
// gone before they are read (CK-009, CK-083), and each epoch's mark stands in its log (CK-173).
func TestExitDrivenCheckpoint(t *testing.T) {
	b := newBench(t)
	s := resumable([]string{"state"}, `mkdir -p state; n=$(cat state/n 2>/dev/null || echo 0); n=$((n+1)); echo $n > state/n; echo "epoch $FORGEYARD_EPOCH is at $n, restored ${FORGEYARD_RESTORE_SEQ-nothing} ${FORGEYARD_RESTORE_FORMAT-} $FORGEYARD_INTERRUPTIONS"
[ $n -ge 3 ] || exit 85; [ -z "${FORGEYARD_RESTORE_DIR-}" ] || cat $FORGEYARD_RESTORE_DIR/state/n; touch leftover; echo fin > out`)
	s.Outputs = []job.OutputDecl{{Path: "out"}}
	tk := task(s)
	var log strings.Builder
	for epoch := uint64(1); ; epoch++ {
		tk.Authority.Fence.Epoch = epoch
		k := b.book(tk)
		tk.Checkpoints = k
		a := b.start(tk)
		res, end := b.wait(a)
		log.WriteString(b.text(a))
		if err := a.Finish(false); err != nil {
			t.Fatal(err)
		}
		if end.Kind == EndCompleted {
			if res.Outcome != job.OutcomeDone || epoch != 3 {
				t.Fatalf("epoch %d: %+v %s", epoch, res, log.String())
			}
			break
		}
		if end.Kind != EndCheckpoint || end.Checkpoint.Verdict != VerdictContinue || epoch > 3 {
			t.Fatalf("epoch %d: %+v %s", epoch, end, log.String())
		}
		tk.Restore = &Restore{ID: end.Checkpoint.ID, Seq: end.Checkpoint.Seq, ExitDriven: true}
		tk.FirstLogSeq, tk.ResumeID = end.LastLogSeq+1, fmt.Sprint("r", epoch)
		b.tree = b.collect
	}
	for _, want := range []string{"epoch 1 is at 1, restored nothing  0\n", "epoch 2 is at 2, restored 1 count:2 0\n", "epoch 3 is at 3, restored 1 count:2 0\n2\n"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in %s", want, log.String())
		}
	}
	// The sequence goes on across epochs: each of the two before wrote four frames (the epoch's
	// mark, the step's start, its output, its end), and none after its commit.
	if tk.FirstLogSeq != 9 {
		t.Errorf("the third epoch began at %d", tk.FirstLogSeq)
	}
}

// collect is an exchange that has nothing to bring, and at that moment the store of a node
// that holds no copy of the checkpoint for others is collected (RA-196, RA-197).
func (b *bench) collect(ctx context.Context, payload forgeyard.Digest) error {
	pins, err := b.store.Pins(ctx)
	if err != nil {
		return err
	}
	for _, p := range pins {
		if p.Owner != PinOwner(attemptID) {
			err = errors.Join(err, b.store.Unpin(ctx, p.Owner))
		}
	}
	_, gcErr := b.store.GC(ctx, false)
	return errors.Join(err, gcErr, castest.Direct{To: b.store}.Fetch(ctx, cas.Ref{Digest: payload}, nil))
}

// A commit that nobody decides holds the job: it is never executed again from what is
// not committed (CK-089, CK-328).
func TestExitWithoutQuorumIsHeld(t *testing.T) {
	b := newBench(t)
	s := resumable([]string{"state"}, "mkdir state; echo 1 > state/n; exit 85")
	s.Timeouts.Upload = 300 * time.Millisecond
	tk := task(s)
	k := b.book(tk)
	k.exitHold = make(chan struct{})
	tk.Checkpoints = k
	_, end := b.wait(b.start(tk))
	if end.Kind != EndCheckpoint || end.Checkpoint.Verdict != VerdictHeld || end.Checkpoint.Reason == "" {
		t.Errorf("%+v", end)
	}
}

const seal = `seal() { d=$FORGEYARD_CKPT_DIR/$1; mkdir $d.tmp; printf %s "$2" > $d.tmp/n; cp $FORGEYARD_SOURCE_DIR/marker $d.tmp/.fy-checkpoint.json; mv $d.tmp $d; }
`

// marker writes the marker of slot 1 that holds the file n with text.
func (b *bench) marker(tk *Task, text string) {
	b.t.Helper()
	m := checkpoint.Marker{
		V: checkpoint.ProtocolVersion, Attempt: tk.Authority.Attempt, Epoch: tk.Authority.Fence.Epoch, Seq: 1, Mode: job.ResumeApplication,
		Consistency: checkpoint.Application, Quiesced: true, Format: checkpoint.Format{Name: "count", Version: 2},
		Files: []checkpoint.File{{Path: "n", Size: int64(len(text)), BLAKE3: cas.Sum([]byte(text)), Mode: 0o644}},
	}
	ref := b.put(string(m.Encode()))
	tk.Spec.Inputs = append(tk.Spec.Inputs, job.Input{Path: "source/marker", Digest: ref.Digest, Size: ref.Size})
}

// Way 1: a sealed directory while running, and a drain that waits for it (CK-032, CK-352): asked
// for (CK-082), written, hashed, checked and committed (CK-085 to CK-089), then the signal.
func TestSealedDirectoryAndDrain(t *testing.T) {
	b := newBench(t)
	tk := task(resumable(nil, seal+`trap 'echo term; exit 7' TERM; echo up
while ! grep -q '"want_checkpoint":true' $FORGEYARD_CTL_DIR/request.json; do sleep 0.02; done
echo asked; seal 000001 hello; while :; do sleep 0.05; done`))
	b.marker(&tk, "hello")
	k := b.book(tk)
	tk.Checkpoints = k
	a := b.start(tk)
	b.await(a, "up")
	a.Stop(checkpoint.StopDrain, "maintenance")
	_, end := b.wait(a)
	if end.Kind != EndYielded || end.Stop != "drain" || end.Checkpoint.Verdict != VerdictCommitted || end.Checkpoint.Seq != 1 {
		t.Fatalf("%+v\n%s", end, b.text(a))
	}
	if end.Clean {
		t.Error("what it did after it was sealed will be done again, and it says that nothing is")
	}
	if log := b.stdout(a); !strings.Contains(log, "asked\nterm\n") {
		t.Errorf("not in order: %s", log)
	}
}

// What was sealed just before the end is taken after it, and an unsealed directory is not (K05,
// CK-329).
func TestSealedBeforeTheEnd(t *testing.T) {
	b := newBench(t)
	tk := task(resumable(nil, seal+`seal 000001 bye; mkdir $FORGEYARD_CKPT_DIR/000002.tmp; kill -9 $$`))
	b.marker(&tk, "bye")
	k := b.book(tk)
	tk.Checkpoints = k
	res, end := b.wait(b.start(tk))
	if res.Category != job.WorkloadFailed || end.Checkpoint.Seq != 1 || end.Checkpoint.Verdict != VerdictCommitted || len(k.commits) != 1 {
		t.Errorf("%+v %+v", res, end)
	}
}

// CK-131, CK-132: a person who cancels wants an end. The program is asked for no checkpoint,
// one that it makes all the same is not committed, and the job is not handed back.
func TestCancelMakesNoCheckpoint(t *testing.T) {
	b := newBench(t)
	tk := task(resumable([]string{"n"}, `trap 'grep -o "\"kind\":\"[a-z]*\"" $FORGEYARD_CTL_DIR/request.json; echo 1 > n; exit 85' TERM; echo up; while :; do sleep 0.05; done`))
	k := b.book(tk)
	k.exit = VerdictCommitted
	tk.Checkpoints = k
	a := b.start(tk)
	b.await(a, "up")
	a.Cancel("enough", false)
	res, end := b.wait(a)
	if end.Kind != EndCompleted || res.Outcome != job.OutcomeCancelled || res.ExitCode != 85 || len(k.commits) != 0 || len(k.yields) != 0 {
		t.Errorf("%+v %+v, commits %v, yields %v", res, end, k.commits, k.yields)
	}
	if log := b.stdout(a); !strings.Contains(log, `"kind":"cancel"`) {
		t.Errorf("it was told something else: %s", log)
	}
}

// A suspend without a commit within the window leaves the job running (FYCP/1 §6, CK-302); one
// whose program exits for it gives the job back (CK-006).
func TestSuspend(t *testing.T) {
	b := newBench(t)
	s := resumable([]string{"n"}, `echo up; while [ ! -e $FORGEYARD_CTL_DIR/x ]; do sleep 0.02; if grep -q '"kind":"suspend"' $FORGEYARD_CTL_DIR/request.json; then asked=$((${asked-0}+1)); [ ! -e again ] || { echo 1 > n; exit 85; }; fi
if [ -n "${asked-}" ] && grep -q '"kind":"none"' $FORGEYARD_CTL_DIR/request.json && [ ! -e again ]; then touch again; echo resumed; fi; done`)
	s.Resume.Checkpoint.Window = checkpoint.MinWindow
	tk := task(s)
	k := b.book(tk)
	k.exit = VerdictCommitted
	tk.Checkpoints = k
	a := b.start(tk)
	b.await(a, "up")
	a.Stop(checkpoint.StopSuspend, "later")
	b.await(a, "resumed")
	b.hooks.mu.Lock()
	if len(b.hooks.refused) != 1 {
		t.Errorf("%v", b.hooks.refused)
	}
	b.hooks.mu.Unlock()
	a.Stop(checkpoint.StopSuspend, "later still")
	if _, end := b.wait(a); end.Kind != EndYielded || end.Checkpoint.Verdict != VerdictCommitted || !end.Clean || len(k.yields) != 1 || !k.yields[0] {
		t.Errorf("%+v %v\n%s", end, k.yields, b.text(a))
	}
}

// Exit codes that are the program's word about its state (FYCP/1 §6).
func TestRestoreRejectedAndTryLater(t *testing.T) {
	b := newBench(t)
	tk := task(resumable([]string{"n"}, "echo 1 > n; exit 85"))
	tk.Checkpoints = b.book(tk)
	_, first := b.wait(b.start(tk))
	of := tk.Authority.Spec
	for code, want := range map[int]End{86: EndRestoreRejected, 75: EndTryLater} {
		tk := task(resumable([]string{"n"}, fmt.Sprintf("cat $FORGEYARD_RESTORE_DIR/n; (echo x > $FORGEYARD_RESTORE_DIR/n) && echo WROTE; exit %d", code)))
		tk.Authority.Fence.Epoch, tk.Authority.Spec = uint64(code), of
		tk.Restore = &Restore{ID: first.Checkpoint.ID, Seq: 1}
		tk.Checkpoints = b.book(tk)
		a := b.start(tk)
		if _, end := b.wait(a); end.Kind != want || !strings.Contains(b.text(a), "1\n") || strings.Contains(b.text(a), "WROTE") {
			t.Errorf("exit %d: %+v %s", code, end, b.text(a))
		}
		if _, err := os.Stat(a.root + "/build/n"); err == nil {
			t.Error("files were put back though the checkpoint was not exit-driven")
		}
	}
	// Without a restore 86 is an ordinary failure.
	plain := task(resumable(nil, "exit 86"))
	plain.Authority.Fence.Epoch = 2
	plain.Checkpoints = b.book(plain)
	if res, end := b.wait(b.start(plain)); end.Kind != EndCompleted || res.Category != job.WorkloadFailed {
		t.Errorf("%+v %+v", res, end)
	}
}

// A program that rejects what it was given needs no code of its own for it: whatever it fails
// with after that, it fails for that. One that goes on all the same and is done, is done.
func TestRestoreRejectedByWord(t *testing.T) {
	b := newBench(t)
	tk := task(resumable([]string{"n"}, "echo 1 > n; exit 85"))
	tk.Checkpoints = b.book(tk)
	_, first := b.wait(b.start(tk))
	say := `printf '{"v":1,"n":1,"kind":"restore-reject","attempt":"%s","epoch":%s,"reason":"truncated"}' "$FORGEYARD_ATTEMPT_ID" "$FORGEYARD_EPOCH" >"$FORGEYARD_CTL_DIR/outbox/t"; mv "$FORGEYARD_CTL_DIR/outbox/t" "$FORGEYARD_CTL_DIR/outbox/000001.json"; `
	of := tk.Authority.Spec
	epoch := tk.Authority.Fence.Epoch
	for end, want := range map[string]End{"exit 1": EndRestoreRejected, "kill -ABRT $$": EndRestoreRejected, "exit 0": EndCompleted} {
		tk := task(resumable([]string{"n"}, say+end))
		epoch++
		tk.Authority.Fence.Epoch, tk.Authority.Spec = epoch, of
		tk.Restore = &Restore{ID: first.Checkpoint.ID, Seq: 1}
		tk.Checkpoints = b.book(tk)
		r, got := b.wait(b.start(tk))
		if got.Kind != want || want == EndRestoreRejected != strings.Contains(r.Message, "rejects the restored state: truncated") {
			t.Errorf("%s: %+v %+v", end, got, r)
		}
	}
}

// A checkpoint that another epoch has overtaken stops the epoch (E: stale; CK-298).
func TestStaleCommitEndsTheEpoch(t *testing.T) {
	b := newBench(t)
	tk := task(resumable([]string{"n"}, "echo 1 > n; exit 85"))
	k := b.book(tk)
	k.exit = VerdictStale
	tk.Checkpoints = k
	if _, end := b.wait(b.start(tk)); end.Kind != EndLease {
		t.Errorf("%+v", end)
	}
}

// K01 CK-030 069 070 071 204 296 330: what was taken of another spec, or is not whole, is not restored in
// part: the program is never started, and the checkpoint is rejected, once.
func TestUnusableCheckpointIsRejected(t *testing.T) {
	b := newBench(t)
	tk := task(resumable([]string{"n"}, "echo 1 > n; exit 85"))
	tk.Checkpoints = b.book(tk)
	_, first := b.wait(b.start(tk))
	epoch := tk.Authority.Fence.Epoch
	for name, edit := range map[string]func(*Task){
		"another spec":     func(tk *Task) { tk.Authority.Spec = cas.Sum([]byte("edited")) },
		"another job":      func(tk *Task) { tk.Authority.Job = "01J00000000000000000000JOB" },
		"another contract": func(tk *Task) { tk.Spec.Resume.Checkpoint.Interval = time.Hour },
	} {
		tk := tk
		epoch++
		tk.Authority.Fence.Epoch = epoch
		tk.Restore = &Restore{ID: first.Checkpoint.ID, Seq: 1}
		edit(&tk)
		tk.Checkpoints = b.book(tk)
		a := b.start(tk)
		r, end := b.wait(a)
		if end.Kind != EndRestoreRejected || !strings.Contains(r.Message, "incompatible") {
			t.Errorf("%s: %s, %+v", name, end.Kind, r)
		}
		if _, err := os.Stat(a.root + "/build/n"); err == nil {
			t.Errorf("%s: some of it was restored", name)
		}
	}
}
