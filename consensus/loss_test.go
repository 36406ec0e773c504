package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// kill ends a node's streams as the end of its process does, and then the node.
func (r *resident) kill() {
	r.town.x.mu.Lock()
	delete(r.town.x.ports, r.id)
	r.town.x.mu.Unlock()
	r.town.x.reset(func(a, b string) bool { return a == r.id || b == r.id })
	go r.close()
}

// reset ends open streams and lets new ones pass.
func (x *exchange) reset(which func(a, b string) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c, ends := range x.conns {
		if which(ends[0], ends[1]) {
			c.Close()
			delete(x.conns, c)
		}
	}
}

// votersOf is a town whose first node leads, quiet for a while.
func votersOf(t *testing.T, n int, options ...townOption) *town {
	tn := newTown(t, n, nil, options...)
	tn.start()
	tn.awaitApplied(tn.put(tn.nodes[0], "before"), tn.nodes...)
	time.Sleep(time.Second)
	return tn
}

// The leader's process ends: the next one leads long before a timer runs out, in the very
// next term, which nobody else stood in.
func TestAKilledLeaderIsReplacedAtOnce(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn := votersOf(t, n)
				old := tn.nodes[0]
				term, left := old.g.Term(), tn.without(old)
				start := time.Now()
				old.kill()
				next := tn.awaitLeader(left...)
				if gap := time.Since(start); gap >= quick().Heartbeat/2 {
					t.Errorf("the next leader took %v, as long as a timer of %v", gap, quick().Heartbeat)
				}
				if got := next.g.Term(); got != term+1 {
					t.Errorf("term %d after term %d", got, term)
				}
				stood := 0
				for _, r := range left {
					if r.saw(LeaderLost) {
						stood++
					}
				}
				if stood != 1 || !next.saw(LeaderLost) {
					t.Errorf("%d nodes stood", stood)
				}
				tn.awaitApplied(tn.put(next, "after"), left...)
				tn.sameState(left...)
				tn.stop()
			})
		})
	}
}

// Connections to a leader that lives break, all of them, again and again: it goes on
// leading, in its term.
func TestBrokenConnectionsLeaveALivingLeaderAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 3)
		leader := tn.nodes[0]
		term := leader.g.Term()
		for i := range 50 {
			tn.x.reset(func(string, string) bool { return true })
			time.Sleep(time.Duration(i) * 7 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if !leader.g.IsLeader() || leader.g.Term() != term {
			t.Errorf("term %d became %d", term, leader.g.Term())
		}
		tn.awaitApplied(tn.put(leader, "after"), tn.nodes...)
		tn.stop()
	})
}

// refusal makes one node's way to another a refused one, both ways.
type refusal struct {
	raft.StreamLayer
	from string
	to   *string
}

func (r refusal) Dial(to raft.ServerAddress, d time.Duration) (net.Conn, error) {
	if *r.to != "" && (r.from == *r.to || string(to) == *r.to) {
		return nil, errWire
	}
	return r.StreamLayer.Dial(to, d)
}

// One follower is refused by a leader whom the others hear. It asks them, they say no,
// and no term is raised; its own timer ends in pre-votes that are refused as well.
func TestOneFollowerThatIsRefusedDoesNotStand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 3)
		leader, alone := tn.nodes[0], tn.nodes[2]
		term := leader.g.Term()
		alone.close()
		to := ""
		alone.cfg.Layer = nil
		alone.fsm = &notebook{}
		alone.cfg.FSM = alone.fsm
		alone.cfg.Layer = refusal{StreamLayer: tn.x.port(alone.id), from: "", to: &to}
		g, err := Open(alone.cfg)
		if err != nil {
			t.Fatal(err)
		}
		alone.g = g
		tn.awaitApplied(leader.g.Applied(), alone)
		time.Sleep(time.Second)
		to = leader.id
		tn.x.reset(func(a, b string) bool { return a == leader.id && b == alone.id })
		time.Sleep(quick().Heartbeat / 2)
		if alone.saw(LeaderLost) {
			t.Error("it stood on its own word")
		}
		to = ""
		time.Sleep(10 * time.Second)
		if !leader.g.IsLeader() || leader.g.Term() != term {
			t.Errorf("term %d became %d", term, leader.g.Term())
		}
		tn.awaitApplied(tn.put(leader, "after"), tn.nodes...)
		tn.stop()
	})
}

