package main

import (
	"fmt"
	"slices"
	"time"
)

// result is one promise and what was measured of it.
type result struct {
	name             string
	median, min, max float64
	goal             float64 // at most, or
	least            bool    // at least
	unit             unit
	absent           string // why it could not be measured
}

// unit writes a figure.
type unit func(float64) string

func inMillis(v float64) string {
	return time.Duration(v * float64(time.Second)).Round(100 * time.Microsecond).String()
}
func inMiB(v float64) string     { return fmt.Sprintf("%.1fMiB", v/(1<<20)) }
func inCount(v float64) string   { return fmt.Sprintf("%.0f", v) }
func inTenths(v float64) string  { return fmt.Sprintf("%.1f", v) }
func inPercent(v float64) string { return fmt.Sprintf("%.2f%%", v) }

// measured makes the result of at least one figure.
func measured(name string, u unit, goal float64, all []float64) result {
	if len(all) == 0 {
		return result{name: name, unit: u, goal: goal, absent: "nothing was measured"}
	}
	s := slices.Sorted(slices.Values(all))
	return result{name: name, median: s[len(s)/2], min: s[0], max: s[len(s)-1], goal: goal, unit: u}
}

// atLeast makes the goal one that a figure must reach.
func (r result) atLeast() result { r.least = true; return r }

func (r result) String() string {
	goal := "goal <=" + r.unit(r.goal)
	if r.least {
		goal = "goal >=" + r.unit(r.goal)
	}
	if r.absent != "" {
		return fmt.Sprintf("RATIO %s - - - %s absent: %s", r.name, goal, r.absent)
	}
	word := "ok"
	if r.median > r.goal != r.least && r.median != r.goal {
		word = "short"
	}
	return fmt.Sprintf("RATIO %s %s %s %s %s %s", r.name, r.unit(r.median), r.unit(r.min), r.unit(r.max), goal, word)
}

func (b *bench) add(r result) {
	b.results = append(b.results, r)
	fmt.Fprintln(b.out, r)
}

func seconds(d time.Duration) float64 { return d.Seconds() }
