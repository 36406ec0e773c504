package node

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// RA-428: an execution is a span with its parts below it, which name the job; a node that traces
// nothing has no goroutine for it.
func TestExecutionsAreTraced(t *testing.T) {
	got := make(chan []*otlp.Span, 8)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m collect.ExportTraceServiceRequest
		b, err := io.ReadAll(r.Body)
		if err = errors.Join(err, proto.Unmarshal(b, &m)); err != nil {
			t.Error(err)
		}
		got <- m.ResourceSpans[0].ScopeSpans[0].Spans
	}))
	defer collector.Close()
	dir := t.TempDir()
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	running := func() bool {
		var b strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(b.String(), "trace.(*Tracer).Run")
	}
	p := startNode(t, dir, "n1")
	if running() {
		t.Error("a node that traces nothing has a goroutine for it")
	}
	p.end()
	p = startNode(t, dir, "n1", func(c *Config) { c.Settings.Traces.Endpoint = collector.URL })
	_, id := p.submit(helloJob)
	p.waitDone(id)
	spans := <-got
	var names []string
	for i, s := range spans {
		names = append(names, s.Name)
		if !bytes.Equal(s.TraceId, spans[0].TraceId) || (len(s.ParentSpanId) == 0) != (i == 0) || s.StartTimeUnixNano > s.EndTimeUnixNano {
			t.Errorf("%+v", s)
		}
	}
	if want := []string{"execution", "prepare", "step", "upload", "complete", "cleanup"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	has := map[string]string{}
	for _, s := range []int{0, 2} {
		for _, a := range spans[s].Attributes {
			has[a.Key] = a.Value.GetStringValue()
		}
	}
	if has["forgeyard.job"] != id || has["forgeyard.outcome"] != "done" || has["forgeyard.step"] != "greet" || has["forgeyard.epoch"] != "1" {
		t.Errorf("%v", has)
	}
	if !running() || p.metrics()[`forgeyard_traces_total{result="dropped"}`] != 0 {
		t.Error("its goroutine has gone, or dropped something")
	}
}
