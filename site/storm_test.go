package site

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// storm is a site of many runners, all of which but a few are taken away at once.
type storm struct {
	*chaos
	t        *testing.T
	runners  []forgeyard.RunnerID
	accepted map[forgeyard.JobID]forgeyard.Authority
}

func (s *storm) ask(b Body) Reply {
	s.index++
	next, r := s.s.Apply(s.index, Command{ID: forgeyard.MessageID(fmt.Sprintf("r%d", s.index)), At: forgeyard.WallOf(s.at), By: "x", Body: b}.Encode())
	s.chaos.s = next
	return r
}

// grant gives the next epoch of a job to a runner, which begins.
func (s *storm) grant(id forgeyard.JobID, r forgeyard.RunnerID) {
	s.t.Helper()
	j, _ := s.s.Jobs.Get(id)
	m, _ := s.s.Members.Get(r)
	a, err := Value[forgeyard.Authority](s.ask(Offer{Job: id, Runner: r, Session: m.Session.ID, Epoch: j.Epoch}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.must(Accept{Authority: a})
	s.must(Phase{Authority: a, Phase: job.PhaseRunning})
	s.accepted[id] = a
}

// CK-316, CK-318 to CK-321: two thousand executions are preempted at once. Some save and give
// back in order, some are cut off and fall silent, some are cancelled meanwhile. Nobody gets
// two current epochs, each interruption is charged once, what was saved is gone on from, and
// nothing of an earlier epoch is taken any more.
func TestPreemptionStorm(t *testing.T) {
	const jobs, places = 2000, 40
	s := &storm{chaos: newChaos(1), t: t, accepted: map[forgeyard.JobID]forgeyard.Authority{}}
	s.must(TokenCreate{Token: "many", Hash: [32]byte{1}, Expires: forgeyard.WallOf(s.at.Add(time.Hour)), Uses: places})
	for i := range places {
		v, err := Value[Joined](s.ask(Join{Token: "many", Hash: [32]byte{1}, Peer: fmt.Sprint("peer", i), Name: fmt.Sprint("m", i)}))
		if err != nil {
			t.Fatal(err)
		}
		s.must(Register{Runner: v.Runner, Session: forgeyard.SessionID(fmt.Sprint("S", i)), Version: "1", Formats: Formats})
		s.runners = append(s.runners, v.Runner)
	}
	spot, stable := s.runners[:places-4], s.runners[places-4:]
	raw := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Connectivity: job.Connectivity{Policy: job.Continuous}, Resume: job.Resume{Mode: job.ResumeApplication}}.Defaulted().Canonical()
	var all []forgeyard.JobID
	for i := range jobs {
		v, err := Value[Submitted](s.ask(Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v.Job)
		s.grant(v.Job, spot[i%len(spot)])
	}
	for _, r := range spot {
		s.must(Preempt{Runner: r, Source: "storm", Left: int64(30 * time.Second)})
	}
	before := s.accepted
	s.accepted = map[forgeyard.JobID]forgeyard.Authority{}
	rng := rand.New(rand.NewPCG(7, 7))
	rng.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	saved, cancelled := map[forgeyard.JobID]bool{}, map[forgeyard.JobID]bool{}
	for i, id := range all {
		a := before[id]
		if i%10 == 9 { // K07
			cancelled[id] = true
			s.must(Cancel{Job: id})
		}
		if i%3 != 0 {
			saved[id] = true
			what := []byte(id)
			s.must(Checkpoint{Authority: a, Commit: checkpoint.Commit{
				Seq: 1, Manifest: cas.Sum(what), Payload: cas.Sum(append(what, 1)), Marker: cas.Sum(append(what, 2)), Attempt: a.Attempt, Epoch: 1, Replicas: stable, Consistency: checkpoint.Application,
			}})
		}
		if i%4 == 0 { // cut off
			s.must(Expire{Job: id, Lease: a.Lease})
		} else {
			s.must(Release{Authority: a, Kind: "preempt", Detail: "given back"})
		}
	}
	for i, id := range all {
		j, _ := s.s.Jobs.Get(id)
		if cancelled[id] && i%4 != 0 {
			if j.Status != job.Cancelled {
				t.Fatalf("job %d is %s: a cancellation wins", i, j.Status)
			}
			continue
		}
		if cancelled[id] { // its end is not certain yet
			continue
		}
		if j.Interruptions != 1 {
			t.Fatalf("job %d: %d interruptions", i, j.Interruptions)
		}
		m, _ := s.s.Members.Get(spot[0])
		if r := s.ask(Offer{Job: id, Runner: spot[0], Session: m.Session.ID, Epoch: j.Epoch}); r.Err() == nil {
			t.Fatalf("job %d goes back to a machine that is being taken away", i)
		}
		s.grant(id, stable[i%len(stable)])
		j, _ = s.s.Jobs.Get(id)
		if j.Epoch != 2 || j.Lease.State != lease.Accepted || j.ResumeFrom.IsZero() == saved[id] {
			t.Fatalf("job %d: epoch %d, resumes %v, saved %v", i, j.Epoch, !j.ResumeFrom.IsZero(), saved[id])
		}
		if v, err := Value[Completed](s.ask(Complete{Authority: before[id], Message: "late", Result: job.Result{Outcome: job.OutcomeDone}})); err != nil || v.Verdict != StaleRejected {
			t.Fatalf("job %d: the old epoch's result is %s, %v", i, v.Verdict, err)
		}
		if v, err := Value[Completed](s.ask(Complete{Authority: s.accepted[id], Message: "now", Result: job.Result{Outcome: job.OutcomeDone}})); err != nil || v.Verdict != Accepted {
			t.Fatalf("job %d: %s, %v", i, v.Verdict, err)
		}
	}
}
