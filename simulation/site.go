package simulation

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/simulation/scenario"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// configOf is the site's configuration in a scenario.
func configOf(sc scenario.Scenario) sitecfg.Site {
	c := sitecfg.DefaultSite()
	c.Voters = sc.Voters
	c.Lease.TTL, c.Lease.Renew, c.Lease.Grace = sc.TTL, sc.TTL/3, sc.Grace
	c.Durability.Copies = sc.Copies
	return c
}

func termsOf(sc scenario.Scenario) lease.UplinkTerms {
	return lease.UplinkTerms{SilentAfter: sc.Silent, Grace: sc.UpGrace, Allowance: sc.Allowed}
}

// founding is what the log of a site begins with that was formed before: its founder,
// its members, an uplink.
func (s *sim) founding() []site.Body {
	id := forgeyard.SiteID(forgeyard.NewULID(epoch, [10]byte{1}))
	hash := [32]byte{7}
	out := []site.Body{
		site.Init{Site: id, Name: "sim", Config: s.config, Runner: forgeyard.RunnerID(forgeyard.NewULID(epoch, [10]byte{9: 1})), Node: "n1", Peer: "peer-n1"},
		site.TokenCreate{Token: "T", Hash: hash, Expires: forgeyard.WallOf(epoch.Add(time.Hour)), Uses: s.sc.Nodes - 1, MayVote: true},
	}
	for i := 2; i <= s.sc.Nodes; i++ {
		out = append(out, site.Join{Token: "T", Hash: hash, Peer: fmt.Sprintf("peer-n%d", i), Name: fmt.Sprintf("n%d", i)})
	}
	return append(out, site.UplinkConnect{Central: site.Central{Peer: "central", Name: "central"}, Terms: s.terms})
}

// plan is how a job behaves when it runs.
type plan struct {
	scenario.Job
	spec job.Spec
	raw  []byte
}

func policyOf(p scenario.Policy) job.Connectivity {
	kind := map[string]job.ConnectivityPolicy{"continuous": job.Continuous, "grace": job.Grace, "offline": job.OfflineAuthorized}[p.Name]
	return job.Connectivity{Policy: kind, For: p.For}
}

// newPlan makes the spec of a job.
func newPlan(j scenario.Job) *plan {
	p := &plan{Job: j}
	sp := job.Spec{Title: j.Name, Steps: []job.Step{{Name: "work", Run: []string{"work"}}}, Connectivity: policyOf(j.Policy)}
	sp.Resources.MilliCPU = j.CPU
	sp.Connectivity.NoReplace = j.Stays
	sp.Timeouts.Run = max(time.Second, j.Work) // what may not finish within the rest of an allowance does not begin
	if j.Effects {
		sp.Effects = job.EffectsProtected
	}
	if j.Publishes {
		sp.EffectRules = effectRules()
	}
	sp.Interruption = job.Interruption{Tolerance: job.ToleranceRestartable, Budget: j.Budget, Retry: job.RetryResumeOrRestart}
	if j.Never {
		sp.Interruption.Retry = job.RetryNever
	}
	if j.Every > 0 {
		sp.Resume.Mode = job.ResumeApplication
		sp.Resume.Checkpoint.Window = 5 * time.Second
		if !j.Sealed {
			sp.Resume.Checkpoint.Files = []string{"state"}
		}
	}
	sp.Stop.Grace = j.Stop
	for i := range j.Devices {
		sp.Devices = append(sp.Devices, job.DeviceRequest{Kind: "board", As: fmt.Sprintf("d%d", i)})
	}
	if j.Input {
		sp.Inputs = []job.Input{{Path: "source/in", Digest: p.input(), Size: 1}}
	}
	if j.Output {
		sp.Outputs = []job.OutputDecl{{Path: "out"}}
	}
	p.spec = sp.Defaulted()
	p.raw = p.spec.Canonical()
	return p
}

func (p *plan) id() string { return p.Name }

// input is the content that the job needs.
func (p *plan) input() forgeyard.Digest { return cas.Sum([]byte("input of " + p.Name)) }

func (p *plan) submit(s *sim) site.Submit {
	b := site.Submit{Kind: job.Build, Title: p.spec.Title, Key: p.spec.Title, Spec: p.raw, SpecID: cas.Sum(p.raw)}
	if p.Ingest > 0 {
		sp := p.ingest(s.nodes[p.Ingest-1].runner)
		b.Kind, b.Spec = job.Ingest, sp.Canonical()
		b.SpecID = cas.Sum(b.Spec)
	}
	return b
}

// ingest is the spec of a run that brings in what a node has. All of them give the same two
// names, so that each name moves, and none may move without the other.
func (p *plan) ingest(on forgeyard.RunnerID) job.Spec {
	sp := job.Spec{Title: p.spec.Title, Kind: job.Ingest, Node: on, Ingest: []job.RunInput{{Name: "a", From: "/data/a"}, {Name: "b", From: "/data/b"}}}
	sp.Connectivity, sp.Interruption, sp.Stop = p.spec.Connectivity, p.spec.Interruption, p.spec.Stop
	return sp.Defaulted()
}

// arrange lays out what the scenario says, each at its time.
func (s *sim) arrange() {
	for _, j := range s.sc.Jobs {
		p := newPlan(j)
		s.work[j.Name] = p
		if j.Delegated {
			s.after(int64(j.At), func() { s.up.delegate(p) })
		} else {
			s.after(int64(j.At), func() { s.client.submit(s, p) })
		}
	}
	for _, d := range s.sc.Damage {
		s.after(int64(d.At), func() { s.suffer(d) })
	}
}
