//go:build unix

package capture_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/checkpoint/cursor"
	"github.com/forgeyard/forgeyard-node/job"
)

func cursorExpect(t *testing.T, i job.Isolation) capture.Expect {
	c, err := checkpoint.NewContract(job.Resume{Mode: job.ResumeFramework, Isolation: i, Checkpoint: job.CheckpointDecl{Results: 1}}, checkpoint.Limits{})
	must(t, err)
	return capture.Expect{
		Authority: forgeyard.Authority{Job: "01J0000000000000000000000J", Attempt: attempt, Spec: forgeyard.Digest{1}, Runner: "01J0000000000000000000000R", Fence: forgeyard.Fence{Incarnation: 1, Epoch: 2}},
		Contract:  c,
	}
}

// line is the record of an end.
func line(seq int, epoch uint64, id string) string {
	return string(cursor.Record{Seq: seq, Epoch: epoch, ID: id, Event: cursor.End, Outcome: cursor.Pass}.Line())
}

func cursorDir(t *testing.T, plan, records string) string {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, checkpoint.PlanName), []byte(plan), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, checkpoint.CursorName), []byte(records), 0o644))
	return dir
}

// CK-091, CK-175: the runner puts older epochs before this one, takes what it has checked, and
// what is restored is the whole.
func TestCursorIsTaken(t *testing.T) {
	e := cursorExpect(t, job.Isolated)
	s := newMemory()
	old := cursorDir(t, "a\nb\nc\n", line(1, 1, "a"))
	dir := cursorDir(t, "a\nb\nc\n", line(2, 2, "b")+`{"seq":3,`)
	c, ok, err := capture.ReadCursor(dir, old, e)
	if err != nil || !ok || c.Dropped != "" || c.State.Done() != 2 || len(c.Records) != 2 {
		t.Fatalf("%+v %v", c, err)
	}
	g, err := capture.IngestCursor(t.Context(), s, c, e)
	must(t, err)
	if g.Manifest.Consistency != checkpoint.Framework || g.Manifest.Progress.Done != 2 || g.Manifest.Seq != 1 || g.Manifest.Files != 3 {
		t.Errorf("%+v", g.Manifest)
	}
	target := checkpoint.Target{Job: e.Authority.Job, Attempt: attempt, Spec: e.Authority.Spec, Contract: e.Contract, OS: g.Manifest.OS, Arch: g.Manifest.Arch}
	if f := checkpoint.Usable(g.Manifest, target); !f.OK() {
		t.Errorf("CK-094: %s", f)
	}
	to := filepath.Join(t.TempDir(), "restored")
	must(t, capture.Restore(t.Context(), s, g.Manifest, to))
	b, err := os.ReadFile(filepath.Join(to, checkpoint.CursorName))
	if err != nil || string(b) != line(1, 1, "a")+line(2, 2, "b") {
		t.Errorf("%v %s", err, b)
	}
	if bound, err := capture.RestoredBinding(to); err != nil || bound != c.Binding {
		t.Errorf("%+v %v", bound, err)
	}
	// Another list: what was restored does not count, and says why.
	c, ok, err = capture.ReadCursor(cursorDir(t, "a\nb\n", ""), old, e)
	if err != nil || !ok || c.State.Done() != 0 || !strings.HasPrefix(c.Dropped, "test-list") {
		t.Errorf("%+v %v", c, err)
	}
}

func TestCursorIsRefused(t *testing.T) {
	e := cursorExpect(t, job.Isolated)
	other := cursorExpect(t, job.Suite)
	bound := cursorDir(t, "a\n", "")
	must(t, os.WriteFile(filepath.Join(bound, checkpoint.BindingName), cursor.Bind(cursor.Plan{"a"}, forgeyard.Digest{}, job.Isolated).Encode(), 0o644))
	lists := cursorDir(t, "a\n", "")
	must(t, os.WriteFile(filepath.Join(lists, checkpoint.BindingName), cursor.Bind(cursor.Plan{"b"}, forgeyard.Digest{}, job.Isolated).Encode(), 0o644))
	link := t.TempDir()
	must(t, os.Symlink("/etc/passwd", filepath.Join(link, checkpoint.PlanName)))
	for name, c := range map[string]struct {
		dir string
		e   capture.Expect
	}{
		"an older epoch's record": {cursorDir(t, "a\n", line(1, 1, "a")), e}, "a later epoch's": {cursorDir(t, "a\n", line(1, 3, "a")), e},
		"not in the plan": {cursorDir(t, "a\n", line(1, 2, "b")), e}, "damage": {cursorDir(t, "a\n", "{}\n"+line(1, 2, "a")), e}, "a cut plan": {cursorDir(t, "a\nb", ""), e},
		"another isolation": {bound, other}, "another list than bound": {lists, e}, "a link": {link, e},
	} {
		_, ok, err := capture.ReadCursor(c.dir, "", c.e)
		if f, final := checkpoint.FindingOf(err); ok || err == nil || !final || f.OK() {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
	if _, ok, err := capture.ReadCursor(t.TempDir(), "", e); ok || err != nil {
		t.Errorf("no plan yet: %v %v", ok, err)
	}
	// K16: a secret in a test's evidence stays out of the store.
	e.Secrets = [][]byte{[]byte("hunter2-x")}
	rec := cursor.Record{Seq: 1, Epoch: 2, ID: "a", Event: cursor.End, Outcome: cursor.Pass, Evidence: "hunter2-x"}
	c, _, err := capture.ReadCursor(cursorDir(t, "a\n", string(rec.Line())), "", e)
	must(t, err)
	if _, err := capture.IngestCursor(t.Context(), newMemory(), c, e); err == nil || !strings.Contains(err.Error(), "secret-material") {
		t.Errorf("a secret is taken: %v", err)
	}
}
