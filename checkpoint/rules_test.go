package checkpoint_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// Ids of the stories: any two that differ do.
const (
	jobA  = forgeyard.JobID("01J0000000000000000000000J")
	jobB  = forgeyard.JobID("01J0000000000000000000001J")
	attA  = forgeyard.AttemptID("01J0000000000000000000000A")
	attB  = forgeyard.AttemptID("01J0000000000000000000001A")
	nodeA = forgeyard.RunnerID("01J0000000000000000000000R")
)

func attempt(s string) forgeyard.AttemptID {
	if s == "B" {
		return attB
	}
	return attA
}

func declared() job.Resume {
	return job.Resume{Mode: job.ResumeApplication, FormatName: "trainer", FormatVersion: 3,
		Checkpoint: job.CheckpointDecl{Files: []string{"state/"}, MaxBytes: 1000, Keep: 2}}
}

func contract(t testing.TB, r job.Resume, site checkpoint.Limits) checkpoint.Contract {
	c, err := checkpoint.NewContract(r, site)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// scan reads an optional argument.
func scan[T any](t testing.TB, td *datadriven.TestData, key string, v T) T {
	td.MaybeScanArgs(t, key, &v)
	return v
}

func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := &story{t: t, contract: contract(t, declared(), checkpoint.Limits{})}
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string { return s.run(td) })
	})
}

// fault is what is wrong in one place before the rules see it, or with what they say.
type fault struct {
	marker  func(*checkpoint.Marker, *checkpoint.Current, []checkpoint.Entry)
	usable  func(*checkpoint.Manifest, *checkpoint.Target)
	finding func(checkpoint.Finding) checkpoint.Finding
}

func (f fault) says(x checkpoint.Finding) checkpoint.Finding {
	if f.finding != nil {
		return f.finding(x)
	}
	return x
}

// A transcript that does not change with the rule that it is about shows nothing.
func TestStoriesCatchFaults(t *testing.T) {
	for _, c := range []struct {
		name, story string
		fault       fault
	}{
		{"what it was taken of is not compared", "usable.txt", fault{usable: func(m *checkpoint.Manifest, t *checkpoint.Target) { m.Spec = t.Spec }}},
		{"a checkpoint serves every job, as a cache does", "usable.txt", fault{usable: func(m *checkpoint.Manifest, t *checkpoint.Target) { m.Job, m.Attempt = t.Job, t.Attempt }}},
		{"where it was taken is not compared", "usable.txt", fault{usable: func(m *checkpoint.Manifest, t *checkpoint.Target) { m.OS, m.Arch = t.OS, t.Arch }}},
		{"what is not known counts as valid", "usable.txt", fault{finding: func(f checkpoint.Finding) checkpoint.Finding {
			if f.Verdict == checkpoint.Unknown {
				f.Verdict = checkpoint.Valid
			}
			return f
		}}},
		{"what is missing is not missed", "marker_verdicts.txt", fault{marker: func(m *checkpoint.Marker, _ *checkpoint.Current, have []checkpoint.Entry) {
			m.Files = slices.DeleteFunc(m.Files, func(f checkpoint.File) bool {
				return !slices.ContainsFunc(have, func(e checkpoint.Entry) bool { return e.Path == f.Path })
			})
		}}},
		{"the epoch that sealed it is not compared", "marker_verdicts.txt", fault{marker: func(m *checkpoint.Marker, cur *checkpoint.Current, _ []checkpoint.Entry) { m.Epoch = cur.Epoch }}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, caught := &story{t: t, contract: contract(t, declared(), checkpoint.Limits{}), fault: c.fault}, ""
			datadriven.RunTest(t, "testdata/stories/"+c.story, func(t *testing.T, td *datadriven.TestData) string {
				if out := s.run(td); caught == "" && strings.TrimSpace(out) != strings.TrimSpace(td.Expected) {
					caught = td.Pos + " says " + out
				}
				return td.Expected
			})
			if caught == "" {
				t.Errorf("%s holds with it", c.story)
			}
			t.Log(caught)
		})
	}
}

type story struct {
	t        testing.TB
	contract checkpoint.Contract
	fault    fault
	history  []checkpoint.Commit
	names    map[forgeyard.Digest]string
}

func (s *story) run(td *datadriven.TestData) string {
	switch td.Cmd {
	case "check":
		return s.check(td)
	case "usable":
		return s.usable(td)
	case "select":
		return s.choose(td)
	case "keep":
		return s.keep(td)
	}
	return s.change(td)
}

