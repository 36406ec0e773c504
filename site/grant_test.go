package site

import (
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// grants is a site whose memories of requests and of leases are full, and the commands that
// each of so many jobs takes from its offer to its end.
func grants(tb testing.TB, n int) (*State, [][]byte) {
	c, offers := queued(n)
	for c.s.Requests.Len() < maxRequests || c.s.LeaseLog.Len() < maxLeaseLog {
		d := c.s.begin(c.s.Index + 1)
		d.remember(forgeyard.MessageID(forgeyard.DeriveULID(c.at, d.Step, 1)), Reply{})
		d.noteAbout("something of before")
		c.s = &d.State
	}
	full, at := c.s, forgeyard.WallOf(c.at)
	var log [][]byte
	do := func(data []byte) Reply {
		log = append(log, data)
		next, r := c.s.Apply(c.s.Index+1, data)
		if err := r.Err(); err != nil {
			tb.Fatal(err)
		}
		c.s = next
		return r
	}
	for _, offer := range offers {
		a, err := Value[forgeyard.Authority](do(offer))
		if err != nil {
			tb.Fatal(err)
		}
		id := string(a.Lease)
		do(Command{ID: forgeyard.MessageID("a" + id), At: at, By: "x", Body: Accept{Authority: a}}.Encode())
		do(Command{ID: forgeyard.MessageID("c" + id), At: at, By: "x", Body: Complete{Authority: a, Message: "m", Result: job.Result{Outcome: job.OutcomeDone}}}.Encode())
	}
	return full, log
}

// BenchmarkGrant is what a voter pays for a lease from its offer to its end: the offer, that
// it is accepted, and that it is complete.
func BenchmarkGrant(b *testing.B) {
	full, log := grants(b, 3000)
	b.ReportAllocs()
	s, n := full, 0
	for b.Loop() {
		if n == len(log) {
			s, n = full, 0
		}
		for range 3 {
			s, _ = s.Apply(s.Index+1, log[n])
			n++
		}
	}
}
