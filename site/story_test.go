package site

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// TestStories plays the transcripts in testdata/stories. Each command is one log
// entry; after each of them the state is hashed, put through a snapshot, and the state
// before it is looked at again: nobody may have written into it.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := newStory(t)
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			s.t, s.td = t, td
			out := s.run()
			if s.broken != nil {
				t.Fatalf("%s: %v", td.Pos, s.broken)
			}
			return out
		})
	})
}

// chainOfEpochs: each epoch of a job is in its history, one after the other, with what it went
// on from (CK-368, CK-388).
func chainOfEpochs(s *State) error {
	for _, j := range s.Jobs.All() {
		if j.Epoch == 0 {
			continue
		}
		n := len(j.History)
		if n == 0 || j.History[n-1].Epoch != j.Epoch || j.Lease.Live() && j.History[n-1].Resumed != j.ResumeFrom {
			return fmt.Errorf("job %s is at epoch %d and went on from %s: its history does not say so", j.ID, j.Epoch, j.ResumeFrom.Short())
		}
		for i := 1; i < n; i++ {
			if j.History[i].Epoch != j.History[i-1].Epoch+1 {
				return fmt.Errorf("job %s: epoch %d comes after %d", j.ID, j.History[i].Epoch, j.History[i-1].Epoch)
			}
		}
	}
	return nil
}

// staysInSite holds what goes to the central daemon against the checkpoints: none leaves the
// site that took it, not even by name (CK-353 389).
func staysInSite(s *State) error {
	for _, r := range s.Outbox.All() {
		told := cborx.Marshal(r)
		for _, j := range s.Jobs.All() {
			for _, k := range j.Checkpoints {
				if bytes.Contains(told, k.Manifest[:]) || bytes.Contains(told, k.Payload[:]) {
					return fmt.Errorf("record %d for the central daemon names checkpoint %d of job %s", r.Seq, k.Seq, j.ID)
				}
			}
		}
	}
	return nil
}

// story is a site that commands are applied to, and the names by which the transcript
// calls what the site gave long ids.
type story struct {
	t     *testing.T
	td    *datadriven.TestData
	s     *State
	at    time.Time
	index uint64
	names []string // id, name, id, name …: for strings.NewReplacer
	ids   map[string]string
	held  map[string]forgeyard.Authority // "job/epoch"
	last  []byte                         // the last entry, for `again`
	rules applies                        // nil: the honest ones

	broken error // what does not hold after one of the entries
}

func newStory(t *testing.T) *story {
	return &story{t: t, s: &State{}, at: time.Date(2027, 1, 1, 8, 0, 0, 0, time.UTC), ids: map[string]string{}, held: map[string]forgeyard.Authority{}}
}

func (s *story) arg(key, otherwise string) string {
	s.td.MaybeScanArgs(s.t, key, &otherwise)
	return otherwise
}

func (s *story) num(key string, otherwise uint64) uint64 {
	s.td.MaybeScanArgs(s.t, key, &otherwise)
	return otherwise
}

func (s *story) span(key string) time.Duration {
	text := s.arg(key, "0s")
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatalf("%s: %v", s.td.Pos, err)
	}
	return d
}

func (s *story) name(id, name string) {
	if id != "" && s.ids[name] == "" {
		s.ids[name] = id
		s.names = append(s.names, id, name)
	}
}

func (s *story) job() forgeyard.JobID { return forgeyard.JobID(s.arg("job", "j")) }

func (s *story) jobID() forgeyard.JobID {
	if id, ok := s.ids[string(s.job())]; ok {
		return forgeyard.JobID(id)
	}
	return s.job()
}

// authority is the one that the named epoch was granted, or a part of it made wrong.
func (s *story) authority() forgeyard.Authority {
	j, _ := s.s.Jobs.Get(s.jobID())
	a := s.held[fmt.Sprintf("%s/%d", s.job(), s.num("epoch", j.Epoch))]
	switch s.arg("wrong", "") {
	case "runner":
		a.Runner = "another"
	case "session":
		a.Session = "another"
	case "spec":
		a.Spec = cas.Sum([]byte("another"))
	case "term":
		a.Fence.Term++
	case "incarnation":
		a.Fence.Incarnation++
	}
	return a
}

