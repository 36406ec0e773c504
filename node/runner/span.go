package runner

import (
	"github.com/forgeyard/forgeyard-node"
)

// Span is a part of an epoch and how long it took: what metrics and traces are made of. None
// of them is waited for while the work goes on.
type Span struct {
	Name  string // SpanPrepare, SpanStep or SpanUpload
	Step  string // its name, of a step
	Began forgeyard.Instant
	Ended forgeyard.Instant
	Error string // why it failed; empty: it did not
}

// Names of spans.
const (
	SpanPrepare = "prepare"
	SpanStep    = "step"
	SpanUpload  = "upload"
)

// timed notes how long a part took, and passes on how it went. Only the life calls it.
func (a *Attempt) timed(name, step string, f func() *verdict) *verdict {
	s := Span{Name: name, Step: step, Began: a.run.cfg.Clock.Now()}
	v := f()
	s.Ended = a.run.cfg.Clock.Now()
	if v != nil && v.category != "" {
		s.Error = string(v.category) // the whole message may tell what the workload wrote
	}
	a.spans = append(a.spans, s)
	return v
}
