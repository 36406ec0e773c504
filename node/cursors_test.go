package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/cursor"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// cursorJob is a program of mode framework without a helper. It waits for the site's word on
// what it wrote, sets a mark, and asks to be started again; the next epoch has both.
func cursorJob() string {
	line := func(seq int, epoch uint64, id string, e cursor.Event, o cursor.Outcome) string {
		return strings.TrimSuffix(string(cursor.Record{Seq: seq, Epoch: epoch, ID: id, Event: e, Outcome: o}.Line()), "\n")
	}
	first := []string{line(1, 1, "a", cursor.Start, ""), line(2, 1, "a", cursor.End, cursor.Pass), line(3, 1, "b", cursor.End, cursor.Fail), line(4, 1, "c", cursor.Start, "")}
	second := []string{line(5, 2, "c", cursor.End, cursor.Skip), line(6, 2, "d", cursor.End, cursor.Pass)}
	return fmt.Sprintf(`
version: 1
kind: build
title: four tests in two epochs
job:
  steps:
    - name: test
      sh: |
        awaits() { while ! grep -q "$2" "$1" 2>/dev/null; do sleep 0.05; done; }
        printf '%%s\n' a b c d > $FORGEYARD_TEST_PLAN
        if [ $FORGEYARD_EPOCH -eq 1 ]; then
          [ -z "${FORGEYARD_TEST_CURSOR_IN-}" ]
          printf '%%s\n' '%s' >> $FORGEYARD_TEST_CURSOR_OUT
          awaits $FORGEYARD_CTL_DIR/cursor.json '"record":4'
          echo '{"v":1,"n":1,"kind":"mark","attempt":"'$FORGEYARD_ATTEMPT_ID'","epoch":1,"reason":"half way"}' > $FORGEYARD_CTL_DIR/outbox/m
          mv $FORGEYARD_CTL_DIR/outbox/m $FORGEYARD_CTL_DIR/outbox/000001.json
          awaits $FORGEYARD_CTL_DIR/inbox/000001.json committed
          exit 85
        fi
        echo "$FORGEYARD_MARK; $(wc -l < $FORGEYARD_TEST_CURSOR_IN) lines of ${FORGEYARD_TEST_LIST_DIGEST%%%%:*}"
        printf '%%s\n' '%s' >> $FORGEYARD_TEST_CURSOR_OUT
  resources: {cpu: 0.1, memory: 64MiB, disk: 64MiB, pids: 32}
  resume: {mode: framework, checkpoint: {results: 2, interval: 1h}}
`, strings.Join(first, `' '`), strings.Join(second, `' '`))
}

// What is wrong with a cursor is told once while the program runs, and again to the exit that
// asks for another epoch: that one is refused with its reason.
func TestBadCursorIsToldToTheExit(t *testing.T) {
	resume := job.Resume{Mode: job.ResumeFramework, Isolation: job.Isolated, Checkpoint: job.CheckpointDecl{Results: 1}}
	x, _, _ := logging(t, job.Spec{Resume: resume}, 1)
	contract, err := checkpoint.NewContract(resume, checkpoint.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	c := &checkpointer{x: x, contract: contract}
	f := runner.Folders{Ckpt: t.TempDir(), Ctl: t.TempDir()}
	if err := os.WriteFile(filepath.Join(f.Ckpt, checkpoint.PlanName), []byte("a\nb"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := c.pollCursor(t.Context(), f, nil, true)
	if err != nil || first.Verdict != runner.VerdictRejected || first.Reason == "" {
		t.Fatalf("%+v %v", first, err)
	}
	if got, err := c.pollCursor(t.Context(), f, nil, true); err != nil || got.Verdict != runner.VerdictNone {
		t.Errorf("told twice: %+v %v", got, err)
	}
	for _, yield := range []bool{true, false} {
		if got, err := c.exitCursor(t.Context(), f, yield); err != nil || got != first {
			t.Errorf("the exit, yield %v: %+v %v", yield, got, err)
		}
	}
}

// CK-058, CK-175: a cursor is committed while the program runs, after so many results, and
// once more when it has ended; what was committed is there in the next epoch, and its last
// commit has the results of both.
func TestFrameworkCursor(t *testing.T) {
	one := makeSite(t, 1)[0]
	one.wait("log format 2", func() bool { return one.node.Site().Allows(site.FormatLeases) })
	_, id := one.submit(cursorJob())
	j := one.waitDone(id)
	log := one.log(id)
	if j.Status != "done" || j.Epoch != 2 || len(j.Checkpoints) != 3 || j.Interruptions != 0 {
		t.Fatalf("%s at epoch %d with %d checkpoints: %s\n%s", j.Status, j.Epoch, len(j.Checkpoints), j.Reason, log)
	}
	if !strings.Contains(log, "half way; 4 lines of b3") {
		t.Errorf("log:\n%s", log)
	}
	held := one.node.Site()
	for _, x := range held.Jobs.All() {
		c := x.Checkpoints[len(x.Checkpoints)-1]
		if c.Consistency != "framework" || c.Progress.Unit != "test" || c.Progress.Done != 4 || c.Progress.Total != 4 || x.Mark != "half way" {
			t.Errorf("%+v, mark %q", c, x.Mark)
		}
	}
}
