package node

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/control"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/node/executor/ender"
	"github.com/forgeyard/forgeyard-node/site"
)

// refused is a job that a leader offers to a machine, and what its agent makes of it.
func refused(t *testing.T, needs job.Requires, registered, now job.Capabilities, place func(*Node, forgeyard.JobID) site.Body) (shown, waits string) {
	t.Helper()
	n, _, c := halfNode(t)
	do := func(b site.Body) site.Reply {
		t.Helper()
		r, err := n.propose(t.Context(), b)
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			t.Fatalf("%T: %v", b, err)
		}
		return r
	}
	do(site.FormatRaise{To: site.FormatNow, Voters: []forgeyard.RunnerID{"R1"}})
	if !n.deliver(t.Context(), c, nil) { // the job of before is done
		t.Fatal("not settled")
	}
	do(site.Register{Runner: "R1", Session: "one", Formats: site.Formats, Caps: registered, Digest: capsDigest(registered)})
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Requires: needs}.Defaulted()
	sub, err := site.Value[site.Submitted](do(site.Submit{Kind: job.Build, Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical())}))
	if err != nil {
		t.Fatal(err)
	}
	do(place(n, sub.Job))

	n.enrolment.RunnerID = "R1"
	n.caps.Store(&now)
	in := agent.Input{State: n.replica.State(), Me: "R1", Session: n.session, Caps: n.capsNow()}
	effects, _ := agent.Step(n.clock.Now(), in, n.local.book)
	for _, e := range effects {
		n.carryOut(t.Context(), e)
	}
	n.work.Wait()
	do(site.Register{Runner: "R1", Session: "one", Formats: site.Formats, Caps: now, Digest: capsDigest(now)}) // as it does next
	j := n.jobNow(t, sub.Job)
	if j.Status != job.Queued {
		t.Errorf("the job is %s", j.Status)
	}
	for _, e := range control.Job(n.replica.State(), j, 0, true).Events {
		shown += e.Kind + " " + e.Text + "\n"
	}
	mem := controllers.NewMemory(n.clock.Now())
	mem.Hello("R1", controllers.Sign{Session: "one", At: n.clock.Now()})
	_, all := controllers.Explain(n.clock.Now(), controllers.Input{State: n.replica.State(), Mem: mem, Term: 1}, j)
	return shown, strings.Join(all[0].Reasons, "; ")
}

// RA-444, RA-154: work that was offered to a machine which has changed since it registered, or
// which never could do it, is refused before anything is done, and whoever watches it reads why:
// in the events of `job show` and `submit --watch`, and in what keeps it from each runner.
func TestRefusalIsSeen(t *testing.T) {
	could := job.Capabilities{
		OS: "linux", Arch: "amd64", MilliCPU: 4000, Memory: 8 << 30, Disk: 100 << 30, MaxJobs: 2, Toolchains: []job.Toolchain{{Name: "gcc"}},
		Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}},
	}
	lost := could
	lost.Toolchains = nil
	placed := func(n *Node, _ forgeyard.JobID) site.Body { // by the leader of this version
		mem := controllers.NewMemory(n.clock.Now())
		mem.Hello("R1", controllers.Sign{Session: "one", At: n.clock.Now()})
		effects, _ := controllers.Step(n.clock.Now(), controllers.Input{State: n.replica.State(), Mem: mem, Term: 1})
		for _, e := range effects {
			if p, ok := e.(controllers.Propose); ok {
				return p.Body
			}
		}
		return nil
	}
	forced := func(_ *Node, id forgeyard.JobID) site.Body { return site.Offer{Job: id, Runner: "R1", Session: "one"} } // by one that knows no such need
	for name, c := range map[string]struct {
		needs     job.Requires
		now       job.Capabilities
		place     func(*Node, forgeyard.JobID) site.Body
		why, lack string
	}{
		"changed":     {job.Requires{Toolchains: []string{"gcc"}}, lost, placed, "capability_changed", "gcc"},
		"unsupported": {job.Requires{OS: "darwin"}, could, forced, "unsupported_spec", "os is linux, the job requires darwin"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shown, waits := refused(t, c.needs, could, c.now, c.place)
				for _, want := range []string{"lease epoch 1 rejected on n1: " + c.why + ": ", "status waiting: n1 rejected it: " + c.why + ": "} {
					if i := strings.Index(shown, want); i < 0 || !strings.Contains(shown[i:], c.lack) {
						t.Errorf("no %q with %q in what is shown:\n%s", want, c.lack, shown)
					}
				}
				if !strings.Contains(waits, c.lack) {
					t.Errorf("what keeps it from the runner is %q", waits)
				}
			})
		})
	}
}

// RA-094, RA-095, RA-098: a program that the site's log has left behind, or that says of its
// machine what the site does not know, is refused and runs no job: `status` has a word for it,
// doctor the fix, and nobody is told of a second process. One that is a second process is told
// so, and one that is let in has nothing against it.
func TestProgramIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, g, _ := halfNode(t)
		if _, err := n.propose(t.Context(), site.FormatRaise{To: site.FormatNow, Voters: []forgeyard.RunnerID{"R1"}}); err != nil {
			t.Fatal(err)
		}
		n.enrolment.RunnerID, n.ender, n.dir = "R1", &ender.Ender{}, &dataDir{}
		n.caps.Store(&job.Capabilities{Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict}}})
		with := func(f site.FormatRange) error {
			return n.askIn(t.Context(), site.Register{Runner: "R1", Session: "two", Formats: f})
		}
		for name, c := range map[string]struct {
			door       error // what stops it before the log
			formats    site.FormatRange
			kind       forgeyard.Kind
			word, said string
			second     bool
		}{
			"version": {nil, site.FormatRange{Min: site.FormatOldest, Max: site.FormatNow - 1}, forgeyard.Conflict, "version", "the program reads log formats 1 to 1, the site's log is at 2", false},
			"schema":  {forgeyard.Errorf("decode", forgeyard.Invalid, "unknown field 99"), site.Formats, forgeyard.Invalid, "version", "unknown field 99", false},
			"second":  {forgeyard.Errorf("register", forgeyard.Conflict, "another process is n1"), site.Formats, forgeyard.Conflict, "", "", true},
			"none":    {nil, site.Formats, forgeyard.Other, "", "", false},
		} {
			g.take = func(site.Command, int) error { return c.door }
			if err := with(c.formats); forgeyard.KindOf(err) != c.kind {
				t.Errorf("%s: %v", name, err)
			}
			words, fits, identity := strings.Join(n.refusingWords(), " "), n.fits(check("format")), n.alone(check("identity"))
			if words != c.word || (fits.Status == checkFail) != (c.word != "") || (identity.Status == checkWarn) != c.second {
				t.Errorf("%s: not taking work %q; %v; %v", name, words, fits, identity)
			}
			if c.word == "" {
				continue
			}
			if why := n.refusing(); len(why) != 1 || !strings.Contains(why[0].Detail, c.said) || !strings.Contains(fits.Detail, c.said) || !strings.HasPrefix(fits.Fix, "upgrade this node") {
				t.Errorf("%s: %v; %v", name, why, fits)
			}
		}
	})
}
