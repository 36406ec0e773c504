package site

// EventsLost says up to which number the site's events are no longer kept, for a reader who
// has all up to after: zero if it misses none. The history is bounded, so a reader that
// was away or stalled for long learns where its gap ends; it never holds up an Apply.
func (s *State) EventsLost(after uint64) uint64 {
	if s.Forgotten > after && after > 0 {
		return s.Forgotten
	}
	return 0
}
