package site

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// applies are rules, honest or with a fault in one place.
type applies = func(s *State, index, term uint64, data []byte) (*State, Reply)

// before is a fault that changes a command of one kind, or a job, before the honest rules see
// it: so that a guard of theirs sees nothing.
func before[B Body](f func(s *State, b *B) *State) applies {
	return func(s *State, index, term uint64, data []byte) (*State, Reply) {
		c, err := Decode(data)
		b, ok := c.Body.(B)
		if err != nil || !ok {
			return s.ApplyEntry(index, term, data)
		}
		s = f(s, &b)
		c.Body = b
		return s.ApplyEntry(index, term, c.Encode())
	}
}

// after is a fault that changes what the honest rules made of a command of one kind.
func after[B Body](f func(is *State, b B) *State) applies {
	return func(s *State, index, term uint64, data []byte) (*State, Reply) {
		next, r := s.ApplyEntry(index, term, data)
		if c, err := Decode(data); err == nil && r.Err() == nil {
			if b, ok := c.Body.(B); ok {
				next = f(next, b)
			}
		}
		return next, r
	}
}

// edit changes a job.
func edit(s *State, id forgeyard.JobID, f func(*Job)) *State {
	j, ok := s.Jobs.Get(id)
	if !ok {
		return s
	}
	f(&j)
	next := *s
	next.Jobs = s.Jobs.Put(id, j)
	return &next
}

// of is a fault that changes the job of an authority.
func of(a forgeyard.Authority, s *State, f func(*Job)) *State { return edit(s, a.Job, f) }

// storyFaults are faults of the rules, and the transcript that each of them spoils.
var storyFaults = []struct {
	name, story string
	rules       applies
}{
	{"an epoch has the number of the one before", "checkpoint.txt", before(func(s *State, b *Offer) *State {
		if b.Epoch == 0 {
			return s
		}
		b.Epoch--
		return edit(s, b.Job, func(j *Job) { j.Epoch-- })
	})},
	{"a checkpoint is committed with fewer copies than are due", "checkpoint.txt", before(func(s *State, b *Checkpoint) *State {
		for len(b.Commit.Replicas) == 1 {
			b.Commit.Replicas = append(b.Commit.Replicas, "a node that never was")
		}
		return s
	})},
	{"a cancelled job is only suspended", "cancel.txt", after(func(is *State, b Cancel) *State {
		return edit(is, b.Job, func(j *Job) {
			if j.Status == job.Cancelled {
				j.Status, j.Hold = job.Suspended, &Hold{By: j.CancelBy, State: Suspended}
			}
		})
	})},
	{"a job without checkpoints is asked to suspend", "suspend.txt", before(func(s *State, b *Ask) *State {
		return edit(s, b.Job, func(j *Job) { j.Spec.Resume.Mode = job.ResumeApplication })
	})},
	{"an interruption is not counted", "interruption-budget.txt", after(func(is *State, b Release) *State {
		return of(b.Authority, is, func(j *Job) { j.Interruptions = 0 })
	})},
	{"any job is taken for one that tolerates interruptions", "interruption-budget.txt", before(func(s *State, b *Offer) *State {
		return edit(s, b.Job, func(j *Job) { j.Spec.Interruption.Tolerance = job.ToleranceRestartable })
	})},
	{"a resume that failed is not counted", "resume-loop.txt", after(func(is *State, b Release) *State {
		return of(b.Authority, is, func(j *Job) {
			j.Checkpoints = slices.Clone(j.Checkpoints)
			for i := range j.Checkpoints {
				j.Checkpoints[i].State, j.Checkpoints[i].Failures = 0, 0
			}
		})
	})},
	{"nothing is let go of", "checkpoints-kept.txt", after(func(is *State, b Checkpoint) *State {
		return of(b.Authority, is, func(j *Job) {
			j.Checkpoints = slices.Clone(j.Checkpoints)
			for i := range j.Checkpoints {
				j.Checkpoints[i].Dropped = false
				if j.Checkpoints[i].State == checkpoint.Gone {
					j.Checkpoints[i].State, j.Checkpoints[i].Why = checkpoint.Good, ""
				}
			}
		})
	})},
	{"what a runner restored from is not in its epoch's record", "checkpoint.txt", after(func(is *State, b Offer) *State {
		return edit(is, b.Job, func(j *Job) {
			h := slices.Clone(j.History)
			h[len(h)-1].Resumed = forgeyard.Digest{}
			j.History = h
		})
	})},
	{"an outcome names a checkpoint to the central daemon", "residency.txt", after(func(is *State, b Complete) *State {
		next := *is
		j, _ := is.Jobs.Get(b.Authority.Job)
		for k, r := range is.Outbox.All() {
			if r.Result != nil {
				told := *r.Result
				told.Outputs = append(slices.Clone(told.Outputs), job.Output{Path: "state", Tree: true, Digest: j.Checkpoints[0].Payload})
				r.Result = &told
				next.Outbox = next.Outbox.Put(k, r)
			}
		}
		return &next
	})},
	{"a drain asks nobody to end", "drain-deadline.txt", before(func(s *State, b *MemberSet) *State { b.Cancel = false; return s })},
	{"what a program says of its state is not listened to", "restore-words.txt", before(func(s *State, b *Restored) *State { b.Rejected = false; return s })},
	{"the answer to a request is not remembered", "life.txt", func(s *State, index, term uint64, data []byte) (*State, Reply) {
		next := *s
		next.Requests, next.Order = State{}.Requests, State{}.Order
		return next.ApplyEntry(index, term, data)
	}},
}

// A transcript that does not change with the rule that it is about shows nothing.
func TestStoriesCatchFaults(t *testing.T) {
	for _, f := range storyFaults {
		t.Run(f.name, func(t *testing.T) {
			s, caught := newStory(t), ""
			s.rules = f.rules
			datadriven.RunTest(t, filepath.Join("testdata", "stories", f.story), func(t *testing.T, td *datadriven.TestData) string {
				if caught != "" {
					return td.Expected
				}
				s.t, s.td = t, td
				if out := s.run(); out != td.Expected {
					caught = td.Pos + " says\n" + out
				}
				if s.broken != nil {
					caught = td.Pos + ": " + s.broken.Error()
				}
				return td.Expected
			})
			if caught == "" {
				t.Errorf("%s holds with it", f.story)
			}
			t.Log(caught)
		})
	}
}
