package site

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
	"github.com/forgeyard/forgeyard-node/lease"
)

// TestCheckpointCommands holds what people do with checkpoints that were committed, and what
// became of those, in the log and in a snapshot.
func TestCheckpointCommands(t *testing.T) {
	var revoke CheckpointRevoke
	var letGo CheckpointLetGo
	var open CheckpointOpen
	var kept checkpoint.Commit
	for _, v := range []any{&revoke, &letGo, &open, &kept} {
		golden.Fill(t, v, "Commit.For", "Commit.Same")
	}
	later := kept
	kept.Origin = checkpoint.Origin{} // written since
	im := image{Format: snapshotFormat, Log: FormatCheckpoints, Jobs: []Job{{ID: "J", Checkpoints: []checkpoint.Commit{kept}}}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/checkpoints.hex", []golden.Row{
		{Name: "CheckpointRevoke", Bytes: cborx.Marshal(revoke)}, {Name: "CheckpointLetGo", Bytes: cborx.Marshal(letGo)}, {Name: "CheckpointOpen", Bytes: cborx.Marshal(open)},
		{Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()},
		{Name: "Commit", Bytes: cborx.Marshal(later)},
	})
	for i, want := range []Body{revoke, letGo, open} {
		b, err := decodeBody(want.kind(), rows[i].Bytes)
		if err != nil || !reflect.DeepEqual(b, want) || FormatOf(b) != FormatCheckpoints {
			t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
		}
	}
	var back checkpoint.Commit
	if err := cborx.Unmarshal(rows[5].Bytes, &back); err != nil || !reflect.DeepEqual(back, later) {
		t.Errorf("%+v: %v", back, err)
	}
	for _, row := range rows[3:5] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if j, _ := back.Jobs.Get("J"); len(j.Checkpoints) != 1 || !reflect.DeepEqual(j.Checkpoints[0], kept) {
			t.Errorf("%s: lost on the way: %+v", row.Name, j.Checkpoints)
		}
	}
}

// A runner that is not trusted is found by what each commit says of itself, however many epochs
// ago it was (CK-105): a job forgets its epochs before its checkpoints.
func TestRevokedByARunnerOfLongAgo(t *testing.T) {
	c := newChaos(1)
	c.must(Register{Formats: Formats, Runner: "R1", Session: "S1", Caps: job.Capabilities{MilliCPU: 8000, Memory: 1 << 34, Disk: 1 << 40, MaxJobs: 99}})
	raw := job.Spec{Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Resume: job.Resume{Mode: job.ResumeApplication}}.Defaulted().Canonical()
	c.must(Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)})
	c.must(Offer{Job: c.someJob().ID, Runner: "R1", Session: "S1"})
	c.must(Accept{Authority: c.someJob().Lease.Authority})
	const epochs = maxEpochs + 4
	for range epochs {
		j := c.someJob()
		one := forgeyard.Digest{byte(j.Epoch)}
		c.must(Checkpoint{Authority: j.Lease.Authority, Continue: true, Commit: checkpoint.Commit{
			Seq: 1, Manifest: one, Payload: one, Marker: one, Attempt: j.Attempt, Epoch: j.Epoch,
			Replicas: []forgeyard.RunnerID{"R1", "R2"}, Consistency: checkpoint.Application,
		}})
	}
	j := c.someJob()
	if len(j.History) != maxEpochs || j.History[0].Epoch == 1 {
		t.Fatalf("%d epochs are kept, from %d on", len(j.History), j.History[0].Epoch)
	}
	j.Checkpoints, _ = checkpoint.Revoke(j.Checkpoints, checkpoint.Cause{Runner: "R1"}, j.origins(), "ana", "broken into")
	for _, k := range j.Checkpoints {
		if k.State != checkpoint.Withdrawn {
			t.Errorf("of epoch %d is %s", k.Epoch, k.State)
		}
	}
}

