package checkpoint

import (
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// Retention says how long payloads are kept (69§164). What a checkpoint was, its commit and
// its manifest, stays as long as its job is known.
type Retention struct {
	KeepLatest int           // good ones of an attempt, at least 1
	MaxAge     time.Duration // of one that is not the newest good one; zero: no bound
	OnFailure  time.Duration // after the job failed or was cancelled; zero: DefaultOnFailure
}

// RetentionOf is the retention of a job's declaration.
func RetentionOf(c Contract) Retention {
	return Retention{KeepLatest: c.Keep, MaxAge: c.MaxAge, OnFailure: c.OnFailure}
}

// Owner is the job as far as retention goes.
type Owner struct {
	Status job.Status
	Ended  forgeyard.Wall
	Needs  []forgeyard.Digest // what the current epoch goes on from, and what the next one would
}

// Surplus is a commit whose payload is to go, and why.
type Surplus struct {
	Commit Commit
	Why    string
}

// Surplus lists what is not to be kept any more. While the job may go on, the newest good
// commit and those that an epoch needs are never among it, so a resume always finds
// what it goes on from. The clock is for how long something is kept and for nothing else.
func (r Retention) Surplus(history []Commit, of Owner, now forgeyard.Wall) []Surplus {
	var out []Surplus
	good := 0
	for _, c := range slices.Backward(history) {
		why := ""
		age := now.Time().Sub(c.At.Time())
		switch {
		case c.Dropped:
		case of.Status == job.Done:
			why = "the job is done"
		case of.Status.Terminal():
			if window := r.window(); now.Time().Sub(of.Ended.Time()) > window {
				why = "the job ended more than " + window.String() + " ago"
			}
		case c.State == Good:
			good++
			switch {
			case good == 1 || slices.Contains(of.Needs, c.Manifest):
			case good > max(r.KeepLatest, 1):
				why = found(Valid, "", "%d newer ones are kept", max(r.KeepLatest, 1)).Detail
			case r.MaxAge > 0 && age > r.MaxAge:
				why = "it is older than " + r.MaxAge.String()
			}
		case slices.Contains(of.Needs, c.Manifest):
		case r.MaxAge > 0 && age > r.MaxAge:
			why = "it is not usable and older than " + r.MaxAge.String()
		}
		if why != "" {
			out = append(out, Surplus{c, why})
		}
	}
	slices.Reverse(out)
	return out
}

func (r Retention) window() time.Duration {
	if r.OnFailure > 0 {
		return r.OnFailure
	}
	return DefaultOnFailure
}
