package reckon

import (
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node/lease"
)

// How names the clock by which an elapsed time was measured. It travels.
type How string

// The clocks, the trustworthy one first.
const (
	ByBoot How = "boot clock"
	ByWall How = "wall clock"
)

// Vouch is what one voter says about the time since a figure was committed.
type Vouch struct {
	By      string // its name, for people
	Known   bool
	Elapsed time.Duration // since the figure was committed; only when Known
	How     How
	Why     string // why it cannot say, when it cannot
}

// Base is where a new leader's count begins.
type Base struct {
	Used  time.Duration
	Best  Vouch  // the voter who was believed; zero when none could say
	Doubt string // why none could: the allowance counts as used up
}

// Resume is what was committed, and the largest time since then that anybody vouches
// for.
func Resume(u lease.Uplink, vs []Vouch) Base {
	best, doubt := largest(vs)
	b := Base{Used: u.Used + best.Elapsed, Best: best, Doubt: doubt}
	if doubt != "" {
		b.Used = max(b.Used, u.Terms.Allowance)
	}
	return b
}

// largest says how much silence passed since the committed figure: the largest that
// anybody vouches for, since each may have seen less than there was and none can
// have seen more, unless its wall clock runs ahead, which costs time and not safety.
// With nobody able to say, doubt tells why.
func largest(vs []Vouch) (best Vouch, doubt string) {
	var whys []string
	for _, v := range vs {
		switch {
		case v.Known && (!best.Known || v.Elapsed > best.Elapsed):
			best = v
		case !v.Known && v.Why != "":
			whys = append(whys, strings.TrimPrefix(v.By+": "+v.Why, ": "))
		}
	}
	if best.Known {
		best.Elapsed = max(0, best.Elapsed)
		return best, ""
	}
	if len(whys) == 0 {
		whys = []string{"no voter answered"}
	}
	return best, "no clock can say how long the uplink was silent: " + strings.Join(whys, "; ")
}
