package node

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// restrictedSlot is a checkpointer of a restricted job, whose program has sealed its first slot.
func restrictedSlot(t *testing.T) (*checkpointer, *oneLog, runner.Folders) {
	t.Helper()
	x, g, _ := logging(t, job.Spec{Resume: job.Resume{Mode: job.ResumeApplication}}, 0)
	c := newCheckpointer(x)
	c.contract.Sensitivity = checkpoint.Restricted
	f := runner.Folders{Ckpt: t.TempDir(), Ctl: t.TempDir()}
	dir := filepath.Join(f.Ckpt, checkpoint.SlotName(1))
	m := checkpoint.Marker{
		V: checkpoint.MarkerVersion, Attempt: x.authority.Attempt, Epoch: 1, Seq: 1, Mode: job.ResumeApplication, Consistency: checkpoint.Application, Quiesced: true,
		Files: []checkpoint.File{{Path: "state", Size: 5, BLAKE3: cas.Sum([]byte("alpha")), Mode: 0o644}},
	}
	for _, err := range []error{
		os.Mkdir(dir, 0o755), os.Mkdir(filepath.Join(f.Ctl, "outbox"), 0o755), os.Mkdir(filepath.Join(f.Ctl, "inbox"), 0o755),
		os.WriteFile(filepath.Join(dir, "state"), []byte("alpha"), 0o644), os.WriteFile(filepath.Join(dir, checkpoint.MarkerName), m.Encode(), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return c, g, f
}

// pinned says how many things the store must keep for each owner.
func pinned(t *testing.T, n *Node) map[string]int {
	t.Helper()
	all, err := n.store.Pins(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, p := range all {
		out[p.Owner] = len(p.Roots) + len(p.Trees)
	}
	return out
}

// second makes a member that takes no copies, and its end takes it away.
func second(t *testing.T, n *Node) (end func()) {
	t.Helper()
	do := func(b site.Body) site.Reply {
		r, err := n.propose(t.Context(), b)
		if err != nil {
			t.Fatalf("%T: %v", b, err)
		}
		return r
	}
	name := forgeyard.TokenID("T" + NewID(n.clock))
	do(site.TokenCreate{Token: name, Hash: [32]byte{1}, Expires: forgeyard.WallOf(n.clock.Wall().Add(time.Hour)), Uses: 1})
	in, err := site.Value[site.Joined](do(site.Join{Token: name, Hash: [32]byte{1}, Peer: "peer" + string(name), Name: string(name)}))
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	return func() { do(site.MemberSet{Runner: in.Runner, Removed: &yes}) }
}

// A restricted checkpoint that nobody takes a copy of is encrypted once, however often it is
// tried, and is no checkpoint of its job until it is copied: it fills no disk.
func TestRestrictedWithoutCopies(t *testing.T) {
	c, _, f := restrictedSlot(t)
	back := second(t, c.x.n)
	var first map[string]int
	var id forgeyard.Digest
	for range 3 {
		got, err := c.Poll(t.Context(), f, false)
		if forgeyard.KindOf(err) != forgeyard.Unavailable || got.ID.IsZero() || (!id.IsZero() && got.ID != id) {
			t.Fatalf("%+v %v, tried before as %s", got, err, id.Short())
		}
		now := pinned(t, c.x.n)
		if first == nil {
			first, id = now, got.ID
		}
		if len(now) != 1 || !maps.Equal(now, first) || isCheckpointPin(slices.Collect(maps.Keys(now))[0]) {
			t.Errorf("pinned: %v, and %v at first", now, first)
		}
	}
	back()
	got, err := c.Poll(t.Context(), f, false)
	if err != nil || got.Verdict != runner.VerdictCommitted {
		t.Fatalf("%+v %v", got, err)
	}
	j := c.x.n.jobNow(t, c.x.authority.Job)
	if len(j.Checkpoints) != 1 || j.Checkpoints[0].Manifest != got.ID {
		t.Errorf("%d checkpoints", len(j.Checkpoints))
	}
	if now := pinned(t, c.x.n); len(now) != 1 || now[checkpointPin(j.ID, got.ID)] == 0 {
		t.Errorf("pinned: %v", now)
	}
}

// A restricted checkpoint whose commit was not answered is committed once, its program hears so,
// and its pin stays meanwhile, whatever becomes of the copies. What its job logged since is named.
func TestRestrictedWithoutAnAnswer(t *testing.T) {
	c, g, f := restrictedSlot(t)
	ctx, cut := context.WithCancel(t.Context())
	g.give = func(cmd site.Command) error {
		if _, ok := cmd.Body.(site.Checkpoint); ok && ctx.Err() == nil {
			cut()
			return forgeyard.Errorf("propose", forgeyard.Unknown, "cut")
		}
		return nil
	}
	if got, err := c.Poll(ctx, f, false); forgeyard.KindOf(err) != forgeyard.Unknown {
		t.Fatalf("%+v %v", got, err)
	}
	kept := c.x.n.jobNow(t, c.x.authority.Job).Checkpoints
	if len(kept) != 1 {
		t.Fatalf("%d committed", len(kept))
	}
	back := second(t, c.x.n)
	if got, err := c.Poll(t.Context(), f, false); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Fatalf("%+v %v", got, err)
	}
	if pinned(t, c.x.n)[checkpointPin(c.x.authority.Job, kept[0].Manifest)] == 0 {
		t.Error("what may be committed is not pinned")
	}
	back()
	since := job.LogChunk{Digest: cas.Sum([]byte("said")), Size: 4, FirstSeq: 1, LastSeq: 9}
	c.x.Logged(t.Context(), []job.LogChunk{since})
	got, err := c.Poll(t.Context(), f, false)
	if err != nil || got.Verdict != runner.VerdictCommitted || got.ID != kept[0].Manifest {
		t.Fatalf("%+v %v", got, err)
	}
	if j := c.x.n.jobNow(t, c.x.authority.Job); len(j.Checkpoints) != 1 || (j.LogSeq != 9 && !slices.Equal(c.x.takeLog(10, 9), []job.LogChunk{since})) {
		t.Errorf("%d checkpoints, the log is named up to %d", len(j.Checkpoints), j.LogSeq)
	}
}

// A word of the restored state that the site takes at no time keeps no checkpoint back, and one
// that it could not hear yet is said again.
func TestWordThatIsNotTaken(t *testing.T) {
	c, g, f := restrictedSlot(t)
	c.contract.Sensitivity = checkpoint.Internal
	if _, err := c.x.n.propose(t.Context(), site.FormatRaise{To: site.FormatCheckpoints, Voters: []forgeyard.RunnerID{"R1"}}); err != nil {
		t.Fatal(err)
	}
	c.words = []checkpoint.Message{{Kind: checkpoint.MessageRestoreOK}}
	ctx, cut := context.WithCancel(t.Context())
	kind := forgeyard.Unavailable
	g.take = func(cmd site.Command, _ int) error {
		if _, ok := cmd.Body.(site.Restored); ok {
			cut()
			return forgeyard.Errorf("propose", kind, "not heard")
		}
		return nil
	}
	if got, err := c.Poll(ctx, f, false); forgeyard.KindOf(err) != forgeyard.Unavailable || len(c.words) != 1 {
		t.Fatalf("%+v %v, %d words left", got, err, len(c.words))
	}
	kind = forgeyard.Denied
	got, err := c.Poll(t.Context(), f, false)
	if err != nil || got.Verdict != runner.VerdictCommitted || len(c.words) != 0 {
		t.Errorf("%+v %v, %d words left", got, err, len(c.words))
	}
	// However often a program says it, an epoch tells the site once.
	told := 0
	g.take = func(cmd site.Command, _ int) error {
		if _, ok := cmd.Body.(site.Restored); ok {
			told++
		}
		return nil
	}
	ok, no := checkpoint.Message{Kind: checkpoint.MessageRestoreOK}, checkpoint.Message{Kind: checkpoint.MessageRestoreReject, Reason: "torn"}
	for range 3 {
		if err := c.hear(t.Context(), []checkpoint.Message{ok, no, ok, no}); err != nil {
			t.Fatal(err)
		}
	}
	if told != 2 || c.unusable != "torn" {
		t.Errorf("told %d times, unusable %q", told, c.unusable)
	}
}
