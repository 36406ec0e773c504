package simulation

import (
	"fmt"
	"strings"

	"github.com/forgeyard/forgeyard-node/simulation/scenario"
)

// shrinkRuns bounds how many shorter scenarios are tried.
const shrinkRuns = 400

// Shrink looks for the shortest run that breaks the same invariant as a broken one: less
// damage, fewer jobs and nodes, shorter. It returns the shortest that it found, and how many
// it tried. What is left out changes what chance does afterwards, so a cut that helps may
// be refused and a later one taken.
func Shrink(r Result) (Result, int) { return shrink(r, honest) }

// shrink makes the hooks anew for each run: some remember.
func shrink(best Result, faults func() hooks) (Result, int) {
	best = loud(best, faults)
	tried := 0
	for better := true; better && tried < shrinkRuns; {
		better = false
		for _, sc := range best.Scenario.Smaller(best.Broken.At) {
			if tried++; tried > shrinkRuns {
				break
			}
			r := play(sc, Options{}, faults())
			if r.Broken != nil && r.Broken.Invariant == best.Broken.Invariant && less(r, best) {
				best, better = r, true
				break
			}
		}
	}
	return best, tried
}

// loud plays a quiet run again, for its lines.
func loud(r Result, faults func() hooks) Result {
	if r.Lines > 0 {
		return r
	}
	return play(r.Scenario, Options{}, faults())
}

// less says that a run is plainer than another: a shorter trace, or the same with less
// to read in its scenario.
func less(a, b Result) bool {
	if a.Lines != b.Lines {
		return a.Lines < b.Lines
	}
	return len(a.Scenario.Format()) < len(b.Scenario.Format())
}

// Report is what a person needs of a broken run: the invariant, the seed, the shortest
// trace that was found, and its scenario as a file for testdata.
func Report(r Result) string {
	r = loud(r, honest)
	short, tried := Shrink(r)
	var b strings.Builder
	play(short.Scenario, Options{Trace: &b}, honest())
	sc := short.Scenario
	sc.Story = []string{fmt.Sprintf("%s, cut down from seed %d", short.Broken.Invariant, r.Scenario.Seed)}
	return fmt.Sprintf("seed %d breaks %v\nthe shortest of %d runs that break it has %d of %d lines: %v\n\n%s\n%s\nagain: make sim SEED=%d",
		r.Scenario.Seed, r.Broken, tried, short.Lines, r.Lines, short.Broken, b.String(), sc.Format(), r.Scenario.Seed)
}

// PlayFile plays a scenario file; name is for errors.
func PlayFile(name string, text []byte, o Options) (Result, error) {
	sc, err := scenario.Parse(name, text)
	if err != nil {
		return Result{}, err
	}
	return Play(sc, o), nil
}
