package disk

import "testing"

// The line of a trim against counting one by one, oldest first.
func TestTrimLine(t *testing.T) {
	hours := map[int64]int{3: 2, 5: 4, 6: 1, 9: 3}
	for since := int64(0); since < 12; since++ {
		for most := -1; most < 12; most++ {
			before, extra := trimLine(hours, since, most)
			gone, left := extra, 0
			for h, n := range hours {
				if h < before {
					gone += n
				}
				if h >= since {
					left += n
				}
			}
			want := 10 - left
			if most > 0 && left > most {
				want = 10 - most
			}
			if gone != want || extra < 0 || extra > hours[before] {
				t.Errorf("since %d, most %d: before %d and %d of it are %d, want %d", since, most, before, extra, gone, want)
			}
		}
	}
}