func (s *story) run() string {
	var out strings.Builder
	s.at = s.at.Add(s.span("after"))
	switch s.td.Cmd {
	case "show":
		s.show(&out)
	case "again":
		s.apply(&out, s.last)
	default:
		s.index++
		c := Command{ID: forgeyard.MessageID(s.arg("id", fmt.Sprintf("r%d", s.index))), At: forgeyard.WallOf(s.at), By: s.arg("by", "ana"), Body: s.body()}
		s.index--
		s.apply(&out, c.Encode())
	}
	return strings.NewReplacer(s.names...).Replace(out.String())
}

// apply applies one entry, and checks what must hold after every one.
func (s *story) apply(out *strings.Builder, raw []byte) {
	s.index++
	before, hash := s.s, s.s.Hash()
	rules := (*State).ApplyEntry
	if s.rules != nil {
		rules = s.rules
	}
	next, r := rules(before, s.index, s.num("entry-term", 1), raw)
	s.last = raw
	if before.Hash() != hash {
		s.t.Fatalf("%s: the state before was written into", s.td.Pos)
	}
	again, err := DecodeState(next.Encode())
	if err != nil || again.Hash() != next.Hash() {
		s.t.Fatalf("%s: the state does not survive a snapshot: %v", s.td.Pos, err)
	}
	if err := r.Err(); err != nil && !sameButMemory(before, next) {
		s.t.Fatalf("%s: the command was refused and changed something", s.td.Pos)
	}
	for _, holds := range []func(*State) error{chainOfEpochs, staysInSite} {
		if err := holds(next); err != nil && s.broken == nil {
			s.broken = err
		}
	}
	s.s = again // every story goes on from a snapshot
	s.learn(r)
	s.tell(out, before, r)
}

// sameButMemory compares two states but for the place in the log and the memory of requests.
func sameButMemory(a, b *State) bool {
	x, y := *a, *b
	x.Index, y.Index, x.Step, y.Step = 0, 0, 0, 0
	x.Requests, x.Order = y.Requests, y.Order
	return x.Hash() == y.Hash()
}

// learn gives names to what the entry made.
func (s *story) learn(r Reply) {
	if r.Err() != nil {
		return
	}
	for _, m := range s.s.Members.All() {
		s.name(string(m.Runner), m.Name)
	}
	if v, err := Value[Submitted](r); err == nil && s.td.Cmd == "submit" {
		s.name(string(v.Job), s.arg("name", "j"))
		s.name(string(v.Run), s.arg("name", "j")+".run")
	}
	for _, j := range s.s.Jobs.All() {
		if j.Grant != nil {
			s.name(string(j.ID), "job-of-"+string(j.Grant.ID))
		}
		name, ok := strings.CutPrefix(strings.NewReplacer(s.names...).Replace(string(j.ID)), "")
		if !ok || j.Lease.State == "" {
			continue
		}
		a := j.Lease.Authority
		s.name(string(a.Attempt), fmt.Sprintf("%s.attempt-of-%d", name, j.Epoch))
		s.name(string(a.Lease), fmt.Sprintf("%s.lease%d", name, j.Epoch))
		s.held[fmt.Sprintf("%s/%d", name, j.Epoch)] = a
	}
}

// tell prints the reply, and each line of the state that changed.
func (s *story) tell(out *strings.Builder, before *State, r Reply) {
	switch {
	case r.Err() != nil:
		fmt.Fprintf(out, "%s: %s\n", r.Kind, r.Error)
	case len(r.Value) > 0:
		fmt.Fprintln(out, s.value(r))
	default:
		fmt.Fprintln(out, "ok")
	}
	was, is := lines(before), lines(s.s)
	if slices.Equal(was, is) {
		fmt.Fprintln(out, "nothing changes")
	}
	for _, l := range is {
		if !slices.Contains(was, l) {
			fmt.Fprintln(out, " ", l)
		}
	}
}

