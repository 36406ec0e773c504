package simulation

import (
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// patience is how many sites may pass before a fault must have been seen.
const patience = 1000

// TestFaults puts one fault after another into the rules or the shell, and sees the
// invariant's checker fail. A checker that was never seen to fail is not trusted.
func TestFaults(t *testing.T) {
	for _, f := range []struct {
		name, invariant string
		hooks           func(*hooks)
	}{
		{"two epochs may be current", "one-current-epoch", func(h *hooks) { h.apply = forgetsLease }},
		{"a stale completion is taken for the current one", "stale-never-commits", func(h *hooks) { h.apply = takesStale }},
		{"a late result overwrites the terminal status", "terminal-once", func(h *hooks) { h.apply = writesTwice }},
		{"the daemon forgets which records it has", "exactly-once-upstream", func(h *hooks) { h.forgetful = true }},
		{"a new leader counts the silence from zero", "within-allowance", func(h *hooks) { h.base = fromZero }},
		{"a holder counts from the receipt", "holder-stops-first", func(h *hooks) { h.counted, h.shape = fromReceipt, onlyMute }},
		{"a deposed leader's expiry counts", "holder-stops-first", func(h *hooks) { h.apply, h.shape = anyTerm, onlyPause }},
		{"a granter does not wait until it is certain", "holder-stops-first", func(h *hooks) { h.apply = alwaysCertain }},
		{"a device's host admits any token", "device-single-holder", func(h *hooks) { h.openGate = true }},
		{"a rule asks something outside the log", "same-state", func(h *hooks) { h.apply = impure() }},
		{"a disk loses what was synced", "nothing-lost", func(h *hooks) { h.amnesia = 12 }},
		{"an epoch resumes from leftovers", "committed-checkpoint-only", func(h *hooks) { h.apply = resumesLeftovers }},
		{"an acknowledgement does not trim the outbox", "progress", func(h *hooks) { h.apply = keepsOutbox }},
		{"a silence never ends a lease", "progress", func(h *hooks) { h.apply = neverExpires }},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			others := map[string]int{}
			for n := 1; n <= patience; n++ {
				h := honest()
				f.hooks(&h)
				r := play(uint64(n), Options{}, h)
				if r.Broken == nil {
					continue
				}
				if r.Broken.Invariant == f.invariant {
					t.Logf("%s: seen after %d sites: %s (seen otherwise before: %v)", f.invariant, n, r.Broken.Detail, others)
					return
				}
				others[r.Broken.Invariant]++
			}
			t.Errorf("%s did not see it in %d sites; others: %v", f.invariant, patience, others)
		})
	}
}

// edit decodes an entry for a fault; the honest rules refuse what cannot be read.
func edit(data []byte) site.Body {
	c, err := site.Decode(data)
	if err != nil {
		return nil
	}
	return c.Body
}

func change(s *site.State, id forgeyard.JobID, f func(*site.Job)) *site.State {
	j, ok := s.Jobs.Get(id)
	if !ok {
		return s
	}
	f(&j)
	next := *s
	next.Jobs = s.Jobs.Put(id, j)
	return &next
}

func forgetsLease(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	next, r := s.ApplyEntry(index, term, data)
	if b, ok := edit(data).(site.Phase); ok && b.Phase == job.PhaseRunning && index%5 == 0 {
		next = change(next, b.Authority.Job, func(j *site.Job) {
			if j.Status == job.Running {
				j.Status, j.Lease.State = job.Queued, lease.Ended
			}
		})
	}
	return next, r
}

func takesStale(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	c, err := site.Decode(data)
	b, ok := c.Body.(site.Complete)
	if err != nil || !ok {
		return s.ApplyEntry(index, term, data)
	}
	if j, ok := s.Jobs.Get(b.Authority.Job); ok {
		b.Authority = j.Lease.Authority
	}
	c.Body = b
	return s.ApplyEntry(index, term, c.Encode())
}

func writesTwice(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	next, r := s.ApplyEntry(index, term, data)
	if b, ok := edit(data).(site.Complete); ok {
		if was, known := s.Jobs.Get(b.Authority.Job); known && was.Status.Terminal() && was.Message != b.Message {
			next = change(next, was.ID, func(j *site.Job) { j.Status, j.Result = job.Status(b.Result.Outcome), &b.Result })
		}
	}
	return next, r
}

func alwaysCertain(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	c, err := site.Decode(data)
	b, ok := c.Body.(site.Expire)
	if err != nil || !ok {
		return s.ApplyEntry(index, term, data)
	}
	b.Certain, b.Term = true, 0
	c.Body = b
	return s.ApplyEntry(index, term, c.Encode())
}

func anyTerm(s *site.State, index, _ uint64, data []byte) (*site.State, site.Reply) {
	return s.Apply(index, data)
}

// impure is a rule that looks at what is not in the log: how often it was called.
func impure() func(*site.State, uint64, uint64, []byte) (*site.State, site.Reply) {
	return func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
		next, r := s.ApplyEntry(index, term, data)
		if b, ok := edit(data).(site.Submit); ok && b.Title != "" {
			out := *next
			out.Name += "!"
			next = &out
		}
		return next, r
	}
}

func resumesLeftovers(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	next, r := s.ApplyEntry(index, term, data)
	if b, ok := edit(data).(site.Offer); ok && r.Err() == nil && b.Epoch > 0 {
		next = change(next, b.Job, func(j *site.Job) {
			if j.ResumeFrom.IsZero() {
				j.ResumeFrom = cas.Sum([]byte("a workspace that still exists"))
			}
		})
	}
	return next, r
}

func keepsOutbox(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	if _, ok := edit(data).(site.OutboxAck); ok {
		return s, site.Reply{}
	}
	return s.ApplyEntry(index, term, data)
}

func neverExpires(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	if _, ok := edit(data).(site.Expire); ok {
		return s, site.Reply{}
	}
	return s.ApplyEntry(index, term, data)
}

// onlyMute is a site whose only trouble is nodes that are heard no more and hear late.
func onlyMute(s *shape) {
	s.faults, s.lateRenew, s.calm, s.longest = []func(*sim, *node){(*sim).mute}, true, 8*time.Second, time.Minute
	s.config.Lease.TTL, s.config.Lease.Renew = 3*time.Second, time.Second
}

// onlyPause is one whose machines stop, the leader's more often than others.
func onlyPause(s *shape) {
	s.faults, s.calm = []func(*sim, *node){(*sim).pause}, 8*time.Second
	s.config.Lease.TTL, s.config.Lease.Renew = 3*time.Second, time.Second
}

func fromZero(time.Duration) time.Duration { return 0 }

func fromReceipt(n *node, _ forgeyard.Instant) forgeyard.Instant { return n.clk.Now() }
