package node

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/forgeyard/forgeyard-node/cas/layer"
	"github.com/forgeyard/forgeyard-node/cas/scrub"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/site"
)

// pressureHelp stands beside every kind of pressure.
const pressureHelp = "1 while this node takes no work for want of it."

// metrics are the node's own, with the words of 07§184–185 and no job id as a label
// (07§186): ids are in the logs.
type metrics struct {
	registry *prometheus.Registry
	attempts *attemptMetrics
	stops    *interruptMetrics

	active, casBytes, spoolBytes, uplinkUsed, outbox           prometheus.Gauge
	allowance, left, ready, silent                             prometheus.Gauge
	accepted, reconnects, badPeers, checkpoints                prometheus.Counter
	cleanupFailures, entries                                   prometheus.Counter
	notices, forced                                            prometheus.Counter
	linkFailures                                               prometheus.Counter
	renewalTook, renewalLate                                   prometheus.Histogram
	rejected, cancels, completions, raftEvents, jobs, renewals *prometheus.CounterVec
	leftOut                                                    prometheus.Counter
	gardened, tidied, reloads                                  *prometheus.CounterVec
}

func newMetrics(n *Node) *metrics {
	r := prometheus.NewRegistry()
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "forgeyard", Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "forgeyard", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "forgeyard", Name: name, Help: help}, []string{label})
		r.MustRegister(c)
		return c
	}
	seconds := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "forgeyard", Name: name, Help: help, Buckets: []float64{.001, .005, .02, .1, .25, .5, 1, 2, 5, 15}})
		r.MustRegister(h)
		return h
	}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &metrics{
		registry:        r,
		attempts:        newAttemptMetrics(r),
		stops:           newInterruptMetrics(r),
		active:          gauge("agent_active_jobs", "Executions under way on this node."),
		casBytes:        gauge("cas_bytes", "Bytes in this node's content store."),
		spoolBytes:      gauge("agent_log_spool_bytes", "Bytes of logs on this node's disk."),
		uplinkUsed:      gauge("uplink_silence_seconds", "Silence of the uplink that is committed."),
		allowance:       gauge("uplink_allowance_seconds", "Silence that the central daemon allows; 0: no daemon."),
		left:            gauge("uplink_left_seconds", "What is left of the allowance by the committed silence."),
		ready:           gauge("uplink_ready", "1 while the site could go on alone for its whole allowance, as last looked at."),
		silent:          gauge("lease_silent_runners", "Runners that hold leases and do not renew them."),
		outbox:          gauge("uplink_outbox_records", "Records that wait for the central daemon."),
		accepted:        counter("agent_lease_accept_total", "Leases that this node accepted."),
		reconnects:      counter("agent_reconnects_total", "Returns to the site after silence."),
		linkFailures:    counter("agent_reconnect_attempts_total", "Calls towards the leader that did not reach it."),
		renewalTook:     seconds("renewal_seconds", "From the send of a heartbeat to its answer."),
		renewalLate:     seconds("renewal_delay_seconds", "How late a heartbeat was sent, by this machine's own doing."),
		renewals:        vec("lease_renewals_total", "Lease renewals that this node answered as leader, by answer.", "answer"),
		badPeers:        counter("cas_bad_peer_total", "Times that a peer offered content which does not match its name."),
		checkpoints:     counter("checkpoint_committed_total", "Checkpoints of this node that the log took."),
		notices:         counter("agent_preemption_notices_total", "Notices of this machine's own sources that it is being taken away."),
		forced:          counter("job_force_cancel_total", "Cancelled work that was killed here."),
		cleanupFailures: counter("agent_workspace_cleanup_failures_total", "Times that what ended work left could not be removed."),
		entries:         counter("log_entries_applied_total", "Commands applied."),
		cancels:         vec("job_cancel_total", "Cancellations that this node carried out, by reason.", "reason"),
		rejected:        vec("agent_lease_reject_total", "Leases that this node rejected, by reason.", "reason"),
		completions:     vec("completions_total", "Answers to this node's completions.", "answer"),
		reloads:         vec("agent_settings_reloads_total", "Times that the settings were read again, by what became of it: taken or refused.", "result"),
		gardened:        vec("garden_done_total", "What maintenance removed, mended or found wanting on this node, by action.", "action"),
		leftOut:         counter("agent_log_left_out_bytes_total", "Bytes of logs that were left out beyond spool.per_job."),
		tidied:          vec("agent_leftovers_removed_total", "What ended work had left and was removed later, by kind.", "what"),
		raftEvents:      vec("raft_events_total", "What happened to this node's Raft group.", "event"),
		jobs:            vec("jobs_ended_total", "Jobs of the site that ended while this node watched, by status.", "status"),
	}
	registerLive(r, n)
	return m
}