// With the question left out, the same follower deposes the leader: the test above can fail.
func TestWithoutAskingALivingLeaderIsDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 3, func(_ int, c *Config) { c.off.alone = true })
		term := tn.nodes[0].g.Term()
		tn.x.reset(func(a, b string) bool { return b == "n2" })
		time.Sleep(time.Second)
		if got := tn.awaitLeader(tn.nodes...).g.Term(); got == term {
			t.Errorf("still term %d", term)
		}
		tn.stop()
	})
}

// A leader that is silent is not lost: a machine without power resets nothing.
func TestASilentLeaderIsLeftToTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 3)
		w := tn.nodes[1].g.in.trans.loss
		if l, ok := w.leader(); !ok || l.id != "n0" {
			t.Fatalf("it follows %+v", l)
		}
		for err, want := range map[error]bool{
			errWire: true, errors.New("connect: connection refused"): true,
			forgeyard.E("dial", forgeyard.Unavailable, errWire):                        true,
			forgeyard.E("dial", forgeyard.Unavailable, context.DeadlineExceeded):       false,
			forgeyard.E("dial", forgeyard.Denied, errors.New("not a member any more")): false,
			forgeyard.E("dial", forgeyard.Limit, errors.New("too many connections")):   false,
			os.ErrDeadlineExceeded: false, net.ErrClosed: false, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}: false,
		} {
			if got := refused(err); got != want {
				t.Errorf("%v: lost is %v", err, got)
			}
		}
		tn.stop()
	})
}

// A node that gave up its log (26g) says nothing about leaders: it neither stands nor
// helps another to.
func TestARebuildingNodeNeitherStandsNorGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 3)
		old, weak, other := tn.nodes[0], tn.nodes[1], tn.nodes[2]
		weak.g.plan.Store(&rebuildPlan{Wiped: true, Position: position{Term: 1 << 40, Index: 1}})
		old.kill()
		time.Sleep(5 * time.Second)
		if weak.saw(LeaderLost) || other.saw(LeaderLost) {
			t.Error("an election was agreed on with a node that has no say")
		}
		if other.g.IsLeader() || weak.g.IsLeader() {
			t.Error("somebody leads with one vote of three")
		}
		weak.g.plan.Store(nil)
		tn.awaitLeader(weak, other)
		tn.stop()
	})
}

// Who says yes: to a longer log, then to the smaller id, once, and only to a voter that
// asks about the next term.
func TestWhoGetsTheWordOfAFollowerWithoutALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 5)
		g := tn.nodes[2].g
		w := g.in.trans.loss
		l, ok := w.leader()
		if !ok {
			t.Fatal("it follows nobody")
		}
		term, index, err := g.LastEntry()
		if err != nil {
			t.Fatal(err)
		}
		ask := func(id string, of, logTerm, logIndex uint64) bool {
			return w.grants(&raft.RequestPreVoteRequest{RPCHeader: raft.RPCHeader{ID: []byte(id)}, Term: of, LastLogTerm: logTerm, LastLogIndex: logIndex})
		}
		if ask("n1", l.term+1, term, index) {
			t.Error("yes, while it has its leader")
		}
		lose := func() {
			w.mu.Lock()
			w.lost, w.yielded = &l, nil
			w.mu.Unlock()
		}
		for _, c := range []struct {
			id                    string
			of, logTerm, logIndex uint64
			want                  bool
			why                   string
		}{
			{"n1", l.term + 1, term, index, true, "a smaller id"},
			{"n3", l.term + 1, term, index, false, "a greater id, which will be asked"},
			{"n3", l.term + 1, term, index + 1, true, "a longer log"},
			{"n1", l.term + 1, term, index - 1, false, "a shorter log"},
			{"n1", l.term, term, index, false, "the leader's own term"},
			{"n1", l.term + 2, term, index, false, "a later term"},
			{"n0", l.term + 1, term, index, false, "the leader that was lost"},
			{"nobody", l.term + 1, term, index, false, "no member"},
		} {
			lose()
			if got := ask(c.id, c.of, c.logTerm, c.logIndex); got != c.want {
				t.Errorf("%s: %v", c.why, got)
			}
		}
		lose()
		if !ask("n1", l.term+1, term, index) || w.may(l) {
			t.Error("who said yes may still stand")
		}
		w.heard(l.term)
		if ask("n1", l.term+1, term, index) {
			t.Error("yes, after its leader was heard again")
		}
		tn.stop()
	})
}

