package lab

import (
	"math/rand/v2"
	"time"
)

// Weather is what one direction of a cable does to frames. Zero: nothing.
type Weather struct {
	Delay  time.Duration // of each frame
	Jitter time.Duration // at most so much more, evenly drawn: frames overtake each other
	Loss   float64       // of 1
	Down   bool          // nothing passes, in this direction
}

// maxUnderway bounds the frames that one direction holds back at a time: a second of a
// busy link. More are lost, as in any switch.
const maxUnderway = 4096

// fate draws what happens to the next frame of one direction. The same seed and the
// same number of frames give the same fates, whatever passes elsewhere.
func (w Weather) fate(rng *rand.Rand) (after time.Duration, lost bool) {
	lot, more := rng.Float64(), rng.Float64() // always two draws: a change of weather shifts nobody's luck
	if w.Down || lot < w.Loss {
		return 0, true
	}
	return w.Delay + time.Duration(more*float64(w.Jitter)), false
}

// stream is the random stream of one direction.
func stream(seed uint64, from, to int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(from)<<32|uint64(to)))
}

const (
	macLen    = 6
	headerLen = 14 // Ethernet: to, from, type
)

// macOf is the address of a machine's interface: locally administered, its number last.
func macOf(index int) [macLen]byte { return [macLen]byte{2, 0, 0, 0, byte(index >> 8), byte(index)} }

// receivers tells which of n ports a frame from one of them goes to: one, or all the
// others when it is for many. What is too short to be a frame goes nowhere.
func receivers(frame []byte, from, n int) []int {
	if len(frame) < headerLen {
		return nil
	}
	var out []int
	for i := range n {
		if mac := macOf(i + 1); i != from && (frame[0]&1 == 1 || string(frame[:macLen]) == string(mac[:])) {
			out = append(out, i)
		}
	}
	return out
}
