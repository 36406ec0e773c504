package site

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
)

// TestCommandsOfVersion1 holds every kind of command still: its number, and the key of
// each of its fields. They are in the logs of sites.
func TestCommandsOfVersion1(t *testing.T) {
	var today []golden.Row
	for k := Kind(1); k <= kindResume; k++ {
		zero, err := decodeBody(k, []byte{0xa0})
		if err != nil {
			t.Fatalf("kind %d: %v", k, err)
		}
		p := reflect.New(reflect.TypeOf(zero))
		golden.Fill(t, p.Interface(), later...)
		c := Command{ID: "01JD0000000000000000000001", At: 1_800_000_000_000, By: "operator", Body: p.Elem().Interface().(Body)}
		today = append(today, golden.Row{Name: fmt.Sprintf("%d-%s", k, reflect.TypeOf(zero).Name()), Bytes: c.Encode()})
	}
	for _, row := range golden.Rows(t, "testdata/commands-v1.hex", today) {
		c, err := Decode(row.Bytes)
		if err != nil || !bytes.Equal(c.Encode(), row.Bytes) {
			t.Errorf("%s cannot be read: %v", row.Name, err)
		}
	}
}

// TestLaterCommands holds still what was added since.
func TestLaterCommands(t *testing.T) {
	var today []golden.Row
	add := func(k Kind, b Body) {
		c := Command{ID: "01JD0000000000000000000001", At: 1_800_000_000_000, By: "operator", Body: b}
		today = append(today, golden.Row{Name: fmt.Sprintf("%d-%s", k, reflect.TypeOf(b).Name()), Bytes: c.Encode()})
	}
	var r Register
	golden.Fill(t, &r, latest...)
	add(kindRegister, r)
	for k := kindResume + 1; k <= kindUnname; k++ { // later ones have tests of their own
		zero, err := decodeBody(k, []byte{0xa0})
		if err != nil {
			t.Fatalf("kind %d: %v", k, err)
		}
		p := reflect.New(reflect.TypeOf(zero))
		golden.Fill(t, p.Interface(), "Report.Log", "Stopped.LogSeq")
		add(k, p.Elem().Interface().(Body))
	}
	var m MemberSet
	golden.Fill(t, &m, "MemberSet.Deadline", "MemberSet.Approved", "MemberSet.Assign", "MemberSet.Move")
	add(kindMemberSet, m)
	for _, row := range golden.Rows(t, "testdata/commands-later.hex", today) {
		c, err := Decode(row.Bytes)
		if err != nil || !bytes.Equal(c.Encode(), row.Bytes) {
			t.Errorf("%s cannot be read: %v", row.Name, err)
		}
	}
}

// later are fields that came after the bytes of version 1: they are absent where they say
// nothing, so that what a site wrote before them keeps its bytes. Whole they are held by
// TestLaterFields.
var later = []string{
	"UplinkObserve.Daemon", "Uplink.Daemon", "Grant.End", "Connectivity.NoReplace", "Member.Silent", "Register.Formats", "Register.Place", "Session.Place", "Session.Past", "Member.Spare", "MemberSet.Spare", "MemberSet.Deadline", "Lease.DriftPPM", "image.Forgotten", "image.LeaseForgot", "image.LeaseLog", "image.LeaseSeq", "image.Ready",
	"Submit.Via", "Checkpoint.Told", "Release.Told", "Release.Clean", "Result.Told", "Event.Tool", "Event.Output", "Spec.Kind", "Spec.Ingest", "Spec.Node", "Job.Told", "Job.Via", "Job.Said", "image.Names",
	"Report.Log", "Expire.LogSeq", "Result.Overran", "Job.Tail", "image.Secrets", "Capabilities.GPUs",
	"Spec.OnFailure", "Result.Diagnostics",
	"TokenCreate.Approve", "Token.Approve", "MemberSet.Approved", "Member.Waiting",
	"Stop.Lease",
	"MemberSet.Assign", "MemberSet.Move", "Member.Assigned", "Member.Notice", "Member.Moving", "Requires.Pool", "Requires.Trust", "Interruption.StableAfter", "Interruption.ResumeFailures", "Interruption.Priority", "Interruption.FinishWithin", "CheckpointDecl.OnCancel", "CheckpointDecl.NoneOnNotice",
	"Toolchain.Digest", "Toolchain.Warm", "Capabilities.WarmToolchains",
	"Job.Hold", "Job.Asks", "Job.Cancel", "Job.Stuck", "Job.Tainted",
	"Commit.By", "Commit.Dropped", "CheckpointDecl.MaxAge", "CheckpointDecl.KeepOnFailure", "Commit.Where", "Commit.Took", "Commit.Origin", "Commit.For", "Commit.Same", "Resume.Compatibility", "Resume.Sensitivity", "Capabilities.Machine",
	"Job.Effects", "Job.Steps", "Spec.EffectRules", "Step.Resume", "Step.Outputs", "Step.Reconcile",
	"Cancel.Reason", "Cancel.Note", "Cancel.After", "Cancel.Within", "Cancel.Run", "Submit.Group", "Submit.Order", "Run.Group", "Run.Order", "Run.SupersededBy", "Run.Suspension", "InterruptionConfig.MaxStopGrace",
	"Resume.Isolation", "Resume.Profile", "CheckpointDecl.Results", "Job.Mark",
	"Event.Type", "Job.Word", "Job.Begun", "Resume.From", "Resume.Reason",
}

