// Package fitness decides from what a node finds wrong with itself whether it may take new
// work, and how it is called (07§124–127).
//
//	healthy ──▶ degraded ──▶ unhealthy
//
// healthy: nothing is wrong. degraded: something is, and new work is taken all the same, for
// nothing that a new attempt needs from this machine is known to fail; a job that needs what is
// missing is turned down by itself, since it is not in the capabilities any more. unhealthy:
// what every attempt needs of this machine fails.
//
// Each reason is one word that status shows (decision 13). Most keep new work away; some only
// tell a person what is the matter, since the site sees to them by itself: a runner without a
// quorum is offered nothing, and one that is full is not offered more.
//
// Invariants: a reason keeps new work away and touches nothing that runs; only what is wrong
// here makes a node unhealthy, so that one that was cut off is never taken for a broken one.
//
// It checks nothing itself.
package fitness

import (
	"slices"

	"github.com/forgeyard/forgeyard-node/job"
)

// Status is the outcome of one check.
type Status string

// Outcomes. Append only.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Finding is what one check says.
type Finding struct {
	Check  string // its name, which doctor shows
	Status Status
	Detail string
}

// Health is what a node's findings come to (07§124).
type Health string

// Healths. Append only.
const (
	Healthy   Health = "healthy"
	Degraded  Health = "degraded"
	Unhealthy Health = "unhealthy"
)

// Word is a reason for taking no work, as status shows it. Append only.
type Word string

// Words (decision 13).
const (
	Draining   Word = "draining"
	Disabled   Word = "disabled"
	Ill        Word = "unhealthy"
	Credential Word = "credential"
	Clock      Word = "clock"
	Pressure   Word = "pressure"
	NoQuorum   Word = "no_quorum"
	Capacity   Word = "capacity"
	// NotApproved: it came in with a token that asks for approval.
	NotApproved Word = "not_approved"
	// Version: the site's log is not for this node's program, or the site does not know what
	// this program says of its machine.
	Version Word = "version"
)

// stops are the checks of which a failure keeps new work away, and the word for it. All are of
// this machine alone. The disk's is not among them: how much is free is asked at every offer.
var stops = map[string]Word{
	"store":      Ill, // no input can be kept, no output stored
	"spool":      Ill, // no log can be written
	"raft_disk":  Ill, // this node takes no part in the log
	"executors":  Ill, // what ran work here does not any more
	"keeper":     Ill, // nobody would end work whose lease is over
	"trees":      Ill, // what was killed lives, and may still write (E18)
	"checks":     Ill, // the checks themselves hang
	"credential": Credential,
	"clock":      Clock,
}

// Stops says whether a failure of a check keeps new work away.
func Stops(check string) bool { _, ok := stops[check]; return ok }

// Of is what findings come to: the worst decides.
func Of(all []Finding) Health {
	h := Healthy
	for _, f := range all {
		switch {
		case f.Status == Fail && Stops(f.Check):
			return Unhealthy
		case f.Status != OK:
			h = Degraded
		}
	}
	return h
}

// Input is what a node knows of itself at the moment.
type Input struct {
	Stopping, Draining bool   // the process ends; the log says that the runner drains
	Disabled           bool   // so says the log
	Unapproved         bool   // it joined, and nobody has said yet that it may work
	Outdated           string // what the site has against this program; empty: nothing
	Probed             bool   // what the machine can do is known
	Sandboxes          int    // kinds of executors that work
	Pressure           string // what is scarce, as status shows it; empty: nothing
	PressureWhy        string
	NoQuorum           bool // no majority of voters answers, as last seen
	Full               bool // as many jobs run as may
	Findings           []Finding
}

// Disk is the pressure of which only the disk is short.
const Disk = "disk"

// Reason is one reason for taking no work.
type Reason struct {
	Word   Word
	Detail string
	// Reject answers an offer. Empty: the reason is for people, and an offer that comes all
	// the same is looked at.
	Reject job.RejectReason
}

// Reasons are all that apply. The first that rejects names the reject reason.
func Reasons(in Input) []Reason {
	var out []Reason
	say := func(is bool, w Word, r job.RejectReason, detail string) {
		if is {
			out = append(out, Reason{w, detail, r})
		}
	}
	say(in.Stopping, Draining, job.RejectDraining, "the node is stopping")
	say(in.Draining, Draining, job.RejectDraining, "the node drains")
	say(in.Disabled, Disabled, job.RejectLocalPolicy, "the runner is disabled")
	say(in.Unapproved, NotApproved, job.RejectLocalPolicy, "the runner waits for approval: forgeyard-node runner approve, on a voter")
	say(in.Outdated != "", Version, job.RejectLocalPolicy, "the site does not take this program, upgrade this node: "+in.Outdated)
	for _, f := range in.Findings {
		if w, ok := stops[f.Check]; ok && f.Status == Fail {
			say(true, w, job.RejectPreparation, f.Detail)
		}
	}
	say(!in.Probed, Capacity, job.RejectPreparation, "the machine is still being probed")
	if in.Pressure == Disk {
		say(true, Pressure, job.RejectDisk, in.PressureWhy)
	} else {
		say(in.Pressure != "", Pressure, job.RejectPressure, in.PressureWhy)
	}
	say(in.NoQuorum, NoQuorum, "", "no majority of voters answers")
	say(in.Probed && in.Sandboxes == 0, Capacity, "", "no executor works here")
	say(in.Full, Capacity, "", "as many jobs run here as may")
	return out
}

// Words are the words of reasons, each once, in order.
func Words(all []Reason) []string {
	var out []string
	for _, r := range all {
		if !slices.Contains(out, string(r.Word)) {
			out = append(out, string(r.Word))
		}
	}
	return out
}