// check: `check [epoch=] [attempt=] [seq=] [slot=] [last=] [mode=] [format=] [consistency=] [quiesced=] [effects=] [parent=]`
// with lines `want PATH SIZE CONTENT` and `have KIND PATH SIZE CONTENT|- [LINKS]`.
func (s *story) check(td *datadriven.TestData) string {
	t := s.t
	m := checkpoint.Marker{
		V: scan(t, td, "v", 1), Attempt: attempt(scan(t, td, "attempt", "A")), Epoch: uint64(scan(t, td, "epoch", 2)), Seq: scan(t, td, "seq", 5),
		Mode: job.ResumeMode(scan(t, td, "mode", "application")), Consistency: checkpoint.Consistency(scan(t, td, "consistency", "application")),
		Quiesced: scan(t, td, "quiesced", true), Format: checkpoint.Format{Name: scan(t, td, "format", "trainer"), Version: 3},
		ParentSeq: scan(t, td, "parent", 0),
	}
	if e := scan(t, td, "effects", ""); e != "" {
		m.EffectsOpen = []string{e}
	}
	var have []checkpoint.Entry
	for line := range strings.Lines(td.Input) {
		f := strings.Fields(line)
		switch f[0] {
		case "want":
			m.Files = append(m.Files, checkpoint.File{Path: f[1], Size: num(f[2]), BLAKE3: cas.Sum([]byte(f[3])), Mode: 0o644})
		case "have":
			e := checkpoint.Entry{Path: f[2], Kind: kinds[f[1]], Size: num(f[3]), Links: 1}
			if f[4] != "-" {
				e.BLAKE3 = cas.Sum([]byte(f[4]))
			}
			if len(f) > 5 {
				e.Links = uint64(num(f[5]))
			}
			have = append(have, e)
		}
	}
	cur := checkpoint.Current{Attempt: attempt(scan(t, td, "current", "A")), Epoch: uint64(scan(t, td, "current-epoch", 2)), LastSeq: scan(t, td, "last", 4)}
	if s.fault.marker != nil {
		s.fault.marker(&m, &cur, have)
	}
	f := s.fault.says(checkpoint.CheckMarker(m, scan(t, td, "slot", m.Seq), cur, s.contract, have))
	return f.String() + "\nanswer " + string(f.Status())
}

var kinds = map[string]checkpoint.EntryKind{"file": checkpoint.Regular, "dir": checkpoint.Directory, "link": checkpoint.Link, "pipe": checkpoint.Irregular}

func num(s string) (n int64) { fmt.Sscan(s, &n); return n }

func (s *story) manifest(td *datadriven.TestData) checkpoint.Manifest {
	t := s.t
	return checkpoint.Manifest{
		Version: uint16(scan(t, td, "version", 1)), Job: jobA, Attempt: attempt(scan(t, td, "attempt", "A")), Epoch: 1, Seq: 1,
		Spec: cas.Sum([]byte(scan(t, td, "spec", "spec"))), Contract: s.contract.ID, OS: scan(t, td, "os", "linux"), Arch: scan(t, td, "arch", "amd64"),
		Payload: cas.Sum([]byte("p")), Bytes: int64(scan(t, td, "bytes", 10)), Files: 1, Marker: cas.Sum([]byte("m")),
		Consistency: checkpoint.Consistency(scan(t, td, "consistency", "application")), Format: checkpoint.Format{Name: "trainer", Version: scan(t, td, "format", 3)},
		Sensitivity: checkpoint.Sensitivity(scan(t, td, "sensitivity", "internal")), Sealed: td.HasArg("sealed"), Runner: nodeA,
	}
}

// usable: `usable [of=contract-change|job|none|parent] [field=value…]`.
func (s *story) usable(td *datadriven.TestData) string {
	m := s.manifest(td)
	target := checkpoint.Target{Job: jobA, Attempt: attA, Spec: cas.Sum([]byte("spec")), Contract: s.contract, OS: "linux", Arch: "amd64"}
	switch scan(s.t, td, "of", "") {
	case "contract-change":
		r := declared()
		r.Checkpoint.Interval = time.Hour
		target.Contract = contract(s.t, r, checkpoint.Limits{})
	case "site-limit-change":
		target.Contract = contract(s.t, declared(), checkpoint.Limits{MaxKeep: 1, MaxBytes: 500})
	case "job":
		target.Job = jobB
	case "nobody":
		target.OS = ""
	case "parent":
		m.Parent = cas.Sum([]byte("older"))
	case "restart-stage":
		id := target.Contract.ID
		target.Contract = contract(s.t, job.Resume{Mode: job.ResumeRestartStage}, checkpoint.Limits{})
		target.Contract.ID = id
	}
	if s.fault.usable != nil {
		s.fault.usable(&m, &target)
	}
	return s.fault.says(checkpoint.Usable(m, target)).String()
}

func (s *story) name(id string) forgeyard.Digest {
	d := cas.Sum([]byte(id))
	if s.names == nil {
		s.names = map[forgeyard.Digest]string{}
	}
	s.names[d] = id
	return d
}

