package controllers

import (
	"fmt"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// loaded is a leader of a site whose runners hold so many leases.
func loaded(t testing.TB, runners, leases int) (Input, forgeyard.Instant, [][]Renewal) {
	t.Helper()
	s, index, now := &site.State{}, uint64(0), forgeyard.Instant(time.Hour)
	at := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	apply := func(b site.Body) site.Reply {
		index++
		next, reply := s.ApplyEntry(index, 7, site.Command{ID: forgeyard.MessageID(fmt.Sprint("r", index)), At: forgeyard.WallOf(at), By: "ana", Body: b}.Encode())
		if err := reply.Err(); err != nil {
			t.Fatalf("%T: %v", b, err)
		}
		s = next
		return reply
	}
	first := forgeyard.RunnerID(forgeyard.NewULID(at, [10]byte{}))
	apply(site.Init{Site: forgeyard.SiteID(forgeyard.NewULID(at, [10]byte{1})), Name: "lab", Config: sitecfg.DefaultSite(), Runner: first, Node: "n0", Peer: "p0"})
	apply(site.TokenCreate{Token: "T", Expires: forgeyard.WallOf(at.Add(time.Hour)), Uses: max(1, runners-1)})
	ids := []forgeyard.RunnerID{first}
	for i := 1; i < runners; i++ {
		v, err := site.Value[site.Joined](apply(site.Join{Token: "T", Peer: fmt.Sprint("p", i), Name: fmt.Sprint("n", i)}))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.Runner)
	}
	in := Input{Mem: NewMemory(now), Term: 7}
	for i, id := range ids {
		session := forgeyard.SessionID(fmt.Sprint("S", i))
		apply(site.Register{Runner: id, Session: session, Caps: job.Capabilities{OS: "linux", Arch: "amd64", MilliCPU: 1 << 40, Memory: 1 << 50, Disk: 1 << 50, MaxJobs: leases,
			Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}}}})
		in.Mem.Hello(id, Sign{Session: session, At: now})
	}
	raw := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
	batches := make([][]Renewal, runners)
	for n := range leases {
		sub, err := site.Value[site.Submitted](apply(site.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}))
		if err != nil {
			t.Fatal(err)
		}
		to := n % runners
		apply(site.Offer{Job: sub.Job, Runner: ids[to], Session: forgeyard.SessionID(fmt.Sprint("S", to))})
		j, _ := s.Jobs.Get(sub.Job)
		apply(site.Accept{Authority: j.Lease.Authority})
		batches[to] = append(batches[to], Renewal{Authority: j.Lease.Authority, Running: true})
	}
	in.State = s
	Step(now, in)
	return in, now, batches
}

// What one renewal costs does not grow with the leases of the site: it looks at its own.
func TestRenewalsLookOnlyAtTheirOwn(t *testing.T) {
	allocs := map[int]float64{}
	for _, leases := range []int{20, 2000} {
		in, now, batches := loaded(t, 10, leases)
		one := batches[3][:1]
		allocs[leases] = testing.AllocsPerRun(50, func() {
			if a := in.Mem.Renew(now, in, one); a[0].Answer != lease.Continue {
				t.Fatalf("%+v", a)
			}
		})
	}
	if allocs[2000] > allocs[20]+1 {
		t.Errorf("a renewal allocates %v times among 20 leases and %v among 2000", allocs[20], allocs[2000])
	}
}

// BenchmarkRenew is one lease of a batch of a site with 5,000.
func BenchmarkRenew(b *testing.B) {
	in, now, batches := loaded(b, 50, 5000)
	n := 0
	b.ResetTimer()
	for i := 0; n < b.N; i++ {
		batch := batches[i%len(batches)]
		in.Mem.Renew(now, in, batch)
		n += len(batch)
	}
}

// BenchmarkStep is one look at a site whose leases all live and whose queue is empty.
func BenchmarkStep(b *testing.B) {
	for _, leases := range []int{50, 500, 5000} {
		b.Run(fmt.Sprint("leases=", leases), func(b *testing.B) {
			in, now, _ := loaded(b, 50, leases)
			b.ResetTimer()
			for range b.N {
				if effects, _ := Step(now, in); len(effects) != 0 {
					b.Fatal(effects)
				}
			}
		})
	}
}

// BenchmarkStepOverAQueue is one look at a site whose jobs all wait, with nobody to take them.
func BenchmarkStepOverAQueue(b *testing.B) {
	in, now, _ := loaded(b, 3, 1)
	raw := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
	for i := range 2000 {
		submit := site.Command{ID: forgeyard.MessageID(fmt.Sprint("q", i)), At: 1_800_000_000_000, By: "ana", Body: site.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}}
		next, reply := in.State.ApplyEntry(in.State.Index+1, 7, submit.Encode())
		if err := reply.Err(); err != nil {
			b.Fatal(err)
		}
		in.State = next
	}
	in.Mem.runners = map[forgeyard.RunnerID]Sign{}
	b.ResetTimer()
	for range b.N {
		if effects, _ := Step(now, in); len(effects) != 0 {
			b.Fatal(effects)
		}
	}
}