// A log that not every voter reads the next format of goes on as it did: nothing is let go in
// it that a voter of the format before would keep.
func TestNothingIsLetGoInAnOldLog(t *testing.T) {
	j := Job{Spec: job.Spec{Resume: job.Resume{Mode: job.ResumeApplication, Checkpoint: job.CheckpointDecl{Keep: 1}}}}
	for seq := range 3 {
		j.Checkpoints = append(j.Checkpoints, checkpoint.Commit{Seq: seq + 1, Manifest: [32]byte{byte(seq + 1)}})
	}
	for format, gone := range map[Format]int{1: 0, FormatCheckpoints: 2} {
		c := change{State: State{Format: format}}
		k := j
		c.letGoSurplus(&k)
		n := 0
		for _, h := range k.Checkpoints {
			if h.Dropped {
				n++
			}
		}
		if n != gone {
			t.Errorf("in a log of format %d %d were let go, want %d", format, n, gone)
		}
	}
}

// CK-282 283 284 285 286: each fault is found, says which job and what helps, and a job that
// has none is not named.
func TestCheckpointFaults(t *testing.T) {
	now := forgeyard.WallOf(time.Unix(1_800_000_000, 0))
	ago := func(d time.Duration) forgeyard.Wall { return forgeyard.WallOf(now.Time().Add(-d)) }
	one, two := forgeyard.Digest{1}, forgeyard.Digest{2}
	spec := job.Spec{Resume: job.Resume{Mode: job.ResumeApplication, Checkpoint: job.CheckpointDecl{Keep: 1, MaxAge: time.Hour}}}
	live := lease.Lease{State: lease.Accepted}
	epochs := func(from ...forgeyard.Digest) (all []EpochRecord) {
		for i, d := range from {
			all = append(all, EpochRecord{Epoch: uint64(i + 1), Resumed: d})
		}
		return all
	}
	commit := func(d forgeyard.Digest, epoch uint64, st checkpoint.State) checkpoint.Commit {
		return checkpoint.Commit{Manifest: d, Epoch: epoch, Seq: 1, At: ago(time.Minute), State: st, Why: "why", Bytes: 7}
	}
	for name, c := range map[string]struct {
		job  Job
		want string
	}{
		"well":                    {Job{Spec: spec, Lease: live, Epoch: 2, ResumeFrom: one, Checkpoints: []checkpoint.Commit{commit(one, 1, checkpoint.Good)}, History: epochs(forgeyard.Digest{}, one)}, ""},
		"suspended a while":       {Job{Status: job.Suspended, Hold: &Hold{By: "ana", At: ago(6 * 24 * time.Hour)}}, ""},
		"suspended and forgotten": {Job{Status: job.Suspended, Hold: &Hold{By: "ana", At: ago(8 * 24 * time.Hour)}}, FaultSuspended},
		"a loop":                  {Job{Spec: spec, Checkpoints: []checkpoint.Commit{commit(one, 1, checkpoint.Good)}, History: epochs(forgeyard.Digest{}, one, one, one)}, FaultLoop},
		"two failed":              {Job{Spec: spec, Checkpoints: []checkpoint.Commit{commit(one, 1, checkpoint.Good)}, History: epochs(forgeyard.Digest{}, one, one)}, ""},
		"slow, and it gets on":    {Job{Spec: spec, Checkpoints: []checkpoint.Commit{commit(one, 3, checkpoint.Good)}, History: epochs(forgeyard.Digest{}, one, one, one)}, ""},
		"works from a revoked":    {Job{Spec: spec, Lease: live, ResumeFrom: one, Checkpoints: []checkpoint.Commit{commit(one, 1, checkpoint.Withdrawn)}}, FaultRevoked},
		"worked from a revoked":   {Job{Spec: spec, ResumeFrom: one, Checkpoints: []checkpoint.Commit{commit(one, 1, checkpoint.Withdrawn)}}, ""},
		"works from what is gone": {Job{Spec: spec, Lease: live, ResumeFrom: two, Checkpoints: []checkpoint.Commit{commit(one, 1, checkpoint.Good)}}, FaultChain},
		"keeps too many":          {Job{Spec: spec, Checkpoints: []checkpoint.Commit{commit(one, 1, checkpoint.Good), commit(two, 2, checkpoint.Good)}}, FaultRetention},
	} {
		c.job.ID = "J"
		s := &State{}
		s.Jobs, s.Open = s.Jobs.Put("J", c.job), s.Open.Put("J", 1)
		got := s.CheckpointFaults(now)
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s: %+v", name, got)
		case c.want != "" && (len(got) != 1 || got[0].What != c.want || got[0].Job != "J" || got[0].Detail == "" || got[0].Fix == ""):
			t.Errorf("%s: %+v, want one of %s", name, got, c.want)
		}
	}
}