// Only those who said that they lost the leader are asked to vote whatever they know.
func TestOnlyThoseWhoAgreedAreAskedToVoteAnyhow(t *testing.T) {
	w := &lossWatch{stood: &candidacy{of: loss{term: 4}, granted: map[raft.ServerID]bool{"yes": true}}}
	q := &raft.RequestVoteRequest{Term: 5, LeadershipTransfer: true}
	if got := w.request("yes", q); !got.LeadershipTransfer {
		t.Error("who agreed is asked as if it had a leader")
	}
	if got := w.request("no", q); got.LeadershipTransfer || got.Term != 5 || !q.LeadershipTransfer {
		t.Error("who did not agree is told to vote")
	}
	if got := w.request("yes", &raft.RequestVoteRequest{Term: 6, LeadershipTransfer: true}); got.LeadershipTransfer {
		t.Error("a word for term 5 is used in term 6")
	}
	w.handedOver()
	if got := w.request("no", q); !got.LeadershipTransfer {
		t.Error("a leader's own hand-over has lost its mark")
	}
}

// Something accepts where the leader was, and hangs up: nothing refuses, so the timer
// decides, and nobody asks without a pause.
func TestWhoAcceptsAndHangsUpIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 3)
		old := tn.nodes[0]
		door := tn.x.port(old.id)
		go old.close()
		tn.x.reset(func(a, b string) bool { return a == old.id || b == old.id })
		go func() {
			for {
				c, err := door.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		next := tn.awaitLeader(tn.without(old)...)
		if next.saw(LeaderLost) {
			t.Error("it stood for a leader that accepts connections")
		}
		tn.put(next, "after")
		door.Close()
		tn.stop()
	})
}

// slowDial takes its time to fail, and does not say that it was too long.
type slowDial struct {
	raft.StreamLayer
	after time.Duration
}

func (s slowDial) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	time.Sleep(s.after)
	return nil, errWire
}

// Only what fails at once was refused: what fails late may have been a silence, whatever
// it calls itself.
func TestWhatFailsLateWasNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 3)
		in := tn.nodes[1].g.in
		w := in.trans.loss
		l, _ := w.leader()
		most := w.patience()
		real := in.g.layer.inner
		for after, want := range map[time.Duration]bool{0: true, most / 4: true, most / 2: false, most - time.Millisecond: false, most: false} {
			in.g.layer.inner = slowDial{real, after}
			if got := w.gone(l); got != want {
				t.Errorf("refused after %v of %v: lost is %v", after, most, got)
			}
		}
		in.g.layer.inner = real
		tn.stop()
	})
}

// slowToClose is a connection to a peer that is gone: closing it waits for an answer.
type slowToClose struct {
	net.Conn
	gone chan struct{}
}

func (c slowToClose) Close() error { <-c.gone; return c.Conn.Close() }

// A new leader is heard while the old one, of whom nobody knows yet whether it is gone,
// is still looked at: no call waits for that connection's end, and the look ends at once.
func TestHeardWaitsForNoProbe(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	gone := make(chan struct{})
	defer close(gone)
	w := &lossWatch{in: &instance{g: &Group{}}, probe: slowToClose{ours, gone}}
	read := make(chan error, 1)
	go func() { _, err := ours.Read(make([]byte, 1)); read <- err }()
	heard := make(chan struct{})
	go func() { w.heard(1); close(heard) }()
	for range 2 {
		select {
		case <-heard:
			heard = nil
		case err := <-read:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the look ended with %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the leader's call waits for the probe")
		}
	}
}
