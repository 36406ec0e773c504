package simulation

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/simulation/scenario"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// maxNodes bounds a site.
const maxNodes = scenario.MaxNodes

// tailLines is how much of the trace a failing run shows.
const tailLines = 60

// maxEvents ends a run that has lost its way.
const maxEvents = 3_000_000

// Violation is a broken invariant.
type Violation struct {
	Invariant string
	Detail    string
	At        time.Duration // true time since the run began
}

func (v *Violation) Error() string { return fmt.Sprintf("%s at %s: %s", v.Invariant, v.At, v.Detail) }

// Result is one run.
type Result struct {
	Scenario  scenario.Scenario
	Trace     string        // `TRACE b3:…`, the digest of every line
	Lines     int           // of the trace
	Virtual   time.Duration // true time that passed
	Events    int
	Entries   int // committed entries
	Elections int
	Ended     int // jobs that ended
	Delegated int
	Collected int // objects
	Broken    *Violation
	Tail      []string // the last lines of the trace
}

// Options say what a run prints.
type Options struct {
	Trace io.Writer // every line of the trace; nil: only the tail is kept
	// Quiet is for runs of which only the outcome is read: no line is made, so there is no
	// digest either, unless the scenario expects something of the trace.
	Quiet bool
}

// Run plays the site of a seed.
func Run(seed uint64, o Options) Result { return Play(scenario.Draw(seed, scenario.Taste{}), o) }

// Play plays a scenario.
func Play(sc scenario.Scenario, o Options) Result { return play(sc, o, honest()) }

func play(sc scenario.Scenario, o Options, f hooks) Result {
	s := newSim(sc, o, f)
	s.boot()
	s.arrange()
	s.runUntil(int64(sc.Length), nil) // the safety half
	s.heal()
	s.progress()
	s.finish()
	return s.result()
}

type sim struct {
	sc     scenario.Scenario
	config sitecfg.Site
	terms  lease.UplinkTerms
	rng    *rand.Rand
	now    int64 // true time
	events queue
	count  int
	ids    int // message ids, completions, manifests
	nodes  []*node
	ghosts []*node // machines whose data dir was copied to another, and which go on
	net    *network
	up     *central
	world  *world  // of the newest incarnation
	backup *backup // the newest; nil: none was made
	faults hooks
	client client

	underWay uint64           // entries beyond which a leader lets commands share the next
	work     map[string]*plan // by the title of the spec
	store    map[forgeyard.Digest]saved
	outside  map[forgeyard.JobID]int // how often each job's effect was performed

	checks    []checker
	broken    *Violation
	healing   bool // the safety half is over
	elections int
	collected int

	quiet bool
	out   io.Writer
	hash  *blake3.Hasher
	line  []byte
	lines int
	tail  []string
	found map[string]bool // what the scenario expects of the trace, and was seen
}

func newSim(sc scenario.Scenario, o Options, f hooks) *sim {
	s := &sim{
		sc: sc, config: configOf(sc), terms: termsOf(sc), rng: rand.New(rand.NewPCG(sc.Seed, 0x73696d)), faults: f, quiet: o.Quiet && len(sc.Expect) == 0, out: o.Trace, hash: blake3.New(),
		work: map[string]*plan{}, store: map[forgeyard.Digest]saved{}, outside: map[forgeyard.JobID]int{}, found: map[string]bool{},
	}
	if f.config != nil {
		f.config(&s.config)
	}
	s.world = newWorld()
	s.underWay = []uint64{1, 2, 8}[s.rng.IntN(3)]
	s.net = &network{s: s}
	s.checks = checkers()
	s.up = newCentral(s)
	s.client.s = s
	return s
}

// event is something that happens at a true time; equal times keep their order.
type event struct {
	at   int64
	seq  uint32
	life int32 // of the node that it belongs to; arrives: of none
	n    *node // nil: of no node
	f    func()
}

// arrives marks an event as a message: it finds whatever process is there then.
const arrives = -1

func (e *event) before(o *event) bool { return e.at < o.at || (e.at == o.at && e.seq < o.seq) }

// fire lets the event happen, where it still can: what an earlier process began does not.
func (e *event) fire() {
	n := e.n
	switch {
	case n == nil:
		e.f()
	case e.life == arrives:
		if n.up && !n.asleep {
			n.run(e.f)
		}
	case n.up && n.life == e.life && n.paused:
		f, life := e.f, e.life
		n.run(func() {
			if n.life == life {
				f()
			}
		})
	case n.up && n.life == e.life:
		e.f()
	}
}

// queue is a heap of events.
type queue struct {
	heap []event
	seq  uint32
}

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = e
}

func (q *queue) pop() event {
	top := q.heap[0]
	last := len(q.heap) - 1
	e := q.heap[last]
	q.heap[last] = event{}
	q.heap = q.heap[:last]
	i := 0
	for {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && q.heap[c+1].before(&q.heap[c]) {
			c++
		}
		if !q.heap[c].before(&e) {
			break
		}
		q.heap[i] = q.heap[c]
		i = c
	}
	if last > 0 {
		q.heap[i] = e
	}
	return top
}