// latest are fields that came after the others of later; TestPlaces, TestPastSessions,
// TestClean, TestOverran, TestGPUsInTheLog, TestLogOfTheLost, TestDeviceDrift, TestStoppedLog, TestDiagnosticsInTheLog, TestApproval, TestAssignmentInTheLog, TestToolchainsInTheLog, TestSuspension, TestEffectsInTheLog, TestStopsInTheLog, TestMarksInTheLog and TestCheckpointCommands and TestEventTypesInTheLog hold them.
var latest = []string{"Event.Type", "Register.Place", "Session.Place", "Session.Past", "Release.Clean", "Report.Log", "Expire.LogSeq", "Result.Overran", "Job.Tail", "Lease.DriftPPM", "Stopped.LogSeq", "Capabilities.GPUs", "Spec.OnFailure", "Result.Diagnostics",
	"Token.Approve", "Member.Waiting", "Member.Assigned", "Member.Notice", "Member.Moving", "Requires.Pool", "Requires.Trust", "Interruption.StableAfter", "Interruption.ResumeFailures", "Interruption.Priority", "Interruption.FinishWithin", "CheckpointDecl.OnCancel", "CheckpointDecl.NoneOnNotice", "Toolchain.Digest", "Toolchain.Warm", "Capabilities.WarmToolchains", "Job.Hold", "Job.Asks", "Job.Cancel", "Job.Stuck", "Job.Tainted",
	"Job.Effects", "Job.Steps", "Spec.EffectRules", "Step.Resume", "Step.Outputs", "Step.Reconcile",
	"Run.Group", "Run.Order", "Run.SupersededBy", "Run.Suspension", "Resume.Isolation", "Resume.Profile", "CheckpointDecl.Results", "Job.Mark", "Job.Word", "Job.Begun",
	"Commit.By", "Commit.Dropped", "CheckpointDecl.MaxAge", "CheckpointDecl.KeepOnFailure", "Commit.Where", "Commit.Took", "Commit.Origin", "Commit.For", "Commit.Same", "Resume.Compatibility", "Resume.Sensitivity", "Capabilities.Machine"}

// TestPlaces holds where a session runs: in its registration and in a snapshot, plain and
// packed.
func TestPlaces(t *testing.T) {
	var r Register
	golden.Fill(t, &r, "Capabilities.GPUs", "Toolchain.Digest", "Toolchain.Warm", "Capabilities.WarmToolchains", "Capabilities.Machine")
	im := image{Format: snapshotFormat, Log: FormatPlaces}
	golden.Fill(t, &im.Members, "Session.Past", "Capabilities.GPUs", "Member.Waiting", "Member.Assigned", "Member.Notice", "Member.Moving", "Toolchain.Digest", "Toolchain.Warm", "Capabilities.WarmToolchains", "Capabilities.Machine")
	cmd := Command{ID: "01JD0000000000000000000001", At: 1_800_000_000_000, By: "operator", Body: r}.Encode()
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/places.hex", []golden.Row{{Name: "Register", Bytes: cmd}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()}})
	if c, err := Decode(rows[0].Bytes); err != nil || !reflect.DeepEqual(c.Body, r) {
		t.Errorf("%v: %+v", err, c.Body)
	}
	for _, row := range rows[1:] {
		back, err := DecodeState(row.Bytes)
		if err != nil || !reflect.DeepEqual(back.image().Members, im.Members) {
			t.Errorf("%s: a field was lost on the way: %v", row.Name, err)
		}
	}
}

