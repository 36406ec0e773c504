package pressure

import "testing"

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
