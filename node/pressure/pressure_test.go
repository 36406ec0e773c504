package pressure

import (
	"testing"
	"time"
)

// RA-130, RA-131: one machine's minute, sample by sample.
func TestLevels(t *testing.T) {
	mem := func(p float64) Sample { return Sample{HasStall: true, Memory: p} }
	heat := func(below float64) Sample { return Sample{HasHeat: true, Heat: below} }
	l := Normal
	for i, c := range []struct {
		s    Sample
		want Level
	}{
		{Sample{}, Normal},
		{Sample{HasStall: true, CPU: 100, IO: 90}, Normal}, // busy is no pressure
		{mem(19.9), Normal},
		{mem(20), Memory},
		{mem(12), Memory}, // it stays until it is well below
		{mem(49), Memory},
		{mem(50), Critical},
		{mem(26), Critical},
		{mem(24), Memory},
		{mem(10), Memory},
		{mem(9.9), Normal},
		{mem(12), Normal},
		{heat(6), Normal},
		{heat(5), Thermal},
		{heat(9), Thermal},
		{heat(10.5), Normal},
		{heat(-3), Thermal},
		{Sample{HasStall: true, Memory: 60, HasHeat: true, Heat: -3}, Critical}, // the worst counts
		{Sample{Memory: 60, Heat: -3}, Normal},                                  // what is not known is no pressure
	} {
		if l = l.Next(c.s); l != c.want {
			t.Errorf("sample %d: %s, want %s", i, l, c.want)
		}
		if (l.Why() == "") != (l == Normal) {
			t.Errorf("%s says %q", l, l.Why())
		}
	}
}

// RA-131: cores that others use while work waits for cores are withheld, half of what
// is offered at most, until work waits well less; those that jobs use never are.
func TestWithhold(t *testing.T) {
	load := func(busy, jobs int64) Load { return Load{Offered: 7000, Spare: 1000, Busy: busy, Jobs: jobs} }
	stall := func(p float64) Sample { return Sample{HasStall: true, CPU: p} }
	kept := int64(0)
	for i, c := range []struct {
		s    Sample
		l    Load
		want int64
	}{
		{stall(49), load(8000, 0), 0},       // busy, and nobody waits
		{stall(90), load(8000, 7000), 0},    // with the node's own work, beside its reserve
		{stall(50), load(4250, 1000), 2200}, // of 3250 of others 1000 are reserved
		{stall(70), load(8000, 500), 3500},  // half at most
		{stall(30), load(1000, 500), 3500},  // it stays until it is well less
		{stall(60), load(2500, 500), 1000},  // or others use less
		{stall(24), load(8000, 0), 0},
		{stall(30), load(8000, 0), 0}, // and is not entered there
		{stall(60), load(8000, 0), 3500},
		{Sample{CPU: 99}, load(8000, 0), 0}, // what is not known is no pressure
		{stall(60), Load{Offered: 0, Busy: 8000}, 0},
		{stall(60), Load{Offered: 7000, Spare: 1000, Busy: 4000, Jobs: 1500, Own: 2500}, 0},   // the agent's is its own
		{stall(60), Load{Offered: 7000, Spare: 1000, Busy: 4000, Jobs: 1500, Own: 400}, 1500}, // and taken from the reserve
	} {
		if kept = Withhold(kept, c.s, c.l); kept != c.want {
			t.Errorf("sample %d: %d withheld, want %d", i, kept, c.want)
		}
	}
	if n, own, ok := (Sample{Busy: 12 * time.Second, Own: 3 * time.Second}).Since(Sample{Busy: 4 * time.Second, Own: time.Second}, 2*time.Second); n != 4000 || own != 1000 || !ok {
		t.Errorf("%d %d %v", n, own, ok)
	}
	for _, c := range [][2]time.Duration{{0, 4}, {4, 0}, {3, 4}} {
		if _, _, ok := (Sample{Busy: c[0]}).Since(Sample{Busy: c[1]}, time.Second); ok {
			t.Errorf("%v is known", c)
		}
	}
	if _, _, ok := (Sample{Busy: 5}).Since(Sample{Busy: 4}, 0); ok {
		t.Error("over no time")
	}
}
