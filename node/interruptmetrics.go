package node

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// interruptMetrics tell of interruptions and checkpoints (69§246). Every label has few values: a
// mode of the contract, a word of the log for how a lease ended, a class of runners, a result
// (69§247).
type interruptMetrics struct {
	interruptions, resumes, resumeFailures, created *prometheus.CounterVec
	bytes                                           prometheus.Histogram
	create, restore                                 *prometheus.HistogramVec
}

func newInterruptMetrics(r *prometheus.Registry) *interruptMetrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "forgeyard", Name: name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	took := func(name, help string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "forgeyard", Name: name, Help: help, Buckets: []float64{.01, .05, .2, 1, 5, 20, 60, 300, 1800}}, []string{"result"})
		r.MustRegister(h)
		return h
	}
	m := &interruptMetrics{
		interruptions:  vec("job_interruptions_total", "Interruptions of the site's jobs while this node watched, by how the lease ended.", "reason", "resumability_mode", "interruption_class"),
		resumes:        vec("job_resume_total", "Executions that went on from a checkpoint while this node watched, by what came of it.", "resumability_mode", "result"),
		resumeFailures: vec("job_resume_failures_total", "Of them those that did not get as far as their work, by why.", "resumability_mode", "reason"),
		created:        vec("checkpoint_created_total", "Checkpoints that this node took, by what became of them.", "resumability_mode", "result"),
		bytes:          prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "forgeyard", Name: "checkpoint_bytes", Help: "Payload of a checkpoint that this node committed.", Buckets: prometheus.ExponentialBuckets(1<<10, 16, 8)}),
		create:         took("checkpoint_create_seconds", "From the seal of a checkpoint until it was committed, or not."),
		restore:        took("checkpoint_restore_seconds", "A checkpoint here, verified and put back where its program finds it."),
	}
	r.MustRegister(m.bytes)
	return m
}

// resumability is the label of a contract.
func resumability(s job.Spec) string {
	if s.Resume.Mode == "" {
		return string(job.ResumeNone)
	}
	return string(s.Resume.Mode)
}

// took notes a checkpoint that was taken here.
func (m *interruptMetrics) took(s job.Spec, result string, bytes int64, took time.Duration) {
	m.created.WithLabelValues(resumability(s), result).Inc()
	m.create.WithLabelValues(result).Observe(took.Seconds())
	if result == resultCommitted {
		m.bytes.Observe(float64(bytes))
	}
}

// Results of checkpoints and resumes, as labels have them.
const (
	resultCommitted = "committed"
	resultRejected  = "rejected"
	resultFailed    = "failed"
	resultCompleted = "completed"
)

// applied counts what an entry did to jobs whose leases it touched: no other jobs are looked at.
func (m *interruptMetrics) applied(a replica.Applied) {
	for id := range touched(a.Before, a.State) {
		was, _ := a.Before.Jobs.Get(id)
		now, ok := a.State.Jobs.Get(id)
		if ok && now.Interruptions > was.Interruptions {
			of, _ := a.State.Members.Get(now.Lease.Authority.Runner)
			class := of.Assigned.Class
			if class == "" {
				class = job.Stable
			}
			m.interruptions.WithLabelValues(string(now.Lease.Reason), resumability(now.Spec), string(class)).Inc()
		}
	}
	switch b := a.Command.Body.(type) {
	case site.Phase:
		was, _ := a.Before.Jobs.Get(b.Authority.Job)
		now, _ := a.State.Jobs.Get(b.Authority.Job)
		if b.Phase == job.PhaseRunning && now.Phase == job.PhaseRunning && was.Phase != now.Phase && !now.ResumeFrom.IsZero() {
			m.resumes.WithLabelValues(resumability(now.Spec), resultCompleted).Inc()
		}
	case site.Release:
		was, _ := a.Before.Jobs.Get(b.Authority.Job)
		if (b.Kind == "resume_failed" || b.Kind == "resume_rejected") && a.Reply.Err() == nil && !was.ResumeFrom.IsZero() {
			m.resumes.WithLabelValues(resumability(was.Spec), resultFailed).Inc()
			m.resumeFailures.WithLabelValues(resumability(was.Spec), b.Kind).Inc()
		}
	}
}

// touched are the jobs of which an entry told something in the events of leases.
func touched(before, now *site.State) map[forgeyard.JobID]bool {
	if now.LeaseSeq == before.LeaseSeq {
		return nil
	}
	out, left := map[forgeyard.JobID]bool{}, now.LeaseSeq-before.LeaseSeq
	for e := range now.LeaseLog.Newest() {
		if left == 0 {
			break
		}
		left--
		id, _, _ := strings.Cut(e.Text, " ")
		out[forgeyard.JobID(id)] = true
	}
	return out
}

// ended notes how long putting a checkpoint back took.
func (m *interruptMetrics) ended(spans []runner.Span) {
	for _, s := range spans {
		if s.Name != runner.SpanRestore {
			continue
		}
		result := resultCompleted
		if s.Error != "" {
			result = resultFailed
		}
		m.restore.WithLabelValues(result).Observe(s.Ended.Sub(s.Began).Seconds())
	}
}