// TestPastSessions holds the sessions of a member that were superseded.
func TestPastSessions(t *testing.T) {
	im := image{Format: snapshotFormat, Log: FormatPlaces}
	golden.Fill(t, &im.Members, "Capabilities.GPUs", "Member.Waiting", "Member.Assigned", "Member.Notice", "Member.Moving", "Toolchain.Digest", "Toolchain.Warm", "Capabilities.WarmToolchains", "Capabilities.Machine")
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range golden.Rows(t, "testdata/past-sessions.hex", []golden.Row{{Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()}}) {
		back, err := DecodeState(row.Bytes)
		if err != nil || !reflect.DeepEqual(back.image().Members, im.Members) {
			t.Errorf("%s: a field was lost on the way: %v", row.Name, err)
		}
	}
}

// TestDrainDeadline holds the deadline of a drain.
func TestDrainDeadline(t *testing.T) {
	yes := true
	set := MemberSet{Runner: "R", Draining: &yes, Deadline: 1_800_000_000_000}
	row := golden.Rows(t, "testdata/drain.hex", []golden.Row{{Name: "MemberSet", Bytes: cborx.Marshal(set)}})[0]
	b, err := decodeBody(kindMemberSet, row.Bytes)
	if err != nil || !reflect.DeepEqual(b, set) || FormatOf(b) != FormatLeases {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
}

// TestApproval holds that a member waits, in the log and in a snapshot, plain and packed.
func TestApproval(t *testing.T) {
	create, set := TokenCreate{Token: "T", Uses: 1, Approve: true}, MemberSet{Runner: "R", Approved: true}
	im := image{Format: snapshotFormat, Log: FormatLeases, Members: []Member{{Runner: "R", MayVote: true, Waiting: true}}, Tokens: []Token{{ID: "T", Approve: true}}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/approval.hex", []golden.Row{
		{Name: "TokenCreate", Bytes: cborx.Marshal(create)}, {Name: "MemberSet", Bytes: cborx.Marshal(set)}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()},
	})
	for i, want := range []Body{create, set} {
		b, err := decodeBody(want.kind(), rows[i].Bytes)
		if err != nil || !reflect.DeepEqual(b, want) || FormatOf(b) != FormatLeases {
			t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
		}
	}
	for _, row := range rows[2:] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		m, _ := back.Members.Get("R")
		tok, _ := back.Tokens.Get("T")
		if !m.Waiting || m.MayLead() || !tok.Approve {
			t.Errorf("%s: lost on the way: %+v %+v", row.Name, m, tok)
		}
	}
}

// TestStopNamesItsLease holds which lease is asked back.
func TestStopNamesItsLease(t *testing.T) {
	stop := Stop{Job: "J", Kind: "authority", Reason: "used up", Lease: "L"}
	row := golden.Rows(t, "testdata/stop.hex", []golden.Row{{Name: "Stop", Bytes: cborx.Marshal(stop)}})[0]
	b, err := decodeBody(kindStop, row.Bytes)
	if err != nil || !reflect.DeepEqual(b, stop) || FormatOf(b) != FormatLeases {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
}

// TestAssignmentInTheLog holds what the site says of a runner, and what a job asks of that. A
// program of log format 1 would stumble over either.
func TestAssignmentInTheLog(t *testing.T) {
	var set MemberSet
	set.Runner = "R"
	golden.Fill(t, &set.Assign, "Assign.Class")
	given := job.Assignment{Pool: "release", Trust: []job.Trust{job.TrustConfidential}, Labels: map[string]string{"bench": "a"}}
	sp := job.Spec{Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Requires: job.Requires{Pool: "release", Trust: []job.Trust{job.TrustConfidential}}}.Defaulted()
	sub := Submit{Spec: sp.Canonical()}
	im := image{Format: snapshotFormat, Log: FormatAssigned, Members: []Member{{Runner: "R", Assigned: given}}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/assigned.hex", []golden.Row{
		{Name: "MemberSet", Bytes: cborx.Marshal(set)}, {Name: "Spec", Bytes: sub.Spec}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()},
	})
	if b, err := decodeBody(kindMemberSet, rows[0].Bytes); err != nil || !reflect.DeepEqual(b, set) || FormatOf(b) != FormatAssigned {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	if got, err := job.DecodeSpec(rows[1].Bytes); err != nil || !reflect.DeepEqual(got.Requires, sp.Requires) || FormatOf(sub) != FormatAssigned {
		t.Errorf("%+v, of log format %d: %v", got.Requires, FormatOf(sub), err)
	}
	for _, r := range []job.Requires{{Pool: "p"}, {Trust: []job.Trust{job.TrustNetwork}}} { // each alone is of format 2
		one := job.Spec{Steps: sp.Steps, Requires: r}.Defaulted()
		if f := FormatOf(Submit{Spec: one.Canonical()}); f != FormatAssigned {
			t.Errorf("%+v is of format %d", r, f)
		}
	}
	for _, row := range rows[2:] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if m, _ := back.Members.Get("R"); !reflect.DeepEqual(m.Assigned, given) {
			t.Errorf("%s: lost on the way: %+v", row.Name, m.Assigned)
		}
	}
}

