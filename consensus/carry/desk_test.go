//lint:file-ignore SA1019 as in carry_test.go

package carry

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// porter is a desk that takes notes.
type porter struct {
	says    string
	heard   chan string
	refuses bool
	stayed  chan struct{}
	took    atomic.Int64 // entries
}

func newPorter(says string) *porter {
	return &porter{says: says, heard: make(chan string, 8), stayed: make(chan struct{}, 8)}
}

func (p *porter) Hello(raft.ServerAddress, Caller) []byte { return []byte(p.says) }
func (p *porter) Meet(h []byte) Caller                    { p.heard <- string(h); return p }
func (p *porter) Refused() bool                           { return p.refuses }
func (p *porter) Stayed()                                 { p.stayed <- struct{}{} }
func (p *porter) Took(_ raft.ServerID, q *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) {
	p.took.Add(int64(len(q.Entries)))
}

// raft's own transport, and so an older program, passes a hello over, in calls and answers.
func TestOlderProgramsPassAHelloOver(t *testing.T) {
	for i, name := range []string{"ours calls theirs", "theirs calls ours"} {
		t.Run(name, func(t *testing.T) {
			_, a, b := newStreet()
			d := &desk{calls: make(chan raft.RPC)}
			p := newPorter("hello")
			var caller, callee transport
			calls := (<-chan raft.RPC)(d.calls)
			if i == 0 {
				caller, callee = New(Config{Layer: a, Timeout: 5 * time.Second, Desk: p}), theirs(b)
				calls = callee.Consumer()
			} else {
				ours := New(Config{Layer: b, Timeout: 5 * time.Second, Desk: p})
				ours.Start(d)
				caller, callee = theirs(a), ours
			}
			defer callee.Close()
			defer caller.Close()
			for _, e := range exchanges() {
				done := make(chan struct{})
				go func() { defer close(done); e.serve(t, <-calls) }()
				got, err := e.make(caller)
				<-done
				e.check(t, got, err)
			}
			if n := p.took.Load(); n > 0 {
				t.Errorf("%d entries count as acknowledged by one that said no hello", n)
			}
		})
	}
}

// Between two of ours each says hello once, whatever the first message is.
func TestEachSideSaysHelloOnce(t *testing.T) {
	for _, e := range exchanges() {
		if e.answer == nil {
			continue
		}
		_, a, b := newStreet()
		d := &desk{calls: make(chan raft.RPC)}
		mine, peers := newPorter("mine"), newPorter("theirs")
		ours, peer := New(Config{Layer: a, Timeout: 5 * time.Second, Desk: mine}), New(Config{Layer: b, Timeout: 5 * time.Second, Desk: peers})
		peer.Start(d)
		connections := 1
		for range 3 {
			go func() { e.serve(t, <-d.calls) }()
			got, err := e.make(ours)
			e.check(t, got, err)
		}
		if e.name == "snapshot" {
			connections = 3 // each has one of its own
		}
		if len(peers.heard) != connections || len(mine.heard) != connections || <-peers.heard != "mine" || <-mine.heard != "theirs" {
			t.Errorf("%s: %d and %d hellos on %d connections", e.name, len(peers.heard), len(mine.heard), connections)
		}
		if q, ok := e.call.(*raft.AppendEntriesRequest); ok && mine.took.Load() != int64(3*len(q.Entries)) {
			t.Errorf("%s: %d entries count as acknowledged", e.name, mine.took.Load())
		}
		if want := 3 - connections; len(peers.stayed) != want {
			t.Errorf("%s: it was said %d times that the caller called again, and it did %d times", e.name, len(peers.stayed), want)
		}
		ours.Close()
		peer.Close()
	}
}

// What a hello says may change: after Renew each call begins with one, also where the
// connection was in use meanwhile.
func TestRenewedConnectionsSayHelloAnew(t *testing.T) {
	e := exchanges()[0]
	_, a, b := newStreet()
	d := &desk{calls: make(chan raft.RPC)}
	mine, peers := newPorter("mine"), newPorter("theirs")
	ours, peer := New(Config{Layer: a, Timeout: 5 * time.Second, Desk: mine}), New(Config{Layer: b, Timeout: 5 * time.Second, Desk: peers})
	peer.Start(d)
	defer peer.Close()
	defer ours.Close()
	call := func(meanwhile func()) {
		go func() {
			c := <-d.calls
			meanwhile()
			e.serve(t, c)
		}()
		got, err := e.make(ours)
		e.check(t, got, err)
	}
	nothing := func() {}
	for i, c := range []struct {
		before, meanwhile func()
		heard             int
	}{
		{nothing, nothing, 1}, {nothing, nothing, 1}, {ours.Renew, nothing, 2}, {nothing, ours.Renew, 2}, {nothing, nothing, 3},
	} {
		c.before()
		call(c.meanwhile)
		if n := len(peers.heard); n != c.heard {
			t.Errorf("call %d: %d hellos, expected %d", i+1, n, c.heard)
		}
	}
}

// A refused caller's calls do not reach raft, and nothing that a refused peer answers does.
func TestRefusedOnesAreNotHeard(t *testing.T) {
	for _, e := range exchanges() {
		_, a, b := newStreet()
		d := &desk{calls: make(chan raft.RPC, 1)}
		mine, peers := newPorter("mine"), newPorter("theirs")
		ours, peer := New(Config{Layer: a, Timeout: 5 * time.Second, Desk: mine}), New(Config{Layer: b, Timeout: 5 * time.Second, Desk: peers})
		peer.Start(d)
		peers.refuses = true
		if got, err := e.make(ours); !errors.Is(err, ErrRefused) && e.name != "snapshot" || err == nil {
			t.Errorf("%s: a refused caller hears %+v, %v", e.name, got, err)
		}
		if len(d.calls) > 0 {
			t.Errorf("%s: the call of a refused caller came through", e.name)
		}
		if e.name != "snapshot" && <-mine.heard != "theirs" {
			t.Errorf("%s: a refused caller is not told by whom", e.name)
		}
		peers.refuses, mine.refuses = false, true
		go func() { e.serve(t, <-d.calls) }()
		if got, err := e.make(ours); err == nil {
			t.Errorf("%s: a refused peer's answer came through: %+v", e.name, got)
		}
		ours.Close()
		peer.Close()
	}
}

// What tells a caller that it is refused stays on the wire what it is.
func TestTheWordOfRefusal(t *testing.T) {
	b, err := appendAnswer(nil, raft.RPCResponse{Error: ErrRefused}, []byte("h"))
	want := "\xda\x00\x39this process is not known as the voter that it speaks for" + "\x81\xa5Hello\xa1h"
	if err != nil || string(b) != want {
		t.Errorf("%q, %v; it was %q", b, err, want)
	}
}
