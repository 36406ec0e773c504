package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/node/preempt"
	"github.com/forgeyard/forgeyard-node/site"
)

// said is a source that says the same again and again.
type said struct {
	name string
	at   time.Time
	err  error
}

func (s said) Name() string { return s.name }

func (s said) Look(context.Context) (*preempt.Notice, error) {
	if s.err != nil {
		return nil, s.err
	}
	return &preempt.Notice{Source: s.name, Deadline: s.at}, nil
}

// CK-151: of more than one source the nearest time counts, a time counts before none, and one
// that is further away than a site takes is no notice yet.
func TestNearestNoticeCounts(t *testing.T) {
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	yes, soon, later := said{name: "yes"}, said{name: "soon", at: now.Add(time.Minute)}, said{name: "later", at: now.Add(time.Hour)}
	far, dead := said{name: "far", at: now.Add(site.MaxNotice + time.Second)}, said{name: "dead", err: errors.New("no answer")}
	for _, c := range []struct {
		all  []preempt.Source
		want string
		bad  bool
	}{
		{[]preempt.Source{yes, later, soon}, "soon", false},
		{[]preempt.Source{soon, yes, later}, "soon", false},
		{[]preempt.Source{far}, "", false},
		{[]preempt.Source{dead, far, yes}, "yes", false},
		{[]preempt.Source{dead}, "", true},
	} {
		got, err := lookAt(t.Context(), c.all, now.Add(site.MaxNotice))
		name := ""
		if got != nil {
			name = got.Source
		}
		if name != c.want || (err != nil) != c.bad {
			t.Errorf("%v: %q %v", c.all, name, err)
		}
	}
}

// A source that says yes and then when is heard both times; a word of our own that the log has
// after it was taken back is taken back again, and one of a person is not.
func TestNoticeGoesOn(t *testing.T) {
	p := makeSite(t, 1)[0]
	n := p.node
	p.wait("log format 2", func() bool { return n.replica.State().Allows(site.FormatLeases) })
	in := func(d time.Duration) *preempt.Notice {
		return &preempt.Notice{Source: "file", Deadline: n.clock.Wall().Add(d)}
	}
	logged := func(want bool) {
		t.Helper()
		p.wait(fmt.Sprintf("a notice in the log: %v", want), func() bool {
			m, _ := n.replica.State().Members.Get(n.enrolment.RunnerID)
			return (m.Notice != nil) == want && !n.saying.Load()
		})
	}
	n.noticed(t.Context(), &preempt.Notice{Source: "file"}, nil)
	if v := n.notice.Load(); v == nil || v.Until != 0 {
		t.Fatalf("%+v", v)
	}
	logged(true)
	n.noticed(t.Context(), in(time.Hour), nil)
	first := n.notice.Load().Until
	if first == 0 {
		t.Fatal("the time that came after the yes was not heard")
	}
	n.noticed(t.Context(), in(2*time.Hour), nil)
	if v := n.notice.Load(); v.Until != first {
		t.Errorf("a later time took the place of a nearer: %+v", v)
	}
	n.noticed(t.Context(), in(time.Minute), nil)
	if v := n.notice.Load(); v.Until >= first {
		t.Errorf("a nearer time was not heard: %+v", v)
	}
	n.noticed(t.Context(), nil, nil)
	logged(false)

	for source, stays := range map[string]bool{"file": false, "ana": true} { // committed late
		if _, err := n.propose(t.Context(), site.Preempt{Runner: n.enrolment.RunnerID, Source: source}); err != nil {
			t.Fatal(err)
		}
		n.noticed(t.Context(), nil, nil)
		logged(stays)
		if _, err := n.propose(t.Context(), site.Preempt{Runner: n.enrolment.RunnerID, Source: source, Off: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// CK-151: without a quorum nobody hears of a notice, and the node follows its sources all the same.
func TestNoticeWaitsForNoQuorum(t *testing.T) {
	all := makeSite(t, 3)
	p, n := all[0], all[0].node
	p.wait("three voters and log format 2", func() bool { return votersOf(p) == 3 && n.replica.State().Allows(site.FormatLeases) })
	all[1].end()
	all[2].end()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.noticed(t.Context(), &preempt.Notice{Source: "file"}, nil)
		n.noticed(t.Context(), &preempt.Notice{Source: "file", Deadline: n.clock.Wall().Add(time.Minute)}, nil)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for a quorum")
	}
	if v := n.notice.Load(); v == nil || v.Until == 0 {
		t.Errorf("%+v", v)
	}
}
