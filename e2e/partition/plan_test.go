package partition

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// shape is what a run is made of. Everything in it is drawn from the seed.
type shape struct {
	Seed    uint64        `json:"seed"`
	Length  time.Duration `json:"length"` // of the bad weather
	Voters  int           `json:"voters"` // 3, and two runners that never vote; or all five
	Hosts   [2]int        `json:"hosts"`  // of the jobs' device and the people's
	Delay   time.Duration `json:"delay"`  // of every cable, one way
	Jitter  time.Duration `json:"jitter"`
	Loss    float64       `json:"loss"`
	Allowed time.Duration `json:"allowed"` // what the central daemon lets the site do alone
	Acts    []act         `json:"acts"`
}

// act is one thing that is done to the machines, and undone after For.
type act struct {
	At   time.Duration `json:"at"` // since the weather turned
	For  time.Duration `json:"for"`
	What what          `json:"what"`
	On   []int         `json:"on"`           // machines; hq is the last
	To   []int         `json:"to,omitempty"` // the others of a cut
	N    int64         `json:"n,omitempty"`  // as the kind has it
}

type what string

const (
	cutOneWay    what = "cut-one-way"    // To no longer hears On
	cutBothWays  what = "cut-both-ways"  // nor On To
	cableDown    what = "cable-down"     // the switch carries nothing from On to To
	storm        what = "storm"          // N per cent of On's frames are lost, the rest is late and out of order
	thinLink     what = "thin-link"      // On sends at most N kbit/s
	pauseProcess what = "pause-process"  // SIGSTOP to On's daemon alone
	pauseMachine what = "pause-machine"  // and to all its work
	kill9        what = "kill-9"         // and a new process after For
	powerCut     what = "power-cut"      // the same, and On's disk loses what was not synced
	fillDisk     what = "fill-disk"      // N bytes are left
	fillInodes   what = "fill-inodes"    // no file can be made
	wrongClock   what = "wrong-clock"    // On's wall clock is off by N seconds
	centralGone  what = "kill-9-central" // a new process after For
)

const (
	nodes = 5
	hq    = nodes // the central daemon's machine
)

// alone tells the acts of which a machine bears one at a time: those that end or stop
// its daemon, and those that fill the disk, which a power cut takes away.
func (a act) alone() bool {
	return slices.Contains([]what{pauseProcess, pauseMachine, kill9, powerCut, centralGone, fillDisk, fillInodes}, a.What)
}

func (a act) end() time.Duration { return a.At + a.For }

func (a act) String() string {
	s := fmt.Sprintf("%6.1fs for %5.1fs  %-14s %s", a.At.Seconds(), a.For.Seconds(), a.What, names(a.On))
	if len(a.To) > 0 {
		s += " → " + names(a.To)
	}
	if a.N != 0 {
		s += fmt.Sprintf("  %d", a.N)
	}
	return s
}

func names(machines []int) string {
	var out []string
	for _, m := range machines {
		out = append(out, nameOf(m))
	}
	return strings.Join(out, "+")
}

func nameOf(machine int) string {
	if machine == hq {
		return "hq"
	}
	return fmt.Sprint("n", machine+1)
}

const (
	calmEvery = 25 * time.Second // then nothing new happens
	calm      = 5 * time.Second  // for so long
	longest   = 12 * time.Second // of one act
)

// draw draws a run. The same seed and length are the same plan on every machine; what
// the daemons make of it in real time is not.
func draw(seed uint64, length time.Duration, clocks bool) shape {
	r := rand.New(rand.NewPCG(seed, 4))
	s := shape{Seed: seed, Length: length, Voters: 3 + 2*r.IntN(2), Allowed: time.Hour}
	p := r.Perm(nodes)
	s.Hosts = [2]int{p[0], p[1]}
	if r.IntN(3) > 0 {
		s.Delay = time.Duration(r.IntN(20)) * time.Millisecond
		s.Jitter = time.Duration(r.IntN(10)) * time.Millisecond
		s.Loss = float64(r.IntN(10)) / 1000
	}
	if r.IntN(3) == 0 {
		s.Allowed = 20 * time.Second // and is used up by a long cut
	}
	busy := map[int]time.Duration{} // until when a machine bears no other such act
	for at := time.Second; at < length; at += time.Duration(500+r.IntN(3500)) * time.Millisecond {
		if at%(calmEvery) > calmEvery-calm {
			continue
		}
		a := drawAct(r, at, clocks)
		if a.alone() {
			if busy[a.On[0]] > at {
				continue
			}
			busy[a.On[0]] = a.end() + 2*time.Second
		}
		s.Acts = append(s.Acts, a)
	}
	return s
}

func drawAct(r *rand.Rand, at time.Duration, clocks bool) act {
	a := act{At: at, For: time.Duration(500+r.IntN(int(longest/time.Millisecond)-500)) * time.Millisecond, On: []int{r.IntN(nodes)}}
	all := []what{
		cutOneWay, cutOneWay, cutOneWay, cutBothWays, cutBothWays, cutBothWays, cableDown, storm, thinLink,
		pauseProcess, pauseMachine, pauseMachine, kill9, kill9, powerCut, powerCut, fillDisk, fillInodes, wrongClock, wrongClock, centralGone,
	}
	a.What = all[r.IntN(len(all))]
	n := r.Int64()
	switch a.What {
	case cutOneWay, cutBothWays, cableDown:
		a.On, a.To = drawSides(r)
	case storm:
		a.N = 5 + n%25
	case thinLink:
		a.N = 64 + n%1000
	case fillDisk:
		a.N = n % (256 << 10)
	case wrongClock:
		if !clocks {
			a.What, a.N = storm, 10
			break
		}
		far := []int64{5, 90, 4000, 90_000, 40_000_000}
		if a.N = far[n%int64(len(far))]; r.IntN(2) == 0 {
			a.N = -a.N
		}
	case centralGone:
		a.On = []int{hq}
	}
	return a
}

// drawSides draws who no longer hears whom: the uplink, one link, one node and the
// rest, or two halves.
func drawSides(r *rand.Rand) (from, to []int) {
	p := r.Perm(nodes)
	switch r.IntN(5) {
	case 0:
		from, to = []int{hq}, p
	case 1:
		from, to = p[:1], p[1:2]
	case 2:
		from, to = p[:1], append([]int{hq}, p[1:]...)
	case 3:
		from, to = p[:2], p[2:]
	default:
		from, to = p[:2], append([]int{hq}, p[2:]...)
	}
	from, to = slices.Clone(from), slices.Clone(to)
	slices.Sort(from)
	slices.Sort(to)
	if r.IntN(2) == 0 {
		return to, from
	}
	return from, to
}
