package controllers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// A second process with a runner's key is let in only when the first is silent; one of the
// same place always, since there the first has ended (E09, RA-070).
func TestContest(t *testing.T) {
	const renew = 5 * time.Second
	here, there := forgeyard.Digest{1}, forgeyard.Digest{2}
	s := &site.State{Config: sitecfg.DefaultSite()}
	s.Config.Lease.Renew = renew
	s.Members = s.Members.Put("R", site.Member{Runner: "R", Name: "n2", Session: site.Session{ID: "one", Place: here}})
	at := func(d time.Duration) forgeyard.Instant { return forgeyard.Instant(time.Hour + d) }
	asks := func(session forgeyard.SessionID, place forgeyard.Digest) site.Register {
		return site.Register{Runner: "R", Session: session, Place: place, Addrs: []string{"/ip4/10.0.0.9/tcp/1"}}
	}
	heard := func(m *Memory, d time.Duration) { m.Hello("R", Sign{Session: "one", At: at(d)}) }

	m := NewMemory(at(-time.Hour))
	heard(m, -time.Second)
	if _, err := m.Contest(at(0), s, asks("two", here)); err != nil {
		t.Errorf("the next process of the same place waits: %v", err)
	}
	if _, err := m.Contest(at(0), s, asks("one", here)); err != nil {
		t.Errorf("the present process registers again, and waits: %v", err)
	}
	if first, err := m.Contest(at(0), s, asks("two", there)); first || forgeyard.KindOf(err) != forgeyard.Conflict || m.Contested(at(0), s, "R") != "" {
		t.Errorf("the first was not heard since the second asked: first %v, %v", first, err)
	}
	if _, err := m.Contest(at(2*renew), s, asks("two", there)); err != nil {
		t.Errorf("after a reboot it waits longer than two renewals: %v", err)
	}

	// The first goes on.
	m = NewMemory(at(-time.Hour))
	heard(m, -time.Second)
	_, _ = m.Contest(at(0), s, asks("two", there))
	heard(m, 4*time.Second)
	first, err := m.Contest(at(5*time.Second), s, asks("two", there))
	if !first || err == nil || !strings.Contains(err.Error(), "another process is n2") {
		t.Errorf("first %v, %v", first, err)
	}
	for i := range 30 {
		d := 9*time.Second + time.Duration(i)*4*time.Second
		heard(m, d)
		if first, err = m.Contest(at(d+3*time.Second), s, asks("two", there)); first || err == nil {
			t.Fatalf("%d: first %v, %v", i, first, err)
		}
	}
	last := at(9*time.Second + 29*4*time.Second)
	if w := m.Contested(last, s, "R"); !strings.Contains(w, "10.0.0.9") {
		t.Errorf("it is not told: %q", w)
	}
	if w := m.Contested(last.Add(claimKept+5*time.Second), s, "R"); w != "" {
		t.Errorf("it is told for ever: %q", w)
	}
	patience := s.Config.Lease.TTL + s.Config.Lease.Grace
	if first, err = m.Contest(last.Add(patience-1), s, asks("two", there)); first || err == nil {
		t.Errorf("a short silence of the first lets the second in: %v", err)
	}
	if _, err = m.Contest(last.Add(patience), s, asks("two", there)); err != nil {
		t.Errorf("the first is silent, and the second waits: %v", err)
	}

	// A new leader has heard nobody yet.
	m = NewMemory(at(0))
	if _, err = m.Contest(at(time.Second), s, asks("two", there)); err == nil {
		t.Error("a leader that is new lets the second in before it could hear the first")
	}
	if _, err = m.Contest(at(silentAfter*renew), s, asks("two", there)); err != nil {
		t.Errorf("nobody is heard, and it waits: %v", err)
	}
	if _, err = m.Contest(at(0), s, asks("two", forgeyard.Digest{})); err != nil {
		t.Errorf("where the place is not known the later is let in, as ever: %v", err)
	}
}

