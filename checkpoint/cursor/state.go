package cursor

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// State is what a plan and its records come to in one epoch.
type State struct {
	plan    Plan
	epoch   uint64
	results map[string]Result
	spent   int64 // milliseconds, of all that ended in any epoch
}

// Result is the end that counts for one test.
type Result struct {
	Outcome  Outcome
	Epoch    uint64 // in which it ended
	Millis   int64  // of all its runs, over all epochs
	Evidence string
}

// Fold reads the records of all epochs as the given epoch sees them. A record of a test that
// is not in the plan is Invalid.
func Fold(p Plan, records []Record, i job.Isolation, epoch uint64) (State, error) {
	s := State{plan: p, epoch: epoch, results: map[string]Result{}}
	known := make(map[string]bool, len(p))
	for _, id := range p {
		known[id] = true
	}
	last := map[string]uint64{} // epoch in which a suite was touched last
	for _, r := range records {
		if !known[r.ID] {
			return State{}, forgeyard.Errorf("cursor", forgeyard.Invalid, "test %q of record %d is not in the plan", forgeyard.Clip(r.ID, 80), r.Seq)
		}
		if r.Epoch > epoch {
			return State{}, forgeyard.Errorf("cursor", forgeyard.Invalid, "record %d is of epoch %d, this is %d", r.Seq, r.Epoch, epoch)
		}
		last[Suite(r.ID)] = r.Epoch
		if r.Event != End {
			continue
		}
		took := max(r.Ended-r.Started, 0)
		s.spent += took
		s.results[r.ID] = Result{Outcome: r.Outcome, Epoch: r.Epoch, Millis: s.results[r.ID].Millis + took, Evidence: r.Evidence}
	}
	s.drop(i, last)
	return s, nil
}

// drop takes out what of older epochs does not count under an isolation.
func (s State) drop(i job.Isolation, last map[string]uint64) {
	switch i {
	case job.Ordered:
		for id, r := range s.results {
			if r.Epoch < s.epoch {
				delete(s.results, id)
			}
		}
	case job.Suite:
		cut := map[string]bool{}
		for _, id := range s.plan {
			suite := Suite(id)
			if r, ok := s.results[id]; !ok || r.Epoch != last[suite] {
				cut[suite] = true
			}
		}
		for id, r := range s.results {
			if cut[Suite(id)] && r.Epoch < s.epoch {
				delete(s.results, id)
			}
		}
	}
}

// Done counts the tests that are completed.
func (s State) Done() int { return len(s.results) }

// Result is the end that counts for a test.
func (s State) Result(id string) (Result, bool) { r, ok := s.results[id]; return r, ok }

// Remaining lists the tests that have no end that counts, in the order of the plan.
func (s State) Remaining() []string {
	return slices.DeleteFunc(slices.Clone(s.plan), func(id string) bool { _, done := s.results[id]; return done })
}

// Progress is how far the list is.
func (s State) Progress() checkpoint.Progress {
	return checkpoint.Progress{Unit: "test", Done: int64(s.Done()), Total: int64(len(s.plan))}
}

// ReportVersion is the only version of the report.
const ReportVersion = 1

// Report is every test of the list with its result. A carried result keeps its outcome and
// says from which epoch it comes: it is neither a pass of now nor a skip.
type Report struct {
	V        int              `json:"v"`
	List     forgeyard.Digest `json:"list"`
	Epoch    uint64           `json:"epoch"`
	Complete bool             `json:"complete"`
	Tests    int              `json:"tests"`
	Passed   int              `json:"passed"`
	Failed   int              `json:"failed"`
	Skipped  int              `json:"skipped"`
	Errors   int              `json:"errors"`
	Missing  int              `json:"missing"`
	Carried  int              `json:"carried"`
	Duration int64            `json:"duration_ms"` // of all runs of all epochs
	Results  []Line           `json:"results"`
}

// Line is one test of a report. Without an outcome it has not ended.
type Line struct {
	ID       string  `json:"id"`
	Outcome  Outcome `json:"outcome,omitempty"`
	Carried  uint64  `json:"carried_from_epoch,omitempty"`
	Duration int64   `json:"duration_ms"`
	Evidence string  `json:"evidence,omitempty"`
}

// Report tells the state.
func (s State) Report() Report {
	r := Report{V: ReportVersion, List: s.plan.Digest(), Epoch: s.epoch, Tests: len(s.plan), Duration: s.spent}
	for _, id := range s.plan {
		x, done := s.results[id]
		l := Line{ID: id, Outcome: x.Outcome, Duration: x.Millis, Evidence: x.Evidence}
		if done && x.Epoch < s.epoch {
			l.Carried = x.Epoch
			r.Carried++
		}
		switch x.Outcome {
		case Pass:
			r.Passed++
		case Fail:
			r.Failed++
		case Skip:
			r.Skipped++
		case Error:
			r.Errors++
		default:
			r.Missing++
		}
		r.Results = append(r.Results, l)
	}
	r.Complete = r.Missing == 0
	return r
}

// Encode writes the report.
func (r Report) Encode() []byte { return append(checkpoint.CanonicalJSON(r), '\n') }

// OK reports whether every test ended, and none badly.
func (r Report) OK() bool { return r.Complete && r.Failed+r.Errors == 0 }
