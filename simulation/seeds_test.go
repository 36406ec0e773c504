package simulation

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/simulation/scenario"
	"github.com/forgeyard/forgeyard-node/site"
)

var (
	seedCount = flag.Int("seeds", 100, "how many sites to simulate")
	firstSeed = flag.Uint64("seed", 1, "the first of them")
)

// TestSeeds simulates whole sites. With one seed and -v it prints the trace, which ends
// with its digest. The daemon, the network, the executors and the stores are working doubles
// (RA-429–432); the agents and the leaders are those of the node.
func TestSeeds(t *testing.T) {
	if *seedCount == 1 {
		o := Options{}
		if testing.Verbose() {
			o.Trace = os.Stdout
		}
		report(t, Run(*firstSeed, o))
		return
	}
	total := Batch(*firstSeed, *seedCount, func(r Result) bool { report(t, r); return !t.Failed() })
	fmt.Println(total)
	if total.Collected == 0 || total.Elections == 0 || total.Ended == 0 || total.Delegated == 0 {
		t.Errorf("nothing happened: %s", total)
	}
}

func report(t *testing.T, r Result) {
	t.Helper()
	if r.Broken != nil {
		t.Error(Report(r))
	}
}

// TestReplay: the same seed gives the same trace, byte for byte, also beside others, and
// so does the scenario that it draws, read from its file.
func TestReplay(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		sc, err := scenario.Parse("drawn", []byte(scenario.Draw(seed, scenario.Taste{}).Format()))
		if err != nil {
			t.Fatal(err)
		}
		var first, second strings.Builder
		a, b := Run(seed, Options{Trace: &first}), Play(sc, Options{Trace: &second})
		if a.Trace != b.Trace || first.String() != second.String() {
			one, two := strings.Split(first.String(), "\n"), strings.Split(second.String(), "\n")
			for i := range min(len(one), len(two)) {
				if one[i] != two[i] {
					t.Fatalf("seed %d differs at line %d:\n%s\n%s", seed, i+1, one[i], two[i])
				}
			}
			t.Fatalf("seed %d: %s against %s", seed, a.Trace, b.Trace)
		}
		if !strings.HasSuffix(first.String(), a.Trace+"\n") || !strings.HasPrefix(a.Trace, "TRACE b3:") {
			t.Fatalf("the trace ends with %q", a.Trace)
		}
	}
}

// TestEffectsOnce: whatever dies between an intent and its outcome, an effect is performed
// once, and no epoch runs before somebody has looked (CK-306, CK-307).
func TestEffectsOnce(t *testing.T) {
	acted, looked := 0, 0
	for n := uint64(1); n <= 40; n++ {
		h := honest()
		h.apply = func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
			next, r := s.ApplyEntry(index, term, data)
			if b, ok := edit(data).(site.EffectOutcome); ok && r.Err() == nil {
				acted++
				if b.Reconciled {
					looked++
				}
			}
			return next, r
		}
		report(t, play(scenario.Draw(n, publishing), Options{Quiet: true}, h))
	}
	if acted < 40 || looked < 5 {
		t.Errorf("nothing happened: %d outcomes, %d of them looked for", acted, looked)
	}
}
