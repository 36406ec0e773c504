package site

import (
	"cmp"
	"slices"

	"github.com/forgeyard/forgeyard-node"
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
