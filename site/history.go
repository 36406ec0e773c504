package site

// EventsLost says up to which number events of a kind, or of any for "", are no longer all
// kept, for a reader who has all up to after: zero if it misses none. Both histories are
// bounded, so a reader that was away or stalled for long learns where its gap ends; it
// never holds up an Apply.
func (s *State) EventsLost(after uint64, kind string) uint64 {
	var lost uint64
	if kind != KindLease {
		lost = s.Forgotten
	}
	if kind == KindLease || kind == "" {
		lost = max(lost, s.LeaseForgotten)
	}
	if after == 0 || lost <= after {
		return 0
	}
	return lost
}
