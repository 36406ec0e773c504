// Package report is what a bench says: one line a promise, readable by a program, and what
// a process has cost.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Result is one promise and what was measured of it.
type Result struct {
	Name             string
	Median, Min, Max float64
	Goal             float64 // at most, or
	Least            bool    // at least
	Unit             Unit
	Absent           string // why it could not be measured
}

// Unit writes a figure.
type Unit func(float64) string

// The units that are in use. Times are given in seconds, sizes in bytes.
func Millis(v float64) string {
	return time.Duration(v * float64(time.Second)).Round(100 * time.Microsecond).String()
}

// Micros writes a time that is short.
func Micros(v float64) string {
	return time.Duration(v * float64(time.Second)).Round(100 * time.Nanosecond).String()
}

func MiB(v float64) string     { return fmt.Sprintf("%.1fMiB", v/(1<<20)) }
func Count(v float64) string   { return fmt.Sprintf("%.0f", v) }
func Tenths(v float64) string  { return fmt.Sprintf("%.1f", v) }
func Percent(v float64) string { return fmt.Sprintf("%.2f%%", v) }
func Ratio(v float64) string   { return fmt.Sprintf("%.2fx", v) }

// Measured makes the result of at least one figure.
func Measured(name string, u Unit, goal float64, all []float64) Result {
	if len(all) == 0 {
		return Result{Name: name, Unit: u, Goal: goal, Absent: "nothing was measured"}
	}
	s := slices.Sorted(slices.Values(all))
	return Result{Name: name, Median: s[len(s)/2], Min: s[0], Max: s[len(s)-1], Goal: goal, Unit: u}
}

// AtLeast makes the goal one that a figure must reach.
func (r Result) AtLeast() Result { r.Least = true; return r }

// Lacking makes it one that could not be measured.
func (r Result) Lacking(why string) Result {
	r.Absent = strings.ReplaceAll(why, "\n", "; ")
	return r
}

func (r Result) String() string {
	goal := "goal <=" + r.Unit(r.Goal)
	if r.Least {
		goal = "goal >=" + r.Unit(r.Goal)
	}
	if r.Absent != "" {
		return fmt.Sprintf("RATIO %s - - - %s absent: %s", r.Name, goal, r.Absent)
	}
	word := "ok"
	if r.Median > r.Goal != r.Least && r.Median != r.Goal {
		word = "short"
	}
	return fmt.Sprintf("RATIO %s %s %s %s %s %s", r.Name, r.Unit(r.Median), r.Unit(r.Min), r.Unit(r.Max), goal, word)
}

// Sheet is what one run says.
type Sheet struct {
	Out     io.Writer
	results []Result
}

// Add says a result now, and again at the end.
func (s *Sheet) Add(r Result) {
	s.results = append(s.results, r)
	s.Say("%s", r)
}

// Say writes one line.
func (s *Sheet) Say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Out, format+"\n", args...) // who reads no more needs no more
}

// Results says all again.
func (s *Sheet) Results() {
	for _, r := range s.results {
		s.Say("%s", r)
	}
}
