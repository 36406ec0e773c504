package node

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner"
)

// attemptMetrics tell what the work on this node takes and how long its parts take (07§184–185).
type attemptMetrics struct {
	prepare, execution, upload, cleanup prometheus.Histogram
	fetched, uploaded                   prometheus.Counter
	cpu, memory                         prometheus.Gauge

	mu   sync.Mutex            // guards gone; zero there: not told
	gone map[int]time.Duration // what trees took that ended since the last look, by main process

	// Owned by the upkeep.
	last  map[int]executor.Use // by main process
	at    forgeyard.Instant
	cores float64 // that were busy, over the last look
	blind bool    // and that is not all: of a tree that ended nobody could tell
}

func newAttemptMetrics(r *prometheus.Registry) *attemptMetrics {
	took := func(part, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "forgeyard", Name: "attempt_" + part + "_duration_seconds", Help: help,
			Buckets: []float64{.005, .02, .1, .5, 2, 10, 60, 300, 1800, 7200, 43200},
		})
		r.MustRegister(h)
		return h
	}
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
	return &attemptMetrics{
		prepare:   took("prepare", "From the start of an epoch until its first step could begin: workspace, inputs, devices."),
		execution: took("execution", "All steps of an epoch that were started."),
		upload:    took("upload", "Outputs of an epoch: found, stored, copied to other nodes."),
		cleanup:   took("cleanup", "Workspace and logs of an epoch that has ended: removed."),
		fetched:   counter("agent_input_fetch_bytes_total", "Bytes of inputs and checkpoints that came from other nodes."),
		uploaded:  counter("agent_output_upload_bytes_total", "Bytes of outputs that other nodes took a copy of, by their size."),
		cpu:       gauge("agent_cpu_used", "Cores that the processes of jobs kept busy, over the last seconds."),
		memory:    gauge("agent_memory_used_bytes", "Resident memory of the processes of jobs; what they share counts in each."),
	}
}

// ended notes how long the parts of an epoch took.
func (m *attemptMetrics) ended(spans []runner.Span) {
	var ran time.Duration
	steps := 0
	for _, s := range spans {
		took := s.Ended.Sub(s.Began)
		switch s.Name {
		case runner.SpanPrepare:
			m.prepare.Observe(took.Seconds())
		case runner.SpanStep:
			ran += took
			steps++
		case runner.SpanUpload:
			m.upload.Observe(took.Seconds())
		}
	}
	if steps > 0 {
		m.execution.Observe(ran.Seconds())
	}
}

// sample looks at the processes of jobs. Where the system does not show them, nothing is said.
func (m *attemptMetrics) sample(mains map[int]uint64, now forgeyard.Instant) {
	use := map[int]executor.Use{}
	if len(mains) > 0 { // most of the time there are none, and /proc is long
		var err error
		if use, err = executor.Used(mains); err != nil {
			return
		}
	}
	m.sampled(use, now)
}

// used notes what a tree took that has ended: it may have come and gone between two looks.
func (m *attemptMetrics) used(pid int, cpu time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone == nil {
		m.gone = map[int]time.Duration{}
	}
	m.gone[pid] += cpu
}

// takeGone are the trees that ended since the last look.
func (m *attemptMetrics) takeGone() map[int]time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := m.gone
	m.gone = nil
	return gone
}

// sampled counts for each tree what it took since it was looked at last, or till it ended.
func (m *attemptMetrics) sampled(use map[int]executor.Use, now forgeyard.Instant) {
	var cpu time.Duration
	var memory int64
	m.blind = false
	for pid, took := range m.takeGone() {
		m.blind = m.blind || took == 0
		cpu += max(0, took-m.last[pid].CPU)
		delete(use, pid) // it ended after it was seen
	}
	for pid, u := range use {
		cpu += max(0, u.CPU-m.last[pid].CPU)
		memory += u.Memory
	}
	if since := now.Sub(m.at); m.at != 0 && since > 0 {
		m.cores = cpu.Seconds() / since.Seconds()
		m.cpu.Set(m.cores)
	}
	m.memory.Set(float64(memory))
	m.last, m.at = use, now
}

// mains are the main processes of what runs here, with their births.
func (n *Node) mains() map[int]uint64 {
	out := map[int]uint64{}
	for _, x := range n.local.executions() {
		x.mu.Lock()
		a := x.attempt
		x.mu.Unlock()
		if a == nil {
			continue
		}
		if pid, birth := a.Process(); pid > 1 { // it may be busy: nobody waits for x meanwhile
			out[pid] = birth
		}
	}
	return out
}

// fetchInput and fetchInputTree are fetch and fetchTree that count what came.
func (n *Node) fetchInput(ctx context.Context, ref cas.Ref) error {
	return n.fetch(n.metered(ctx), ref)
}

func (n *Node) fetchInputTree(ctx context.Context, root forgeyard.Digest) error {
	return n.fetchTree(n.metered(ctx), root)
}

func (n *Node) metered(ctx context.Context) context.Context {
	return caspeer.WithMeter(ctx, func(bytes int64) { n.metrics.attempts.fetched.Add(float64(bytes)) })
}

// uploadedOutputs counts outputs that others took copies of.
func (m *attemptMetrics) uploadedOutputs(outputs []job.Output, nodes int) {
	for _, o := range outputs {
		m.uploaded.Add(float64(o.Size) * float64(max(0, nodes-1))) // one of them is this node
	}
}

// resourceMetrics tell what is promised to jobs, and what is left.
func (n *Node) resourceMetrics(r *prometheus.Registry) {
	add := func(name, help string, of func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: name, Help: help}, of))
	}
	add("agent_cpu_reserved", "Cores that are promised to the jobs of this node.", func() float64 { return float64(n.local.taken().MilliCPU) / 1000 })
	add("agent_memory_reserved_bytes", "Memory that is promised to them.", func() float64 { return float64(n.local.taken().Memory) })
	add("agent_disk_free_bytes", "Bytes that are free on the disk of the data dir.", func() float64 {
		free, err := n.platform().Free(n.dir.path)
		if err != nil {
			return -1
		}
		return float64(free)
	})
}
