package simulation

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// named is named-whole: a name moves in the entry that ends its ingest and at no other
// time, with all the names of that ingest, to what its result says; and it goes on to
// what a later one brought in, never back (RS-101).
type named struct{ silent }

func (c *named) applied(s *sim, e applied) {
	if e.after.Names.Same(e.before.Names) {
		return
	}
	b, ok := e.cmd.Body.(site.Complete)
	j := e.job(b.Authority.Job)
	if !ok || !accepts(e) || b.Result.Outcome != job.OutcomeDone || j.Status != job.Done {
		s.fail("named-whole", "index %d: names move with %s, and the job is %s", e.index, describe(e), j.Status)
		return
	}
	for name, n := range e.after.Names.All() {
		was, _ := e.before.Names.Get(name)
		if n.NamedSet == was.NamedSet {
			continue
		}
		if n.Job != j.ID || !brought(j, name, n.Digest) {
			s.fail("named-whole", "index %d: name %s moves to %s of job %s, which job %s did not bring in", e.index, name, n.Digest.Short(), forgeyard.Short(n.Job), forgeyard.Short(j.ID))
		}
	}
	for _, in := range j.Spec.Ingest {
		if n, _ := e.after.Names.Get(in.Name); n.Job != j.ID {
			s.fail("named-whole", "index %d: name %s stays at what job %s brought in, and others of job %s move", e.index, in.Name, forgeyard.Short(n.Job), forgeyard.Short(j.ID))
		}
	}
}

func brought(j site.Job, name string, d forgeyard.Digest) bool {
	return slices.ContainsFunc(outputsOf(j), func(o job.Output) bool { return o.Path == name && o.Digest == d })
}

func (c *named) end(s *sim) {
	st := s.head()
	for _, j := range st.Jobs.All() {
		if !j.Spec.Own() || j.Status != job.Done {
			continue
		}
		for _, in := range j.Spec.Ingest {
			n, ok := st.Names.Get(in.Name)
			at, _ := st.Jobs.Get(n.Job)
			if !ok || (n.Job != j.ID && endedBefore(st, at.ID, j.ID)) {
				s.fail("named-whole", "name %s is at what job %s brought in, and job %s was later", in.Name, forgeyard.Short(n.Job), forgeyard.Short(j.ID))
			}
		}
	}
}

// endedBefore says that one job ended before another, by the log.
func endedBefore(st *site.State, one, other forgeyard.JobID) bool {
	for _, id := range st.Ended.All() {
		switch id {
		case one:
			return true
		case other:
			return false
		}
	}
	return false
}
