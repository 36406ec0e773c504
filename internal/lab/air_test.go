package lab

import (
	"slices"
	"testing"
	"time"
)

func TestFateReplaysAndKeepsItsBounds(t *testing.T) {
	w := Weather{Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.25}
	a, b, other := stream(7, 1, 2), stream(7, 1, 2), stream(7, 2, 1)
	lostHere, differs := 0, false
	for range 4000 {
		after, lost := w.fate(a)
		again, lostToo := w.fate(b)
		if after != again || lost != lostToo {
			t.Fatal("the same seed gave another fate")
		}
		wayBack, _ := w.fate(other)
		differs = differs || wayBack != after
		if lost {
			lostHere++
		} else if after < w.Delay || after > w.Delay+w.Jitter {
			t.Fatalf("%s is not in [%s, %s]", after, w.Delay, w.Delay+w.Jitter)
		}
	}
	if lostHere < 800 || lostHere > 1200 {
		t.Errorf("%d of 4000 frames lost at 25 %%", lostHere)
	}
	if !differs {
		t.Error("both directions have the same luck")
	}
}

// What the weather is does not shift what later frames meet.
func TestWeatherShiftsNobodysLuck(t *testing.T) {
	w := Weather{Loss: 0.5}
	a, b := stream(1, 1, 2), stream(1, 1, 2)
	w.fate(a)
	Weather{Down: true}.fate(b)
	for range 100 {
		_, x := w.fate(a)
		_, y := w.fate(b)
		if x != y {
			t.Fatal("a frame that was lost took another number of draws")
		}
	}
}

func TestReceivers(t *testing.T) {
	frame := func(mac [macLen]byte) []byte { return append(mac[:], make([]byte, headerLen)...) }
	for _, c := range []struct {
		what  string
		frame []byte
		want  []int
	}{
		{"to one", frame(macOf(3)), []int{2}},
		{"to itself", frame(macOf(1)), nil},
		{"to nobody here", frame(macOf(9)), nil},
		{"to all", frame([macLen]byte{255, 255, 255, 255, 255, 255}), []int{1, 2}},
		{"too short", []byte{255}, nil},
	} {
		if got := receivers(c.frame, 0, 3); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, not %v", c.what, got, c.want)
		}
	}
}
