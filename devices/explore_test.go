package devices

import (
	"fmt"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

// world is one device under every command, with what the log would know besides.
type world struct {
	d     Device
	index uint64
	held  map[uint64]bool // tokens that were granted; true while their lease lives
	reqs  int             // request ids used so far
}

func newWorld(t *testing.T) world {
	t.Helper()
	d, err := Declare(nil, "host-a", Fact{ID: "dut", Kind: "serial"})
	if err != nil {
		t.Fatal(err)
	}
	return world{d: d, index: 1, held: map[uint64]bool{}}
}

// step is one command of the log. It returns an error only when a rule is broken;
// that a command is refused is not one.
type step struct {
	name string
	do   func(w *world) error
}

func (w *world) grant(prepare bool) error {
	before := w.d.HighestFence
	w.reqs++
	req := forgeyard.MessageID(fmt.Sprintf("req-%d", w.reqs))
	g := Grant{Index: w.index, Lease: "L", RequestID: req, Holder: Holder{Person: "ana"}, Origin: Local, TTL: time.Minute, Prepare: prepare}
	why := w.d.Grantable()
	d, l, err := w.d.Grant(g)
	if (err == nil) != (why == "") {
		return fmt.Errorf("grantable says %q, grant says %v", why, err)
	}
	if err != nil {
		return nil
	}
	for token, live := range w.held {
		if live {
			return fmt.Errorf("device-single-holder: %d was granted while %d lives", l.Token, token)
		}
	}
	if l.Token <= before {
		return fmt.Errorf("token %d after %d", l.Token, before)
	}
	again, l2, err := d.Grant(Grant{Index: w.index + 1, RequestID: req})
	if err != nil || l2 != l || string(cborx.Marshal(again)) != string(cborx.Marshal(d)) {
		return fmt.Errorf("D03: the same request id gave %+v, %v", l2, err)
	}
	w.d = d
	w.held[l.Token] = true
	return nil
}

func (w *world) token() uint64 {
	if w.d.Lease != nil {
		return w.d.Lease.Token
	}
	if w.d.Last != nil {
		return w.d.Last.Token
	}
	return 0
}

func (w *world) set(d Device, err error) error {
	if err == nil {
		w.d = d
	}
	return nil
}

func (w *world) end(e End) error {
	e.Index = w.index
	return w.set(w.d.End(w.token(), e))
}

var steps = []step{
	{"grant", func(w *world) error { return w.grant(false) }},
	{"grant to prepare", func(w *world) error { return w.grant(true) }},
	{"prepared", func(w *world) error { return w.set(w.d.Prepared(w.token(), true, "", End{})) }},
	{"prepare failed", func(w *world) error { return w.set(w.d.Prepared(w.token(), false, "x", End{Index: w.index})) }},
	{"release", func(w *world) error { return w.end(End{Reason: Released}) }},
	{"kick", func(w *world) error { return w.end(End{Reason: Forced, By: "eva"}) }},
	{"reset ok", func(w *world) error {
		return w.set(w.d.ResetDone(Evidence{Token: w.token(), Try: w.d.Resets + 1, OK: true}, w.index, 0))
	}},
	{"reset failed", func(w *world) error {
		return w.set(w.d.ResetDone(Evidence{Token: w.token(), Try: w.d.Resets + 1, Error: "no prompt"}, w.index, 0))
	}},
	{"stale reset", func(w *world) error { return w.set(w.d.ResetDone(Evidence{Token: 1, Try: 1, OK: true}, w.index, 0)) }},
	{"host lost", func(w *world) error { w.d = w.d.HostLost("silent"); return nil }},
	{"host back", func(w *world) error {
		return w.set(Declare(&w.d, "host-a", Fact{ID: "dut", Kind: "serial"}))
	}},
	{"moved", func(w *world) error { return w.set(Declare(&w.d, "host-b", Fact{ID: "dut", Kind: "serial"})) }},
	{"host restarted", func(w *world) error { w.d = w.d.HostRestarted("new session"); return nil }},
	{"settled", func(w *world) error { w.d = w.d.Settled(); return nil }},
	{"check ok", func(w *world) error { return w.set(w.d.Checked(true, "", w.index, 0)) }},
	{"check failed", func(w *world) error { return w.set(w.d.Checked(false, "dead", w.index, 0)) }},
	{"quarantine", func(w *world) error { return w.set(w.d.Isolate("eva", "smells", w.index, 0)) }},
	{"clear", func(w *world) error { return w.set(w.d.Clear("eva")) }},
	{"recovered", func(w *world) error { return w.set(w.d.Recovered(Evidence{Try: w.nextRecovery(), OK: true})) }},
	{"recovery failed", func(w *world) error { return w.set(w.d.Recovered(Evidence{Try: w.nextRecovery()})) }},
	{"maintenance", func(w *world) error { return w.set(w.d.Withdraw(Maintenance, "eva", "fan")) }},
	{"back in service", func(w *world) error { return w.set(w.d.Withdraw(Unknown, "eva", "fan is new")) }},
}

func (w *world) nextRecovery() int {
	if w.d.Quarantine == nil {
		return 1
	}
	return MaxRecoveries - w.d.Quarantine.TriesLeft + 1
}

// check is the table of invariants.
func (w world) check(before Device) error {
	d := w.d
	switch {
	case (d.Lease != nil) != (d.Use == Preparing || d.Use == Leased):
		return fmt.Errorf("use %s with lease %v", d.Use, d.Lease)
	case d.Use == Cleaning && (d.Last == nil || !d.Dirty):
		return fmt.Errorf("cleaning after nobody")
	case d.HighestFence < before.HighestFence:
		return fmt.Errorf("the highest fence fell from %d to %d", before.HighestFence, d.HighestFence)
	case d.Health == Good && d.Presence == Absent:
		return fmt.Errorf("good and absent")
	case d.Quarantine != nil && d.Quarantine.Reason == "":
		return fmt.Errorf("D16: quarantine without a reason")
	case d.Health != Good && d.Reason == "":
		return fmt.Errorf("health %s without a reason", d.Health)
	case d.Lease == nil && d.Dirty && d.Use == Free && d.Quarantine == nil:
		return fmt.Errorf("RA-395: in the pool and not cleaned")
	}
	for _, token := range []uint64{0, 1, d.HighestFence, d.HighestFence + 1} {
		if ok := d.Admit(token) == nil; ok != (d.Lease != nil && token == d.Lease.Token) {
			return fmt.Errorf("stale-never-commits: token %d is admitted: %v", token, ok)
		}
	}
	return nil
}

// key is the state without its numbers, so that the walk ends.
func (w world) key() string {
	d := w.d
	q := "-"
	if d.Quarantine != nil {
		q = fmt.Sprintf("%v%d", d.Quarantine.Manual(), d.Quarantine.TriesLeft)
	}
	return fmt.Sprint(d.Host, d.Presence, d.Health, d.Use, d.Last != nil, d.HighestFence == 1, d.Dirty, d.Resets, q, d.Flaps, d.PrepareFailures)
}

// ended reports the only two states in which a device may rest.
func (w world) ended() bool {
	return w.d.Use == Free && (w.d.Quarantine != nil || !w.d.Dirty)
}

func (w world) apply(s step) (world, error) {
	before := w.d
	w.index++
	held := make(map[uint64]bool, len(w.held))
	for k, v := range w.held {
		held[k] = v
	}
	w.held = held
	if err := s.do(&w); err != nil {
		return w, err
	}
	for token := range w.held {
		w.held[token] = w.d.Lease != nil && w.d.Lease.Token == token
	}
	return w, w.check(before)
}

// TestEveryPathEndsFreeOrQuarantined walks every state that any order of commands
// can reach (D08), checks the invariants after each, and from each state brings the
// device to rest in two ways: with a host that answers, and with one that never does.
func TestEveryPathEndsFreeOrQuarantined(t *testing.T) {
	seen := map[string]bool{}
	type node struct {
		w    world
		path []string
	}
	queue := []node{{w: newWorld(t)}}
	edges := 0
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		if seen[n.w.key()] {
			continue
		}
		seen[n.w.key()] = true
		drain(t, n.w, n.path, "reset ok")
		drain(t, n.w, n.path, "reset failed")
		for _, s := range steps {
			next, err := n.w.apply(s)
			path := append(n.path[:len(n.path):len(n.path)], s.name)
			if err != nil {
				t.Fatalf("%v: %v\n%+v", path, err, next.d)
			}
			edges++
			queue = append(queue, node{next, path})
		}
	}
	if len(seen) < 1000 {
		t.Fatalf("only %d states: the walk does not reach what it should", len(seen))
	}
	t.Logf("%d states, %d steps", len(seen), edges)
}

