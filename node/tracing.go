package node

import (
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
	out := trace.Execution{Job: string(a.Job), Root: trace.Span{
		ID: id, Name: "execution", Began: at(all[0].Began), Ended: at(all[len(all)-1].Ended), Error: string(r.Category),
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
