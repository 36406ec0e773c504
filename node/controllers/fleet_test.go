package controllers

import (
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// asked are the jobs that the leader asks back now, in order.
func (r *rig) asked() (out []forgeyard.JobID) {
	r.in.State, r.in.Wall = r.s, forgeyard.WallOf(r.at)
	effects, _ := Step(r.now, r.in)
	for _, e := range effects {
		if p, ok := e.(Propose); ok {
			if b, ok := p.Body.(site.Stop); ok {
				out = append(out, b.Job)
			}
		}
	}
	return out
}

func (r *rig) drain(i int, draining, move bool) {
	r.apply(site.MemberSet{Runner: r.r[i], Draining: &draining, Move: move})
}

// CK-155 290 352 363 391: a machine that is emptied gives its jobs away in the order of what they
// are worth, and never more of them than the rest of the site has room for. What cannot save
// anything runs on: its end is bounded by the drain's deadline.
func TestFleetMovesInOrder(t *testing.T) {
	r := rigReading(t, site.Formats)
	r.apply(site.FormatRaise{To: 2, Voters: r.r[:1]})
	resumable := func(p job.Priority) func(*job.Spec) {
		return func(s *job.Spec) {
			s.Resume.Mode, s.Interruption.Priority = job.ResumeApplication, p
		}
	}
	r.hello()
	r.drain(1, true, false)
	cheap := r.submit(resumable(job.PriorityLow))
	first := r.held(cheap)
	dear := r.submit(resumable(job.PriorityHigh))
	second := r.held(dear)
	r.drain(1, false, false)
	plain := r.held(r.submit(nil)) // n1 is full
	if first.Runner != r.r[0] || second.Runner != r.r[0] || plain.Runner != r.r[1] {
		t.Fatalf("they are on %s, %s and %s", first.Runner, second.Runner, plain.Runner)
	}
	r.at = r.at.Add(time.Minute)
	if got := r.asked(); got != nil {
		t.Fatalf("%v are asked for, and nothing is emptied", got)
	}
	r.drain(0, true, false)
	if got := r.asked(); got != nil {
		t.Fatalf("%v are asked for by a drain that lets work end", got)
	}
	// There is room for one.
	r.drain(0, true, true)
	if got := r.asked(); len(got) != 1 || got[0] != dear {
		t.Fatalf("%v are asked for, want the one that is worth most, %s", got, dear)
	}
	r.obey()
	if got := r.asked(); got != nil {
		t.Fatalf("%v are asked for, and the room is promised", got)
	}
	r.apply(site.Release{Authority: second, Kind: "drain"})
	if a := r.held(dear); a.Runner != r.r[1] {
		t.Fatalf("it went to %s", a.Runner)
	}
	if got := r.asked(); got != nil {
		t.Fatalf("%v are asked for, and there is no room", got)
	}
	// Room again: the other. The drain of all leaves nowhere to go, and takes nothing.
	r.apply(site.Complete{Authority: plain, Message: "m", Result: job.Result{Outcome: job.OutcomeDone}})
	r.drain(1, true, true)
	if got := r.asked(); got != nil {
		t.Fatalf("%v are asked for, and nobody takes work", got)
	}
	r.drain(1, false, false)
	if got := r.asked(); len(got) != 1 || got[0] != cheap {
		t.Fatalf("%v are asked for, want %s", got, cheap)
	}
	r.drain(0, false, false)
	if got := r.asked(); got != nil {
		t.Fatalf("%v are asked for after the drain", got)
	}
}

// What nothing would be left of is not moved: it has no checkpoints, asks never to be begun anew,
// begins anew whatever it saved, or is asked for otherwise already.
func TestFleetMovesNothingElse(t *testing.T) {
	for name, change := range map[string]func(*job.Spec){
		"no checkpoints": nil,
		"never":          func(s *job.Spec) { s.Resume.Mode, s.Interruption.Retry = job.ResumeApplication, job.RetryNever },
		"anew":           func(s *job.Spec) { s.Resume.Mode, s.Interruption.Retry = job.ResumeApplication, job.RetryRestart },
	} {
		r := rigReading(t, site.Formats)
		r.apply(site.FormatRaise{To: 2, Voters: r.r[:1]})
		r.hello()
		a := r.held(r.submit(change))
		for i, id := range r.r {
			if id == a.Runner {
				r.drain(i, true, true)
			}
		}
		if got := r.asked(); got != nil {
			t.Errorf("%s: %v are asked for", name, got)
		}
	}
}

// CK-194 286 387: max_age holds for a job that runs and commits nothing: what is older goes, all but
// the newest, by the leader's look.
func TestCheckpointsOfALiveJobAge(t *testing.T) {
	r := rigReading(t, site.Formats)
	r.apply(site.FormatRaise{To: 2, Voters: r.r[:1]})
	r.hello()
	id := r.submit(func(s *job.Spec) {
		s.Resume.Mode, s.Resume.Checkpoint.MaxAge = job.ResumeApplication, time.Hour
	})
	a := r.held(id)
	for seq := 1; seq <= 2; seq++ {
		n := byte(seq)
		r.apply(site.Checkpoint{Authority: a, Commit: checkpoint.Commit{Seq: seq, Manifest: [32]byte{n}, Payload: [32]byte{n}, Marker: [32]byte{n}, Attempt: a.Attempt, Epoch: 1, Consistency: checkpoint.Application, Replicas: r.r[:]}})
	}
	aged := func() (n int) {
		r.in.State, r.in.Wall = r.s, forgeyard.WallOf(r.at)
		effects, _ := Step(r.now, r.in)
		for _, e := range effects {
			if p, ok := e.(Propose); ok {
				if _, ok := p.Body.(site.CheckpointsAged); ok {
					n++
				}
			}
		}
		return n
	}
	r.at = r.at.Add(59 * time.Minute)
	if n := aged(); n != 0 {
		t.Fatalf("%d wishes before the hour is over", n)
	}
	r.apply(site.CheckpointsAged{Job: id}) // of a leader whose clock is ahead
	if j, _ := r.s.Jobs.Get(id); j.Checkpoints[0].Dropped {
		t.Fatal("it went early")
	}
	r.at = r.at.Add(2 * time.Minute)
	if n := aged(); n != 1 {
		t.Fatalf("%d wishes after it", n)
	}
	r.apply(site.CheckpointsAged{Job: id})
	j, _ := r.s.Jobs.Get(id)
	if !j.Checkpoints[0].Dropped || j.Checkpoints[1].Dropped {
		t.Fatalf("%+v", j.Checkpoints)
	}
	if n := aged(); n != 0 {
		t.Fatalf("%d wishes when it is done", n)
	}
}
