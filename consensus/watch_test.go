package consensus

import (
	"testing"
	"testing/synctest"
	"time"
)

// One timer watches all writes: each has its own deadline, and an idle store has no timer.
func TestWriteWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deadline = time.Second
		var w writeWatch
		turns, found := 0, 0
		look := func() {
			turns++
			if w.look(time.Now(), deadline) {
				found++
			}
		}
		short, long := w.begin(time.Now(), look), w.begin(time.Now(), look)
		time.Sleep(deadline / 2)
		w.end(short)
		second := w.begin(time.Now(), look)
		time.Sleep(deadline/2 + watchEvery)
		if !long.late || short.late || second.late || found == 0 {
			t.Errorf("late: the first %v, one that ended in time %v, one of half the time %v; %d turns say so", long.late, short.late, second.late, found)
		}
		w.end(long)
		w.end(second)
		time.Sleep(2*watchEvery + 1)
		if w.runs {
			t.Error("the timer goes on with nothing to watch")
		}
		turns = 0
		time.Sleep(time.Minute)
		if turns != 0 {
			t.Errorf("%d turns in an idle minute", turns)
		}
		w.end(w.begin(time.Now(), look))
		time.Sleep(watchEvery + 1)
		if turns != 1 {
			t.Errorf("%d turns after a write", turns)
		}
	})
}
