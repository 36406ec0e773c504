package simulation

import "github.com/forgeyard/forgeyard-node/site"

// sameState is same-state: a voter that applies the same entries has the same state,
// bit for bit, wherever it starts from a snapshot. One run in ten is applied anew by
// somebody who restarts from a snapshot now and then.
type sameState struct{ silent }

func newSameState() *sameState { return &sameState{} }

func (sameState) end(s *sim) {
	if s.sc.Seed%10 != 0 {
		return
	}
	st := &site.State{}
	for i, e := range s.world.entries {
		if len(e.cmds) == 0 {
			continue
		}
		for _, data := range e.cmds {
			st, _ = st.ApplyEntry(s.world.at[i+1], e.term, data)
		}
		if s.chance(20) {
			again, err := site.DecodeState(st.Encode())
			if err != nil {
				s.fail("same-state", "the snapshot at index %d cannot be read: %v", i+1, err)
				return
			}
			st = again
		}
		if s.chance(20) && st.Hash() != s.world.states[i+1].Hash() {
			s.fail("same-state", "index %d: %s against %s", i+1, st.Hash().Short(), s.world.states[i+1].Hash().Short())
			return
		}
	}
	if st.Hash() != s.head().Hash() {
		s.fail("same-state", "the end: %s against %s", st.Hash().Short(), s.head().Hash().Short())
	}
}
