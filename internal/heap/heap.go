// Package heap lets a process that is small collect its garbage less often.
//
// Go collects when as much was allocated as was alive after the last collection. A node of
// a small site has some megabytes alive, and with hundreds of commands a second it would
// collect several times a second, each time waking every thread. Here a collection waits
// for a number of bytes, or for some times what is alive, up to a bound; once as much is
// alive as that bound, Go's own rule holds. So the process is larger by the bound at most.
package heap

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Room is what a node leaves, whatever is alive: an idle node is larger by it at most.
const Room = 32 << 20

// What a process leaves in which more is alive: what a collection costs grows with that.
const (
	times = 4
	bound = 128 << 20
)

// most bounds the percentage: a process in which next to nothing is alive.
const most = 1600

// percent is the growth, in hundredths of what is alive, that a collection waits for.
func percent(live, room uint64) int {
	room = max(room, min(times*live, bound))
	return int(min(max(100*room/max(live, 1), 100), most))
}

// Leave lets so many bytes be allocated between two collections at least, from now until the
// process ends. It does nothing if GOGC is set: who sets it knows better.
func Leave(room uint64) {
	if os.Getenv("GOGC") == "" {
		(&watch{room: room}).again()
	}
}

// watch looks after each collection.
type watch struct {
	room uint64
	set  int
}

// again sets the percentage, and asks to be called after the next collection, which finds
// that nobody has the flag any more.
func (w *watch) again() {
	if p := percent(live(), w.room); p > w.set+w.set/8 || p < w.set-w.set/8 {
		debug.SetGCPercent(p) // it stops the world for a moment
		w.set = p
	}
	runtime.SetFinalizer(&flag{of: w}, func(f *flag) { f.of.again() })
}

// flag has a pointer, so that it is an object of its own.
type flag struct{ of *watch }

// live is what was alive after the last collection.
func live() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
