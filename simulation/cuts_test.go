package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/simulation/scenario"
)

// TestE01ThousandCuts: two sites, whose uplinks are cut 1000 times in all within an hour of
// their time, at moments and for lengths that are drawn, while results go up all along. The
// daemon ends with each record once, in order and without a gap: the checker
// exactly-once-upstream looks at each record as it comes, and at all of them in the end.
func TestE01ThousandCuts(t *testing.T) {
	t.Parallel()
	const sites, cuts, jobs = 2, 500, 64
	for seed := range sites {
		sc, err := scenario.Parse("cuts", []byte(cutAgainAndAgain(seed, cuts, jobs)))
		if err != nil {
			t.Fatal(err)
		}
		r := Play(sc, Options{})
		if r.Broken != nil {
			t.Fatalf("site %d: %v\n%s", seed, r.Broken, strings.Join(r.Tail, "\n"))
		}
		for _, f := range seededFaults() {
			if f.name == "one end is queued twice for the daemon" && f.play(sc).Broken == nil {
				t.Errorf("site %d: an outcome that goes up twice is not seen", seed)
			}
		}
		if r.Delegated != jobs || r.Ended < jobs {
			t.Errorf("site %d: %d of %d delegated jobs came, %d ended", seed, r.Delegated, jobs, r.Ended)
		}
	}
}

// cutAgainAndAgain is a scenario with that many cuts of the uplink, one after the other.
func cutAgainAndAgain(seed, cuts, jobs int) string {
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	ms := func(least, most int) time.Duration {
		return time.Duration(least+rng.IntN(most-least)) * time.Millisecond
	}
	var damage, work strings.Builder
	at := 10 * time.Second
	for range cuts {
		long := ms(200, 2000)
		fmt.Fprintf(&damage, "at %s uplink for %s\n", at, long)
		at += long + ms(300, 3700)
	}
	for i := range jobs {
		begin := 5*time.Second + time.Duration(i)*(at/time.Duration(jobs)).Round(time.Millisecond)
		fmt.Fprintf(&work, "job j%d at %s delegated offline 60s work 2s policy continuous 0s cpu 100 budget 9 stop 1s\n", i, begin)
	}
	return fmt.Sprintf("# E01: the uplink is cut again and again\nseed %d\nlength %s\nnodes 3 voters 3\nlease ttl 3s grace 0s copies 2\nuplink silent 5s grace 5s allowance 60s\n%s%s",
		seed+1, (at + 30*time.Second).Round(time.Second), work.String(), damage.String())
}