func (s *story) value(r Reply) string {
	var v any
	var err error
	switch s.td.Cmd {
	case "complete":
		var c Completed
		c, err = Value[Completed](r)
		v = strings.TrimSuffix(fmt.Sprintf("%s: %s", c.Verdict, c.Reason), ": ")
	case "checkpoint":
		var c Checkpointed
		c, err = Value[Checkpointed](r)
		v = fmt.Sprintf("duplicate=%v next=%v", c.Duplicate, c.Next != nil)
	case "offer":
		var a forgeyard.Authority
		a, err = Value[forgeyard.Authority](r)
		v = fmt.Sprintf("granted to %s, session %s, fence %s, attempt %s", a.Runner, a.Session, a.Fence, a.Attempt)
	case "submit":
		v, err = Value[Submitted](r)
	case "attest-off":
		v, err = Value[AttestedOff](r)
	case "join":
		v, err = Value[Joined](r)
	case "cancel":
		v, err = Value[Cancelling](r)
	case "ask":
		v, err = Value[Asked](r)
	case "checkpoint-revoke":
		v, err = Value[CheckpointRevoked](r)
	case "effect-begin":
		v, err = Value[EffectBegun](r)
	case "run-suspend":
		var a RunSuspended
		a, err = Value[RunSuspended](r)
		v = fmt.Sprintf("record=%v changed=%v status=%s", a.ID != "", a.Changed, a.Status)
	case "register":
		v, err = Value[Registered](r)
	case "recover":
		v, err = Value[Recovered](r)
	case "device-lease":
		var d DeviceLeased
		d, err = Value[DeviceLeased](r)
		v = fmt.Sprintf("%s on %s, token %d", d.Device, d.Host, d.Token)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%+v", v)
}

// lines is the state as people read it.
func lines(st *State) []string {
	var out []string
	for _, m := range st.Members.All() {
		line := fmt.Sprintf("member %s: session %q draining=%v disabled=%v removed=%v votes=%v", m.Name, m.Session.ID, m.Draining, m.Disabled, m.Removed, m.MayVote)
		if m.Waiting {
			line += ", waits for approval"
		}
		if !m.Assigned.IsZero() {
			line += ", assigned " + m.Assigned.String()
		}
		if m.Notice != nil {
			line += ", is being taken away"
		}
		if m.Silent != 0 {
			line += ", silent since " + m.Silent.Time().Format("15:04:05")
		}
		out = append(out, line)
	}
	for _, n := range st.Names.All() {
		line := fmt.Sprintf("name %s: %s of %s", n.Name, n.Digest.Short(), n.Job)
		for _, e := range n.Earlier {
			line += fmt.Sprintf(", before %s of %s", e.Digest.Short(), e.Job)
		}
		out = append(out, line)
	}
	for _, t := range st.Tokens.All() {
		out = append(out, fmt.Sprintf("token %s: %d uses left, revoked=%v", t.ID, t.Uses, t.Revoked))
	}
	for _, j := range st.Jobs.All() {
		out = append(out, jobText(j))
		for _, k := range j.Checkpoints {
			out = append(out, fmt.Sprintf("checkpoint %d of epoch %d: %s, %d failures", k.Seq, k.Epoch, k.State, k.Failures)+taken(k))
		}
		for _, l := range j.Late {
			out = append(out, fmt.Sprintf("late result of epoch %d kept: %s, %s", l.Epoch, l.Outcome, l.Why))
		}
		r, _ := st.Runs.Get(j.Run)
		run := fmt.Sprintf("run of %s: %s after %d events", j.ID, r.Status, r.LastSeq)
		if r.Group != "" {
			run += fmt.Sprintf(", in group %s", r.Group)
		}
		if r.SupersededBy != "" {
			run += fmt.Sprintf(", superseded by %s", r.SupersededBy)
		}
		if r.Suspension != nil {
			run += fmt.Sprintf(", suspension by %s, resumed=%v", r.Suspension.By, r.Suspension.Ended != 0)
		}
		out = append(out, run)
	}
	for _, d := range st.Devices.All() {
		line := fmt.Sprintf("device %s: %s, %s, %s", d.ID, d.Presence, d.Health, d.Use)
		if d.Lease != nil {
			line += fmt.Sprintf(", token %d to %s", d.Lease.Token, d.Lease.Holder)
		}
		if d.Quarantine != nil {
			line += ", quarantine: " + d.Quarantine.Reason
		}
		out = append(out, line)
	}
	u := st.Uplink
	out = append(out, fmt.Sprintf("uplink %s, %s used of %s %s", u.State, u.Used, u.Terms.Allowance, u.Doubt))
	if st.Ready.Asked {
		out = append(out, fmt.Sprintf("ready since %s, lacks %v", st.Ready.Since.Time().Format("15:04:05"), st.Ready.Lacks))
	}
	for _, r := range st.Outbox.All() {
		out = append(out, fmt.Sprintf("record %d: %s of %s, %s, fence %s", r.Seq, r.Kind, r.Grant, r.Status, r.Fence))
	}
	return append(out, fmt.Sprintf("outbox: sent %d, acknowledged %d; delegations taken in up to %d", st.Sent, st.Acked, st.Cursor))
}

func jobText(j Job) string {
	b := fmt.Sprintf("job %s: %s/%s epoch %d, lease %s", j.ID, j.Status, j.Phase, j.Epoch, j.Lease.State)
	if j.Lease.Reason != "" {
		b += fmt.Sprintf(" (%s)", j.Lease.Reason)
	}
	if j.Lease.State != "" {
		b += fmt.Sprintf(", %s", j.Attempt)
	}
	for _, f := range []struct {
		set  bool
		text string
	}{
		{j.Mark != "", "mark " + j.Mark}, {len(j.Effects) > 0, j.effectsText()}, {len(j.Steps) > 0, fmt.Sprintf("%d steps committed", len(j.Steps))}, {j.Certain, "certain"}, {j.CancelAt != 0, "cancel asked"}, {j.Cancel != nil, fmt.Sprintf("%s (%s)", j.CancelState(), j.CancelReason())}, {j.Stuck > 0, fmt.Sprintf("%d checkpoints without progress", j.Stuck)}, {j.StopKind != "", "stop=" + j.StopKind}, {j.Hold != nil, "suspension " + j.suspension()}, {j.Asks > 0, fmt.Sprintf("%d checkpoints asked for", j.Asks)}, {j.Interruptions > 0, fmt.Sprintf("%d interruptions", j.Interruptions)},
		{j.Retries > 0, fmt.Sprintf("%d retries", j.Retries)}, {len(j.Avoid) > 0, fmt.Sprintf("avoids %d", len(j.Avoid))}, {!j.ResumeFrom.IsZero(), "resumes"},
		{len(j.Devices) > 0, fmt.Sprintf("%d devices", len(j.Devices))}, {j.Category != "", string(j.Category)}, {j.Reason != "", "“" + j.Reason + "”"},
	} {
		if f.set {
			b += ", " + f.text
		}
	}
	return b
}

func (s *story) show(out *strings.Builder) {
	if s.arg("what", "") == "events" {
		j, _ := s.s.Jobs.Get(s.jobID())
		for _, e := range s.s.RunEvents(j.Run, 0) {
			fmt.Fprintf(out, "%d %s %s %s\n", e.Seq, e.Kind, e.Status, job.Happening{Kind: e.Kind, Message: e.Message, Tool: e.Tool, Output: e.Output})
		}
		return
	}
	if s.arg("what", "") == "types" {
		j, _ := s.s.Jobs.Get(s.jobID())
		for _, e := range s.s.RunEvents(j.Run, 0) {
			if e.Type != "" {
				fmt.Fprintf(out, "%d %s: %s\n", e.Seq, e.Type, e.Message)
			}
		}
		return
	}
	if s.arg("what", "") == "terms" {
		j, _ := s.s.Jobs.Get(s.jobID())
		fmt.Fprintf(out, "epoch %d: policy %s for %s, ttl %s, free for another after %s\n", j.Epoch, j.Lease.Policy.Policy, j.Lease.Policy.For, j.Lease.Terms.TTL, j.Lease.Terms.Reassign)
		return
	}
	if what := s.arg("what", ""); what == "leases" || what == "history" {
		for _, e := range s.s.SiteEvents(s.num("from", 0)) {
			if (e.Kind == "lease") == (what == "leases") {
				fmt.Fprintf(out, "%d %s: %s\n", e.Index, e.Kind, e.Text)
			}
		}
		return
	}
	for _, l := range lines(s.s) {
		fmt.Fprintln(out, l)
	}
}

// list is the words of an argument with several.
func (s *story) list(key string) []string {
	for _, a := range s.td.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

// own is the spec of an ingest of some names, or of a garden.
func (s *story) own(kind job.RunKind) job.Spec {
	sp := job.Spec{Kind: kind, Node: cmp.Or(s.runner(), "nobody"), Connectivity: job.Connectivity{Policy: job.Continuous}}
	for _, n := range s.list("names") {
		sp.Ingest = append(sp.Ingest, job.RunInput{Name: n, From: "/data/" + n})
	}
	return sp.Defaulted()
}

// told are happenings by the words of the transcript: their kinds, from number n on.
func (s *story) told() job.Told {
	t := job.Told{First: s.num("n", 1)}
	for _, k := range s.list("told") {
		h := job.Happening{Kind: job.EventKind(k)}
		switch h.Kind {
		case job.EventTool:
			h.Tool = &job.Tool{Source: job.ToolExecutor, Name: "compile", State: job.ToolEnded, Took: 2 * time.Second}
		case job.EventOutput:
			h.Output = &job.Printed{FirstSeq: 2, LastSeq: 9, Stdout: 100, Stderr: 7}
		default:
			h.Message = "something"
		}
		t.Events = append(t.Events, h)
	}
	return t
}

// spec is a job's spec by the words of the transcript.
func (s *story) spec() job.Spec {
	if kind := job.RunKind(s.arg("kind", "build")); kind != job.Build && !s.td.HasArg("built") {
		return s.own(kind)
	}
	sp := job.Spec{Title: s.arg("name", "j"), Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}
	sp.Connectivity = job.Connectivity{Policy: job.Continuous}
	if s.td.HasArg("protected") {
		sp.Effects = job.EffectsProtected
	}
	if s.td.HasArg("grace") { // as long as the site says
		sp.Connectivity = job.Connectivity{Policy: job.Grace}
	}
	if s.td.HasArg("resumable") {
		sp.Resume.Mode = job.ResumeApplication
	}
	if s.td.HasArg("output") {
		sp.Outputs = []job.OutputDecl{{Path: "out"}}
	}
	for i := range s.num("boards", 0) {
		sp.Devices = append(sp.Devices, job.DeviceRequest{Kind: "board", As: fmt.Sprintf("d%d", i)})
	}
	sp.Connectivity.NoReplace = s.td.HasArg("no-replace")
	sp.Requires.Pool = s.arg("pool", "")
	if t := s.arg("trust", ""); t != "" {
		sp.Requires.Trust = []job.Trust{job.Trust(t)}
	}
	s.effectRules(&sp)
	sp.Timeouts.Run = time.Second
	if s.td.HasArg("run") {
		sp.Timeouts.Run = s.span("run")
	}
	sp = sp.Defaulted()
	sp.Resume.Checkpoint.OnCancel = s.td.HasArg("on-cancel")
	sp.Interruption.StableAfter, sp.Interruption.ResumeFailures = int(s.num("stable-after", 0)), int(s.num("failures", 0))
	sp.Interruption.Tolerance = s.arg("tolerance", sp.Interruption.Tolerance)
	if s.td.HasArg("retry") || s.td.HasArg("budget") {
		sp.Interruption.Retry, sp.Interruption.Budget = s.arg("retry", job.RetryResumeOrRestart), int(s.num("budget", 5))
	}
	return sp
}

func (s *story) result() job.Result {
	r := job.Result{Outcome: job.Outcome(s.arg("outcome", "done")), Category: job.FailureCategory(s.arg("category", "")), Message: s.arg("message", "")}
	if o := s.arg("output", ""); o != "" {
		r.Outputs = []job.Output{{Path: o, Digest: cas.Sum([]byte(o)), Size: 1}}
	}
	for _, n := range s.list("names") {
		r.Outputs = append(r.Outputs, job.Output{Path: n, Tree: true, Digest: cas.Sum([]byte(n + s.arg("content", ""))), Size: 1})
	}
	r.Overran = s.td.HasArg("overran")
	if s.td.HasArg("steps") {
		r.Steps = []job.StepResult{{Name: "s", ExitCode: 1}}
	}
	r.Told = s.told()
	return r
}

func (s *story) commit() checkpoint.Commit {
	a := s.authority()
	seq := int(s.num("seq", 1))
	var copies []forgeyard.RunnerID
	for _, m := range s.s.Members.All() {
		copies = append(copies, m.Runner)
	}
	what := s.arg("bytes", fmt.Sprintf("%d/%d", a.Fence.Epoch, seq))
	payload := s.arg("holds", what)
	return checkpoint.Commit{
		Seq: seq, Manifest: cas.Sum([]byte(what)), Payload: cas.Sum([]byte("payload " + payload)), Marker: cas.Sum([]byte("marker " + what)), Bytes: 1,
		Attempt: a.Attempt, Epoch: a.Fence.Epoch, Replicas: copies[:s.num("replicas", 2)], Consistency: checkpoint.Application,
	}
}

func (s *story) runner() forgeyard.RunnerID { return forgeyard.RunnerID(s.ids[s.arg("node", "n1")]) }

// body is the command of a transcript line.
func (s *story) body() Body {
	switch s.td.Cmd {
	case "init":
		id := forgeyard.NewULID(s.at, [10]byte{1})
		s.name(id, "SITE")
		return Init{Site: forgeyard.SiteID(id), Name: "lab", Config: sitecfg.DefaultSite(), Runner: forgeyard.RunnerID(forgeyard.NewULID(s.at, [10]byte{2})), Node: "n1", Peer: "peer-n1"}
	case "token":
		return TokenCreate{Token: forgeyard.TokenID(s.arg("token", "T")), Hash: [32]byte{1}, Expires: forgeyard.WallOf(s.at.Add(s.span("for"))), Uses: int(s.num("uses", 1)), MayVote: s.td.HasArg("votes"), Approve: s.td.HasArg("approve")}
	case "revoke":
		return TokenRevoke{Token: forgeyard.TokenID(s.arg("token", "T"))}
	case "join":
		secret := [32]byte{1}
		if s.td.HasArg("guess") {
			secret[0] = 2
		}
		return Join{Token: forgeyard.TokenID(s.arg("token", "T")), Hash: secret, Peer: s.arg("peer", "peer"), Name: s.arg("name", "n2")}
	case "register":
		b := Register{Runner: s.runner(), Session: forgeyard.SessionID(s.arg("session", "")), Version: "1", Formats: FormatRange{Max: Format(s.num("reads", 0))}}
		if place := s.arg("place", ""); place != "" {
			b.Place = cas.Sum([]byte(place))
		}
		if s.td.HasArg("removed") {
			b.Runner = "nobody"
		}
		for i := range s.num("boards", 0) {
			b.Caps.Devices = append(b.Caps.Devices, job.DeviceFact{ID: forgeyard.DeviceID(fmt.Sprintf("board%d", i+1)), Kind: "board"})
		}
		return b
	case "member":
		b := MemberSet{Runner: s.runner(), Cancel: s.td.HasArg("cancel")}
		yes := s.arg("to", "true") == "true"
		switch s.arg("set", "") {
		case "draining":
			b.Draining = &yes
			if s.td.HasArg("deadline") { // counted from the story's begin
				b.Deadline = forgeyard.WallOf(newStory(s.t).at.Add(s.span("deadline")))
			}
		case "disabled":
			b.Disabled = &yes
		case "removed":
			b.Removed = &yes
		case "approved":
			b.Approved = true
		case "assigned":
			b.Assign = &job.Assign{Pool: s.arg("pool", ""), Class: job.InterruptionClass(s.arg("class", "")), NoPool: s.td.HasArg("no-pool"), NoTrust: s.td.HasArg("no-trust")}
			if t := s.arg("trust", ""); t != "" {
				b.Assign.Trust = []job.Trust{job.Trust(t)}
			}
		case "spare":
			b.Spare = &yes
		}
		return b
	case "recover":
		inc := s.num("incarnation", s.s.Incarnation+1)
		s.index = max(s.index, FirstIndex(inc))
		b := Recover{Incarnation: inc, Lineage: "L" + fmt.Sprint(inc), Runner: s.runner(), Node: s.arg("node", "n1"), Peer: "peer-n1", From: s.s.Index, Backup: s.td.HasArg("backup"), Formats: Formats}
		if s.td.HasArg("newkey") {
			b.PublicKey, b.Runner, b.Peer = []byte{1}, forgeyard.RunnerID(forgeyard.NewULID(s.at, [10]byte{9})), "peer-new"
		}
		return b
	case "raise":
		b := FormatRaise{To: Format(s.num("to", uint64(s.s.LogFormat()+1)))}
		for id := range s.s.Members.All() {
			b.Voters = append(b.Voters, id)
		}
		return b
	}
	if b := s.work(); b != nil {
		return b
	}
	return s.rest()
}

func (s *story) work() Body {
	j, _ := s.s.Jobs.Get(s.jobID())
	switch s.td.Cmd {
	case "submit":
		raw := s.spec().Canonical()
		b := Submit{Kind: job.RunKind(s.arg("kind", "build")), Title: s.arg("name", "j"), Key: s.arg("key", ""), Spec: raw, SpecID: cas.Sum(raw), Via: forgeyard.RunnerID(s.ids[s.arg("via", "")]), Group: s.arg("group", ""), Order: s.num("order", 0)}
		if s.td.HasArg("damaged") {
			b.Spec = append(slices.Clone(raw), 0)
		}
		return b
	case "cancel":
		return Cancel{Job: s.jobID(), Force: s.td.HasArg("force"), Reason: job.CancelReason(s.arg("reason", "")), After: s.td.HasArg("after-checkpoint"), Within: int64(s.span("within"))}
	case "stopping":
		return Stopping{Authority: s.authority(), Stage: CancelState(s.arg("stage", string(CancelGraceful)))}
	case "preempt":
		m, _ := s.s.Members.Get(s.runner())
		return Preempt{Runner: s.runner(), Session: forgeyard.SessionID(s.arg("session", string(m.Session.ID))), Source: s.arg("source", ""), Left: int64(s.span("left")), Off: s.td.HasArg("off")}
	case "run-suspend":
		return RunSuspend{Run: j.Run, Or: s.arg("or", "")}
	case "run-resume":
		return RunResume{Run: j.Run}
	case "stop":
		return Stop{Job: s.jobID(), Kind: s.arg("kind", "drain"), Reason: "asked"}
	case "resume":
		b := Resume{Job: s.jobID(), Reason: s.arg("why", "")}
		if s.td.HasArg("from") {
			b.From = cas.Sum([]byte(s.arg("from", "")))
		}
		return b
	case "ask":
		return Ask{Job: s.jobID(), What: s.arg("for", AskSuspend), Or: s.arg("or", "")}
	case "refuse":
		w := j.Hold
		if w == nil {
			w = &Hold{}
		}
		return StopRefused{Authority: s.authority(), Why: s.arg("why", "no checkpoint"), Wish: s.num("wish", w.Step)}
	case "mark":
		return Mark{Authority: s.authority(), Name: s.arg("name", "")}
	case "restored":
		return Restored{Authority: s.authority(), Rejected: s.arg("rejected", "") != "", Reason: s.arg("rejected", "")}
	case "fail":
		return Fail{Job: s.jobID(), Epoch: s.num("epoch", j.Epoch), Category: job.DeviceHostLost, Reason: "no device serves"}
	case "offer":
		m, _ := s.s.Members.Get(s.runner())
		b := Offer{Job: s.jobID(), Runner: s.runner(), Session: forgeyard.SessionID(s.arg("session", string(m.Session.ID))), Epoch: s.num("saw", j.Epoch), Used: int64(s.span("used"))}
		if d := s.arg("devices", ""); d != "" {
			for _, id := range strings.Split(d, "+") {
				b.Devices = append(b.Devices, forgeyard.DeviceID(id))
			}
		}
		return b
	case "accept":
		return Accept{Authority: s.authority()}
	case "reject":
		return Reject{Authority: s.authority(), Reason: job.RejectReason(s.arg("reason", string(job.RejectPressure))), Detail: "full"}
	case "phase":
		return Phase{Authority: s.authority(), Phase: job.Phase(s.arg("to", "running"))}
	case "checkpoint":
		return Checkpoint{Authority: s.authority(), Commit: s.commit(), Continue: s.td.HasArg("continue"), Productive: s.td.HasArg("productive")}
	case "checkpoint-revoke":
		b := CheckpointRevoke{Job: s.jobID(), Reason: s.arg("why", ""), Epoch: s.num("epoch", 0), Runner: forgeyard.RunnerID(s.ids[s.arg("taken-by", "")])}
		if s.td.HasArg("of") {
			b.Checkpoint = cas.Sum([]byte(s.arg("of", "")))
		}
		if s.td.HasArg("everywhere") {
			b.Job = ""
		}
		return b
	case "checkpoint-delete":
		return CheckpointLetGo{Job: s.jobID(), Checkpoint: cas.Sum([]byte(s.arg("of", ""))), Force: s.td.HasArg("force")}
	case "checkpoint-open":
		return CheckpointOpen{Job: s.jobID(), Checkpoint: cas.Sum([]byte(s.arg("of", ""))), Reason: s.arg("why", "")}
	case "release":
		return Release{Authority: s.authority(), Kind: s.arg("kind", "interrupted"), Detail: "given back", Told: s.told(), Clean: s.td.HasArg("clean")}
	case "report":
		return Report{Authority: s.authority(), Told: s.told()}
	case "unname":
		return Unname{Name: s.arg("name", "")}
	case "complete":
		return Complete{Authority: s.authority(), Message: forgeyard.MessageID(s.arg("message", "m-"+string(s.job()))), Result: s.result()}
	case "revoke-lease":
		return Revoke{Job: s.jobID(), Lease: s.authority().Lease, Class: s.arg("class", RevokedByOperator), Reason: s.arg("why", "")}
	case "attest-off":
		m, _ := s.s.Members.Get(s.runner())
		return AttestOff{Runner: s.runner(), Session: forgeyard.SessionID(s.arg("session", string(m.Session.ID))), Reason: s.arg("why", "")}
	case "contest":
		m, _ := s.s.Members.Get(s.runner())
		return Contest{Runner: s.runner(), Session: forgeyard.SessionID(s.arg("session", string(m.Session.ID))), Other: forgeyard.SessionID(s.arg("other", "")), Addr: s.arg("addr", "")}
	case "stopped":
		return Stopped{Authority: s.authority()}
	case "expire":
		return Expire{Job: s.jobID(), Lease: s.authority().Lease, Certain: s.td.HasArg("certain"), Term: s.num("term", 0)}
	}
	return s.effects()
}

func (s *story) rest() Body {
	dev := forgeyard.DeviceID(s.arg("device", "board1"))
	switch s.td.Cmd {
	case "config":
		return ConfigSet{Key: s.arg("key", ""), Value: s.arg("value", "")}
	case "device-lease":
		b := DeviceLease{Device: forgeyard.DeviceID(s.arg("device", "")), Kind: s.arg("kind", ""), Holder: s.arg("to", "ana"), TTL: int64(time.Minute), Key: forgeyard.MessageID(s.arg("key", "k"))}
		return b
	case "device-release":
		d, _ := s.s.Devices.Get(dev)
		id := forgeyard.DeviceLeaseID(s.arg("lease", "none"))
		if d.Lease != nil {
			id = d.Lease.ID
		}
		return DeviceRelease{Lease: id, Force: s.td.HasArg("force"), Expired: s.td.HasArg("expired")}
	case "device-reset":
		ev := devices.Evidence{Token: s.num("token", 0), Try: int(s.num("try", 1)), OK: !s.td.HasArg("fails")}
		if !ev.OK {
			ev.Error = "it does not answer"
		}
		return DeviceReset{Device: dev, Host: s.runner(), Evidence: ev}
	case "device":
		return DeviceHealth{Device: dev, Action: s.arg("action", "checked"), OK: !s.td.HasArg("fails"), Reason: "looked at"}
	case "uplink":
		switch {
		case s.td.HasArg("connect"):
			return UplinkConnect{Central: Central{Peer: s.arg("connect", ""), Name: s.arg("connect", "")}, Terms: lease.UplinkTerms{SilentAfter: 10 * time.Second, Grace: 20 * time.Second, Allowance: time.Minute}}
		case s.td.HasArg("off"):
			return UplinkConnect{Off: true}
		case s.td.HasArg("doubt"):
			return UplinkObserve{Doubt: s.arg("doubt", "")}
		}
		b := UplinkObserve{Used: int64(s.span("silent")), Contact: s.td.HasArg("contact")}
		if b.Contact {
			b.Daemon = forgeyard.WallOf(s.at)
		}
		return b
	case "delegate":
		raw := s.spec().Canonical()
		d := Delegation{Seq: s.num("seq", 1), Title: "delegated", Spec: raw, SpecID: cas.Sum(raw), Cancel: s.td.HasArg("back")}
		d.Grant = lease.Grant{ID: forgeyard.GrantID(s.arg("grant", "G1")), Term: s.num("term", 1), Policy: job.Connectivity{Policy: job.OfflineAuthorized, For: 40 * time.Second}}
		if s.td.HasArg("end") {
			d.Grant.End = forgeyard.WallOf(s.at.Add(s.span("end")))
		}
		return Delegate{From: s.num("from", d.Seq-1), To: d.Seq, Grants: []Delegation{d}}
	case "silence":
		m, _ := s.s.Members.Get(s.runner())
		return Silence{Runner: s.runner(), Session: forgeyard.SessionID(s.arg("session", string(m.Session.ID))), Silent: !s.td.HasArg("over"), For: int64(s.span("for"))}
	case "ready":
		var b Readiness
		for line := range strings.Lines(s.td.Input) {
			w := strings.SplitN(strings.TrimSpace(line), " ", 3)
			b.Lacks = append(b.Lacks, lease.Shortfall{Node: w[0], What: lease.Want(w[1]), Detail: w[2]})
		}
		return b
	case "acknowledge":
		return OutboxAck{Upto: s.num("upto", 0)}
	case "drill":
		return Drill{Cut: s.td.HasArg("cut")}
	}
	s.t.Fatalf("%s: unknown command %s", s.td.Pos, s.td.Cmd)
	return nil
}

func (j Job) suspension() string {
	if j.Hold == nil {
		return ""
	}
	return strings.TrimSpace(j.Hold.State + " " + j.Hold.Why)
}

// taken says why a checkpoint is not what it was.
func taken(k checkpoint.Commit) string {
	if k.State != checkpoint.Withdrawn && k.State != checkpoint.Gone {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf(", “%s” by %s", k.Why, k.By), " by ")
}
