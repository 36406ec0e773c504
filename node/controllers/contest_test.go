package controllers

import (
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
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
	if w := m.Contested(last.Add(claimKept*renew+5*time.Second), s, "R"); w != "" {
		t.Errorf("it is told for ever: %q", w)
	}
	if _, err = m.Contest(last.Add(silentAfter*renew), s, asks("two", there)); err != nil {
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
