package node

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/node/trace"
)

// openTracer makes what tells a collector of executions; nil without one.
func (n *Node) openTracer() {
	set := n.cfg.Settings.Traces
	n.tracer = trace.New(trace.Config{
		Endpoint: set.Endpoint, Sample: set.Sample, Version: n.cfg.Version, Log: n.log,
		Resource: map[string]string{
			"service.name": "forgeyard-node", "service.version": n.cfg.Version, "service.instance.id": string(n.enrolment.RunnerID), "host.name": n.enrolment.Name, "forgeyard.site": string(n.enrolment.SiteID),
		},
	})
}

// trace tells of an execution that has ended, with what the site's answer and the clean-up took.
func (x *execution) trace(r job.Result, e runner.Ended, after ...runner.Span) {
	all := append(e.Spans[:len(e.Spans):len(e.Spans)], after...)
	if x.n.tracer == nil || len(all) == 0 {
		return
	}
	now, wall := x.n.clock.Now(), x.n.clock.Wall()
	at := func(i forgeyard.Instant) time.Time { return wall.Add(-now.Sub(i)) }
	a := x.authority
	id := string(a.Attempt) + "-" + strconv.FormatUint(a.Fence.Epoch, 10)
	first := slices.MinFunc(all, func(a, b runner.Span) int { return cmp.Compare(a.Began, b.Began) })
	out := trace.Execution{Job: string(a.Job), Root: trace.Span{
		ID: id, Name: "execution", Began: at(first.Began), Ended: at(all[len(all)-1].Ended), Error: string(r.Category),
		Attributes: map[string]string{
			"forgeyard.job": string(a.Job), "forgeyard.attempt": string(a.Attempt), "forgeyard.lease": string(a.Lease), "forgeyard.epoch": strconv.FormatUint(a.Fence.Epoch, 10),
			"forgeyard.run": string(x.job.Run), "forgeyard.session": string(x.n.session), "forgeyard.end": string(e.Kind), "forgeyard.outcome": string(r.Outcome),
		},
	}}
	for i, s := range all {
		p := trace.Span{ID: id + " " + strconv.Itoa(i), Name: s.Name, Began: at(s.Began), Ended: at(s.Ended), Error: s.Error}
		if s.Name == runner.SpanStep {
			p.Attributes = map[string]string{"forgeyard.step": s.Step}
		}
		out.Parts = append(out.Parts, p)
	}
	x.n.tracer.Add(out)
}

// traceMetrics tell how traces fare.
func (n *Node) traceMetrics(r *prometheus.Registry) {
	for result, of := range map[string]func() int64{
		"sent":    func() int64 { sent, _ := n.tracer.Counts(); return sent },
		"dropped": func() int64 { _, dropped := n.tracer.Counts(); return dropped },
	} {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "forgeyard", Name: "traces_total", Help: "Executions whose spans the collector took, or did not.", ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(of()) }))
	}
}

// Spans of what is asked of an execution, and of its checkpoints (69§248).
const (
	spanCreate  = "checkpoint.create"
	spanCancel  = "job.cancel"
	spanSuspend = "job.suspend"
	spanResume  = "job.resume"
	spanPreempt = "preemption.handle"
	maxNoted    = 64 // of an execution; what comes after is in the metrics alone
)

// note keeps a part of the execution for its trace.
func (x *execution) note(s runner.Span) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.noted) < maxNoted {
		x.noted = append(x.noted, s)
	}
}

// tookCheckpoint notes what became of a checkpoint that was taken here.
func (x *execution) tookCheckpoint(result string, bytes int64, began forgeyard.Instant) {
	now := x.n.clock.Now()
	x.n.metrics.stops.took(x.job.Spec, result, bytes, now.Sub(began))
	s := runner.Span{Name: spanCreate, Began: began, Ended: now}
	if result != resultCommitted {
		s.Error = result
	}
	x.note(s)
}

// wasAsked notes when something that ends the work was asked for, once for each name.
func (x *execution) wasAsked(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.asked[name]; !ok {
		if x.asked == nil {
			x.asked = map[string]forgeyard.Instant{}
		}
		x.asked[name] = x.n.clock.Now()
	}
}

// notedParts are the parts beside those that the runner knows: what was asked, until the tree was
// dead; the way of a resume, until its work began; checkpoints.
func (x *execution) notedParts(parts []runner.Span, dead forgeyard.Instant) []runner.Span {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.noted
	for _, name := range slices.Sorted(maps.Keys(x.asked)) {
		out = append(out, runner.Span{Name: name, Began: x.asked[name], Ended: max(dead, x.asked[name])})
	}
	if i := slices.IndexFunc(parts, func(s runner.Span) bool { return s.Name == runner.SpanPrepare }); i >= 0 && !x.job.ResumeFrom.IsZero() {
		s := parts[i]
		s.Name = spanResume
		out = append(out, s)
	}
	return out
}
