package reckon

import (
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
)

// A node whose wall clock is behind the leader's is paused or cut off and then applies
// what was committed meanwhile: its wall clock says that nothing is late, its own clock
// knows better. Figures that come in time are seen whatever the wall clocks say, for hours.
func TestLateFigureIsKnownWithoutTheWallClock(t *testing.T) {
	const behind = time.Hour
	began := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	now := forgeyard.Instant(time.Hour)
	reading := func() Reading {
		return Reading{Now: now, Wall: began.Add(time.Duration(now) - behind), Boot: "b", TimeSet: true}
	}
	index := uint64(0)
	figure := func(used time.Duration) lease.Uplink {
		index++
		return lease.Uplink{Used: used, Marked: index, MarkedAt: forgeyard.WallOf(began.Add(time.Duration(now))), Contacts: 3}
	}
	var m Memory
	used := time.Minute
	for range 3600 { // five hours; this node's clock is the faster one by 1 %
		if used, now = used+5*time.Second, now.Add(5050*time.Millisecond); !m.Saw(figure(used), reading()) {
			t.Fatalf("a figure that came in time was not seen, at %s", used)
		}
	}
	if v := m.Elapsed(index, 0, reading()); !v.Known || v.How != ByBoot || v.Elapsed > time.Second {
		t.Fatalf("%+v", v)
	}
	for _, c := range []struct {
		paused time.Duration
		seen   bool
	}{{3 * time.Second, true}, {30 * time.Second, false}} {
		before, u := m, figure(used+5*time.Second)
		now = now.Add(5*time.Second + c.paused)
		if got := m.Saw(u, reading()); got != c.seen {
			t.Errorf("late by %s: seen %v", c.paused, got)
		} else if v := m.Elapsed(index, 0, reading()); got && v.Elapsed < c.paused {
			t.Errorf("late by %s, and %s are vouched for", c.paused, v.Elapsed)
		} else if !got && v.How == ByBoot {
			t.Errorf("what was not seen live is vouched for: %+v", v)
		}
		m = before
	}
	// A contact begins the count anew: there is nothing to compare with.
	u := figure(0)
	u.Contacts++
	if !m.Saw(u, reading()) {
		t.Error("the first figure after a contact was not seen")
	}
}

func FuzzDecodeSighting(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\xa4\x01\x01\x02abc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := DecodeSighting(b); err == nil && (s.Index == 0 || s.Instant <= 0) {
			t.Fatalf("%+v", s)
		}
	})
}
