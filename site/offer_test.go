package site

import (
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
)

// queued is a site with so many jobs that wait, and an offer for each.
func queued(n int) (c *chaos, offers [][]byte) {
	c = newChaos(1)
	c.must(Register{Formats: Formats, Runner: "R1", Session: "s"})
	raw := job.Spec{Title: "t", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
	for range n {
		c.must(Submit{Kind: job.Build, Title: "t", Spec: raw, SpecID: cas.Sum(raw)})
	}
	at := forgeyard.WallOf(c.at)
	for id := range c.s.Open.All() {
		offers = append(offers, Command{ID: forgeyard.MessageID(id), At: at, By: "x", Body: Offer{Job: id, Runner: "R1", Session: "s"}}.Encode())
	}
	return c, offers
}

// What a grant costs every voter stays small whatever the site has in its tables.
func TestAnOfferIsCheap(t *testing.T) {
	c, offers := queued(3000)
	n := -1
	allocs := testing.AllocsPerRun(len(offers)-1, func() {
		n++
		next, r := c.s.Apply(c.index+1+uint64(n), offers[n])
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		c.s = next
	})
	if allocs > 70 {
		t.Errorf("an offer makes %v allocations", allocs)
	}
}

func BenchmarkOffer(b *testing.B) {
	c, offers := queued(6000)
	full := c.s
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		if n%len(offers) == 0 {
			c.s = full
		}
		next, r := c.s.Apply(c.index+1+uint64(n), offers[n%len(offers)])
		if err := r.Err(); err != nil {
			b.Fatal(err)
		}
		c.s = next
	}
}
