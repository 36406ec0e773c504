package node

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner"
)

// shown is what a registry tells who asks over HTTP: samples with their labels.
func shown(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(g, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	out := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		if at := strings.LastIndex(line, " "); strings.HasPrefix(line, "forgeyard_") { // the others are Go's own
			v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			out[line[:at]] = v
		}
	}
	return out
}

func (p *proc) metrics() map[string]float64 { return shown(p.t, p.node.metrics.registry) }

// RA-413–427: what a node does is in its metrics, under the names of the source. RA-428: no
// label is a job's, an attempt's, a lease's or a run's id, and none has one for its value. Each
// metric stands in docs/operations.md.
func TestMetricsOfWork(t *testing.T) {
	site := makeSite(t, 2)
	one, two := site[0], site[1]
	ref, err := one.node.store.Put(t.Context(), bytes.NewReader(bytes.Repeat([]byte("input"), 1000)), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	two.wait("the input comes", func() bool { return two.node.fetchInput(t.Context(), ref) == nil })
	if got := two.metrics()["forgeyard_agent_input_fetch_bytes_total"]; got != 5000 {
		t.Errorf("an input of 5,000 bytes came, counted are %v", got)
	}
	run, id := one.submit(helloJob)
	j := one.waitDone(id)
	ran := one
	if j.RunnerId == string(two.node.enrolment.RunnerID) {
		ran = two
	}
	ran.wait("the clean-up", func() bool { return ran.metrics()["forgeyard_attempt_cleanup_duration_seconds_count"] == 1 })
	all := ran.metrics()
	for _, part := range []string{"prepare", "execution", "upload", "cleanup"} {
		if n := all["forgeyard_attempt_"+part+"_duration_seconds_count"]; n != 1 {
			t.Errorf("%s was measured %v times", part, n)
		}
	}
	if got := all["forgeyard_agent_output_upload_bytes_total"]; got != float64(len("made\n")) {
		t.Errorf("an output of 5 bytes has a copy elsewhere, counted are %v", got)
	}
	for _, name := range []string{
		"agent_active_jobs", "agent_cpu_used", "agent_memory_used_bytes", "agent_disk_free_bytes", "agent_lease_accept_total",
		"agent_reconnects_total", "agent_workspace_cleanup_failures_total", "agent_log_spool_bytes", "agent_cpu_reserved", "agent_memory_reserved_bytes",
	} {
		if _, ok := all["forgeyard_"+name]; !ok {
			t.Errorf("no metric %s", name)
		}
	}
	docs, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	label := regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	for sample := range all {
		name, _, _ := strings.Cut(sample, "{")
		base := regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(name, "")
		if !regexp.MustCompile("`(" + name + "|" + base + ")[`{]").Match(docs) {
			t.Errorf("%s stands not in docs/operations.md", name)
		}
		for _, l := range label.FindAllStringSubmatch(sample, -1) {
			if slices.Contains([]string{"job", "attempt", "lease", "run"}, strings.TrimSuffix(l[1], "_id")) || slices.Contains([]string{run, id, j.AttemptId}, l[2]) {
				t.Errorf("%s has an id as a label", sample)
			}
		}
	}
}

// RA-135: what jobs take is what their trees took since the last look: one that came or went counts for
// what it took, never less than nothing.
func TestWhatJobsTake(t *testing.T) {
	p := makeSite(t, 1)[0]
	r := prometheus.NewRegistry()
	m := newAttemptMetrics(r)
	at := forgeyard.Instant(time.Hour)
	for i, c := range []struct {
		use         map[int]executor.Use
		cpu, memory float64
	}{
		{map[int]executor.Use{7: {CPU: time.Second, Memory: 10}}, 0, 10}, // since when is not known
		{map[int]executor.Use{7: {CPU: 6 * time.Second, Memory: 20}, 8: {CPU: 5 * time.Second, Memory: 1}}, 2, 21},
		{map[int]executor.Use{8: {CPU: 4 * time.Second, Memory: 1}}, 0, 1}, // a child of it went uncollected
		{nil, 0, 0},
	} {
		m.sampled(c.use, at.Add(time.Duration(5*i)*time.Second))
		if got := shown(t, r); got["forgeyard_agent_cpu_used"] != c.cpu || got["forgeyard_agent_memory_used_bytes"] != c.memory {
			t.Errorf("look %d: %v", i, got)
		}
	}
	// Of one that ended since it was seen the rest counts, of one that was never seen all, once.
	m.sampled(map[int]executor.Use{7: {CPU: time.Second, Memory: 10}}, at.Add(20*time.Second))
	m.used(7, 3*time.Second)
	m.used(8, 2*time.Second)
	m.used(9, time.Second)
	m.sampled(map[int]executor.Use{9: {CPU: 500 * time.Millisecond, Memory: 10}}, at.Add(25*time.Second)) // it ended right after
	if m.cores != 1 {
		t.Errorf("ended trees kept %v cores busy", m.cores)
	}
	if m.sampled(nil, at.Add(30*time.Second)); m.cores != 0 {
		t.Errorf("they count again: %v", m.cores)
	}
	for i, want := range []bool{true, false} { // of one that ended nobody could tell
		if i == 0 {
			m.used(7, 0)
		}
		if m.sampled(nil, at.Add(time.Duration(35+5*i)*time.Second)); m.blind != want {
			t.Errorf("blind: %t", m.blind)
		}
	}
	// A job that keeps a core busy shows on a running node.
	_, id := p.submit(strings.Replace(helloJob, "echo hello", "while :; do :; done; echo hello", 1))
	p.wait("it shows", func() bool {
		all := p.metrics()
		return all["forgeyard_agent_cpu_used"] > 0 && all["forgeyard_agent_memory_used_bytes"] > 0
	})
	if _, err := p.jobs().Cancel(t.Context(), connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: id})); err != nil {
		t.Error(err)
	}
	p.waitDone(id)
}

// RA-424–426: the parts of an epoch, as the metrics take them. Steps count together; what
// was not begun counts nowhere.
func TestPartsOfAnEpoch(t *testing.T) {
	at := forgeyard.Instant(time.Hour)
	span := func(name string, d time.Duration) runner.Span {
		return runner.Span{Name: name, Began: at, Ended: at.Add(d)}
	}
	r := prometheus.NewRegistry()
	m := newAttemptMetrics(r)
	m.ended([]runner.Span{span(runner.SpanPrepare, time.Second), span(runner.SpanStep, 2*time.Second), span(runner.SpanStep, 3*time.Second), span(runner.SpanUpload, 4*time.Second)})
	m.ended([]runner.Span{span(runner.SpanPrepare, time.Second)})
	all := shown(t, r)
	for name, want := range map[string][2]float64{"prepare": {2, 2}, "execution": {1, 5}, "upload": {1, 4}} {
		if at := "forgeyard_attempt_" + name + "_duration_seconds"; all[at+"_count"] != want[0] || all[at+"_sum"] != want[1] {
			t.Errorf("%s: %v times, %v s", name, all[at+"_count"], all[at+"_sum"])
		}
	}
}
