package raftsim

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"testing/synctest"
	"time"

	"github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
)

// tailLines is how much of the trace a failing run shows.
const tailLines = 60

// Violation is a broken invariant.
type Violation struct {
	Invariant string
	Detail    string
	At        time.Duration // virtual time since the run began
}

func (v *Violation) Error() string { return fmt.Sprintf("%s at %s: %s", v.Invariant, v.At, v.Detail) }

// Result is one run.
type Result struct {
	Seed      uint64
	Replays   bool   // built with the overlay and run with one processor
	Trace     string // `TRACE b3:…`, the digest of every line
	Virtual   time.Duration
	Entries   int // commands in the log
	Elections int
	Acked     int // jobs that clients know to be taken in
	Reads     int // that were current
	Restarts  int
	Installs  int // snapshots that a follower restored
	Lost      int // leaders that were known to be gone, without a timer
	Broken    *Violation
	Tail      []string
}

// Options say what a run prints, and what is wrong with it.
type Options struct {
	Trace   io.Writer // every line of the trace; nil: only the tail is kept
	Faults  Faults
	Collect uint64 // bytes that may be allocated before garbage is collected; 0: collectAt. No trace shows it.
}

// Run plays the site of a seed. It must be called in a bubble, with the working
// directory in an empty folder of its own.
func Run(seed uint64, o Options) Result {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC() // a collection that is under way would run on beside us
	runtime.GC() // the first leaves what pools hold for one more
	seedChance(seed)
	w := newWorld(seed, o)
	w.boot()
	w.play()
	w.heal()
	w.progress()
	w.counts.Virtual = w.now()
	w.close()
	return w.result()
}

// world is everything in a run. The goroutine of Run owns rng, shape and the script.
type world struct {
	seed    uint64
	collect uint64 // see Options
	rng     *rand.Rand
	shape   shape
	refused time.Duration // until then no other pair of machines refuses streams
	faults  Faults
	start   time.Time
	net     *network
	nodes   []*machine
	client  *client
	check   *checks
	end     chan struct{} // closed when clients shall stop
	tasks   sync.WaitGroup

	mu     sync.Mutex // guards what is below
	ids    int
	hash   *blake3.Hasher
	out    io.Writer
	tail   []string
	broken *Violation
	counts Result
}

func newWorld(seed uint64, o Options) *world {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 0x72616674)), faults: o.Faults, start: time.Now(),
		end: make(chan struct{}), hash: blake3.New(), out: o.Trace, collect: cmp.Or(o.Collect, collectAt),
	}
	w.check = newChecks(w)
	w.shape = draw(w.rng)
	if o.Faults.Shape != nil {
		o.Faults.Shape(&w.shape)
	}
	w.net = newNetwork(w, rand.New(rand.NewPCG(seed, 0x6e6574)))
	w.client = &client{w: w}
	return w
}

func (w *world) now() time.Duration { return time.Since(w.start) }

// trace writes one line, one change of the state.
func (w *world) trace(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.traceLocked(format, args...)
}

func (w *world) traceLocked(format string, args ...any) {
	line := fmt.Sprintf("%14.6fs  ", w.now().Seconds()) + fmt.Sprintf(format, args...)
	if w.out != nil {
		fmt.Fprintln(w.out, line)
	}
	w.hash.Write([]byte(line + "\n")) // a hash takes everything
	if len(w.tail) >= 2*tailLines {
		w.tail = append(w.tail[:0:0], w.tail[len(w.tail)-tailLines:]...)
	}
	w.tail = append(w.tail, line)
}

// fail notes the first broken invariant; the script ends the run at its next step.
func (w *world) fail(invariant, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return
	}
	w.broken = &Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...), At: w.now()}
	w.traceLocked("BROKEN %s: %s", invariant, w.broken.Detail)
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken != nil
}

func (w *world) newID(kind string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids++
	return fmt.Sprintf("%s-%06d", kind, w.ids)
}

func (w *world) count(f func(*Result)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.counts)
}

// collectAt is how much may be allocated before garbage is collected: the memory of small
// heaps stays with the processor.
const collectAt = 64 << 20