// TestWordsInTheLog holds what is said and wished of the checkpoint that an epoch goes on from.
func TestWordsInTheLog(t *testing.T) {
	var said Restored
	var word RestoreWord
	golden.Fill(t, &said)
	golden.Fill(t, &word)
	var from Resume
	golden.Fill(t, &from)
	move := MemberSet{Runner: "R", Draining: new(bool), Move: true}
	kept := checkpoint.Commit{Seq: 1, For: []forgeyard.RunnerID{"a", "b"}, Same: true}
	s, err := DecodeState(cborx.Marshal(image{Format: snapshotFormat, Log: FormatCheckpoints, Members: []Member{{Runner: "R", Draining: true, Moving: true}}, Jobs: []Job{{ID: "J", Word: &word, Begun: 7, Checkpoints: []checkpoint.Commit{kept}}}}))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/words.hex", []golden.Row{{Name: "Restored", Bytes: cborx.Marshal(said)}, {Name: "Resume", Bytes: cborx.Marshal(from)}, {Name: "MemberSet", Bytes: cborx.Marshal(move)}, {Name: "CheckpointsAged", Bytes: cborx.Marshal(CheckpointsAged{Job: "J"})}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()}})
	if b, err := decodeBody(kindResume, rows[1].Bytes); err != nil || !reflect.DeepEqual(b, from) || FormatOf(b) != FormatCheckpoints || FormatOf(Resume{Job: "J"}) != 1 {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	for _, b := range []Body{
		Resume{Job: "J", Reason: "x"}, Checkpoint{Commit: checkpoint.Commit{By: "x"}}, Checkpoint{Commit: checkpoint.Commit{Dropped: true}},
		Checkpoint{Commit: checkpoint.Commit{Origin: checkpoint.Origin{Runner: "R"}}},
	} {
		if FormatOf(b) != FormatCheckpoints {
			t.Errorf("%+v counts as of log format %d", b, FormatOf(b))
		}
	}
	if b, err := decodeBody(kindRestored, rows[0].Bytes); err != nil || !reflect.DeepEqual(b, said) || FormatOf(b) != FormatCheckpoints {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	if b, err := decodeBody(kindMemberSet, rows[2].Bytes); err != nil || !reflect.DeepEqual(b, move) || FormatOf(b) != FormatCheckpoints {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	if b, err := decodeBody(kindCheckpointsAged, rows[3].Bytes); err != nil || b != (CheckpointsAged{Job: "J"}) || FormatOf(b) != FormatCheckpoints {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	for _, row := range rows[4:] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if m, _ := back.Members.Get("R"); !m.Moving {
			t.Errorf("%s: lost on the way: %+v", row.Name, m)
		}
		if j, _ := back.Jobs.Get("J"); !reflect.DeepEqual(j.Word, &word) || j.Begun != 7 || len(j.Checkpoints) != 1 || !reflect.DeepEqual(j.Checkpoints[0], kept) {
			t.Errorf("%s: lost on the way: %+v", row.Name, j)
		}
	}
}

// CK-243 303: what no member of the site could go on from is not chosen, and the refusal says of
// each why not.
func TestChoiceThatFitsNobody(t *testing.T) {
	j := Job{ID: "J", Status: job.Suspended, Checkpoints: []checkpoint.Commit{{Seq: 1, Epoch: 1, Manifest: [32]byte{1}, Consistency: checkpoint.Application, Where: &machine.Place{OS: "linux", Arch: "arm64"}}}}
	s := State{Format: FormatCheckpoints}
	s.Jobs = s.Jobs.Put("J", j)
	add := func(id forgeyard.RunnerID, arch string, session forgeyard.SessionID, removed bool) {
		s.Members = s.Members.Put(id, Member{Runner: id, Name: string(id), Removed: removed, Session: Session{ID: session}, Caps: job.Capabilities{OS: "linux", Arch: arch}})
	}
	try := func() error {
		c := change{State: s}
		return c.resumeFrom(&j, Resume{Job: "J", From: [32]byte{1}, Reason: "x"})
	}
	if err := try(); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Errorf("nobody is there: %v", err)
	}
	add("a", "amd64", "s", false)
	add("b", "riscv64", "s", false)
	add("gone", "arm64", "s", true)
	add("never", "arm64", "", false)
	err := try()
	if forgeyard.KindOf(err) != forgeyard.Conflict || !strings.Contains(err.Error(), "a: its checkpoint does not fit (arch)") || !strings.Contains(err.Error(), "b: ") || j.Checkpoints[0].State != checkpoint.Good {
		t.Errorf("%v", err)
	}
	add("c", "arm64", "s", false)
	if err := try(); err != nil {
		t.Errorf("one fits: %v", err)
	}
}

// CK-137: retention keeps what the current epoch goes on from and what the next one would, which
// an effect keeps from being the newest.
func TestRetentionKeepsWhatIsNeeded(t *testing.T) {
	at := func(seq int) checkpoint.Commit {
		return checkpoint.Commit{Seq: seq, Epoch: 1, Manifest: [32]byte{byte(seq)}, Consistency: checkpoint.Application}
	}
	j := Job{ID: "J", Status: job.Running, Epoch: 1, Checkpoints: []checkpoint.Commit{at(1), at(2), at(3), at(4)}, ResumeFrom: [32]byte{1}}
	j.Spec.Resume.Mode, j.Spec.Resume.Checkpoint.Keep = job.ResumeApplication, 1
	j.Spec.EffectRules.Default = job.EffectPrior
	j.Effects = []Effect{{Key: "pay", State: EffectOpen, Epoch: 1, Seq: 3}}
	j.Spec = j.Spec.Defaulted()
	if from, ok := j.NextFrom(); !ok || from.Seq != 3 {
		t.Fatalf("%+v", from)
	}
	var gone []int
	for _, s := range j.Surplus(0) {
		gone = append(gone, s.Commit.Seq)
	}
	if !reflect.DeepEqual(gone, []int{2}) {
		t.Errorf("%v are let go", gone)
	}
	c := change{State: State{Format: FormatCheckpoints}}
	c.Jobs = c.Jobs.Put("J", j)
	if err := c.checkpointLetGo(CheckpointLetGo{Job: "J", Checkpoint: [32]byte{3}}); err != nil {
		t.Errorf("there is an older one: %v", err)
	}
	j.Checkpoints = j.Checkpoints[2:]
	c.Jobs = c.Jobs.Put("J", j)
	if err := c.checkpointLetGo(CheckpointLetGo{Job: "J", Checkpoint: [32]byte{3}}); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("it is the only one that can be gone on from: %v", err)
	}
}

// CK-207: what would fail without a checkpoint is not asked back to be moved before it has one.
func TestResumeOnlyMovesWithACheckpoint(t *testing.T) {
	j := Job{Lease: lease.Lease{State: lease.Accepted}}
	j.Spec.Resume.Mode, j.Spec.Interruption.Retry = job.ResumeApplication, job.RetryResumeOnly
	if j.Moves() {
		t.Error("it has none")
	}
	j.Checkpoints = []checkpoint.Commit{{Manifest: [32]byte{1}, Consistency: checkpoint.Application}}
	if !j.Moves() {
		t.Error("it has one")
	}
}
