package site

import (
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

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

// LeaseEvents returns what LeaseLog still has of a job's leases, oldest first.
func (s *State) LeaseEvents(id forgeyard.JobID) []SiteEvent {
	var out []SiteEvent
	for e := range s.LeaseLog.All() {
		if text, ok := strings.CutPrefix(e.Text, string(id)+" "); ok {
			out = append(out, SiteEvent{Index: e.Index, At: e.At, Kind: e.Kind, Text: text})
		}
	}
	return out
}