// change: commands on the history; `of=EPOCH.SEQ` names a commit.
func (s *story) change(td *datadriven.TestData) string {
	t := s.t
	of := scan(t, td, "of", "")
	why := scan(t, td, "why", "")
	var err error
	note := "ok"
	before := fmt.Sprint(s.history)
	old := s.history
	switch td.Cmd {
	case "commit":
		e, q := scan(t, td, "epoch", 1), scan(t, td, "seq", 1)
		m := scan(t, td, "manifest", fmt.Sprintf("%d.%d", e, q))
		s.history, err = checkpoint.Record(s.history, checkpoint.Commit{
			Seq: q, Epoch: uint64(e), Attempt: attempt(scan(t, td, "attempt", "A")), Manifest: s.name(m), Payload: cas.Sum([]byte("p" + m)), Marker: cas.Sum([]byte("m")),
			Consistency: checkpoint.Consistency(scan(t, td, "consistency", "application")), Replicas: []forgeyard.RunnerID{nodeA},
		})
		note = fmt.Sprintf("ok, %d in the history", len(s.history))
	case "resume-failed":
		var q bool
		s.history, q, err = checkpoint.ResumeFailed(s.history, s.name(of), s.contract, td.HasArg("rejected"))
		if q {
			note = "quarantined"
		}
	case "resumed-well":
		s.history, err = checkpoint.ResumedWell(s.history, s.name(of))
	case "quarantine":
		s.history, err = checkpoint.Quarantine(s.history, s.name(of), why)
	case "revoke":
		note = s.revoke(td, of, why)
	case "let-go":
		s.history, err = checkpoint.LetGo(s.history, s.name(of), "ana", why)
	default:
		t.Fatalf("unknown command %s", td.Cmd)
	}
	if fmt.Sprint(old) != before {
		t.Fatalf("%s changed the slice it was given", td.Cmd)
	}
	if err != nil {
		return fmt.Sprintf("%s: %v", forgeyard.KindOf(err), err)
	}
	return note
}

// revoke: `revoke [of=EPOCH.SEQ] [epoch=N] [runner=R] why=W`, with lines `EPOCH RUNNER [FROM]`.
func (s *story) revoke(td *datadriven.TestData, of, why string) string {
	from := checkpoint.Origins{}
	for line := range strings.Lines(td.Input) {
		f := strings.Fields(line)
		o := checkpoint.Origin{Runner: forgeyard.RunnerID(f[1])}
		if len(f) > 2 {
			o.From = s.name(f[2])
		}
		from[uint64(num(f[0]))] = o
	}
	cause := checkpoint.Cause{Runner: forgeyard.RunnerID(scan(s.t, td, "runner", "")), Epoch: uint64(scan(s.t, td, "epoch", 0))}
	if of != "" {
		cause.Manifest = s.name(of)
	}
	var n int
	s.history, n = checkpoint.Revoke(s.history, cause, from, "ana", why)
	return fmt.Sprintf("%d revoked", n)
}

// keep: `keep [ended=done|failed] [ago=DURATION] [age=DURATION] [needs=EPOCH.SEQ]`: each commit
// is as many minutes old as there are later ones, and a minute more.
func (s *story) keep(td *datadriven.TestData) string {
	now := forgeyard.Wall(1_800_000_000_000)
	r := checkpoint.Retention{KeepLatest: s.contract.Keep, MaxAge: span(s.t, td, "age"), OnFailure: span(s.t, td, "window")}
	aged := slices.Clone(s.history)
	for i := range aged {
		aged[i].At = now - forgeyard.Wall((time.Duration(len(aged)-i) * time.Minute).Milliseconds())
	}
	of := checkpoint.Owner{Status: job.Status(scan(s.t, td, "ended", "running"))}
	if of.Status.Terminal() {
		of.Ended = now - forgeyard.Wall(span(s.t, td, "ago").Milliseconds())
	}
	if n := scan(s.t, td, "needs", ""); n != "" {
		of.Needs = append(of.Needs, s.name(n))
	}
	var out []string
	for _, d := range r.Surplus(aged, of, now) {
		out = append(out, fmt.Sprintf("let go %d.%d: %s", d.Commit.Epoch, d.Commit.Seq, d.Why))
	}
	if out == nil {
		return "all stay"
	}
	return strings.Join(out, "\n")
}

func span(t testing.TB, td *datadriven.TestData, key string) time.Duration {
	d, err := time.ParseDuration(scan(t, td, key, "0s"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// choose: `select [exclude=EPOCH.SEQ]`.
func (s *story) choose(td *datadriven.TestData) string {
	var exclude []forgeyard.Digest
	if x := scan(s.t, td, "exclude", ""); x != "" {
		exclude = append(exclude, s.name(x))
	}
	best, ok, skipped := checkpoint.Select(s.history, exclude...)
	out := "none: start from nothing"
	if ok {
		out = fmt.Sprintf("resume from epoch %d seq %d", best.Epoch, best.Seq)
	}
	for _, k := range skipped {
		out += fmt.Sprintf("\nnot %d.%d: %s", k.Commit.Epoch, k.Commit.Seq, k.Finding)
	}
	return out
}
