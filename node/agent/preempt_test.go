package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// CK-151, CK-153: a notice of the log, or of the machine's own, asks for what runs, once, and
// tells how much time there may be. The log's is counted from when it was seen first.
func TestNotice(t *testing.T) {
	r := newRig(t)
	r.running(r.submit(nil))
	r.apply(site.Preempt{Runner: "R1", Source: "spot", Left: int64(time.Minute)})
	r.want("stop preempt within 1m0s")
	r.after(time.Second)
	r.want("")

	own := newRig(t)
	own.running(own.submit(nil))
	own.in.Notice = &Notice{Source: "file", Until: own.now.Add(30 * time.Second)}
	own.want("stop preempt within 30s")
	own.want("")
	own.apply(site.Preempt{Runner: "R1", Source: "file", Left: int64(time.Minute)})
	own.want("") // the log says what is known here

	none := newRig(t)
	none.running(none.submit(nil))
	none.in.Notice = &Notice{Source: "file"}
	none.want("stop preempt")
	// K07: a cancellation wins over it, and comes through after it.
	for id := range none.s.Open.All() {
		none.apply(site.Cancel{Job: id})
	}
	none.want("cancel")
}

// A notice reaches what is asked to stop already, or is being cancelled, as the time that is left
// and no other wish; a nearer one does so again.
func TestNoticeHastens(t *testing.T) {
	r := newRig(t)
	id := r.submit(nil)
	a := r.running(id)
	r.apply(site.Stop{Job: id, Lease: a.Lease, Kind: "drain", Reason: "drained"})
	r.want("stop drain")
	r.apply(site.Preempt{Runner: "R1", Source: "spot", Left: int64(time.Minute)})
	r.want("hasten: 1m0s")
	r.after(time.Second)
	r.want("")
	r.in.Notice = &Notice{Source: "file", Until: r.now.Add(30 * time.Second)}
	r.want("hasten: 30s")
	r.want("")
	r.apply(site.Cancel{Job: id})
	r.want("cancel")

	c := newRig(t)
	id = c.submit(nil)
	c.running(id)
	c.apply(site.Cancel{Job: id})
	c.want("cancel")
	c.in.Notice = &Notice{Source: "file"}
	c.want("stop preempt")
	c.in.Notice = &Notice{Source: "file", Until: c.now.Add(30 * time.Second)}
	c.want("hasten: 30s")
	c.want("")
}

// CK-154, CK-155: what is worth most is asked first: critical work, then what would cost most
// to do again; what cannot be saved comes last.
func TestNoticeAsksByWorth(t *testing.T) {
	r := newRig(t)
	r.in.Caps.MaxJobs = 5
	small := func(change func(*job.Spec)) func(*job.Spec) {
		return func(s *job.Spec) {
			s.Resources.MilliCPU = 100
			s.Resume.Mode = job.ResumeApplication
			if change != nil {
				change(s)
			}
		}
	}
	names := map[forgeyard.LeaseID]string{}
	for _, x := range []struct {
		name   string
		change func(*job.Spec)
	}{
		{"plain", func(s *job.Spec) { s.Resume.Mode = "" }},
		{"declines", func(s *job.Spec) { s.Resume.Checkpoint.NoneOnNotice, s.Resources.MilliCPU = true, 300 }},
		{"small", nil},
		{"large", func(s *job.Spec) { s.Resources.MilliCPU = 200 }},
		{"critical", func(s *job.Spec) { s.Interruption.Priority = job.PriorityCritical }},
	} {
		names[r.running(r.submit(small(x.change))).Lease] = x.name
	}
	r.apply(site.Preempt{Runner: "R1", Source: "spot", Left: int64(time.Minute)})
	r.in.State, r.in.Wall = r.s, forgeyard.WallOf(time.UnixMilli(1_900_000_000_000))
	effects, _ := Step(r.now, r.in, r.book)
	var got []string
	for _, e := range effects {
		if e, ok := e.(Stop); ok {
			got = append(got, names[e.Lease])
		}
	}
	if said := strings.Join(got, " "); said != "critical large small plain declines" {
		t.Errorf("asked in the order %s", said)
	}
}

// CK-131: a cancellation saves first where somebody asks for it, or where contract and reason
// allow it; one that is pressed harder does not.
func TestCancelSaves(t *testing.T) {
	saves := func(s *job.Spec) {
		s.Resume = job.Resume{Mode: job.ResumeApplication, Checkpoint: job.CheckpointDecl{OnCancel: true}}
	}
	for _, c := range []struct {
		spec func(*job.Spec)
		body site.Cancel
		want string
	}{
		{saves, site.Cancel{}, "cancel after a checkpoint"},
		{saves, site.Cancel{Reason: job.CancelBudget}, "cancel after a checkpoint"},
		{saves, site.Cancel{Reason: job.CancelSuperseded}, "cancel"},
		{saves, site.Cancel{Reason: job.CancelIncident}, "cancel"},
		{saves, site.Cancel{Force: true}, "cancel by force"},
		{saves, site.Cancel{Reason: job.CancelSecurity}, "cancel by force"},
		{func(s *job.Spec) { s.Resume.Mode = job.ResumeApplication }, site.Cancel{}, "cancel"},
		{func(s *job.Spec) { s.Resume.Mode = job.ResumeApplication }, site.Cancel{After: true}, "cancel after a checkpoint"},
	} {
		r := newRig(t)
		a := r.running(r.submit(c.spec))
		c.body.Job = a.Job
		r.apply(c.body)
		r.want(c.want)
		r.want("")
		if c.want == "cancel after a checkpoint" && c.body.After {
			r.apply(site.Cancel{Job: a.Job})
			r.want("cancel")
		}
		if c.want != "cancel by force" {
			r.apply(site.Cancel{Job: a.Job, Force: true})
			r.want("cancel by force")
		}
		if c.body.Reason != job.CancelSecurity {
			r.apply(site.Cancel{Job: a.Job, Reason: job.CancelSecurity})
			r.want("cancel by force")
		}
		r.want("")
	}
}