// sleep lets virtual time pass. Garbage is collected in between, while everybody waits:
// the collector's own goroutines would else run among theirs, by the real clock. We wait
// for them whether it is collected or not, so that nobody can tell.
func (w *world) sleep(d time.Duration) {
	for end := w.now() + d; w.now() < end && !w.failed(); {
		time.Sleep(min(time.Second, end-w.now()))
		synctest.Wait()
		var m runtime.MemStats
		if runtime.ReadMemStats(&m); m.HeapAlloc > w.collect {
			runtime.GC()
		}
	}
}

func (w *world) within(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)))
}

func (w *world) chance(perMille int) bool { return w.rng.IntN(1000) < perMille }

// boot forms the site as a person would: one node, then members that join.
func (w *world) boot() {
	w.trace("seed %d: %d machines, %s", w.seed, w.shape.machines, w.shape)
	for i := range w.shape.machines {
		w.nodes = append(w.nodes, newMachine(w, i))
	}
	for i, m := range w.nodes {
		m.boot()
		if i == 0 {
			w.found(m.process())
		}
	}
	w.await("progress", "a full group", 3*time.Minute, func() string {
		voters := 0
		if p := w.leader(); p != nil {
			for _, m := range p.group.Members() {
				if m.Voter {
					voters++
				}
			}
		}
		if voters < w.shape.machines {
			return fmt.Sprintf("%d voters of %d", voters, w.shape.machines)
		}
		return ""
	})
	w.trace("FORMED")
}

// await lets time pass until nothing is missing; what still is breaks the invariant.
func (w *world) await(invariant, what string, most time.Duration, missing func() string) {
	why := missing()
	for end := w.now() + most; why != "" && !w.failed(); why = missing() {
		if w.now() >= end {
			w.fail(invariant, "%s after %s: %s", what, most, why)
			return
		}
		w.sleep(250 * time.Millisecond)
	}
}

// play is the safety half.
func (w *world) play() {
	if w.failed() {
		return
	}
	w.client.start()
	for end := w.now() + w.shape.safety; w.now() < end && !w.failed(); {
		w.sleep(w.within(w.shape.calm/2, w.shape.calm*2))
		if !w.failed() {
			w.shape.mischief[w.rng.IntN(len(w.shape.mischief))].do(w)
		}
	}
}

// heal ends every fault: what follows must come to rest.
func (w *world) heal() {
	if w.failed() {
		return
	}
	w.trace("HEAL")
	w.net.heal()
	for _, m := range w.nodes {
		m.mend()
	}
	w.sleep(5 * time.Second)
	close(w.end)
}

// healWithin is how long the healed site may take: the longest silence of a lease, and
// the work that is still to be done.
const healWithin = 10 * time.Minute

// seenWithin is how long gossip may take to join what was apart: some rounds of dialling.
const seenWithin = time.Minute

func (w *world) progress() {
	if w.failed() {
		return
	}
	w.await("progress", "at rest", healWithin, w.client.owed)
	w.await("progress", "everybody sees everybody", seenWithin, w.unseen)
	w.await("same-state", "one state", 2*time.Minute, w.check.differ)
	w.check.atEnd()
}

// close ends every process and lets what hangs come to its timeout: a goroutine that is
// left fails the bubble.
func (w *world) close() {
	select {
	case <-w.end:
	default:
		close(w.end)
	}
	w.net.heal()
	for _, m := range w.nodes {
		m.disk.heal()
		m.clk.resume()
	}
	for _, m := range w.nodes {
		if p := m.process(); p != nil {
			p.close()
		}
	}
	w.tasks.Wait()
	w.net.close()
	time.Sleep(time.Minute)
	w.trace("END")
}

func (w *world) result() Result {
	r := w.counts
	r.Seed, r.Broken = w.seed, w.broken
	r.Replays = overlaid && runtime.GOMAXPROCS(0) == 1
	var sum forgeyard.Digest
	w.hash.Digest().Read(sum[:])
	r.Trace = "TRACE " + sum.String()
	if w.out != nil {
		fmt.Fprintln(w.out, r.Trace)
	}
	r.Tail = append(r.Tail, w.tail[max(0, len(w.tail)-tailLines):]...)
	return r
}
