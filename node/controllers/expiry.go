package controllers

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// expiry looks for a silence that lasted too long. A new leader counts the whole
// length anew: it does not know how long a lease was silent before.
func (s *stepper) expiry(j *site.Job) {
	h, ok := s.in.Mem.leases[j.Lease.Authority.Lease]
	if !ok {
		return
	}
	l := j.Lease
	heard := max(h.heard, s.in.Mem.Elected)
	switch {
	case l.State == lease.Offered:
		s.expireAfter(j, lease.UnknownAt(withTTLOnly(l), heard) <= s.now, false)
		s.at(lease.UnknownAt(withTTLOnly(l), heard))
	case l.State == lease.Accepted:
		certain := lease.CertainAt(l, heard) <= s.now
		s.expireAfter(j, certain || lease.UnknownAt(l, heard) <= s.now, certain)
		s.at(lease.UnknownAt(l, heard))
	case j.Status == job.Unknown && !j.Certain:
		s.expireAfter(j, lease.CertainAt(l, heard) <= s.now, true)
		s.at(lease.CertainAt(l, heard))
	}
}

// withTTLOnly is the lease as an offer is counted: nobody acts under it yet, so the
// connectivity policy does not stretch it.
func withTTLOnly(l lease.Lease) lease.Lease {
	l.Policy = job.Connectivity{Policy: job.Continuous}
	l.Protected = false
	return l
}

func (s *stepper) expireAfter(j *site.Job, due, certain bool) {
	if !due {
		return
	}
	id := j.Lease.Authority.Lease
	s.in.Mem.Expiring(id)
	b := site.Expire{Job: j.ID, Lease: id, Certain: certain, Term: s.in.Term, State: j.Lease.State}
	if s.in.State.Allows(site.FormatRuns) {
		b.LogSeq = s.in.Mem.lastLog(j.Lease.Authority)
	}
	s.propose("expire/"+string(id), b)
}

// lastLog is the last number of an execution's log that its holder spoke of, 0 if it did not.
func (m *Memory) lastLog(a forgeyard.Authority) uint64 {
	for _, t := range m.runners[a.Runner].Attempts {
		if t.Authority == a {
			return t.LastLog
		}
	}
	return 0
}

// authority asks for delegated work to stop when the central daemon's grant is used
// up: by a checkpoint where the contract has one (§6). What it asks is added to stops.
func (s *stepper) authority(j *site.Job, stops []Effect) []Effect {
	if !s.in.Known || j.Grant == nil || !j.Lease.Live() || j.Stops() {
		return stops
	}
	left := j.Grant.Left(s.in.uplink(), s.in.Used)
	margin := stopMargin(*j, j.Grant.Span(s.in.State.Uplink.Terms))
	if left > margin {
		s.at(s.now.Add(left - margin))
		return stops
	}
	why := j.Grant.Ended(s.in.uplink(), s.in.Used)
	if why == "" {
		why = fmt.Sprintf("the central daemon's authority ends in %s", left.Round(time.Second))
	}
	id := j.Lease.Authority.Lease
	body := site.Stop{Job: j.ID, Kind: "authority", Reason: why}
	if s.in.State.Allows(site.FormatLeases) {
		body.Lease = id
	}
	return append(stops, Propose{Key: "stop/" + string(id), Body: body})
}