// registerLive registers what is read at the moment that somebody asks.
func registerLive(r *prometheus.Registry, n *Node) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "raft_leader", Help: "1 while this node leads."}, func() float64 {
		if n.leading.Load() != nil {
			return 1
		}
		return 0
	}))
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "agent_backlog_results", Help: "Results that ended here and wait for the site's answer."}, func() float64 {
		waiting, _ := n.backlog.waiting(n.clock.Now())
		return float64(waiting)
	}))
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "renewal_age_seconds", Help: "Since the last heartbeat that was answered."}, func() float64 {
		if n.way == nil {
			return 0
		}
		s, _ := n.way.status()
		if s.Answered == 0 {
			return n.clock.Wall().Sub(n.started).Seconds() // none yet
		}
		return n.clock.Now().Sub(s.Answered).Seconds()
	}))
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "raft_applied_index", Help: "Last entry applied."}, func() float64 {
		return float64(n.replica.State().Index)
	}))
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "agent_stuck_trees", Help: "Process trees that were killed and do not die."}, func() float64 {
		return float64(len(n.stuckTrees()))
	}))
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "forgeyard", Name: "agent_pressure", Help: pressureHelp, ConstLabels: prometheus.Labels{"of": pressureDisk},
	}, func() float64 {
		if n.pressure() == pressureDisk {
			return 1
		}
		return 0
	}))
	n.fitnessMetrics(r)
	n.resourceMetrics(r)
	n.traceMetrics(r)
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "agent_leftovers", Help: "Clean-ups of ended work that failed and are tried again."}, func() float64 {
		if n.runner == nil {
			return 0
		}
		return float64(len(n.runner.Undone()))
	}))
	n.strainMetrics(r)
	n.layerMetrics(r)
	n.scrubMetrics(r)
	n.batchMetrics(r)
	n.exchangeMetrics(r)
	n.siteMetrics(r)
}

// layerMetrics tell what the trees that are kept for reuse take, and what they are good for.
func (n *Node) layerMetrics(r *prometheus.Registry) {
	stats := func() layer.Stats {
		if n.layers == nil {
			return layer.Stats{}
		}
		return n.layers.Stats()
	}
	for name, help := range map[string]string{"bytes": "Bytes of trees that are kept for reuse.", "inodes": "Files of trees that are kept for reuse."} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "layers_" + name, Help: help}, func() float64 {
			if name == "bytes" {
				return float64(stats().Bytes)
			}
			return float64(stats().Inodes)
		}))
	}
	for result, of := range map[string]func(layer.Stats) uint64{
		"reused": func(s layer.Stats) uint64 { return s.Reused }, "made": func(s layer.Stats) uint64 { return s.Made },
		"refused": func(s layer.Stats) uint64 { return s.Refused }, "damaged": func(s layer.Stats) uint64 { return s.Wrong },
	} {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "forgeyard", Name: "layer_inputs_total", Help: "Source trees of jobs, by how they came: reused, made, refused a place, or found damaged.", ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(of(stats())) }))
	}
}

