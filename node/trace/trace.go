// Package trace tells an OpenTelemetry collector how long the parts of an execution took
// (07§186): what metrics may not have as labels, the ids of a job, stands here as attributes.
//
//	execution ended → Add → queue → batch → POST <endpoint>/v1/traces (OTLP, by the SDK's client)
//
// A span is made of two instants that are known anyhow, after its execution has ended, so that
// tracing costs the work nothing. Ids follow from those of the job and its epoch: all nodes that
// carried out epochs of a job write one trace, and decide alike whether it is sampled, without
// telling each other anything.
//
// Invariants: a collector that is slow or away costs a bounded queue and its spans, never an
// execution; nothing is sent of what a workload wrote, names of steps aside.
//
// One goroutine, Run, owns the connection. A nil Tracer is one that is off: it has none.
package trace

import (
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/forgeyard/forgeyard-node/cas"
)

// Bounds.
const (
	maxQueue = 256 // executions that wait; the newest are dropped beyond it
	maxBatch = 64  // executions in one call
	// sendWithin bounds a batch, tries after the first included; a collector is near, or it is
	// no collector.
	sendWithin = 10 * time.Second
	tryAgain   = time.Second // where it is busy (429, 502, 503, 504)
)

// Config says where spans go.
type Config struct {
	Endpoint string            // URL of the collector, without /v1/traces
	Sample   float64           // share of jobs whose spans are sent, in (0, 1]
	Resource map[string]string // who sends
	Version  string            // of the program
	Log      *slog.Logger
}

// Span is a part of an execution. ID names it among those of its trace.
type Span struct {
	ID           string // unique for the execution
	Name         string
	Began, Ended time.Time
	Error        string // a category; empty: it did not fail
	Attributes   map[string]string
}

// Execution is one epoch: its root span, and the parts below it.
type Execution struct {
	Job   string // of which all executions are one trace
	Root  Span
	Parts []Span
}

// Tracer sends spans.
type Tracer struct {
	cfg     Config
	client  otlptrace.Client
	queue   chan Execution
	dropped atomic.Int64
	sent    atomic.Int64
}

// New makes one. Without an endpoint it is nil: off.
func New(cfg Config) *Tracer {
	if cfg.Endpoint == "" {
		return nil
	}
	return &Tracer{cfg: cfg, queue: make(chan Execution, maxQueue), client: otlptracehttp.NewClient(
		otlptracehttp.WithEndpointURL(strings.TrimSuffix(cfg.Endpoint, "/")+"/v1/traces"),
		otlptracehttp.WithTimeout(sendWithin),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: tryAgain, MaxInterval: tryAgain, MaxElapsedTime: sendWithin}),
	)}
}

// Counts are the executions that were sent, and those that were given up.
func (t *Tracer) Counts() (sent, dropped int64) {
	if t == nil {
		return 0, 0
	}
	return t.sent.Load(), t.dropped.Load()
}

// Sampled says whether the executions of a job are sent, the same on every node.
func (t *Tracer) Sampled(job string) bool {
	if t == nil {
		return false
	}
	h := cas.Sum([]byte("sample " + job))
	return float64(binary.BigEndian.Uint64(h[:8])>>11)/(1<<53) < t.cfg.Sample
}

// Add hands an execution over, and waits for nothing.
func (t *Tracer) Add(e Execution) {
	if !t.Sampled(e.Job) {
		return
	}
	select {
	case t.queue <- e:
	default:
		t.dropped.Add(1)
	}
}

// Run sends what is added until ctx ends, then what is left, once.
func (t *Tracer) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			t.send(context.WithoutCancel(ctx), t.gather(nil))
			return
		case e := <-t.queue:
			t.send(ctx, t.gather([]Execution{e}))
		}
	}
}

// gather takes along what waits.
func (t *Tracer) gather(batch []Execution) []Execution {
	for len(batch) < maxBatch {
		select {
		case e := <-t.queue:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

func (t *Tracer) send(ctx context.Context, batch []Execution) {
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	if err := t.client.UploadTraces(ctx, t.message(batch)); err != nil {
		t.dropped.Add(int64(len(batch)))
		t.cfg.Log.Warn("the collector of traces took nothing", "endpoint", t.cfg.Endpoint, "lost", len(batch), "err", err)
		return
	}
	t.sent.Add(int64(len(batch)))
}

func (t *Tracer) message(batch []Execution) []*otlp.ResourceSpans {
	var all []*otlp.Span
	for _, e := range batch {
		trace := cas.Sum([]byte("trace " + e.Job))
		root := spanOf(trace[:16], e.Root, nil)
		all = append(all, root)
		for _, p := range e.Parts {
			all = append(all, spanOf(trace[:16], p, root.SpanId))
		}
	}
	return []*otlp.ResourceSpans{{
		Resource:   &resource.Resource{Attributes: attributes(t.cfg.Resource)},
		ScopeSpans: []*otlp.ScopeSpans{{Scope: &common.InstrumentationScope{Name: "forgeyard-node", Version: t.cfg.Version}, Spans: all}},
	}}
}

func spanOf(trace []byte, s Span, parent []byte) *otlp.Span {
	id := cas.Sum([]byte("span " + s.ID))
	out := &otlp.Span{
		TraceId: trace, SpanId: id[:8], ParentSpanId: parent, Name: s.Name, Kind: otlp.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: uint64(s.Began.UnixNano()), EndTimeUnixNano: uint64(s.Ended.UnixNano()), Attributes: attributes(s.Attributes),
	}
	if s.Error != "" {
		out.Status = &otlp.Status{Code: otlp.Status_STATUS_CODE_ERROR, Message: s.Error}
	}
	return out
}

func attributes(m map[string]string) []*common.KeyValue {
	var out []*common.KeyValue
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, &common.KeyValue{Key: k, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: m[k]}}})
	}
	return out
}
