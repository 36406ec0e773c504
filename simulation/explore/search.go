package explore

import (
	"fmt"
	"runtime"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// Limits end an exploration that has not seen everything. Zero is no limit.
type Limits struct {
	Depth  int           // steps from the root
	States int           // different worlds: 40 bytes each, and 140 while they wait
	Time   time.Duration // by the clock that the caller reads
}

// Result is what one exploration saw.
type Result struct {
	Company Company
	States  int    // different worlds
	Steps   uint64 // worlds stepped into, those that were known among them
	Rules   uint64 // questions to rules that these steps asked
	Calls   uint64 // of which the rules were called for: the same question has the same answer
	Depth   int    // every world that is so many steps from the root was looked at
	Whole   bool   // and there are none beyond
	Full    int    // worlds that had more messages under way than fit: not followed
	Took    time.Duration

	Broken *Violation
	Path   []string // the shortest way to it, as a transcript
}

// StepsPerSecond is how fast it went, on one core.
func (r Result) StepsPerSecond() float64 { return float64(r.Steps) / r.Took.Seconds() }

// link is how a world was reached first, which is a shortest way: breadth comes first.
type link struct {
	from uint32
	by   action
}

// search is one exploration under way.
type search struct {
	x     *explorer
	seen  set
	links []link
	level queue // worlds of the depth under way
	next  queue
	acts  []action
	key   []byte
	r     Result
}

type waiting struct {
	w  world
	id uint32
}

// queue is a list of worlds in pieces, since one piece would be copied as it grows.
type queue struct {
	full [][]waiting
	last []waiting
}

const piece = 4096

func (q *queue) push(w *world, id uint32) {
	if len(q.last) == cap(q.last) {
		if q.last != nil {
			q.full = append(q.full, q.last)
		}
		q.last = make([]waiting, 0, piece)
	}
	q.last = append(q.last, waiting{*w, id})
}

func (q *queue) pieces() [][]waiting { return append(q.full[:len(q.full):len(q.full)], q.last) }

func (q *queue) empty() bool { return len(q.last) == 0 }

// Run explores one company to the limits, breadth first, on the caller's core. now reads
// a clock.
func Run(c Company, r Rules, l Limits, now func() time.Duration) Result {
	x := newExplorer(c, r)
	return x.search(l, now)
}

func (x *explorer) search(l Limits, now func() time.Duration) Result {
	s := &search{x: x, r: Result{Company: x.c}}
	began := now()
	root := x.root()
	s.seen.add(fingerprint(root.key(nil)))
	s.links = append(s.links, link{})
	s.level.push(&root, 0)
	ended := false
	for !s.level.empty() && !ended && s.r.Broken == nil {
		if l.Depth > 0 && s.r.Depth >= l.Depth {
			break
		}
		ended = s.breadth(l, func() bool { return l.Time > 0 && now()-began >= l.Time })
		if !ended && s.r.Broken == nil {
			s.r.Depth++
			s.level, s.next = s.next, queue{}
		}
	}
	s.r.Whole = s.level.empty()
	s.r.States, s.r.Rules, s.r.Calls, s.r.Took = len(s.links), x.count.questions, x.count.calls, now()-began
	return s.r
}

// breadth looks at every world of the depth under way.
func (s *search) breadth(l Limits, late func() bool) (ended bool) {
	for _, part := range s.level.pieces() {
		for i := range part {
			if i%256 == 0 && late() {
				return true
			}
			if s.expand(&part[i]); s.r.Broken != nil {
				return false
			}
			if l.States > 0 && len(s.links) >= l.States {
				return true
			}
		}
	}
	invariant.True(len(s.x.messages.rows) < 1<<24, "a message's number fits an action")
	return false
}

// expand tries every action in one world.
func (s *search) expand(at *waiting) {
	s.acts = s.x.actions(&at.w, s.acts[:0])
	for _, a := range s.acts {
		w := s.x.step(&at.w, a)
		s.r.Steps++
		if s.x.broken != nil {
			s.r.Broken = s.x.broken
			s.r.Depth++
			s.r.Path = s.transcript(at.id, a)
			return
		}
		if w.overflowing {
			s.r.Full++
			continue
		}
		s.key = w.key(s.key)
		if s.seen.add(fingerprint(s.key)) {
			s.links = append(s.links, link{at.id, a})
			s.next.push(w, uint32(len(s.links)-1))
		}
	}
}

// set is a set of fingerprints, none of which is zero.
type set struct {
	places []uint64
	n      int
}

// add reports whether the fingerprint is new.
func (s *set) add(f uint64) bool {
	if 2*s.n >= len(s.places) {
		s.grow()
	}
	for i := f >> 1; ; i++ {
		switch p := &s.places[i&uint64(len(s.places)-1)]; *p {
		case f:
			return false
		case 0:
			*p = f
			s.n++
			return true
		}
	}
}

func (s *set) grow() {
	old := s.places
	s.places, s.n = make([]uint64, max(1<<12, 2*len(old))), 0
	for _, f := range old {
		if f != 0 {
			s.add(f)
		}
	}
}

// AllWithin explores every company, as many at once as there are cores. The time of the
// limits is that of all together: each gets an even share of what is left when its turn
// comes, so that what one does not need is for those after it.
func AllWithin(cs []Company, r Rules, l Limits, now func() time.Duration) []Result {
	out := make([]Result, len(cs))
	next := make(chan int)
	done := make(chan struct{})
	workers := min(runtime.GOMAXPROCS(0), len(cs))
	end := now() + l.Time
	for range workers {
		go func() {
			for i := range next {
				mine := l
				if rounds := (len(cs) - i + workers - 1) / workers; l.Time > 0 {
					mine.Time = max((end-now())/time.Duration(rounds), time.Millisecond)
				}
				out[i] = Run(cs[i], r, mine, now)
			}
			done <- struct{}{}
		}()
	}
	for i := range cs {
		next <- i
	}
	close(next)
	for range workers {
		<-done
	}
	return out
}

func (r Result) String() string {
	end := ""
	switch {
	case r.Broken != nil:
		end = ", BROKEN " + r.Broken.Error()
	case r.Whole:
		end = ", all there is"
	}
	return fmt.Sprintf("%-28s depth %2d, %8d worlds, %9d steps, %9d questions, %6d calls, %7s: %8.0f steps a second%s",
		r.Company.Name, r.Depth, r.States, r.Steps, r.Rules, r.Calls, r.Took.Round(time.Millisecond), r.StepsPerSecond(), end)
}
