// Package trace tells an OpenTelemetry collector how long the parts of an execution took
// (07§186): what metrics may not have as labels, the ids of a job, stands here as attributes.
//
//	execution ended → Add → queue → batch → POST <endpoint>/v1/traces (OTLP, JSON)
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
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node/cas"
)

// Bounds.
const (
	maxQueue = 256 // executions that wait; the newest are dropped beyond it
	maxBatch = 64  // executions in one call
	// sendWithin bounds a call; a collector is near, or it is no collector.
	sendWithin = 10 * time.Second
	maxAnswer  = 1 << 16
)

// Config says where spans go.
type Config struct {
	Endpoint string            // URL of the collector, without /v1/traces
	Sample   float64           // share of jobs whose spans are sent, in (0, 1]
	Resource map[string]string // who sends
	Version  string            // of the program
	Log      *slog.Logger
	Client   *http.Client // nil: one of its own
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
	queue   chan Execution
	dropped atomic.Int64
	sent    atomic.Int64
}

// New makes one. Without an endpoint it is nil: off.
func New(cfg Config) *Tracer {
	if cfg.Endpoint == "" {
		return nil
	}
	if cfg.Client == nil {
		cfg.Client = &http.Client{}
	}
	return &Tracer{cfg: cfg, queue: make(chan Execution, maxQueue)}
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
	if err := t.post(ctx, batch); err != nil {
		t.dropped.Add(int64(len(batch)))
		t.cfg.Log.Warn("the collector of traces took nothing", "endpoint", t.cfg.Endpoint, "lost", len(batch), "err", err)
		return
	}
	t.sent.Add(int64(len(batch)))
}

func (t *Tracer) post(ctx context.Context, batch []Execution) error {
	body, err := json.Marshal(t.message(batch))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(t.cfg.Endpoint, "/")+"/v1/traces", bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := t.cfg.Client.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if r.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %.200s", r.Status, answer)
	}
	return err
}

// The message of OTLP in its JSON form: ids in hex, times as decimal strings.
type (
	message struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope  `json:"scope"`
		Spans []span `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	span struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		Parent     string      `json:"parentSpanId,omitempty"`
		Name       string      `json:"name"`
		Kind       int         `json:"kind"` // 1: internal
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []attribute `json:"attributes,omitempty"`
		Status     *status     `json:"status,omitempty"`
	}
	status struct {
		Code    int    `json:"code"` // 2: error
		Message string `json:"message"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		String string `json:"stringValue"`
	}
)

func (t *Tracer) message(batch []Execution) message {
	var all []span
	for _, e := range batch {
		trace := cas.Sum([]byte("trace " + e.Job))
		root := spanOf(trace[:16], e.Root, "")
		all = append(all, root)
		for _, p := range e.Parts {
			all = append(all, spanOf(trace[:16], p, root.SpanID))
		}
	}
	return message{[]resourceSpans{{resource{attributes(t.cfg.Resource)}, []scopeSpans{{scope{"forgeyard-node", t.cfg.Version}, all}}}}}
}

func spanOf(trace []byte, s Span, parent string) span {
	id := cas.Sum([]byte("span " + s.ID))
	out := span{
		TraceID: hex.EncodeToString(trace), SpanID: hex.EncodeToString(id[:8]), Parent: parent, Name: s.Name, Kind: 1,
		Start: strconv.FormatInt(s.Began.UnixNano(), 10), End: strconv.FormatInt(s.Ended.UnixNano(), 10), Attributes: attributes(s.Attributes),
	}
	if s.Error != "" {
		out.Status = &status{2, s.Error}
	}
	return out
}

func attributes(m map[string]string) []attribute {
	var out []attribute
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, attribute{k, value{m[k]}})
	}
	return out
}