// A process that is known to be a second one does not get the runner by a silence that the
// work of the first outlasts.
func TestContestedWorkIsKept(t *testing.T) {
	here, there := forgeyard.Digest{1}, forgeyard.Digest{2}
	s := &site.State{Config: sitecfg.DefaultSite()}
	s.Members = s.Members.Put("R", site.Member{Runner: "R", Name: "n2", Session: site.Session{ID: "one", Place: here}})
	held := lease.Lease{State: lease.Accepted, Terms: lease.DefaultTerms(), Policy: lease.Policy{Policy: job.Grace, For: 10 * time.Minute}}
	held.Authority = forgeyard.Authority{Runner: "R", Session: "one"}
	s.Jobs, s.Open = s.Jobs.Put("J", site.Job{ID: "J", Lease: held}), s.Open.Put("J", 1)
	two := site.Register{Runner: "R", Session: "two", Place: there}
	at := func(d time.Duration) forgeyard.Instant { return forgeyard.Instant(time.Hour + d) }

	m := NewMemory(0)
	m.Hello("R", Sign{Session: "one", At: at(-time.Second)})
	_, _ = m.Contest(at(0), s, two)
	m.Hello("R", Sign{Session: "one", At: at(time.Second)})
	if first, _ := m.Contest(at(2*time.Second), s, two); !first {
		t.Fatal("the second is not refused")
	}
	until := lease.UnknownAt(held, at(time.Second))
	if until < at(10*time.Minute) {
		t.Fatalf("the lease is given up after %s", until.Sub(at(0)))
	}
	for now := at(30 * time.Second); now < until; now = now.Add(30 * time.Second) { // as it asks
		if first, err := m.Contest(now, s, two); first || err == nil {
			t.Fatalf("%s: first %v, %v", now.Sub(at(0)), first, err)
		}
	}
	if _, err := m.Contest(until, s, two); err != nil {
		t.Errorf("nobody waits for the work of the first any more: %v", err)
	}
}

// Where leases are short, a second process still asks often enough to be told of.
func TestContestIsToldWithShortLeases(t *testing.T) {
	s := &site.State{Config: sitecfg.DefaultSite()}
	s.Config.Lease.TTL, s.Config.Lease.Renew = 3*time.Second, time.Second
	s.Members = s.Members.Put("R", site.Member{Runner: "R", Name: "n2", Session: site.Session{ID: "one", Place: forgeyard.Digest{1}}})
	two := site.Register{Runner: "R", Session: "two", Place: forgeyard.Digest{2}}
	m, told := NewMemory(0), 0
	now := forgeyard.Instant(time.Hour)
	for range 5 {
		m.Hello("R", Sign{Session: "one", At: now})
		now = now.Add(time.Second / 2)
		first, err := m.Contest(now, s, two)
		if err == nil {
			t.Fatal("it is let in")
		}
		if first {
			told++
		}
		now = now.Add(sitecfg.DefaultNode().Reconnect.MaxBackoff)
	}
	if told != 1 || m.Contested(now, s, "R") == "" {
		t.Errorf("it was told %d times; now: %q", told, m.Contested(now, s, "R"))
	}
}

// Two copies of one data dir do not overwrite each other's claim: each is told of once, and
// neither is let in by a short silence of the first process because the other asked in between.
func TestTwoCopiesAreContested(t *testing.T) {
	s := &site.State{Config: sitecfg.DefaultSite()}
	s.Members = s.Members.Put("R", site.Member{Runner: "R", Name: "n2", Session: site.Session{ID: "one", Place: forgeyard.Digest{1}}})
	asks := func(n int) site.Register {
		return site.Register{Runner: "R", Session: forgeyard.SessionID(fmt.Sprint("copy", n)), Place: forgeyard.Digest{byte(n + 2)}, Addrs: []string{fmt.Sprint("/ip4/10.0.0.", n)}}
	}
	const copies = 2
	m, told, now := NewMemory(0), map[int]int{}, forgeyard.Instant(time.Hour)
	for range 6 {
		for n := range copies {
			now = now.Add(time.Second)
			m.Hello("R", Sign{Session: "one", At: now})
			now = now.Add(time.Second)
			first, err := m.Contest(now, s, asks(n))
			if err == nil {
				t.Fatalf("copy %d is let in while the first is heard", n)
			}
			if first {
				told[n]++
			}
		}
	}
	if told[0] != 1 || told[1] != 1 {
		t.Errorf("they are told of %v times", told)
	}
	if w := m.Contested(now, s, "R"); !strings.Contains(w, "copy1 at /ip4/10.0.0.1") || !strings.Contains(w, "1 more") {
		t.Errorf("what is told is %q", w)
	}
	heard := now.Add(-time.Second)
	patience := s.Config.Lease.TTL + s.Config.Lease.Grace
	for i := 0; now < heard.Add(patience); i++ { // a third one, new to the leader, has no better claim
		if _, err := m.Contest(now, s, asks(i%(copies+1))); err == nil {
			t.Fatalf("copy %d is let in after %s of silence", i%(copies+1), now.Sub(heard))
		}
		now = now.Add(time.Second)
	}
	if _, err := m.Contest(now, s, asks(0)); err != nil {
		t.Errorf("the first is silent, and nobody is let in: %v", err)
	}
	m.Hello("R", Sign{Session: "one", At: now})
	for n := range 3 * maxClaims {
		_, _ = m.Contest(now, s, asks(n))
	}
	if n := len(m.claims["R"]); n > maxClaims+1 {
		t.Errorf("%d claims are kept", n)
	}
}
