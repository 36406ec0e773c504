package agent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/forgeyard/forgeyard-node"
)

// TestLinkStories plays testdata/link*.txt:
//
//	site members=(a,b) leader=a term=1     what the node knows; busy=D while leases are held
//	draw 0.5                               what the source of jitter gives from now on
//	ask answers=(b) n=4                    asks until one of these answers, or n times; shows whom, and the waits
//	after 10s
//	door revoked=(a) incompatible=(b)      what the members said when they were last asked
func TestLinkStories(t *testing.T) {
	datadriven.Walk(t, "testdata/link", func(t *testing.T, path string) {
		now, draw := forgeyard.Instant(time.Hour), 0.0
		l := NewLink(Pace{First: 100 * time.Millisecond, Most: 30 * time.Second}, func() float64 { return draw })
		var v View
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "site":
				v = View{}
				d.MaybeScanArgs(t, "leader", &v.Leader)
				d.MaybeScanArgs(t, "term", &v.Term)
				v.Members = words(d, "members")
				v.Busy = span(t, d, "busy")
			case "draw":
				if _, err := fmt.Sscan(d.CmdArgs[0].Key, &draw); err != nil {
					t.Fatal(err)
				}
				return ""
			case "after":
				x, err := time.ParseDuration(d.CmdArgs[0].Key)
				if err != nil {
					t.Fatal(err)
				}
				now = now.Add(x)
			case "ask":
				n := 1
				d.MaybeScanArgs(t, "n", &n)
				return told(l, &now, v, words(d, "answers"), n)
			case "door":
				var said []DoorRefusal
				for _, why := range []End{Revoked, Incompatible} {
					for _, p := range words(d, string(why)) {
						said = append(said, DoorRefusal{p, why})
					}
				}
				if end := l.Refused(v, said); end != NotEnded {
					return "ended: " + string(end) + "\n"
				}
				return "it goes on trying\n"
			default:
				t.Fatalf("no command %s", d.Cmd)
			}
			return show(l, now, v)
		})
	})
}

func told(l *Link, now *forgeyard.Instant, v View, answers []string, n int) string {
	var out strings.Builder
	for range n {
		p := l.Route(*now, v)
		if slices.Contains(answers, p) {
			back := ""
			if l.Answered(*now, p) {
				back = ", after silence"
			}
			fmt.Fprintf(&out, "%s answers%s\n", p, back)
			break
		}
		wait := l.Failed(*now, p, v)
		if p == "" {
			p = "nobody"
		}
		fmt.Fprintf(&out, "%s fails, next try after %s\n", p, wait)
		*now = now.Add(wait)
	}
	return out.String() + show(l, *now, v)
}

func show(l *Link, now forgeyard.Instant, v View) string {
	s := l.Status(v)
	how := "by way of"
	if s.Direct {
		how = "directly to"
	}
	if s.Peer == "" {
		return string(s.State) + "\n"
	}
	return fmt.Sprintf("%s, %s %s, next asks %s\n", s.State, how, s.Peer, l.Route(now, v))
}

func words(d *datadriven.TestData, key string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func span(t *testing.T, d *datadriven.TestData, key string) time.Duration {
	t.Helper()
	var text string
	if d.MaybeScanArgs(t, key, &text); text == "" {
		return 0
	}
	x, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// RA-318, RA-319, RA-440: five hundred nodes that lose one leader at the same instant do
// not return at the same instant, in any of their tries; without jitter they would. And no
// try comes later than the bound.
func TestLinkHerd(t *testing.T) {
	const nodes, tries = 500, 12
	lost := forgeyard.Instant(time.Hour)
	at := make([][]forgeyard.Instant, tries)
	for n := range nodes {
		r := rand.New(rand.NewPCG(7, uint64(n)))
		l := NewLink(Pace{First: 100 * time.Millisecond, Most: 5 * time.Second}, r.Float64)
		v := View{Leader: "a", Term: 1, Members: []string{"a", "b", "c"}}
		now := lost
		for k := range tries {
			wait := l.Failed(now, l.Route(now, v), v)
			if wait <= 0 || wait > 5*time.Second {
				t.Fatalf("node %d waits %s before try %d", n, wait, k)
			}
			now = now.Add(wait)
			at[k] = append(at[k], now)
		}
	}
	for k, times := range at {
		most, window := crowd(times), 10*time.Millisecond
		if most > nodes/4 {
			t.Errorf("try %d: %d of %d nodes come within %s", k, most, nodes, window)
		}
	}
	// What the check is worth: the same nodes without jitter.
	var all []forgeyard.Instant
	for range nodes {
		l := NewLink(Pace{First: 100 * time.Millisecond, Most: 5 * time.Second}, func() float64 { return 0 })
		v := View{Leader: "a", Term: 1, Members: []string{"a", "b", "c"}}
		all = append(all, lost.Add(l.Failed(lost, l.Route(lost, v), v)))
	}
	if crowd(all) != nodes {
		t.Error("the check does not see a herd")
	}
}

// crowd is the largest number of instants within 10 ms.
func crowd(times []forgeyard.Instant) int {
	slices.Sort(times)
	most := 0
	for i, j := 0, 0; j < len(times); j++ {
		for times[j].Sub(times[i]) > 10*time.Millisecond {
			i++
		}
		most = max(most, j-i+1)
	}
	return most
}

// RA-320: it never ends for silence: after a year of it, it tries as often as after a day.
func TestLinkTriesForEver(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := NewLink(Pace{First: 100 * time.Millisecond, Most: 30 * time.Second}, r.Float64)
	v := View{Members: []string{"a", "b", "c"}}
	now := forgeyard.Instant(time.Hour)
	for end := now.Add(365 * 24 * time.Hour); now < end; {
		p := l.Route(now, v)
		if p == "" {
			t.Fatal("it asks nobody")
		}
		wait := l.Failed(now, p, v)
		if wait <= 0 || wait > 30*time.Second {
			t.Fatalf("it waits %s", wait)
		}
		now = now.Add(wait)
	}
	if s := l.Status(v); s.End != NotEnded || s.State != LinkConnecting {
		t.Fatalf("%+v", s)
	}
	l.Answered(now, l.Route(now, v))
	if s := l.Status(v); s.State != LinkOnline || s.Fails != 0 {
		t.Fatalf("%+v", s)
	}
}