// after lets f happen d nanoseconds of true time later.
func (s *sim) after(d int64, f func()) { s.events.push(event{at: s.now + max(0, d), f: f}) }

// runUntil lets time pass until the given instant, or until done says so.
func (s *sim) runUntil(end int64, done func() bool) {
	for s.broken == nil && len(s.events.heap) > 0 && s.events.heap[0].at <= end {
		e := s.events.pop()
		s.now = e.at
		e.fire()
		if s.count++; s.count > maxEvents {
			s.fail("progress", "%d events and no end", s.count)
		}
		if done != nil && s.count%64 == 0 && done() {
			return
		}
	}
	if s.broken == nil {
		s.now = max(s.now, end)
	}
}

// chance is true perMille times in a thousand.
func (s *sim) chance(perMille int) bool { return perMille > 0 && s.rng.IntN(1000) < perMille }

// within draws a duration from [lo, hi).
func (s *sim) within(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(s.rng.Int64N(int64(hi-lo)))
}

func (s *sim) newID(kind string) string {
	s.ids++
	return fmt.Sprintf("%s-%06d", kind, s.ids)
}

// trace writes one line, one state change.
func (s *sim) trace(format string, args ...any) {
	if s.quiet {
		return
	}
	at := s.now / 1e6
	s.line = fmt.Appendf(s.line[:0], "%6d.%03ds  ", at/1000, at%1000)
	s.line = append(fmt.Appendf(s.line, format, args...), '\n')
	s.lines++
	_, err := s.hash.Write(s.line)
	if err == nil && s.out != nil {
		_, err = s.out.Write(s.line)
	}
	if err != nil {
		panic(err) // a hash takes everything, and a trace that is cut short is none
	}
	line := string(s.line[:len(s.line)-1])
	for _, e := range s.sc.Expect {
		if e.Text != "" && strings.Contains(line, e.Text) {
			s.found[e.Text] = true
		}
	}
	if len(s.tail) >= 2*tailLines {
		s.tail = append(s.tail[:0:0], s.tail[len(s.tail)-tailLines:]...)
	}
	s.tail = append(s.tail, line)
}

// fail notes the first broken invariant and ends the run.
func (s *sim) fail(invariant, format string, args ...any) {
	if s.broken != nil {
		return
	}
	s.broken = &Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...), At: time.Duration(s.now)}
	s.trace("BROKEN %s: %s", invariant, s.broken.Detail)
}

func (s *sim) result() Result {
	r := Result{
		Scenario: s.sc, Lines: s.lines, Virtual: time.Duration(s.now), Events: s.count, Entries: len(s.world.entries), Elections: s.elections,
		Broken: s.broken, Ended: s.head().Ended.Len(), Delegated: len(s.up.jobs), Collected: s.collected,
	}
	var sum forgeyard.Digest
	if _, err := s.hash.Digest().Read(sum[:]); err != nil {
		panic(err)
	}
	r.Trace = "TRACE " + sum.String()
	if s.out != nil {
		fmt.Fprintln(s.out, r.Trace)
	}
	r.Tail = append(r.Tail, s.tail[max(0, len(s.tail)-tailLines):]...)
	return r
}

// head is the newest committed state, which no node may have seen yet.
func (s *sim) head() *site.State { return s.world.states[len(s.world.states)-1] }

// heal ends every fault: what follows must come to rest.
func (s *sim) heal() {
	if s.broken != nil {
		return
	}
	s.healing = true
	s.trace("HEAL")
	s.net.healAll()
	s.exorcise()
	s.up.heal()
	for _, n := range s.nodes {
		n.disk = disk{}
		n.resume()
		if n.upgrade() && n.up {
			n.crash()
		}
		if !n.up && !n.gone {
			n.start(false)
		}
	}
	s.client.settle()
}

// healWithin is how long the site may take to come to rest: what is longest is the
// silence of an offline-authorised holder that the heal itself made unreachable, once for
// each interruption that its budget allows.
const healWithin = 30 * time.Minute

// progress is the liveness half.
func (s *sim) progress() {
	if s.broken != nil {
		return
	}
	s.runUntil(s.now+int64(healWithin), func() bool { return s.atRest() == "" })
	if s.broken == nil {
		if why := s.atRest(); why != "" {
			s.fail("progress", "%s after healing: %s", healWithin, why)
		}
	}
}

func (s *sim) finish() {
	for _, c := range s.checks {
		if s.broken == nil {
			c.end(s)
		}
	}
	if s.broken == nil {
		s.expectations()
	}
}

// expectations are what the story says of its own end.
func (s *sim) expectations() {
	status := map[string]job.Status{}
	for _, j := range s.head().Jobs.All() {
		status[j.Spec.Title] = j.Status
	}
	for _, e := range s.sc.Expect {
		switch e.Status {
		case "trace":
			if !s.found[e.Text] {
				s.fail("story", "no line of the trace holds %q", e.Text)
			}
		case "none":
			if s.found[e.Text] {
				s.fail("story", "a line of the trace holds %q", e.Text)
			}
		default:
			if got := status[e.Job]; string(got) != e.Status {
				s.fail("story", "%s is %s, %s was expected", e.Job, got, e.Status)
			}
		}
	}
}
