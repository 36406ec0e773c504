package heap

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		live, room uint64
		want       int
	}{{0, 32 * mb, most}, {1 * mb, 32 * mb, most}, {4 * mb, 32 * mb, 800}, {8 * mb, 32 * mb, 400}, {16 * mb, 32 * mb, 400}, {32 * mb, 32 * mb, 400}, {64 * mb, 32 * mb, 200}, {128 * mb, 32 * mb, 100}, {500 * mb, 32 * mb, 100}} {
		if got := percent(c.live, c.room); got != c.want {
			t.Errorf("with %d MiB alive: %d%%, want %d%%", c.live/mb, got, c.want)
		}
	}
}

// The percentage follows what is alive, up and down, over collections.
func TestLeaveFollowsWhatIsAlive(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	w := &watch{room: 64 << 20}
	w.again()
	await := func(what string, ok func(int) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; {
			runtime.GC()
			p := debug.SetGCPercent(100)
			debug.SetGCPercent(p)
			if ok(p) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: still %d%%", what, p)
			}
			runtime.Gosched()
		}
	}
	await("while little is alive", func(p int) bool { return p > 400 })
	held := make([]byte, 256<<20)
	await("while much is alive", func(p int) bool { return p == 100 })
	runtime.KeepAlive(held)
	held = nil
	await("when it is gone", func(p int) bool { return p > 400 })
}
