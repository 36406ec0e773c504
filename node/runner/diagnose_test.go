//go:build linux

package runner

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
)

// failing is a task of which the step leaves things and fails.
func failing(policy Diagnostics, sh string, paths ...string) Task {
	s := spec(sh)
	for _, p := range paths {
		name, sensitive := strings.CutPrefix(p, "!")
		s.OnFailure = append(s.OnFailure, job.DiagnosticDecl{Path: name, Sensitive: sensitive})
	}
	t := task(s)
	t.Diagnostics = policy
	return t
}

// about says in a word what became of each diagnostic.
func about(all []job.Diagnostic) (out []string) {
	for _, d := range all {
		what := "kept"
		if d.Digest.IsZero() {
			what = d.LeftOut
		}
		out = append(out, d.Path+" "+what)
	}
	return out
}

const leavesSigns = `mkdir report; echo 1 of 2 > report/sum; echo why > crash.log; echo memory > core; echo made > out; exit 7`

// RA-266, RA-269: what a job names for its failure is captured as the policy of its node says.
// What is not there is told, what is sensitive goes to no other node, and the result is that of
// the step: no diagnostic is an output.
func TestDiagnostics(t *testing.T) {
	none, plain := "the node keeps nothing of work that failed (policy.diagnostics: none)", "the node keeps nothing that is sensitive (policy.diagnostics: plain)"
	for policy, want := range map[Diagnostics][]string{
		DiagnosticsAll:   {"report kept", "crash.log kept", "core kept", "absent it is not there"},
		DiagnosticsPlain: {"report kept", "crash.log kept", "core " + plain, "absent it is not there"},
		DiagnosticsNone:  {"report " + none, "crash.log " + none, "core " + none, "absent " + none},
		"":               {"report " + none, "crash.log " + none, "core " + none, "absent " + none},
	} {
		t.Run("policy "+string(policy), func(t *testing.T) {
			b := newBench(t)
			t1 := failing(policy, leavesSigns, "report", "crash.log", "!core", "absent")
			t1.Spec.Outputs = []job.OutputDecl{{Path: "out"}}
			a := b.start(t1)
			r, e := b.wait(a)
			if e.Kind != EndCompleted || r.Outcome != job.OutcomeFailed || r.Category != job.WorkloadFailed || r.ExitCode != 7 || len(r.Outputs) != 0 {
				t.Fatalf("%+v\n%s", r, b.text(a))
			}
			if got := about(r.Diagnostics); !slices.Equal(got, want) {
				t.Fatalf("%q", got)
			}
			var sent, private []string
			for _, d := range b.hooks.sent {
				for _, o := range d.Outputs {
					sent = append(sent, o.Path)
				}
				for _, o := range d.Private {
					private = append(private, o.Path)
				}
			}
			kept := strings.Count(strings.Join(want, "\n"), " kept")
			if slices.Contains(sent, "core") || len(sent)+len(private) != kept || (policy == DiagnosticsAll) != slices.Contains(private, "core") {
				t.Errorf("%v were copied, %v kept here", sent, private)
			}
			b.keepsSigns(a, r.Diagnostics)
		})
	}
}

// keepsSigns fails unless a collection leaves what was captured, and nothing that was not.
func (b *bench) keepsSigns(a *Attempt, all []job.Diagnostic) {
	b.t.Helper()
	if _, err := b.store.GC(b.t.Context(), false); err != nil {
		b.t.Fatal(err)
	}
	for _, d := range all {
		if !d.Digest.IsZero() && !b.store.Has(b.t.Context(), d.Digest) {
			b.t.Errorf("%s is not kept", d.Path)
		}
		if want := d.LeftOut != ""; strings.Contains(b.text(a), fmt.Sprintf("on_failure: %q is left out: %s", d.Path, d.LeftOut)) != want {
			b.t.Errorf("what became of %s is not told:\n%s", d.Path, b.text(a))
		}
	}
}

// RA-267: together they have a bound in bytes and in files. What does not fit is told, is not
// stored and does not sink the rest; holes count as what a reader gets.
func TestDiagnosticsAreBounded(t *testing.T) {
	b := newBench(t)
	many := fmt.Sprintf(`mkdir many some; i=0; while [ $i -lt %d ]; do : > many/$i; i=$((i+1)); done; : > some/one; `, job.MaxDiagnosticFiles)
	bomb := failing(DiagnosticsAll, many+`truncate -s 1T hole; head -c 40000000 /dev/zero > big; head -c 40000000 /dev/zero | tr '\0' x > large; ln -s /etc/passwd link; echo end > small; exit 1`,
		"hole", "many", "big", "large", "link", "some", "small")
	bomb.Spec.Resources.Disk = 256 << 20
	a := b.start(bomb)
	r, _ := b.wait(a)
	if r.Category != job.WorkloadFailed || len(r.Diagnostics) != 7 {
		t.Fatalf("%+v\n%s", r, b.text(a))
	}
	got := about(r.Diagnostics)
	for i, want := range []string{"hole it has more than the 1000 files or 67108864 bytes", "many it has more than the 1000", "big kept", "large it has more than the 999 files or 27108864 bytes", "link ", "some kept", "small kept"} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("%q, want %q", got[i], want)
		}
	}
	if r.Diagnostics[4].LeftOut == "" {
		t.Errorf("a link was followed: %+v", r.Diagnostics[4])
	}
	if d := cas.Sum(bytes.Repeat([]byte("x"), 40_000_000)); b.store.Has(t.Context(), d) {
		t.Error("what was left out is in the store")
	}
}

