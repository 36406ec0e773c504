package node

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/node/pressure"
)

// strain is what the machine felt when it was asked last.
type strain struct {
	sample   pressure.Sample
	level    pressure.Level
	withheld int64 // thousandths of a core
	at       forgeyard.Instant
}

// feel asks the machine. Only the upkeep calls it.
func (n *Node) feel() {
	s, at := n.platform().Strain(), n.clock.Now()
	was, kept := pressure.Normal, int64(0)
	old := n.strain.Load()
	if old != nil {
		was = old.level
		if n.settings().Limits.ShareCPU {
			kept = pressure.Withhold(old.withheld, s, n.load(s, old, at))
		}
	}
	now := was.Next(s)
	n.strain.Store(&strain{s, now, kept, at})
	if old != nil && (kept == 0) != (old.withheld == 0) {
		n.log.Info("cores are withheld from new work, or no more", "withheld", float64(kept)/1000, "cpu_stall_percent", s.CPU)
	}
	switch {
	case now == was:
	case now == pressure.Normal:
		n.log.Info("the machine recovered", "was", string(was))
	default:
		n.log.Warn("no new work is taken", "pressure", string(now), "why", now.Why(), "memory_stall_percent", s.Memory)
	}
}

// load is who has used the processors since the last look.
func (n *Node) load(s pressure.Sample, old *strain, at forgeyard.Instant) pressure.Load {
	l := pressure.Load{Jobs: int64(1000 * n.metrics.attempts.cores), Spare: int64(n.settings().Limits.Reserve.CPU)}
	if c := n.caps.Load(); c != nil {
		l.Offered = c.MilliCPU
	}
	if t, err := n.platform().Discover(n.dir.path); err == nil {
		l.Spare = max(l.Spare, t.MilliCPU-l.Offered)
	}
	if !n.metrics.attempts.blind {
		l.Busy, l.Own, _ = s.Since(old.sample, at.Sub(old.at)) // not known: nobody else uses them
	}
	return l
}

// withheld is how many thousandths of a core new work does not get now.
func (n *Node) withheld() int64 {
	if s := n.strain.Load(); s != nil {
		return s.withheld
	}
	return 0
}

// showWithheld says it for people; nil while nothing is withheld.
func (n *Node) showWithheld() *forgeyardv1.NodeStatus_Withheld {
	s := n.strain.Load()
	if s == nil || s.withheld == 0 {
		return nil
	}
	return &forgeyardv1.NodeStatus_Withheld{MilliCpu: s.withheld, Why: fmt.Sprintf("other programs use them, and work waited for a core %.0f %% of the last 10 s", s.sample.CPU)}
}

// checkPressure says what the machine feels.
func (n *Node) checkPressure() *forgeyardv1.Health_Check {
	c := check("pressure")
	s := n.strain.Load()
	switch {
	case s == nil || !s.sample.HasStall && !s.sample.HasHeat:
		c.Detail = "this machine does not tell what it waits for"
	case s.level != pressure.Normal:
		c.Status, c.Detail = checkWarn, fmt.Sprintf("%s: no new work is taken (all work waited %.0f %% of the last 10 s for memory)", s.level.Why(), s.sample.Memory)
		c.Fix = "wait for jobs to end, look what else runs here, or lower limits.memory and limits.max_jobs in node.yaml"
		if s.level == pressure.Thermal {
			c.Fix = "look at the machine's cooling, or lower limits.cpu in node.yaml"
		}
	default:
		c.Detail = fmt.Sprintf("waited for in the last 10 s: memory %.0f %%, disk %.0f %% by all work, a core %.0f %% by some", s.sample.Memory, s.sample.IO, s.sample.CPU)
		if s.withheld > 0 {
			c.Detail += fmt.Sprintf("; %.1f cores are withheld from new work, since other programs use them", float64(s.withheld)/1000)
		}
	}
	return c
}

// strainMetrics show what the machine feels.
func (n *Node) strainMetrics(r *prometheus.Registry) {
	for of, get := range map[string]func(pressure.Sample) float64{
		"cpu":    func(s pressure.Sample) float64 { return s.CPU },
		"memory": func(s pressure.Sample) float64 { return s.Memory },
		"io":     func(s pressure.Sample) float64 { return s.IO },
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "forgeyard", Name: "agent_stall_ratio", Help: "Share of the last ten seconds in which work waited: some of it for a core, all of it for memory or a disk.",
			ConstLabels: prometheus.Labels{"of": of},
		}, func() float64 {
			if s := n.strain.Load(); s != nil {
				return get(s.sample) / 100
			}
			return 0
		}))
	}
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "forgeyard", Name: "agent_cpu_withheld", Help: "Cores that new work does not get while other programs use them.",
	}, func() float64 { return float64(n.withheld()) / 1000 }))
	for _, l := range []pressure.Level{pressure.Memory, pressure.Thermal, pressure.Critical} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "forgeyard", Name: "agent_pressure", Help: pressureHelp, ConstLabels: prometheus.Labels{"of": string(l)},
		}, func() float64 {
			if n.pressure() == string(l) {
				return 1
			}
			return 0
		}))
	}
}
