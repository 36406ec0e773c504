package site

import (
	"fmt"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// everything is the slow twin of the bounded histories: each event that there ever was.
type everything struct{ all []SiteEvent }

// see takes in what one command added.
func (w *everything) see(before, after *State) {
	w.all = append(w.all, after.SiteEvents(before.Step)...)
}

func (w *everything) after(n uint64, kind string) (out []SiteEvent) {
	for _, e := range w.all {
		if e.Index > n && (kind == "" || e.Kind == kind) {
			out = append(out, e)
		}
	}
	return out
}

func kept(s *State, after uint64, kind string) (out []SiteEvent) {
	for _, e := range s.SiteEvents(after) {
		if kind == "" || e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// checkGap says what is wrong with what a reader is told who has all up to after: it is
// told of a gap if it misses something, never else, and after the gap it misses nothing.
func checkGap(s *State, w *everything, after uint64, kind string) string {
	want, got, lost := w.after(after, kind), kept(s, after, kind), s.EventsLost(after, kind)
	switch {
	case lost == 0 && len(got) < len(want):
		return fmt.Sprintf("after %d of kind %q: %d of %d events and no gap", after, kind, len(got), len(want))
	case lost > 0 && kind != "config" && len(got) == len(want):
		return fmt.Sprintf("after %d of kind %q: a gap up to %d, and nothing is missing", after, kind, lost)
	case lost > 0 && !slices.Equal(kept(s, lost, kind), w.after(lost, kind)):
		return fmt.Sprintf("after %d of kind %q: the gap ends at %d, and more is missing", after, kind, lost)
	}
	return ""
}

// Whoever reads the site's events is told of a gap if it misses one, of whichever history,
// and else never; a snapshot knows it too.
func TestGapsAreExact(t *testing.T) {
	l, w := newLab(t), &everything{}
	w.see(&State{}, l.s)
	do := func(b Body) {
		before := l.s
		l.must(b)
		w.see(before, l.s)
	}
	do(FormatRaise{To: 2, Voters: []forgeyard.RunnerID{"R1"}})
	for i := range 2 * maxLeaseLog {
		do(Silence{Runner: "R1", Session: "one", Silent: i%2 == 0})
		if i%3 == 0 {
			do(ConfigSet{Key: "voters", Value: "3"})
		}
	}
	read, err := DecodeState(l.s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*State{l.s, read} {
		if s.Forgotten == 0 || s.LeaseForgotten == 0 {
			t.Fatalf("nothing was forgotten: %d, %d", s.Forgotten, s.LeaseForgotten)
		}
		at := []uint64{s.Forgotten - 1, s.Forgotten, s.Forgotten + 1, s.LeaseForgotten - 1, s.LeaseForgotten, s.LeaseForgotten + 1, s.Step}
		for after := uint64(1); after < s.Step; after += 61 {
			at = append(at, after)
		}
		for _, after := range at {
			for _, kind := range []string{"", KindLease, "config"} {
				if wrong := checkGap(s, w, after, kind); wrong != "" {
					t.Fatal(wrong)
				}
			}
		}
	}
	blind := *l.s // the check itself: a state that forgot what it forgot
	blind.LeaseForgotten = 0
	if checkGap(&blind, w, 2, KindLease) == "" {
		t.Fatal("a gap of which nobody is told passes")
	}
}

// What a program of format 1 does not count is not counted for it: the voters' states
// would differ.
func TestFormat1ForgetsSilently(t *testing.T) {
	l := newLab(t)
	for range maxHistory + 10 {
		l.must(ConfigSet{Key: "voters", Value: "3"})
	}
	if len(l.s.History) != maxHistory || l.s.Forgotten != 0 {
		t.Fatalf("%d events, forgotten up to %d", len(l.s.History), l.s.Forgotten)
	}
}
