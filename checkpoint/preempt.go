package checkpoint

import (
	"cmp"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node/job"
)

// MinWindow: a shorter time for a checkpoint is not worth asking; the last committed one is
// used (FYCP/1 §6).
const MinWindow = 2 * time.Second

// Most of what is left until a deadline that is kept for the end of the work after its
// checkpoint, and for bringing what it saved and said to others.
const (
	graceShare    = 4
	reserveShare  = 8
	uploadReserve = 5 * time.Second
)

// Budget divides what is left until a deadline that nobody promises (69§101): how long a
// checkpoint may take and, after it, how long the work may take to end. grace is what the job
// asks; of a short time it gets a quarter. left below or at zero: there is no deadline.
func Budget(contract, grace, left time.Duration) (window, end time.Duration) {
	if left <= 0 {
		return contract, grace
	}
	end = min(grace, left/graceShare)
	window = max(0, min(contract, left-end-min(uploadReserve, left/reserveShare)))
	if window < MinWindow {
		window = 0
	}
	return window, end
}

// SavesOnCancel reports whether work that is cancelled is asked for a checkpoint first: its
// contract says so, the reason allows it and there is time (69§81).
func SavesOnCancel(onCancel bool, reason job.CancelReason, window time.Duration) bool {
	return onCancel && reason.Saves() && window >= MinWindow
}

// Work is what a preemption weighs of one execution (69§104).
type Work struct {
	ID        string
	Resumable bool
	Unsaved   time.Duration // that its work is done for, and no checkpoint has
	MilliCPU  int64
	Write     time.Duration // that a checkpoint of it takes; 0: not known
	Priority  job.Priority
}

// unknownWrite stands for a checkpoint whose time nobody has measured.
const unknownWrite = 10 * time.Second

// weight of a priority: a step of it is worth what eight times the work is.
func weight(p job.Priority) float64 {
	switch p {
	case job.PriorityCritical:
		return 64
	case job.PriorityHigh:
		return 8
	case job.PriorityLow:
		return 1.0 / 8
	}
	return 1
}

// worth is what asking it first saves for each second of writing: core seconds that would be
// done again, by the weight of the job.
func (w Work) worth() float64 {
	if !w.Resumable {
		return 0
	}
	write := w.Write
	if write <= 0 {
		write = unknownWrite
	}
	return weight(w.Priority) * w.Unsaved.Seconds() * float64(max(w.MilliCPU, 1)) / max(write.Seconds(), 0.1)
}

// ByWorth puts first what is worth most to be asked first when there is not time for all;
// what has nothing to save comes last. The order is the same for the same work.
func ByWorth(all []Work) []Work {
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b Work) int {
		return cmp.Or(cmp.Compare(b.worth(), a.worth()), cmp.Compare(a.ID, b.ID))
	})
	return out
}
