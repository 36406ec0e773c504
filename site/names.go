package site

import (
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// Name is what people call a set of content that an ingest brought into the site's store.
// It points at one whole set; the entry that ends the ingest moves it, with all the other
// names of that ingest, so that nobody ever sees a part (RS-101).
type Name struct {
	Name string `cbor:"1,keyasint"`
	NamedSet
	// Earlier are those that it pointed at before, the newest first. They are kept a while
	// for who looked the name up just before it moved.
	Earlier []NamedSet `cbor:"9,keyasint,omitempty"`
}

// NamedSet is what a name points at.
type NamedSet struct {
	Digest   forgeyard.Digest `cbor:"2,keyasint"`
	Manifest forgeyard.Digest `cbor:"3,keyasint,omitzero"`
	Tree     bool             `cbor:"4,keyasint,omitempty"`
	Size     int64            `cbor:"5,keyasint"`
	Job      forgeyard.JobID  `cbor:"6,keyasint"` // of the ingest: NamePin keeps the content by it
	Run      forgeyard.RunID  `cbor:"7,keyasint"`
	At       forgeyard.Wall   `cbor:"8,keyasint"`            // since then
	Until    forgeyard.Wall   `cbor:"10,keyasint,omitempty"` // an earlier one: until then
}

// NamePin owns, on each node that holds a copy, what an ingest brought in.
func NamePin(id forgeyard.JobID) string { return "name/" + string(id) }

// nameGrace is how long an earlier set is kept although no job is known to use it: a
// submission may be on its way.
const nameGrace = time.Hour

// NameNeeds reports whether content that the ingest brought in is needed still: a name
// points at it, or did a moment ago, or a job that has not ended uses it.
func (s *State) NameNeeds(ingest forgeyard.JobID, content []forgeyard.Digest, wall time.Time) bool {
	for _, n := range s.Names.All() {
		if n.Job == ingest {
			return true
		}
		for _, e := range n.Earlier {
			if e.Job == ingest && wall.Sub(e.Until.Time()) < nameGrace {
				return true
			}
		}
	}
	for id := range s.Open.All() {
		j, _ := s.Jobs.Get(id)
		if slices.ContainsFunc(j.Spec.Inputs, func(in job.Input) bool { return slices.Contains(content, in.Digest) }) ||
			slices.ContainsFunc(j.Spec.Ingest, func(in job.RunInput) bool { return slices.Contains(content, in.Digest) }) {
			return true
		}
	}
	return false
}

// roomForNames says why that many more names cannot be, or nil.
func (s *State) roomForNames(ins []job.RunInput) error {
	fresh := 0
	for _, in := range ins {
		if !s.Names.Has(in.Name) {
			fresh++
		}
	}
	if n := s.Names.Len() + fresh; n > maxNames {
		return forgeyard.Errorf("ingest", forgeyard.Limit, "the site would have %d names, the bound is %d", n, maxNames).WithHint("end some with: forgeyard-node cas name rm NAME")
	}
	return nil
}

// invalidSet says why the outputs are not what an ingest should have brought in: one for
// each input, under its name, and nothing else. A part of it is nothing.
func invalidSet(ins []job.RunInput, outs []job.Output) string {
	if len(ins) != len(outs) {
		return fmt.Sprintf("%d names were asked for, %d are given", len(ins), len(outs))
	}
	for _, in := range ins {
		i := slices.IndexFunc(outs, func(o job.Output) bool { return o.Path == in.Name })
		switch {
		case i < 0:
			return fmt.Sprintf("name %q is missing from the result", in.Name)
		case outs[i].Digest.IsZero() || (!in.Digest.IsZero() && outs[i].Digest != in.Digest):
			return fmt.Sprintf("name %q has the wrong digest or none", in.Name)
		}
	}
	return ""
}

// done ends a job that did what it was asked. The names of an ingest move here.
func (c *change) done(j *Job, res job.Result) {
	if !j.Spec.Own() {
		c.finish(j, job.Done, "", "done")
		return
	}
	if err := c.roomForNames(j.Spec.Ingest); err != nil {
		c.finish(j, job.Failed, job.Internal, err.Error())
		return
	}
	for _, o := range res.Outputs {
		c.point(o, *j)
	}
	c.finish(j, job.Done, "", orDone(res.Message))
}

func orDone(s string) string {
	if s == "" {
		return "done"
	}
	return s
}

// point lets a name point at what an ingest brought in.
func (c *change) point(o job.Output, j Job) {
	n, was := c.Names.Get(o.Path)
	if was {
		old := n.NamedSet
		old.Until = c.at
		n.Earlier = append([]NamedSet{old}, n.Earlier...)
		n.Earlier = n.Earlier[:min(len(n.Earlier), maxEarlier)]
	}
	n.Name = o.Path
	n.NamedSet = NamedSet{Digest: o.Digest, Manifest: o.Manifest, Tree: o.Tree, Size: o.Size, Job: j.ID, Run: j.Run, At: c.at}
	c.Names = c.Names.Put(n.Name, n)
	c.note("name", "%s is %s now, by run %s", n.Name, o.Digest.Short(), forgeyard.Short(j.Run))
}

func (c *change) unname(b Unname) error {
	if !c.Names.Has(b.Name) {
		return forgeyard.Errorf("name", forgeyard.NotFound, "no name %q", forgeyard.Clip(b.Name, job.MaxName)).WithHint("forgeyard-node cas name list shows them")
	}
	c.Names = c.Names.Delete(b.Name)
	c.note("name", "%s ended by %s", b.Name, c.by)
	return nil
}