// TestClean holds a lease that is given back with nothing to be done again.
func TestClean(t *testing.T) {
	give := Release{Kind: "drain", Detail: "given back", Clean: true}
	row := golden.Rows(t, "testdata/clean.hex", []golden.Row{{Name: "Release", Bytes: cborx.Marshal(give)}})[0]
	b, err := decodeBody(kindRelease, row.Bytes)
	if err != nil || !reflect.DeepEqual(b, give) || FormatOf(b) != FormatLeases {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
}

// TestDeviceDrift holds the drift that a device was lent with.
func TestDeviceDrift(t *testing.T) {
	im := image{Format: snapshotFormat, Log: FormatLeases, Devices: []devices.Device{{ID: "D", Lease: &devices.Lease{ID: "L", DriftPPM: 7}}}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range golden.Rows(t, "testdata/device-drift.hex", []golden.Row{{Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()}}) {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if d, _ := back.Devices.Get("D"); d.Lease == nil || d.Lease.DriftPPM != 7 {
			t.Errorf("%s: lost on the way: %+v", row.Name, d.Lease)
		}
	}
}

// TestStoppedLog holds how far the log went of a holder that stopped.
func TestStoppedLog(t *testing.T) {
	row := golden.Rows(t, "testdata/stopped.hex", []golden.Row{{Name: "Stopped", Bytes: cborx.Marshal(Stopped{LogSeq: 7})}})[0]
	b, err := decodeBody(kindStopped, row.Bytes)
	if err != nil || !reflect.DeepEqual(b, Stopped{LogSeq: 7}) {
		t.Errorf("%+v: %v", b, err)
	}
}

// TestOverran holds that work took more of the disk than it asked for.
func TestOverran(t *testing.T) {
	var end Complete
	end.Result = job.Result{Outcome: job.OutcomeFailed, Category: job.DiskFull, Overran: true}
	row := golden.Rows(t, "testdata/overran.hex", []golden.Row{{Name: "Complete", Bytes: cborx.Marshal(end)}})[0]
	b, err := decodeBody(kindComplete, row.Bytes)
	if err != nil || !reflect.DeepEqual(b, end) || FormatOf(b) != FormatLeases {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	// A daemon refuses a record with a key that it does not know.
	if told := (Job{Result: &job.Result{Overran: true}}).resultForCentral(); told.Overran {
		t.Error("a daemon is told of a key that came later")
	}
}

// TestDiagnosticsInTheLog holds what is kept of work that failed: in a spec that asks for it,
// in a result and in a snapshot. A program of log format 1 would stumble over either.
func TestDiagnosticsInTheLog(t *testing.T) {
	var end Complete
	end.Result.Outcome = job.OutcomeFailed
	golden.Fill(t, &end.Result.Diagnostics)
	sp := job.Spec{Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, OnFailure: []job.DiagnosticDecl{{Path: "report"}, {Path: "core", Sensitive: true}}}.Defaulted()
	sub := Submit{Spec: sp.Canonical()}
	im := image{Format: snapshotFormat, Log: FormatNow, Jobs: []Job{{ID: "J", Spec: sp, Result: &end.Result}}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/diagnostics.hex", []golden.Row{
		{Name: "Spec", Bytes: sub.Spec}, {Name: "Complete", Bytes: cborx.Marshal(end)}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()},
	})
	if got, err := job.DecodeSpec(rows[0].Bytes); err != nil || !reflect.DeepEqual(got.OnFailure, sp.OnFailure) || FormatOf(sub) != FormatNow {
		t.Errorf("%+v, of log format %d: %v", got.OnFailure, FormatOf(sub), err)
	}
	if b, err := decodeBody(kindComplete, rows[1].Bytes); err != nil || !reflect.DeepEqual(b, end) || FormatOf(b) != FormatNow {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	for _, row := range rows[2:] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if j, _ := back.Jobs.Get("J"); j.Result == nil || !reflect.DeepEqual(j.Result.Diagnostics, end.Result.Diagnostics) || !reflect.DeepEqual(j.Spec.OnFailure, sp.OnFailure) {
			t.Errorf("%s: lost on the way: %+v", row.Name, j)
		}
	}
	// A daemon refuses a record with a key that it does not know.
	if told := (Job{Result: &end.Result}).resultForCentral(); told.Diagnostics != nil {
		t.Error("a daemon is told of a key that came later")
	}
}

// TestGPUsInTheLog holds what a runner says of its graphics processors, which a program of
// log format 1 would stumble over.
func TestGPUsInTheLog(t *testing.T) {
	reg := Register{Caps: job.Capabilities{OS: "linux", GPUs: []job.GPU{{Bus: "0000:01:00.0", Vendor: "nvidia", Model: "L4", Driver: "nvidia", Memory: 1 << 34}}}}
	row := golden.Rows(t, "testdata/gpus.hex", []golden.Row{{Name: "Register", Bytes: cborx.Marshal(reg)}})[0]
	b, err := decodeBody(kindRegister, row.Bytes)
	if err != nil || !reflect.DeepEqual(b, reg) || FormatOf(b) != FormatGPUs {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	if reg.Caps = reg.Caps.Early(); FormatOf(reg) != 1 || reg.Caps.SaysLater() {
		t.Errorf("%+v cannot stand in a log of format 1", reg)
	}
}

// TestToolchainsInTheLog holds what a runner says of toolchains of the store, and a job that
// brings one. A program of log format 1 would stumble over either.
func TestToolchainsInTheLog(t *testing.T) {
	reg := Register{Caps: job.Capabilities{OS: "linux", Toolchains: []job.Toolchain{{Name: "go", Version: "1.26", Source: job.ToolchainStore, Verified: true, Digest: forgeyard.Digest{1}, Warm: true}}, WarmToolchains: []forgeyard.Digest{{2}}}}
	sp := job.Spec{Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Inputs: []job.Input{{Path: "toolchains/go", Tree: true, Digest: forgeyard.Digest{1}}}}.Defaulted()
	sub := Submit{Spec: sp.Canonical()}
	rows := golden.Rows(t, "testdata/toolchains.hex", []golden.Row{{Name: "Register", Bytes: cborx.Marshal(reg)}, {Name: "Spec", Bytes: sub.Spec}})
	b, err := decodeBody(kindRegister, rows[0].Bytes)
	if err != nil || !reflect.DeepEqual(b, reg) || FormatOf(b) != FormatToolchains {
		t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
	}
	if got, err := job.DecodeSpec(rows[1].Bytes); err != nil || !reflect.DeepEqual(got.Inputs, sp.Inputs) || FormatOf(sub) != FormatToolchains {
		t.Errorf("%+v, of log format %d: %v", got.Inputs, FormatOf(sub), err)
	}
	if reg.Caps = reg.Caps.Early(); FormatOf(reg) != 1 {
		t.Errorf("%+v cannot stand in a log of format 1", reg)
	}
}

// TestAttestOff holds a person's word that a machine is off.
func TestAttestOff(t *testing.T) {
	var b AttestOff
	golden.Fill(t, &b)
	row := golden.Rows(t, "testdata/attest-off.hex", []golden.Row{{Name: "AttestOff", Bytes: Command{ID: "01JD0000000000000000000001", At: 1_800_000_000_000, By: "operator", Body: b}.Encode()}})[0]
	c, err := Decode(row.Bytes)
	if err != nil || !reflect.DeepEqual(c.Body, b) || FormatOf(c.Body) != FormatLeases {
		t.Errorf("%+v: %v", c, err)
	}
}

// TestContest holds the word that two processes have one key.
func TestContest(t *testing.T) {
	var b Contest
	golden.Fill(t, &b)
	row := golden.Rows(t, "testdata/contest.hex", []golden.Row{{Name: "Contest", Bytes: Command{ID: "01JD0000000000000000000001", At: 1_800_000_000_000, By: "leader", Body: b}.Encode()}})[0]
	c, err := Decode(row.Bytes)
	if err != nil || !reflect.DeepEqual(c.Body, b) || FormatOf(c.Body) != FormatLeases {
		t.Errorf("%+v: %v", c, err)
	}
}

// TestSaid holds the number of the record that tells the daemon of a job's end.
func TestSaid(t *testing.T) {
	im := image{Format: snapshotFormat, Log: FormatLeases, Jobs: []Job{{ID: "J", Said: 7}}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range golden.Rows(t, "testdata/said.hex", []golden.Row{{Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()}}) {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if j, _ := back.Jobs.Get("J"); j.Said != 7 {
			t.Errorf("%s: lost on the way: %+v", row.Name, j)
		}
	}
}

// told are those that came with runs of every kind: what is packed had none of them either.
var told = later[slices.Index(later, "Submit.Via"):]

// TestLaterFields holds what version 1 did not have: the fields of later, each in the
// value that carries it.
func TestLaterFields(t *testing.T) {
	observe, given, im := UplinkObserve{}, Delegation{}, image{Format: snapshotFormat}
	golden.Fill(t, &observe)
	golden.Fill(t, &given, "Requires.Pool", "Requires.Trust", "Interruption.StableAfter", "Interruption.ResumeFailures", "Interruption.Priority", "Interruption.FinishWithin", "CheckpointDecl.OnCancel", "CheckpointDecl.NoneOnNotice")
	golden.Fill(t, &im.Members, "Session.Formats", "Member.Spare", "Session.Place", "Session.Past", "Capabilities.GPUs", "Member.Waiting", "Member.Assigned", "Member.Notice", "Member.Moving", "Toolchain.Digest", "Toolchain.Warm", "Capabilities.WarmToolchains", "Capabilities.Machine")
	golden.Fill(t, &im.Uplink)
	golden.Fill(t, &im.LeaseLog)
	golden.Fill(t, &im.Ready)
	im.LeaseSeq = 30
	rows := golden.Rows(t, "testdata/later-v1.hex", []golden.Row{{Name: "UplinkObserve", Bytes: cborx.Marshal(observe)}, {Name: "Delegation", Bytes: cborx.Marshal(given)}, {Name: "snapshot", Bytes: cborx.Marshal(im)}})
	s, err := DecodeState(rows[2].Bytes)
	if err != nil {
		t.Fatal(err)
	}
	back := s.image()
	if !reflect.DeepEqual([]any{back.Members, back.Uplink, back.LeaseLog, back.LeaseSeq, back.Ready}, []any{im.Members, im.Uplink, im.LeaseLog, im.LeaseSeq, im.Ready}) {
		t.Fatalf("a field was lost on the way: %+v", back)
	}
}

// TestFieldsOfRuns holds what came with runs of every kind: the fields of told, and names.
func TestFieldsOfRuns(t *testing.T) {
	var sub Submit
	var point Checkpoint
	var release Release
	var end Complete
	var runs image
	golden.Fill(t, &sub, "Submit.Group", "Submit.Order")
	golden.Fill(t, &point, "Commit.By", "Commit.Dropped", "Commit.Where", "Commit.Took", "Commit.Origin", "Commit.For", "Commit.Same")
	golden.Fill(t, &release, "Release.Clean")
	golden.Fill(t, &end, "Result.Overran", "Result.Diagnostics")
	golden.Fill(t, &runs.Events, "Event.Type")
	golden.Fill(t, &runs.Jobs, "Job.Word", "Job.Begun", "Resume.Isolation", "Resume.Profile", "CheckpointDecl.Results", "Job.Mark", "Job.Said", "Job.Tail", "Job.Hold", "Job.Asks", "Job.Cancel", "Job.Stuck", "Job.Tainted", "Job.Effects", "Job.Steps", "Spec.EffectRules", "Step.Resume", "Step.Outputs", "Step.Reconcile", "Result.Overran", "Result.Diagnostics", "Spec.OnFailure", "Requires.Pool", "Requires.Trust", "Interruption.StableAfter", "Interruption.ResumeFailures", "Interruption.Priority", "Interruption.FinishWithin", "CheckpointDecl.OnCancel", "CheckpointDecl.NoneOnNotice", "Commit.By", "Commit.Dropped", "CheckpointDecl.MaxAge", "CheckpointDecl.KeepOnFailure", "Commit.Where", "Commit.Took", "Commit.Origin", "Commit.For", "Commit.Same", "Resume.Compatibility", "Resume.Sensitivity")
	golden.Fill(t, &runs.Names)
	runs.Format, runs.Runs = snapshotFormat, []Run{{ID: runs.Events[0].Run, LastSeq: 1}}
	rows := golden.Rows(t, "testdata/runs.hex", []golden.Row{
		{Name: "Submit", Bytes: cborx.Marshal(sub)}, {Name: "Checkpoint", Bytes: cborx.Marshal(point)}, {Name: "Release", Bytes: cborx.Marshal(release)},
		{Name: "Complete", Bytes: cborx.Marshal(end)}, {Name: "snapshot", Bytes: cborx.Marshal(runs)},
	})
	s, err := DecodeState(rows[4].Bytes)
	if err != nil {
		t.Fatal(err)
	}
	back := s.image()
	if !reflect.DeepEqual([]any{back.Events, back.Jobs, back.Names}, []any{runs.Events, runs.Jobs, runs.Names}) {
		t.Fatalf("a field was lost on the way: %+v", back)
	}
}

// TestRepliesOfVersion1: a reply is kept in the state and answers a repeat after an
// upgrade.
func TestRepliesOfVersion1(t *testing.T) {
	var today []golden.Row
	for _, v := range []any{&Joined{}, &Registered{}, &Submitted{}, &Cancelling{}, &Checkpointed{}, &Completed{}, &DeviceLeased{}} {
		golden.Fill(t, v)
		today = append(today, golden.Row{Name: reflect.TypeOf(v).Elem().Name(), Bytes: cborx.Marshal(Reply{Value: cborx.Marshal(v)})})
	}
	for _, row := range golden.Rows(t, "testdata/replies-v1.hex", today) {
		var r Reply
		if err := cborx.Unmarshal(row.Bytes, &r); err != nil || r.Err() != nil || len(r.Value) == 0 {
			t.Errorf("%s cannot be read: %v", row.Name, err)
		}
	}
}

// TestSnapshotOfVersion1 has a value in every field that a snapshot has, down to those of
// a job's spec and of a device's lease.
func TestSnapshotOfVersion1(t *testing.T) {
	var im image
	golden.Fill(t, &im, later...)
	im.Format = snapshotFormat
	im.Step = 0                                                                  // came later and is absent where it says nothing: see TestStepInSnapshot
	im.Log, im.Recoveries, im.Members[0].Session.Formats = 0, nil, FormatRange{} // came later
	im.Events[0].Run = im.Runs[0].ID                                             // an event without its run is not kept
	im.Requests[0].Reply.Reply.Value = cborx.RawMessage{0x01}
	was := golden.Bytes(t, "testdata/snapshot-v1.hex", cborx.Marshal(im))
	s, err := DecodeState(was)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(s.Encode(), was) {
		t.Fatal("what was read is not written again: a field was lost on the way")
	}
	for _, table := range []int{s.Members.Len(), s.Tokens.Len(), s.Runs.Len(), s.Events.Len(), s.Jobs.Len(), s.Devices.Len(), s.Outbox.Len(), s.Keys.Len(), s.Requests.Len(), s.Order.Len(), s.Open.Len(), s.Ended.Len(), len(s.History)} {
		if table != 1 {
			t.Fatalf("a table holds %d rows of 1", table)
		}
	}
}

// TestLaterSnapshot has what was added since as well.
func TestLaterSnapshot(t *testing.T) {
	im := image{Format: snapshotFormat, Site: "S", Log: FormatNow, Members: []Member{{Runner: "R", Session: Session{ID: "one", Formats: Formats}}}}
	golden.Fill(t, &im.Recoveries)
	was := golden.Bytes(t, "testdata/snapshot-later.hex", cborx.Marshal(im))
	s, err := DecodeState(was)
	if err != nil {
		t.Fatal(err)
	}
	if s.LogFormat() != FormatNow || len(s.Recoveries) != 1 || s.Lineage() == "" {
		t.Fatalf("%+v", s)
	}
	im.Log = FormatNow + 1
	if _, err := DecodeState(cborx.Marshal(im)); err == nil || !bytes.Contains([]byte(err.Error()), []byte("upgrade this node")) {
		t.Fatalf("RA-098: the state of a newer log is refused: %v", err)
	}
}

// TestPackedSnapshot: version 2 of a snapshot has the same in fewer bytes. It is written
// once the log's format allows it and read at any time; the hash of the state is of
// neither's bytes.
func TestPackedSnapshot(t *testing.T) {
	var im image
	golden.Fill(t, &im, slices.Concat(told, latest)...)
	im.Format, im.Log, im.Step = snapshotFormat, FormatPacked, im.Index+1
	im.Events[0].Run = im.Runs[0].ID
	im.Requests[0].Reply.Reply.Value = cborx.RawMessage{0x01}
	plain := cborx.Marshal(im)
	s, err := DecodeState(plain)
	if err != nil {
		t.Fatal(err)
	}
	was := golden.Bytes(t, "testdata/snapshot-v2.hex", s.Snapshot())
	if 4*len(was) > 3*len(plain) {
		t.Errorf("%d bytes are packed into %d", len(plain), len(was))
	}
	back, err := DecodeState(was)
	if err != nil || !bytes.Equal(back.Encode(), plain) || back.Hash() != s.Hash() {
		t.Fatalf("a field was lost on the way: %v", err)
	}
	s.Format = FormatPacked - 1
	if !bytes.Equal(s.Snapshot(), s.Encode()) {
		t.Error("a snapshot is packed before every voter can read it")
	}
	for _, b := range [][]byte{was[:1], was[:2], was[:len(was)-1], append(slices.Clone(was), 0)} {
		if _, err := DecodeState(b); forgeyard.KindOf(err) != forgeyard.Corrupt {
			t.Errorf("%d of %d bytes: %v", len(b), len(was), err)
		}
	}
}

// A version of tomorrow is refused by its number, and never half understood.
func TestOtherVersionsAreRefused(t *testing.T) {
	b := slices.Clone(Command{ID: "x", Body: Drill{Cut: true}}.Encode())
	at := bytes.Index(b, []byte{1, 1, 2})
	if at < 0 {
		t.Fatalf("%x", b)
	}
	b[at+1] = 2
	if _, err := Decode(b); err == nil || !bytes.Contains([]byte(err.Error()), []byte("format 2")) {
		t.Errorf("a command of format 2: %v", err)
	}
	if _, err := DecodeState(cborx.Marshal(image{Format: 2})); err == nil || !bytes.Contains([]byte(err.Error()), []byte("format 2")) {
		t.Errorf("a snapshot of format 2: %v", err)
	}
	if _, err := DecodeState([]byte{snapshotList, snapshotPacked + 1, 0x80}); err == nil || !bytes.Contains([]byte(err.Error()), []byte("format 3 is not known, this version reads up to 2")) {
		t.Errorf("a snapshot of format 3: %v", err)
	}
}

// TestNoneOnNotice holds a spec that declines a checkpoint when its machine is taken away. What
// came before it has its bytes as ever.
func TestNoneOnNotice(t *testing.T) {
	j := Job{ID: "J", Run: "R"}
	j.Spec.Resume.Checkpoint.NoneOnNotice = true
	s, err := DecodeState(cborx.Marshal(image{Format: snapshotFormat, Log: FormatLeases, Jobs: []Job{j}, Runs: []Run{{ID: "R", Job: "J"}}}))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/on-notice.hex", []golden.Row{{Name: "snapshot", Bytes: s.Encode()}})
	back, err := DecodeState(rows[0].Bytes)
	if got, ok := back.Jobs.Get("J"); err != nil || !ok || !got.Spec.Resume.Checkpoint.NoneOnNotice {
		t.Errorf("%+v %v", got, err)
	}
}
