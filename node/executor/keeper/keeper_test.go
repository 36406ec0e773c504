package keeper

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// bubble is a keeper inside a synctest bubble: its clock is the bubble's, and its trees
// are names.
type bubble struct {
	t    *testing.T
	in   *io.PipeWriter
	said *bufio.Reader
	over chan error

	mu     sync.Mutex
	reaped []string // in order, with when
	stuck  int      // tries that fail
	began  time.Time
}

type bubbleAlarm struct {
	mu   sync.Mutex
	t    *time.Timer
	ring chan struct{}
}

func (a *bubbleAlarm) rings() <-chan struct{} { return a.ring }

func (a *bubbleAlarm) set(at forgeyard.Instant) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.t != nil {
		a.t.Stop()
	}
	a.t = time.AfterFunc(time.Duration(int64(at)-time.Now().UnixNano()), func() {
		select {
		case a.ring <- struct{}{}:
		default: // one ring is due already
		}
	})
	return nil
}

func newBubble(t *testing.T) *bubble {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	b := &bubble{t: t, in: inW, said: bufio.NewReader(outR), over: make(chan error, 1), began: time.Now()}
	go func() {
		b.over <- keep(inR, outW, parts{
			now: func() forgeyard.Instant { return forgeyard.Instant(time.Now().UnixNano()) }, alarm: &bubbleAlarm{ring: make(chan struct{}, 1)},
			reap: b.reap, say: io.Discard,
		})
	}()
	return b
}

func (b *bubble) reap(_ context.Context, o executor.Orphan) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stuck > 0 {
		b.stuck--
		return errors.New("it does not end")
	}
	b.reaped = append(b.reaped, o.ID+" at "+time.Since(b.began).String())
	return nil
}

func (b *bubble) ended() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.reaped)
}

func (b *bubble) tell(o op, id string, in time.Duration) string {
	b.t.Helper()
	ord := order{Op: o, Orphan: executor.Orphan{ID: id, Cgroups: []string{"/cg/" + id}}}
	if in != 0 {
		ord.Until = forgeyard.Instant(b.began.Add(in).UnixNano())
	}
	if err := writeLine(b.in, ord); err != nil {
		b.t.Fatal(err)
	}
	line, err := b.said.ReadString('\n')
	if err != nil {
		b.t.Fatal(err)
	}
	return line
}

func (b *bubble) close() {
	b.t.Helper()
	if err := b.in.Close(); err != nil {
		b.t.Fatal(err)
	}
	if err := <-b.over; err != nil {
		b.t.Fatal(err)
	}
}

// RA-310, RA-311: a tree ends at its deadline, and a moved one at the moved one; over is
// for good, and is swept until the daemon releases it.
func TestEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.tell(opHold, "a", 3*time.Second)
		b.tell(opHold, "b", 5*time.Second)
		b.tell(opHold, "c", 4*time.Second)
		b.tell(opMove, "a", 10*time.Second)
		b.tell(opRelease, "c", 0)
		time.Sleep(4900 * time.Millisecond)
		if got := b.ended(); len(got) != 0 {
			t.Fatalf("ended early: %v", got)
		}
		time.Sleep(101 * time.Millisecond)
		if got := b.ended(); !slices.Equal(got, []string{"b at 5s"}) {
			t.Fatalf("ended %v", got)
		}
		if said := b.tell(opMove, "b", time.Hour); !strings.Contains(said, `"over":true`) {
			t.Fatalf("a move of what is over is answered with %s", said)
		}
		if said := b.tell(opAsk, "a", 0); strings.Contains(said, "over") {
			t.Fatalf("what still runs is over: %s", said)
		}
		time.Sleep(100 * time.Millisecond)
		if got := b.ended(); !slices.Equal(got, []string{"b at 5s", "b at 5.1s"}) {
			t.Fatalf("it is not swept: %v", got)
		}
		b.tell(opRelease, "b", 0)
		time.Sleep(4 * time.Second)
		if got := b.ended(); len(got) != 2 {
			t.Fatalf("what was released is swept: %v", got)
		}
		b.tell(opRelease, "a", 0)
		b.close()
		if got := b.ended(); len(got) != 2 {
			t.Fatalf("an orderly end ended %v", got)
		}
	})
}

