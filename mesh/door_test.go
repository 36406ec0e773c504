package mesh

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// door is what a knows of its last hello with b.
func door(t *testing.T, a, b *Mesh) Door {
	t.Helper()
	for _, d := range a.Doors() {
		if d.Peer == b.PeerID() {
			return d
		}
	}
	t.Fatal("the two have not met")
	return Door{}
}

// E10, RA-089: what the clocks of others read is for people, who are told of a difference; no
// lease counts by it. A node whose clock is wrong takes everybody's credential for expired.
// It says by how much its clock is off, and is let in, and lets in, as soon as the clock is
// right.
func TestE10ClockOff(t *testing.T) {
	s := newTestSite(t, "north")
	ca, cb := s.member(t), s.member(t)
	mc := clock.NewManual(time.Now().Add(10 * time.Hour))
	ca.Clock = mc
	a, b := start(t, ca), start(t, cb)
	meet(t, a, b)
	wantKind(t, a.Connect(within(t), b.PeerID()), forgeyard.Denied)
	if d := door(t, a, b); d.Why != RefusedExpired || !d.Ours || d.Err == nil {
		t.Fatalf("%+v", d)
	}
	if off, of := a.ClockOff(); of != 1 || off < 10*time.Hour-time.Minute || off > 10*time.Hour+time.Minute {
		t.Fatalf("off by %s, says %d", off, of)
	}
	for bound, want := range map[time.Duration]int{time.Hour: 1, 11 * time.Hour: 0} {
		if against, of := a.ClockAgainst(bound); against != want || of != 1 {
			t.Fatalf("%d of %d say that it is off by %s", against, of, bound)
		}
	}
	mc.SetWall(time.Now())
	if off, _ := a.ClockOff(); off.Abs() > time.Minute {
		t.Fatalf("it was set right, and is off by %s", off)
	}
	must(t, a.Connect(within(t), b.PeerID()))
	if d := door(t, a, b); d.Err != nil || d.Why != RefusedOther {
		t.Fatalf("%+v", d)
	}
}

// E10: what peers said of their clocks at a hello of long ago stands against nobody: they may
// have been set since, while their connections stayed. They are asked anew, and what they say
// then counts.
func TestE10ClocksAreAskedAnew(t *testing.T) {
	s := newTestSite(t, "north")
	now := time.Now()
	clocks := make([]*clock.Manual, 3)
	all := make([]*Mesh, 3)
	for i := range all {
		clocks[i] = clock.NewManual(now)
		c := s.member(t)
		c.Clock = clocks[i]
		all[i] = start(t, c)
	}
	a := all[0]
	pass := func(d time.Duration) {
		for _, c := range clocks {
			c.Advance(d)
		}
	}
	for i, b := range all[1:] {
		clocks[i+1].SetWall(now.Add(5 * time.Minute))
		meet(t, a, b)
		must(t, a.Connect(within(t), b.PeerID()))
	}
	if against, of := a.ClockAgainst(time.Minute); against != 2 || of != 2 {
		t.Fatalf("%d of %d are against it", against, of)
	}
	for _, c := range clocks[1:] {
		c.SetWall(now)
	}
	pass(skewCounts)
	if against, of := a.ClockAgainst(time.Minute); against != 0 || of != 0 {
		t.Fatalf("%d of %d are against it by what they said a minute ago", against, of)
	}
	a.AskClocks(time.Minute)
	eventually(t, "what their clocks read now", func() bool { _, of := a.ClockAgainst(time.Minute); return of == 2 })
	if off, of := a.ClockOff(); off.Abs() > time.Second || of != 2 {
		t.Fatalf("off by %s, say %d", off, of)
	}
	clocks[0].SetWall(now.Add(-time.Hour)) // its own is set wrong: what they said holds, and they are asked
	pass(skewCounts)
	a.AskClocks(time.Minute)
	eventually(t, "that it is wrong", func() bool { against, of := a.ClockAgainst(time.Minute); return against == 2 && of == 2 })
}

// RA-321, RA-322: why a node is not let in reaches it as more than words.
func TestWhyRefusedTravels(t *testing.T) {
	for name, c := range map[string]struct {
		prep func(ca, cb *Config)
		set  func(a, b *Mesh)
		why  Refusal
	}{
		"revoked": {prep: func(_, cb *Config) { cb.Revoked = func(peer.ID, forgeyard.RunnerID) bool { return true } }, why: RefusedRevoked},
		"version": {set: func(a, _ *Mesh) { a.versions = versions{7, 9} }, why: RefusedVersion},
		"expired": {prep: func(_, cb *Config) { cb.Clock = clock.NewManual(time.Now().Add(10 * time.Hour)) }, why: RefusedExpired},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestSite(t, "north")
			ca, cb := s.member(t), s.member(t)
			if c.prep != nil {
				c.prep(&ca, &cb)
			}
			a, b := start(t, ca), start(t, cb)
			if c.set != nil {
				c.set(a, b)
			}
			meet(t, a, b)
			err := a.Connect(within(t), b.PeerID())
			wantKind(t, err, forgeyard.Denied)
			if d := door(t, a, b); d.Why != c.why || d.Ours || WhyRefused(err) != c.why {
				t.Fatalf("%+v, %v", d, WhyRefused(err))
			}
		})
	}
}

// An answer of before has neither the reason nor the clock, and is understood.
func TestDoorOfBefore(t *testing.T) {
	b, err := encMode.Marshal(helloReply{Err: &wireError{Kind: forgeyard.Denied, Text: "no"}})
	must(t, err)
	var r helloReply
	must(t, decMode.Unmarshal(b, &r))
	if err := r.Err.err("hello"); WhyRefused(err) != RefusedOther || r.Wall != 0 || len(b) > 16 {
		t.Fatalf("%v %x", err, b)
	}
}
