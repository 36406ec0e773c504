// Package pressure says from what a machine feels whether it can take more work.
//
//	normal ──▶ memory ──▶ critical      heat ──▶ thermal
//	   ◀── only once it is well below what it was entered at
//
// Felt is time that was lost: the share of the last ten seconds in which every process that
// wanted to run waited for memory. Memory that is merely full is caches and does no harm, and
// a processor that is merely busy is what a runner is for, so neither is a level here.
//
// Cores are lent by the reservations. Those that somebody else uses while work waits for cores
// are withheld from what is offered, half of it at most, until work waits no more: Withhold.
//
// Invariant: a level is left at half of what it was entered at, so that one job more or less
// does not make a node take and refuse work by turns. What a machine does not tell is no
// pressure.
//
// It reads nothing and refuses nothing; the disk's free space is looked at elsewhere.
package pressure

import "time"

// Level is what is scarce, in a word that status shows (decision 13).
type Level string

// Levels. The disk is judged by who knows how much of it the log needs.
const (
	Normal   Level = "normal"
	Memory   Level = "memory"
	Thermal  Level = "thermal"
	Critical Level = "critical"
)

// Sample is what a machine says at one moment.
type Sample struct {
	CPU    float64 // percent of the last ten seconds in which some process waited for a core
	Memory float64 // in which all waited for memory
	IO     float64 // in which all waited for a disk
	// Heat is how far the hottest part is below the point at which its firmware calls it hot,
	// or critical where the machine would go off, in degrees; below zero it is past it.
	Heat     float64
	HasHeat  bool
	HasStall bool // the first three are known
	// Busy is what all processors have worked since the machine's start, those of jobs among it.
	// Zero: not known.
	Busy time.Duration
	// Own is what this process, the agent, has worked of it.
	Own time.Duration
}

// Where levels are entered; they are left at half.
const (
	memoryAt   = 20.0 // a fifth of all work is lost
	criticalAt = 50.0 // nothing gets done but paging
	heatAt     = 5.0  // degrees before the machine is hot; left at twice that
)

// Cores are withheld from a stall of so many percent on, and given back at half.
const coresAt = 50.0

// grain of what is withheld, in thousandths of a core: less is noise.
const grain = 100

// Load is who kept the processors of a machine busy between two looks, in thousandths of a core.
type Load struct {
	Offered int64 // what jobs may use in all
	Spare   int64 // what they may never use: reserves
	Busy    int64 // what was used in all
	Jobs    int64 // of this, by jobs
	Own     int64 // by the agent itself; the reserves are its first
}

// Since is what all processors, and what the agent, worked since an earlier sample, in thousandths
// of a core. False: not known.
func (s Sample) Since(before Sample, took time.Duration) (busy, own int64, known bool) {
	if s.Busy <= 0 || before.Busy <= 0 || s.Busy < before.Busy || took <= 0 {
		return 0, 0, false
	}
	cores := func(worked time.Duration) int64 { return int64(1000 * float64(worked) / float64(took)) }
	return cores(s.Busy - before.Busy), cores(s.Own - before.Own), true
}

// Withhold is how many thousandths of a core are withheld from new work after a sample, if so
// many were before it. What jobs and the agent use themselves is never withheld: a node that is full
// of its own work is slow for no stranger's sake.
func Withhold(was int64, s Sample, l Load) int64 {
	most := max(0, l.Offered/2)
	switch {
	case !s.HasStall || s.CPU < coresAt/2:
		return 0
	case s.CPU >= coresAt:
		others := l.Busy - l.Jobs - max(l.Spare, l.Own)
		return min(max(0, others/grain*grain), most)
	}
	return min(was, most)
}

// Next is the level after a sample. The worst counts.
func (l Level) Next(s Sample) Level {
	at := func(limit float64, in bool) float64 {
		if in {
			return limit / 2
		}
		return limit
	}
	switch {
	case s.HasStall && s.Memory >= at(criticalAt, l == Critical):
		return Critical
	case s.HasStall && s.Memory >= at(memoryAt, l == Memory || l == Critical):
		return Memory
	case s.HasHeat && (s.Heat <= heatAt || l == Thermal && s.Heat <= 2*heatAt):
		return Thermal
	}
	return Normal
}

// Why says it for people; empty for Normal.
func (l Level) Why() string {
	switch l {
	case Memory, Critical:
		return "work here waits for memory: more would make all of it slower"
	case Thermal:
		return "this machine is about to slow down for heat"
	}
	return ""
}
