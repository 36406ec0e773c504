package node

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// values are the samples of a registry by name and labels; of a histogram how many there were.
func values(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := m.GetCounter().GetValue()
			if h := m.GetHistogram(); h != nil {
				v = float64(h.GetSampleCount())
			}
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = v
		}
	}
	return out
}

// CK-260 to CK-266, CK-268: interruptions, resumes and checkpoints are counted, with labels of
// few values; a job whose lease was not touched is counted for nothing.
func TestInterruptionsAreCounted(t *testing.T) {
	r := prometheus.NewRegistry()
	m := newInterruptMetrics(r)
	spec := job.Spec{Resume: job.Resume{Mode: job.ResumeApplication}}
	before, now := &site.State{}, &site.State{LeaseSeq: 2}
	put := func(id forgeyard.JobID, was, is site.Job) {
		was.ID, is.ID, was.Spec, is.Spec = id, id, spec, spec
		before.Jobs, now.Jobs = before.Jobs.Put(id, was), now.Jobs.Put(id, is)
	}
	ended := lease.Lease{Authority: forgeyard.Authority{Runner: "N"}, Reason: lease.EndExpired}
	put("J", site.Job{}, site.Job{Interruptions: 1, Lease: ended})
	put("OTHER", site.Job{}, site.Job{Interruptions: 1, Lease: ended}) // of another entry
	now.Members = now.Members.Put("N", site.Member{Runner: "N", Assigned: job.Assignment{Class: job.Spot}})
	for range 2 {
		now.LeaseLog = now.LeaseLog.Push(&site.SiteEvent{Text: "J epoch 1 expired on n"})
	}
	m.applied(replica.Applied{Before: before, State: now, Command: site.Command{Body: site.Expire{Job: "J"}}})

	put("K", site.Job{ResumeFrom: forgeyard.Digest{1}, Phase: job.PhasePreparing}, site.Job{ResumeFrom: forgeyard.Digest{1}, Phase: job.PhaseRunning})
	a := forgeyard.Authority{Job: "K"}
	quiet := *now
	quiet.LeaseSeq = before.LeaseSeq
	m.applied(replica.Applied{Before: before, State: &quiet, Command: site.Command{Body: site.Phase{Authority: a, Phase: job.PhaseRunning}}})
	m.applied(replica.Applied{Before: before, State: &quiet, Command: site.Command{Body: site.Release{Authority: a, Kind: "resume_rejected"}}})
	m.took(spec, resultCommitted, 4096, time.Second)
	m.took(spec, resultRejected, 0, time.Second)
	m.ended([]runner.Span{{Name: runner.SpanRestore}, {Name: runner.SpanPrepare}, {Name: runner.SpanRestore, Error: "corrupt"}})

	got := values(t, r)
	for name, want := range map[string]float64{
		"forgeyard_job_interruptions_total{interruption_class=spot,reason=expired,resumability_mode=application}": 1,
		"forgeyard_job_resume_total{result=completed,resumability_mode=application}":                              1,
		"forgeyard_job_resume_total{result=failed,resumability_mode=application}":                                 1,
		"forgeyard_job_resume_failures_total{reason=resume_rejected,resumability_mode=application}":               1,
		"forgeyard_checkpoint_created_total{result=committed,resumability_mode=application}":                      1,
		"forgeyard_checkpoint_created_total{result=rejected,resumability_mode=application}":                       1,
		"forgeyard_checkpoint_bytes{}":                           1,
		"forgeyard_checkpoint_create_seconds{result=committed}":  1,
		"forgeyard_checkpoint_create_seconds{result=rejected}":   1,
		"forgeyard_checkpoint_restore_seconds{result=completed}": 1,
		"forgeyard_checkpoint_restore_seconds{result=failed}":    1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("more was counted: %v", got)
	}
}

// CK-269, CK-272 to CK-275: what is asked of an execution is a span from then until its tree is
// dead, a resume one until its work may begin, each checkpoint one with what became of it.
func TestWhatIsAskedIsASpan(t *testing.T) {
	c := clock.NewManual(time.Unix(1_800_000_000, 0))
	n := &Node{clock: c, metrics: &metrics{stops: newInterruptMetrics(prometheus.NewRegistry())}}
	x := &execution{n: n, job: site.Job{ResumeFrom: forgeyard.Digest{1}}}
	began := c.Now()
	c.Advance(time.Second)
	x.tookCheckpoint(resultRejected, 0, began)
	for _, name := range []string{spanSuspend, spanCancel, spanPreempt, spanCancel} { // a second wish is no second span
		x.wasAsked(name)
	}
	asked := c.Now()
	c.Advance(time.Second)
	dead := c.Now()
	got := x.notedParts([]runner.Span{{Name: runner.SpanPrepare, Began: began, Ended: asked}}, dead)
	want := []runner.Span{
		{Name: "checkpoint.create", Began: began, Ended: asked, Error: resultRejected}, {Name: "job.cancel", Began: asked, Ended: dead},
		{Name: "job.suspend", Began: asked, Ended: dead}, {Name: "preemption.handle", Began: asked, Ended: dead}, {Name: "job.resume", Began: began, Ended: asked},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	for range 2 * maxNoted {
		x.tookCheckpoint(resultCommitted, 1, began)
	}
	if len(x.noted) != maxNoted {
		t.Errorf("%d are kept, the bound is %d", len(x.noted), maxNoted)
	}
}
