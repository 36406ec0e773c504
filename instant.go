package forgeyard

import "time"

// Instant is a reading, in nanoseconds, of a clock that nobody can set back and
// that keeps counting while the machine sleeps (§4 of the architecture). Two
// instants compare only if one machine read both in one boot. Zero is unset.
type Instant int64

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns how long after j the instant i is.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// IsZero reports whether the instant is unset.
func (i Instant) IsZero() bool { return i == 0 }

// Wall is a wall-clock time in Unix milliseconds, as records carry it. It is
// recorded for people and never compared for authority.
type Wall int64

// WallOf converts a time.
func WallOf(t time.Time) Wall { return Wall(t.UnixMilli()) }

// Time converts back, in UTC; the zero Wall is the zero time.
func (w Wall) Time() time.Time {
	if w == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(w)).UTC()
}