// batchMetrics tell how well proposals gather on a leader.
func (n *Node) batchMetrics(r *prometheus.Registry) {
	add := func(name, help string, of func() float64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "forgeyard", Name: name, Help: help}, func() float64 {
			if n.group == nil {
				return 0
			}
			return of()
		}))
	}
	add("raft_gathered_entries_total", "Log entries that this node's proposals made, since the log may hold several commands an entry.", func() float64 {
		entries, _ := n.group.Batches()
		return float64(entries)
	})
	add("raft_gathered_commands_total", "Commands in them.", func() float64 {
		_, commands := n.group.Batches()
		return float64(commands)
	})
}

func (m *metrics) raftEvent(e consensus.Event) { m.raftEvents.WithLabelValues(e.Kind.String()).Inc() }

func (m *metrics) applied(a replica.Applied) {
	m.entries.Inc()
	m.uplinkUsed.Set(a.State.Uplink.Used.Seconds())
	m.outbox.Set(float64(a.State.Outbox.Len()))
	m.authority(a.State)
	if a.Live {
		m.stops.applied(a)
	}
	if !a.Live || a.State.EndedSeq == a.Before.EndedSeq {
		return
	}
	for k := a.Before.EndedSeq + 1; k <= a.State.EndedSeq; k++ {
		id, _ := a.State.Ended.Get(site.SeqKey(k))
		if j, ok := a.State.Jobs.Get(id); ok {
			m.jobs.WithLabelValues(string(j.Status)).Inc()
		}
	}
}

// renewed counts a leader's answers to one heartbeat.
func (m *metrics) renewed(answers []controllers.RenewalAnswer) {
	var count [4]int
	all := [...]lease.Answer{lease.Continue, lease.Cancel, lease.Stale, lease.Wait}
	for _, a := range answers {
		if i := slices.Index(all[:], a.Answer); i >= 0 {
			count[i]++
		}
	}
	for i, n := range count {
		if n > 0 {
			m.renewals.WithLabelValues(string(all[i])).Add(float64(n))
		}
	}
}

// authority shows what is left of the central daemon's, and who is not heard.
func (m *metrics) authority(s *site.State) {
	u, ready, silent := s.Uplink, 0.0, 0.0
	if s.Ready.Asked && len(s.Ready.Lacks) == 0 {
		ready = 1
	}
	for _, x := range s.Members.All() {
		if x.Silent != 0 && !x.Removed {
			silent++
		}
	}
	m.allowance.Set(u.Terms.Allowance.Seconds())
	m.left.Set(max(0, u.Terms.Allowance-u.Used).Seconds())
	m.ready.Set(ready)
	m.silent.Set(silent)
}

// sample refreshes what is read rather than counted.
func (m *metrics) sample(ctx context.Context, n *Node) {
	m.casBytes.Set(float64(n.store.Holds().Bytes))
	m.spoolBytes.Set(float64(n.spoolBytes()))
	m.attempts.sample(n.mains(), n.clock.Now())
}

// scrubMetrics tell when the store was read through and what came of it.
func (n *Node) scrubMetrics(r *prometheus.Registry) {
	for name, of := range map[string]func(scrub.Status) int64{
		"cas_scrub_read_bytes_total": func(s scrub.Status) int64 { return s.Read },
		"cas_damaged_total":          func(s scrub.Status) int64 { return s.Damaged },
		"cas_healed_total":           func(s scrub.Status) int64 { return s.Healed },
	} {
		help := map[string]string{
			"cas_scrub_read_bytes_total": "Bytes of the store that were read again, to see whether they are right.",
			"cas_damaged_total":          "Stored objects that a verification found damaged, and set aside.",
			"cas_healed_total":           "Damaged objects that the scrub fetched again from peers.",
		}[name]
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "forgeyard", Name: name, Help: help}, func() float64 { return float64(of(n.scrub.Status())) }))
	}
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "cas_lost_objects", Help: "Damaged objects that no peer had when they were last asked for."},
		func() float64 { return float64(len(n.scrub.Status().Lost)) }))
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "cas_scrub_age_seconds", Help: "Time since all of the store was read through; -1: it never was."},
		func() float64 {
			s := n.scrub.Status()
			if s.Last.IsZero() {
				return -1
			}
			return n.clock.Wall().Sub(s.Last).Seconds()
		}))
}
