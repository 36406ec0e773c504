//go:build linux

package runner

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/job"
)

type urgentKey struct{}

// A node that takes a job over brings its checkpoint before other content: the job stands
// until it is here. What every run of the job needs, its inputs, waits its turn.
func TestRestoreIsFetchedAsUrgent(t *testing.T) {
	had := newBench(t)
	s := resumable([]string{"state"}, `cat ../source/in; [ -e state/n ] && exit 0; mkdir -p state; echo 1 > state/n; exit 85`)
	in := castest.Put(t, had.store, []byte("an input\n"))
	s.Inputs = []job.Input{{Path: "source/in", Digest: in.Digest, Size: in.Size}}
	tk := task(s)
	tk.Checkpoints = had.book(tk)
	_, end := had.wait(had.start(tk))
	if end.Kind != EndCheckpoint {
		t.Fatalf("%+v", end)
	}

	now := newBench(t, func(c *Config) {
		c.Urgent = func(ctx context.Context) context.Context { return context.WithValue(ctx, urgentKey{}, true) }
	})
	urgent := map[forgeyard.Digest]bool{}
	now.fetch = func(ctx context.Context, ref cas.Ref) error {
		urgent[ref.Digest] = ctx.Value(urgentKey{}) != nil
		_, err := now.store.Put(ctx, bytes.NewReader(castest.Read(t, had.store, ref.Digest)), cas.PutOptions{})
		return err
	}
	var payload forgeyard.Digest
	now.tree = func(ctx context.Context, d forgeyard.Digest) error {
		payload, urgent[d] = d, ctx.Value(urgentKey{}) != nil
		dir := filepath.Join(t.TempDir(), "payload")
		if _, err := tree.Materialise(ctx, had.store, d, dir, tree.Materialisation{}); err != nil {
			return err
		}
		_, err := tree.Capture(ctx, now.store, dir, tree.Options{})
		return err
	}
	tk.Restore = &Restore{ID: end.Checkpoint.ID, Seq: end.Checkpoint.Seq, ExitDriven: true}
	tk.Authority.Fence.Epoch = 2
	tk.FirstLogSeq, tk.ResumeID = end.LastLogSeq+1, "r"
	tk.Checkpoints = now.book(tk)
	if res, end := now.wait(now.start(tk)); end.Kind != EndCompleted || res.Outcome != job.OutcomeDone {
		t.Fatalf("%+v %+v", res, end)
	}
	if !urgent[tk.Restore.ID] || payload.IsZero() || !urgent[payload] {
		t.Errorf("the checkpoint was not fetched as urgent: %v", urgent)
	}
	if was, fetched := urgent[in.Digest]; !fetched || was {
		t.Errorf("the input was fetched: %v, as urgent: %v", fetched, was)
	}
}
