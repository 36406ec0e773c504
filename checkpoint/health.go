package checkpoint

import "fmt"

// Health is how well checkpoints can be taken and gone on from, as one word (69§249).
type Health string

// Healths. The first part that is bad gives the name; all reasons are told beside it.
const (
	Healthy            Health = "healthy"
	CasDegraded        Health = "cas_degraded"        // a store or its disk is in trouble
	ValidationDegraded Health = "validation_degraded" // what was committed is not believed
	ResumeDegraded     Health = "resume_degraded"     // jobs go on from checkpoints and get nowhere
	Unhealthy          Health = "unhealthy"           // nothing can be stored, or all three
)

// Signs are what health is judged by.
type Signs struct {
	Store       []string // what is wrong with the store and its disk
	StoreFails  bool     // nothing can be written there, or what is wrong is that bad
	Quarantined int      // checkpoints of open jobs that proved bad
	Broken      int      // chains with a part missing, and work from what was revoked
	Loops       int      // jobs that go on from the same one again and again
	Failing     int      // checkpoints of open jobs whose last resumes died early
}

// Health judges, and says why.
func (s Signs) Health() (Health, []string) {
	reasons := append([]string(nil), s.Store...)
	add := func(n int, format string) {
		if n > 0 {
			reasons = append(reasons, fmt.Sprintf(format, n))
		}
	}
	add(s.Quarantined, "%d checkpoints of jobs that have not ended are quarantined")
	add(s.Broken, "%d chains are broken or start from what was revoked")
	add(s.Loops, "%d jobs go on from one checkpoint again and again")
	add(s.Failing, "%d checkpoints were gone on from last without success")
	cas, validation, resume := len(s.Store) > 0, s.Quarantined+s.Broken > 0, s.Loops+s.Failing > 0
	switch {
	case s.StoreFails, cas && validation && resume:
		return Unhealthy, reasons
	case cas:
		return CasDegraded, reasons
	case validation:
		return ValidationDegraded, reasons
	case resume:
		return ResumeDegraded, reasons
	}
	return Healthy, nil
}
