package checkpoint

import (
	"math"
	"time"
)

// Risk is what is known of a job when the time between its checkpoints is advised.
type Risk struct {
	Cost          time.Duration // of one checkpoint: from the seal to the commit; zero: none was taken yet
	Bytes         int64         // of the last one
	Ran           time.Duration // how long it was executed so far, over all epochs
	Interruptions int           // from outside, in that time
	Restart       time.Duration // what a start costs before the work goes on
}

// What stands in for what is not known yet.
const (
	// priorInterval is the time between interruptions that a site is believed to have before
	// it has shown another one; each interruption that comes counts against it.
	priorInterval = 24 * time.Hour
	// storeRate is at what rate a payload is believed to be written, hashed and copied: a
	// disk and a link of 1 Gbit/s.
	storeRate = 100 << 20
	// leastCost is of a payload of no size: files are synced and a log entry is committed.
	leastCost = 100 * time.Millisecond
	// mostAdvised bounds the advice: a job that is never interrupted still loses no more.
	mostAdvised = 4 * time.Hour
	leastAdvise = 10 * time.Second
)

// Advise is the time between two checkpoints that loses least, all in all: more often, and
// writing them costs more than it saves; more rarely, and each interruption throws away more
// (69§24). It is Young's and Daly's: with C the cost of one and M the mean time between
// interruptions,
//
//	√(2·C·(M+R)) − C   while C < M/2, and M else
//
// What the job declares is advised as declared.
func (c Contract) Advise(r Risk) time.Duration {
	if c.Interval > 0 || !c.Resumable() {
		return c.Interval
	}
	cost := r.cost()
	mean := (priorInterval + max(r.Ran, 0)) / time.Duration(max(r.Interruptions, 0)+1)
	best := mean
	if cost < mean/2 {
		best = time.Duration(math.Sqrt(2*float64(cost)*float64(mean+max(r.Restart, 0)))) - cost
	}
	return min(max(best, leastAdvise, c.MinInterval), max(mostAdvised, c.MinInterval))
}

func (r Risk) cost() time.Duration {
	if r.Cost > 0 {
		return r.Cost
	}
	return leastCost + time.Duration(float64(max(r.Bytes, 0))/storeRate*float64(time.Second))
}
