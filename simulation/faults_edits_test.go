package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// The faults of the rules: each is an Apply that is wrong in one place.

type applies = func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply)

// before changes a command of one kind before the honest rule sees it, or the state.
func before[B site.Body](f func(s *site.State, b *B) *site.State) applies {
	return func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
		c, err := site.Decode(data)
		b, ok := c.Body.(B)
		if err != nil || !ok || s.Requests.Has(c.ID) {
			return s.ApplyEntry(index, term, data)
		}
		s = f(s, &b)
		c.Body = b
		return s.ApplyEntry(index, term, c.Encode())
	}
}

// after changes what the honest rule made of a command of one kind.
func after[B site.Body](f func(was, is *site.State, b B, r site.Reply) *site.State) applies {
	return func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
		next, r := s.ApplyEntry(index, term, data)
		if c, err := site.Decode(data); err == nil && !s.Requests.Has(c.ID) {
			if b, ok := c.Body.(B); ok {
				next = f(s, next, b, r)
			}
		}
		return next, r
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

// underCurrent takes what comes under an old authority for the current one.
func underCurrent(s *site.State, a *forgeyard.Authority) *site.State {
	if j, ok := s.Jobs.Get(a.Job); ok {
		*a = j.Lease.Authority
	}
	return s
}

// revive lets a lease that ended be acted under again.
func revive(s *site.State, a forgeyard.Authority, which func(site.Job) bool) *site.State {
	return change(s, a.Job, func(j *site.Job) {
		if j.Lease.Authority == a && !j.Status.Terminal() && which(*j) {
			j.Lease.State, j.Term = lease.Accepted, a.Fence.Term
		}
	})
}

func acceptsEnded(s *site.State, b *site.Complete) *site.State {
	return revive(s, b.Authority, func(j site.Job) bool { return j.Lease.State == lease.Ended && j.Lease.Reason != lease.EndCompleted })
}

func ignoresTerm(s *site.State, b *site.Complete) *site.State {
	return revive(s, b.Authority, func(j site.Job) bool { return j.Term > b.Authority.Fence.Term })
}

// forgetsMessage answers the repeat of a completion as if it were new.
func forgetsMessage(s *site.State, b *site.Complete) *site.State {
	return change(s, b.Authority.Job, func(j *site.Job) { j.Message = "" })
}

// twoOutcomes queues the end of a delegated job twice.
func twoOutcomes(was, is *site.State, _ site.Complete, _ site.Reply) *site.State {
	if is.Sent != was.Sent+1 {
		return is
	}
	out := *is
	r, _ := is.Outbox.Get(site.SeqKey(is.Sent))
	r.Seq++
	out.Sent, out.Outbox = r.Seq, is.Outbox.Put(site.SeqKey(r.Seq), r)
	return &out
}

// trimsTooFar takes one more record from the outbox than the daemon has.
func trimsTooFar(s *site.State, b *site.OutboxAck) *site.State {
	if b.Upto < s.Sent {
		b.Upto++
	}
	return s
}

// freeAtOnce gives a device back to the pool before it was reset.
func freeAtOnce(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	next, r := s.ApplyEntry(index, term, data)
	for id, d := range next.Devices.All() {
		if old, _ := s.Devices.Get(id); old.Use != devices.Cleaning && d.Use == devices.Cleaning {
			d.Use, d.Health, d.Dirty, d.Last, d.Lease = devices.Free, devices.Good, false, nil, nil
			out := *next
			out.Devices = next.Devices.Put(id, d)
			next = &out
		}
	}
	return next, r
}

// neverGoesOn keeps what waited for the uplink waiting.
func neverGoesOn(was, is *site.State, _ site.UplinkObserve, _ site.Reply) *site.State {
	for id, j := range was.Jobs.All() {
		if now, _ := is.Jobs.Get(id); j.Status == job.Suspended && now.Status == job.Queued {
			is = change(is, id, func(n *site.Job) { n.Status = job.Suspended })
		}
	}
	return is
}

// resumesQuarantined resumes from the newest checkpoint, good or not.
func resumesQuarantined(_, is *site.State, b site.Offer, r site.Reply) *site.State {
	if r.Err() != nil {
		return is
	}
	return change(is, b.Job, func(j *site.Job) {
		if n := len(j.Checkpoints); n > 0 {
			j.ResumeFrom = j.Checkpoints[n-1].Manifest
		}
	})
}

// staysMember lets a removed node's devices be.
func staysMember(was, is *site.State, _ site.MemberSet, _ site.Reply) *site.State {
	out := *is
	out.Devices = was.Devices
	return &out
}

func currentEpoch(s *site.State, a forgeyard.Authority) uint64 {
	j, _ := s.Jobs.Get(a.Job)
	return j.Epoch
}

// freesAtOnce calls protected work free as soon as its lease is revoked.
func freesAtOnce(_, is *site.State, b site.Revoke, r site.Reply) *site.State {
	if r.Err() != nil {
		return is
	}
	return change(is, b.Job, func(j *site.Job) { j.Status, j.Phase, j.Certain = job.Queued, "", false })
}

// keepsIncarnation recovers by force and calls the site what it was called before.
func keepsIncarnation(was, is *site.State, _ site.Recover, _ site.Reply) *site.State {
	out := *is
	out.Incarnation = was.Incarnation
	return &out
}

// keepsSecond does so where the site was recovered before.
func keepsSecond(was, is *site.State, b site.Recover, r site.Reply) *site.State {
	if was.Incarnation == 1 {
		return is
	}
	return keepsIncarnation(was, is, b, r)
}

// believesBackup goes on with the jobs as a backup has them.
func believesBackup(was, is *site.State, b site.Recover, r site.Reply) *site.State {
	if !b.Backup || r.Err() != nil {
		return is
	}
	out := *is
	out.Jobs = was.Jobs
	return &out
}

// leavesCurrent is a recovery that lets leases of unprotected work be, which the site then
// forgets when it removes those who were lost.
func leavesCurrent(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	next, r := s.ApplyEntry(index, term, data)
	if r.Err() != nil {
		return next, r
	}
	body := edit(data)
	for id, j := range s.Jobs.All() {
		if !j.Lease.Live() || j.Spec.Effects == job.EffectsProtected {
			continue
		}
		switch body.(type) {
		case site.Recover:
			next = change(next, id, func(n *site.Job) { *n = j })
		case site.MemberSet:
			if j.Lease.Authority.Fence.Incarnation < s.Incarnation {
				next = change(next, id, func(n *site.Job) { n.Status, n.Phase, n.Lease.State = job.Queued, "", lease.Ended })
			}
		}
	}
	return next, r
}

// trustsQueue leaves queued what the recovered state knows as queued.
func trustsQueue(was, is *site.State, _ site.Recover, _ site.Reply) *site.State {
	for id, j := range was.Jobs.All() {
		if j.Status == job.Queued {
			is = change(is, id, func(n *site.Job) { *n = j })
		}
	}
	return is
}

// trustsSession takes for the last grant whatever the recovered state knows as such, and
// whoever registers for the certain end of its holder.
func trustsSession(s *site.State, b *site.Register) *site.State {
	for id, j := range s.Jobs.All() {
		if j.Lease.Reason == lease.EndRecovered && j.Lease.Authority.Runner == b.Runner {
			s = change(s, id, func(n *site.Job) { n.Lease.Reason = lease.EndExpired })
			s = samePlace(s, b, j.Lease.Authority.Session)
		}
	}
	return s
}

// samePlace makes a registration the proof that the process of a session is dead.
func samePlace(s *site.State, b *site.Register, dead forgeyard.SessionID) *site.State {
	m, ok := s.Members.Get(b.Runner)
	if !ok || m.Session.ID == b.Session {
		return s
	}
	b.Place = cas.Sum([]byte("one place"))
	m.Session.ID, m.Session.Place = dead, b.Place
	next := *s
	next.Members = s.Members.Put(b.Runner, m)
	return &next
}

// endsAtOnce takes whoever registers for the certain end of the session before.
func endsAtOnce(s *site.State, b *site.Register) *site.State {
	m, _ := s.Members.Get(b.Runner)
	return samePlace(s, b, m.Session.ID)
}

// namesOf lets the names of an ingest point at what a result says.
func namesOf(s *site.State, j site.Job, outs []job.Output) *site.State {
	next := *s
	for _, o := range outs {
		n, _ := next.Names.Get(o.Path)
		n.Name, n.NamedSet = o.Path, site.NamedSet{Digest: o.Digest, Size: o.Size, Job: j.ID, Run: j.Run, At: 1}
		next.Names = next.Names.Put(o.Path, n)
	}
	return &next
}

func namesStale(_, is *site.State, b site.Complete, r site.Reply) *site.State {
	v, err := site.Value[site.Completed](r)
	j, ok := is.Jobs.Get(b.Authority.Job)
	if err != nil || v.Verdict != site.StaleRejected || !ok || !j.Spec.Own() {
		return is
	}
	return namesOf(is, j, b.Result.Outputs)
}

func namesHalf(_, is *site.State, b site.Complete, r site.Reply) *site.State {
	v, err := site.Value[site.Completed](r)
	j, ok := is.Jobs.Get(b.Authority.Job)
	if err != nil || v.Verdict != site.Accepted || !ok || !j.Spec.Own() || b.Result.Outcome != job.OutcomeDone {
		return is
	}
	next := *is
	next.Names = next.Names.Delete("b")
	return &next
}

func forgetsNoReplace(_, is *site.State, b site.Offer, _ site.Reply) *site.State {
	return change(is, b.Job, func(j *site.Job) { j.Lease.Policy.NoReplace = false })
}

// forgetsHolders leaves a device as the backup has it: free, where nobody had it then.
func forgetsHolders(was, is *site.State, _ site.Recover, _ site.Reply) *site.State {
	next := *is
	for id, d := range was.Devices.All() {
		if d.Use == devices.Free {
			next.Devices = next.Devices.Put(id, d.HostRestarted("the site was restored"))
		}
	}
	return &next
}

func holdForgotten(was, is *site.State, b site.Release, _ site.Reply) *site.State {
	if j, _ := was.Jobs.Get(b.Authority.Job); !j.Held() {
		return is
	}
	return change(is, b.Authority.Job, func(j *site.Job) {
		if j.Status == job.Suspended {
			j.Status, j.Hold = job.Queued, nil
		}
	})
}

// forgetsLedger offers the next epoch of a job as if nothing had been begun.
func forgetsLedger(s *site.State, b *site.Offer) *site.State {
	return change(s, b.Job, func(j *site.Job) { j.Effects = nil })
}

// beginsAnew takes an effect that is done for one that was never begun.
func beginsAnew(s *site.State, b *site.EffectIntent) *site.State {
	return change(s, b.Authority.Job, func(j *site.Job) { j.Effects = nil })
}