// E18: when the daemon is gone, all that it did not release is ended, however often that
// takes, and then the keeper ends too.
func TestOrphanedEndsAll(t *testing.T) {
	for name, last := range map[string]func(*bubble){
		"the pipe closed":  func(*bubble) {},
		"half an order":    func(b *bubble) { _, _ = b.in.Write([]byte(`{"seq":9,"op":"ho`)) },
		"no order at all":  func(b *bubble) { _, _ = b.in.Write([]byte("what?\n")) },
		"an order too big": func(b *bubble) { _, _ = b.in.Write([]byte(strings.Repeat("x", maxLine))) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				b.tell(opHold, "a", time.Hour)
				b.tell(opHold, "b", time.Hour)
				b.tell(opRelease, "b", 0)
				b.stuck = 3
				last(b)
				b.close()
				if got := b.ended(); !slices.Equal(got, []string{"a at 0s"}) {
					t.Fatalf("ended %v", got)
				}
			})
		})
	}
}

// A deadline that has passed already ends the tree at once: stale is told as one.
func TestPastDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.tell(opHold, "a", time.Hour)
		b.tell(opMove, "a", -time.Second)
		if got := b.ended(); !slices.Equal(got, []string{"a at 0s"}) {
			t.Fatalf("ended %v", got)
		}
		b.close()
	})
}

// deaf is a pipe that nobody reads: every write hangs until the test ends.
type deaf struct{ ends chan struct{} }

func (d deaf) Write(b []byte) (int, error) {
	<-d.ends
	return len(b), nil
}

// Nobody reads the answers, nor what the keeper says: it takes orders, counts and ends trees
// all the same, and when the daemon goes it ends too.
func TestFullPipesStopNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wall := deaf{make(chan struct{})}
		defer close(wall.ends)
		inR, inW := io.Pipe()
		b := &bubble{t: t, in: inW, over: make(chan error, 1), began: time.Now()}
		go func() {
			b.over <- keep(inR, wall, parts{
				now: func() forgeyard.Instant { return forgeyard.Instant(time.Now().UnixNano()) }, alarm: &bubbleAlarm{ring: make(chan struct{}, 1)},
				reap: b.reap, say: wall,
			})
		}()
		until := forgeyard.Instant(b.began.Add(time.Minute).UnixNano())
		for range 2 * queued { // more answers than any queue holds
			if err := writeLine(inW, order{Op: opHold, Orphan: executor.Orphan{ID: "a", Cgroups: []string{"/cg/a"}}, Until: until}); err != nil {
				t.Fatal(err)
			}
		}
		if err := writeLine(inW, order{Op: opHold, Orphan: executor.Orphan{ID: "b", Cgroups: []string{"/cg/b"}}, Until: until.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if all := b.ended(); len(all) == 0 || all[0] != "a at 1m0s" {
			t.Fatalf("ended: %v", all)
		}
		b.close()
		if all := b.ended(); !slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, "b at 1m0") }) {
			t.Fatalf("ended: %v", all)
		}
	})
}

func FuzzOrder(f *testing.F) {
	f.Add([]byte(`{"seq":1,"op":"hold","orphan":{"id":"a-1","pid":0,"birth":0,"boot":"b","cgroups":["/x"]},"until":5}` + "\n"))
	f.Add([]byte(`{"seq":1,"op":"move","orphan":{"id":""},"until":-5}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := readOrder(bufio.NewReaderSize(strings.NewReader(string(b)), maxLine))
		if err == nil && (o.Orphan.ID == "" || o.Until < 0) {
			t.Fatalf("taken: %+v", o)
		}
	})
}
