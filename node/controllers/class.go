package controllers

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// What a class is worth in a score: less than where the content is and more than how empty a
// runner is. It never stands against a hard filter, trust among them (CK-199).
const (
	spares = 1_500 // a job that can be interrupted leaves stable capacity to those that cannot
	risks  = 5_000 // near its time a job is not put where it may be interrupted
)

// suits says how a class of runners suits a job: one that may vanish is good for what can go
// on elsewhere, and bad near the time by which the job is to be done (CK-199, 69§175).
func suits(class job.InterruptionClass, j site.Job, wall forgeyard.Wall) int64 {
	switch {
	case !class.MayVanish():
		return 0
	case nearItsTime(j, wall):
		return -risks
	case j.Spec.Interruption.Tolerance == job.ToleranceCheckpointable:
		return spares
	case lossOf(j) <= cheapLoss:
		return spares / 2
	}
	return -spares
}

// nearItsTime reports that one more interruption may be one too many: what the job may still
// take, and half of that again, is more than what is left.
func nearItsTime(j site.Job, wall forgeyard.Wall) bool {
	within := j.Spec.Interruption.FinishWithin
	if within == 0 {
		return false
	}
	left := within - wall.Time().Sub(j.Submitted.Time())
	return left < j.Spec.Timeouts.Run+j.Spec.Timeouts.Run/2
}

// cheapLoss is what may be done again without regret.
const cheapLoss = 15 * time.Minute

// lossOf is the most that an interruption may cost a job which begins anew: its run time, by
// its own bound (CK-150, CK-198).
func lossOf(j site.Job) time.Duration { return j.Spec.Timeouts.Run }
