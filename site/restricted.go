package site

import (
	"cmp"
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// maxOpeners bounds for how many nodes a restricted checkpoint is sealed, beside the one that
// takes it: each is named in the log with every commit.
const maxOpeners = 64

// Openers are the members that a restricted checkpoint of the job is sealed for, in the order of
// their ids: who takes it, and those that could go on with it as the site knows them now. Later
// members are served by the next checkpoint.
func (s *State) Openers(j Job, taker forgeyard.RunnerID) []Member {
	var out []Member
	others := 0
	for _, m := range s.Members.All() {
		switch {
		case m.Removed || m.Waiting || m.Peer == "":
			continue
		case m.Runner == taker:
		case j.Spec.Node != "" && j.Spec.Node != m.Runner, m.Session.ID == "", len(m.Caps.Lacks(j.Spec, m.Assigned)) > 0, others == maxOpeners:
			continue
		default:
			others++
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Runner, b.Runner) })
	return out
}

// sealedRight refuses a commit whose payload is not sealed as its job asks: what names nobody is
// open to all, and its own taker must be able to go on from it.
func (c *change) sealedRight(j Job, rec checkpoint.Commit, taker forgeyard.RunnerID) error {
	if !c.Allows(FormatCheckpoints) {
		return nil
	}
	if j.Spec.Resume.Sensitivity != job.SensRestricted {
		if len(rec.For) > 0 {
			return forgeyard.Errorf("checkpoint", forgeyard.Invalid, "it is sealed for %d nodes, and the job is not restricted: every member may go on with it", len(rec.For))
		}
		return nil
	}
	if !slices.Contains(rec.For, taker) {
		return forgeyard.Errorf("checkpoint", forgeyard.Invalid, "the job is restricted, and of the %d nodes that its checkpoint is sealed for none is the one that took it", len(rec.For))
	}
	for _, r := range rec.For {
		if m, ok := c.Members.Get(r); !ok || m.Removed || m.Waiting {
			return forgeyard.Errorf("checkpoint", forgeyard.Denied, "the job is restricted, and its checkpoint is sealed for %s, which is no member", forgeyard.Clip(string(r), 40))
		}
	}
	return nil
}
