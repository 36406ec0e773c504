package trace

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector is one that keeps what it was sent, and answers as it is told.
func collector(t *testing.T, code int) (url string, got chan []*otlp.Span) {
	got = make(chan []*otlp.Span, 16)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var m collect.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(b, &m) != nil {
			t.Errorf("%s %q", r.URL, b)
		}
		w.WriteHeader(code)
		got <- m.ResourceSpans[0].ScopeSpans[0].Spans
	}))
	t.Cleanup(s.Close)
	return s.URL, got
}

func execution(job string, epoch int) Execution {
	at := time.Unix(1700000000, 5)
	id := fmt.Sprintf("%s-%d", job, epoch)
	return Execution{Job: job, Root: Span{ID: id, Name: "execution", Began: at, Ended: at.Add(time.Second), Attributes: map[string]string{"forgeyard.job": job}},
		Parts: []Span{{ID: id + " prepare", Name: "prepare", Began: at, Ended: at.Add(time.Millisecond), Error: "timeout"}}}
}

func run(t *testing.T, x *Tracer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { x.Run(ctx); close(done) }()
	return func() { cancel(); <-done }
}

// RA-428: ids travel in traces. All executions of a job are one trace, whoever carried them out;
// parts hang below their execution; a failure is a status.
func TestSpansReachACollector(t *testing.T) {
	url, got := collector(t, 200)
	x := New(Config{Endpoint: url + "/", Sample: 1, Resource: map[string]string{"service.name": "forgeyard-node"}, Version: "test", Log: slog.New(slog.DiscardHandler)})
	other := New(Config{Endpoint: url, Sample: 1, Log: slog.New(slog.DiscardHandler)})
	defer run(t, x)()
	x.Add(execution("J1", 1))
	all := <-got
	root, part := all[0], all[1]
	if len(all) != 2 || root.Name != "execution" || root.ParentSpanId != nil || !bytes.Equal(part.ParentSpanId, root.SpanId) || !bytes.Equal(part.TraceId, root.TraceId) {
		t.Errorf("%v", all)
	}
	if root.StartTimeUnixNano != 1700000000000000005 || root.EndTimeUnixNano != 1700000001000000005 || len(root.TraceId) != 16 || len(root.SpanId) != 8 {
		t.Errorf("%v", root)
	}
	if s := part.Status; s.GetCode() != otlp.Status_STATUS_CODE_ERROR || s.GetMessage() != "timeout" || root.Status != nil {
		t.Errorf("%v", all)
	}
	if a := root.Attributes[0]; a.Key != "forgeyard.job" || a.Value.GetStringValue() != "J1" {
		t.Errorf("%v", root)
	}
	second := other.message([]Execution{execution("J1", 2)})[0].ScopeSpans[0].Spans[0]
	if !bytes.Equal(second.TraceId, root.TraceId) || bytes.Equal(second.SpanId, root.SpanId) {
		t.Errorf("the next epoch on another node: trace %s, span %s", hex.EncodeToString(second.TraceId), hex.EncodeToString(second.SpanId))
	}
}

// A collector that takes nothing costs its spans and a bounded queue; what waits when the node
// stops is sent before it goes.
func TestCollectorThatIsAway(t *testing.T) {
	url, got := collector(t, 500)
	x := New(Config{Endpoint: url, Sample: 1, Log: slog.New(slog.DiscardHandler)})
	for i := range maxQueue + 3 {
		x.Add(execution(fmt.Sprint(i), 1))
	}
	if _, dropped := x.Counts(); dropped != 3 {
		t.Errorf("%d are dropped of %d", dropped, maxQueue+3)
	}
	stop := run(t, x)
	for range maxQueue / maxBatch {
		<-got
	}
	x.Add(execution("last", 1))
	stop()
	if sent, dropped := x.Counts(); sent != 0 || dropped != maxQueue+4 {
		t.Errorf("%d sent, %d dropped", sent, dropped)
	}
}

// Off is nil: it has no goroutine, takes nothing and says nothing. A share of jobs is that share,
// of whole jobs.
func TestOffAndSampled(t *testing.T) {
	off := New(Config{})
	if off != nil || off.Sampled("J") {
		t.Error("it is not off")
	}
	off.Add(execution("J", 1))
	if sent, dropped := off.Counts(); sent != 0 || dropped != 0 {
		t.Error("off counts")
	}
	x, same := New(Config{Endpoint: "http://x", Sample: .25}), New(Config{Endpoint: "http://y", Sample: .25})
	n := 0
	for i := range 4000 {
		job := fmt.Sprint("job ", i)
		if x.Sampled(job) != same.Sampled(job) {
			t.Fatalf("%s: two nodes do not agree", job)
		}
		if x.Sampled(job) {
			n++
		}
	}
	if n < 850 || n > 1150 {
		t.Errorf("%d of 4000 are sampled, a quarter was asked for", n)
	}
}
