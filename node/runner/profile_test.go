//go:build linux

package runner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
)

// Profile htcondor: the restored files are where the program left them, may be written, and
// nothing tells it of a restore (FYCP/1 §2, §9).
func TestProfileHTCondor(t *testing.T) {
	b := newBench(t)
	s := resumable([]string{"deep/state"}, `mkdir -p deep; n=$(cat deep/state 2>/dev/null || echo 0); [ -z "${FORGEYARD_RESTORE_DIR+x}${FORGEYARD_RESTORE_ID+x}" ]
n=$((n+1)); echo $n >> deep/state; echo $n > deep/state; [ $n -ge 3 ] || exit 85; echo "after $n"`)
	s.Resume.Profile = job.ProfileHTCondor
	text, _ := epochs(b, s, 3)
	if !strings.Contains(text, "after 3") {
		t.Fatal(text)
	}
}

// Profile slurm: restarts are counted as Slurm does, from the first one on, and the nudge is
// USR1 unless the job says otherwise.
func TestProfileSlurm(t *testing.T) {
	b := newBench(t)
	s := resumable([]string{"n"}, `n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n; echo "restart ${SLURM_RESTART_COUNT-unset}"; [ $n -ge 3 ] || exit 85`)
	s.Resume.Profile = job.ProfileSlurm
	text, _ := epochs(b, s, 3)
	for _, want := range []string{"restart unset", "restart 1", "restart 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}

// epochs runs a spec from one exit for a checkpoint to the next, until it ends in the given epoch.
func epochs(b *bench, s job.Spec, last uint64) (string, job.Result) {
	b.t.Helper()
	var log strings.Builder
	tk := task(s)
	for epoch := uint64(1); ; epoch++ {
		tk.Authority.Fence.Epoch = epoch
		tk.Checkpoints = b.book(tk)
		a := b.start(tk)
		res, end := b.wait(a)
		log.WriteString(b.text(a))
		if err := a.Finish(false); err != nil {
			b.t.Fatal(err)
		}
		if end.Kind == EndCompleted {
			if res.Outcome != job.OutcomeDone || epoch != last {
				b.t.Fatalf("epoch %d: %+v %s", epoch, res, log.String())
			}
			return log.String(), res
		}
		if end.Kind != EndCheckpoint || end.Checkpoint.Verdict != VerdictContinue || epoch > last {
			b.t.Fatalf("epoch %d: %+v %s", epoch, end, log.String())
		}
		tk.Restore = &Restore{ID: end.Checkpoint.ID, Seq: end.Checkpoint.Seq, ExitDriven: true}
		tk.FirstLogSeq, tk.ResumeID = end.LastLogSeq+1, fmt.Sprint("r", epoch)
	}
}

// FYCP/1 §2: all of the environment is there, in a fresh epoch and in a resumed one, which has an
// id of its own (CK-050).
func TestEnvironmentOfTheProtocol(t *testing.T) {
	always := []string{
		checkpoint.EnvProtocol, checkpoint.EnvMode, checkpoint.EnvAttempt, checkpoint.EnvEpoch, checkpoint.EnvResumeID, checkpoint.EnvInterruptions, checkpoint.EnvFence,
		checkpoint.EnvCkptDir, checkpoint.EnvCtlDir, checkpoint.EnvInterval, checkpoint.EnvWindow, checkpoint.EnvMaxBytes, checkpoint.EnvExitCode, checkpoint.EnvRejectCode, checkpoint.EnvStopGrace,
	}
	resumed := []string{checkpoint.EnvRestoreDir, checkpoint.EnvRestoreID, checkpoint.EnvRestoreSeq, checkpoint.EnvRestoreFormat}
	b := newBench(t)
	s := resumable([]string{"n"}, `env | sed "s/^/$FORGEYARD_EPOCH:/"; echo x >> n; [ $FORGEYARD_EPOCH -ge 2 ] || exit 85`)
	text, _ := epochs(b, s, 2)
	for _, v := range append(always, resumed...) {
		fresh := strings.Contains(text, "1:"+v+"=")
		if want := !strings.HasPrefix(v, "FORGEYARD_RESTORE"); fresh != want {
			t.Errorf("%s in a fresh epoch: %v", v, fresh)
		}
		if !strings.Contains(text, "2:"+v+"=") {
			t.Errorf("%s is missing in a resumed epoch", v)
		}
	}
	if !strings.Contains(text, "1:"+checkpoint.EnvResumeID+"=\n") || !strings.Contains(text, "2:"+checkpoint.EnvResumeID+"=r1\n") {
		t.Errorf("the resume has another id: %s", text)
	}
	if strings.Contains(text, checkpoint.EnvTestPlan) || strings.Contains(text, checkpoint.EnvMark) || strings.Contains(text, checkpoint.EnvSlurmRestarts) {
		t.Error("variables of other modes and profiles are there")
	}
}

// CK-058, CK-091: mode framework in the runner: the cursor that was restored is there, with
// the digest of its list; the mark too.
func TestFrameworkEnvironment(t *testing.T) {
	b := newBench(t)
	s := spec(`echo "in ${FORGEYARD_TEST_CURSOR_IN-none} list ${FORGEYARD_TEST_LIST_DIGEST-none} isolation $FORGEYARD_TEST_ISOLATION mark $FORGEYARD_MARK"
[ -n "$FORGEYARD_TEST_CURSOR_OUT" ]; printf 'a\nb\n' > $FORGEYARD_TEST_PLAN; [ -z "${FORGEYARD_TEST_CURSOR_IN-}" ] || grep -c carried-id $FORGEYARD_TEST_CURSOR_IN || cat $FORGEYARD_TEST_CURSOR_IN`)
	s.Resume = job.Resume{Mode: job.ResumeFramework, Isolation: job.Suite}
	s = s.Defaulted()
	tk := task(s)
	tk.Mark = "flashed"
	k := b.book(tk)
	tk.Checkpoints = k
	a := b.start(tk)
	if res, end := b.wait(a); res.Outcome != job.OutcomeDone {
		t.Fatalf("%+v %+v %s", res, end, b.text(a))
	}
	if text := b.text(a); !strings.Contains(text, "in none list none isolation suite mark flashed") {
		t.Fatal(text)
	}
	c, ok, err := capture.ReadCursor(a.root+"/ckpt", "", k.expect())
	if err != nil || !ok || len(c.Plan) != 2 {
		t.Fatal(c, ok, err)
	}
	g, err := capture.IngestCursor(t.Context(), b.store, c, k.expect())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	tk.Authority.Fence.Epoch = 2
	tk.Restore = &Restore{ID: g.ID, Seq: 1}
	tk.Checkpoints = b.book(tk)
	a = b.start(tk)
	if res, end := b.wait(a); res.Outcome != job.OutcomeDone {
		t.Fatalf("%+v %+v %s", res, end, b.text(a))
	}
	if text := b.text(a); !strings.Contains(text, "cursor.jsonl list "+c.Plan.Digest().String()+" isolation suite") {
		t.Fatal(text)
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
}

// K05: the nudge reaches the main process alone, though it has four children that would die
// of it; what is not sealed is passed by, however high its number.
func TestK05NudgeToTheParentAlone(t *testing.T) {
	b := newBench(t)
	s := resumable([]string{"state"}, `mkdir state; for i in 1 2 3 4; do (trap "touch $FORGEYARD_BUILD_DIR/hit.$i" USR1; while [ ! -e end ]; do sleep 0.05; done) & done
asked=0; trap asked=1 USR1; mkdir $FORGEYARD_CKPT_DIR/000009.tmp; echo ready; while [ $asked = 0 ]; do sleep 0.05; done
sleep 0.3; ls; [ -z "$(ls hit.* 2>/dev/null)" ] || exit 1; grep -q '"kind":"drain"' $FORGEYARD_CTL_DIR/request.json; echo saved > state/s; exit 85`)
	s.Resume.Checkpoint.Signal = "USR1"
	tk := task(s)
	k := b.book(tk)
	k.exit = VerdictCommitted
	tk.Checkpoints = k
	a := b.start(tk)
	b.await(a, "ready")
	a.Stop(checkpoint.StopDrain, "maintenance")
	if _, end := b.wait(a); end.Kind != EndYielded || end.Checkpoint.Seq != 1 || len(k.commits) != 1 {
		t.Fatalf("%+v %s", end, b.text(a))
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
}
