package node

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/node/pressure"
)

// strain is what the machine felt when it was asked last.
type strain struct {
	sample pressure.Sample
	level  pressure.Level
}

// feel asks the machine. Only the upkeep calls it.
func (n *Node) feel() {
	s := n.platform().Strain()
	was := pressure.Normal
	if old := n.strain.Load(); old != nil {
		was = old.level
	}
	now := was.Next(s)
	n.strain.Store(&strain{s, now})
	switch {
	case now == was:
	case now == pressure.Normal:
		n.log.Info("the machine recovered", "was", string(was))
	default:
		n.log.Warn("no new work is taken", "pressure", string(now), "why", now.Why(), "memory_stall_percent", s.Memory)
	}
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
