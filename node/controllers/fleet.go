package controllers

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/site"
)

// movesAtATime bounds the jobs of one machine that is emptied which are on their way at once: each
// writes a checkpoint, and a machine brings two of them to others at a time.
const movesAtATime = 2

// moves empties the machines that are drained with their work: what runs there is asked back in
// the order of what it is worth to have saved for each second of writing, and only as much of it
// as the rest of the site has room for. What is asked for and what waits already counts as
// placed. What finds no room runs on, and is looked at again when something has changed.
func (s *stepper) moves() {
	if !s.moving() {
		return
	}
	jobs := s.in.State.Jobs.Reader()
	way, byID := map[forgeyard.RunnerID]int{}, map[string]site.Job{}
	var all []checkpoint.Work
	for id := range s.in.State.Open.All() {
		j := *jobs.Find(id)
		from := j.Lease.Authority.Runner
		if m, _ := s.in.State.Members.Get(from); !j.Lease.Live() || !m.Draining || !m.Moving {
			continue
		}
		switch {
		case j.Stops():
			way[from]++
			s.reserve(j)
		case j.Moves():
			w := j.AtStake(s.in.Wall)
			byID[w.ID], all = j, append(all, w)
		}
	}
	for _, w := range checkpoint.ByWorth(all) {
		j := byID[w.ID]
		from := j.Lease.Authority
		if way[from.Runner] >= movesAtATime || !s.reserve(j) {
			continue
		}
		way[from.Runner]++
		s.propose("move/"+string(j.ID), site.Stop{Job: j.ID, Kind: "drain", Reason: "its runner is emptied, and another has room", Lease: from.Lease})
	}
}

// moving reports whether any machine is emptied.
func (s *stepper) moving() bool {
	for _, m := range s.in.State.Members.All() {
		if m.Moving && m.Draining && !m.Removed {
			return true
		}
	}
	return false
}

// reserve takes room for a job where it would go now, if there is any.
func (s *stepper) reserve(j site.Job) bool {
	if s.takers == nil {
		s.takers = s.whoTakes()
	}
	best := s.best(j, s.taken, nil)
	if best == nil {
		return false
	}
	u := s.taken[best.Runner]
	u.add(&j.Spec)
	s.taken[best.Runner] = u
	return true
}

// aged lets go what a job keeps longer than it asks for, though it commits nothing that would say
// so. Only those are looked at that ask for it.
func (s *stepper) aged(j *site.Job) {
	if j.Spec.Resume.Checkpoint.MaxAge > 0 && s.in.Wall != 0 && len(j.Surplus(s.in.Wall)) > 0 {
		s.propose("aged/"+string(j.ID), site.CheckpointsAged{Job: j.ID})
	}
}
