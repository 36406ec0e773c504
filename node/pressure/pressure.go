// Package pressure says from what a machine feels whether it can take more work.
//
//	normal ──▶ memory ──▶ critical      heat ──▶ thermal
//	   ◀── only once it is well below what it was entered at
//
// Felt is time that was lost: the share of the last ten seconds in which every process that
// wanted to run waited for memory. Memory that is merely full is caches and does no harm, and
// a processor that is merely busy is what a runner is for, so neither is pressure here; cores
// are lent by the reservations.
//
// Invariant: a level is left at half of what it was entered at, so that one job more or less
// does not make a node take and refuse work by turns. What a machine does not tell is no
// pressure.
//
// It reads nothing and refuses nothing; the disk's free space is looked at elsewhere.
package pressure

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
}

// Where levels are entered; they are left at half.
const (
	memoryAt   = 20.0 // a fifth of all work is lost
	criticalAt = 50.0 // nothing gets done but paging
	heatAt     = 5.0  // degrees before the machine is hot; left at twice that
)

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