// drain ends what is open: the lease expires, then resets end the one way or the other.
func drain(t *testing.T, w world, path []string, reset string) {
	t.Helper()
	byName := map[string]step{}
	for _, s := range steps {
		byName[s.name] = s
	}
	for i, name := range []string{"release", reset, reset} {
		if w.ended() {
			return
		}
		var err error
		if w, err = w.apply(byName[name]); err != nil {
			t.Fatalf("%v then %d×%s: %v", path, i, name, err)
		}
	}
	if !w.ended() {
		t.Fatalf("%v then drained by %s: stuck in %+v", path, reset, w.d)
	}
}

// TestWalkSeesABrokenRule shows that the checker can fail: a device that goes back
// to the pool without having been cleaned is noticed.
func TestWalkSeesABrokenRule(t *testing.T) {
	w := newWorld(t)
	for _, s := range []string{"check ok", "grant", "release"} {
		for _, x := range steps {
			if x.name == s {
				var err error
				if w, err = w.apply(x); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	w.d.Use = Free // the seeded fault
	if w.check(w.d) == nil {
		t.Fatal("an uncleaned device in the pool was not noticed")
	}
	w.d.Use = Leased
	if w.check(w.d) == nil {
		t.Fatal("a use without a lease was not noticed")
	}
}
