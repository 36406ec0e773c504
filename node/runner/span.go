package runner

import (
	"github.com/forgeyard/forgeyard-node"
)

// Span is a part of an epoch and how long it took: what metrics and traces are made of. None
// of them is waited for while the work goes on.
type Span struct {
	Name  string // one of those below
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

	SpanValidate = "checkpoint.validate"
	SpanRestore  = "checkpoint.restore"
)

// part notes how long a part of the preparation took. Only the life calls it.
func (a *Attempt) part(name string, f func() error) error {
	s := Span{Name: name, Began: a.run.cfg.Clock.Now()}
	err := f()
	s.Ended = a.run.cfg.Clock.Now()
	if err != nil {
		s.Error = forgeyard.KindOf(err).String()
	}
	a.spans = append(a.spans, s)
	return err
}

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