// Work that did not fail in a step has none: done, cancelled, or not begun.
func TestWhatHasNoDiagnostics(t *testing.T) {
	b := newBench(t)
	a := b.start(failing(DiagnosticsAll, `echo why > crash.log`, "crash.log"))
	if r, _ := b.wait(a); r.Outcome != job.OutcomeDone || r.Diagnostics != nil {
		t.Errorf("done: %+v", r)
	}
	b = newBench(t)
	a = b.start(failing(DiagnosticsAll, `echo why > crash.log; echo ready; sleep 600`, "crash.log"))
	b.await(a, "ready")
	a.Cancel("enough", true)
	if r, _ := b.wait(a); r.Outcome != job.OutcomeCancelled || r.Diagnostics != nil {
		t.Errorf("cancelled: %+v", r)
	}
	b = newBench(t)
	lost := failing(DiagnosticsAll, "true", "crash.log")
	lost.Spec.Inputs = []job.Input{{Path: "source/x", Digest: forgeyard.Digest{1}, Size: 1}}
	if r, _ := b.wait(b.start(lost)); r.Category != job.InputFetch || r.Diagnostics != nil {
		t.Errorf("not begun: %+v", r)
	}
}

// RA-274: an attempt that lost its lease keeps nothing: neither one that was killed for it, nor
// one that had failed before and lost it while its diagnostics were on their way.
func TestNoDiagnosticsWithoutALease(t *testing.T) {
	b := newBench(t)
	a := b.start(failing(DiagnosticsAll, `echo why > crash.log; echo ready; sleep 600`, "crash.log"))
	b.await(a, "ready")
	a.LeaseEnded()
	if r, e := b.wait(a); e.Kind != EndLease || r.Diagnostics != nil || len(b.hooks.sent) > 0 {
		t.Errorf("%+v %+v", e, r)
	}
	b = newBench(t)
	under := make(chan struct{})
	var late *Attempt
	b.hooks.replicate = func(int) (Replicas, error) {
		<-under
		late.LeaseEnded()
		return Replicas{Nodes: []forgeyard.RunnerID{"me"}}, nil
	}
	late = b.start(failing(DiagnosticsAll, leavesSigns, "crash.log"))
	close(under)
	if r, _ := b.wait(late); r.Category != job.WorkloadFailed || r.ExitCode != 7 || r.Diagnostics != nil {
		t.Errorf("%+v", r)
	}
}

// A run time that is over, and copies that cannot be made, change nothing: what was there is
// kept, and the result says what it said.
func TestDiagnosticsChangeNoResult(t *testing.T) {
	b := newBench(t)
	b.hooks.replicate = func(int) (Replicas, error) {
		return Replicas{}, forgeyard.Errorf("replicate", forgeyard.Unavailable, "nobody is there")
	}
	slow := failing(DiagnosticsAll, `echo why > crash.log; sleep 600`, "crash.log")
	slow.Spec.Timeouts.Run, slow.Spec.Stop.Grace = 300e6, 100e6
	a := b.start(slow)
	r, e := b.wait(a)
	if r.Category != job.TimedOut || e.Undelivered != "" || r.Short || len(r.Replicas) != 0 || !slices.Equal(about(r.Diagnostics), []string{"crash.log kept"}) {
		t.Fatalf("%+v\n%s", r, b.text(a))
	}
	if b.get(r.Diagnostics[0].Digest) != "why\n" || !strings.Contains(b.text(a), "is on this node alone") {
		t.Error(b.text(a))
	}
	b.keepsSigns(a, r.Diagnostics)
}

// RA-267: a diagnostic that holds the value of a secret is left out, marked sensitive or not,
// and the rest is kept.
func TestSecretInADiagnostic(t *testing.T) {
	v := &vault{values: map[string]string{"prod/pin": pinValue}}
	b := newBench(t, withVault(v))
	if !b.strict() {
		needs.Lacking(t, "no sandbox on this machine")
	}
	f := failing(DiagnosticsAll, `printf 'a%sb' "$PIN" > dump; mkdir dir; echo > "dir/$PIN"; echo why > crash.log; exit 1`, "!dump", "dir", "crash.log")
	f.Spec.Secrets = []job.SecretRef{{Name: "prod/pin", Env: "PIN"}}
	a := b.start(f)
	r, _ := b.wait(a)
	if got := strings.Join(about(r.Diagnostics), "\n"); !strings.Contains(got, `dump outputs: output dump holds the value of secret "prod/pin"`) || !strings.Contains(got, "dir outputs: the name of an output") || !strings.HasSuffix(got, "crash.log kept") {
		t.Errorf("%s", got)
	}
	if strings.Contains(b.text(a)+fmt.Sprint(r), "hunter") || b.store.Has(t.Context(), cas.Sum([]byte("a"+pinValue+"b"))) {
		t.Errorf("the value is told or stored:\n%s", b.text(a))
	}
}
