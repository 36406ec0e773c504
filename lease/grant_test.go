package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// TestGrants plays what is left of one grant, what may still begin under it, and why not
// (RA-307–310 between the site and its daemon). The daemon's clock reads 08:00 at the
// committed contact; `used` is the silence since.
func TestGrants(t *testing.T) {
	datadriven.RunTest(t, "testdata/grants.txt", func(t *testing.T, td *datadriven.TestData) string {
		policy, length, used, need, end := "offline_authorized", "1h", "0s", "0s", ""
		td.MaybeScanArgs(t, "policy", &policy)
		td.MaybeScanArgs(t, "for", &length)
		td.MaybeScanArgs(t, "used", &used)
		td.MaybeScanArgs(t, "need", &need)
		td.MaybeScanArgs(t, "end", &end)
		eight := forgeyard.WallOf(time.Date(2027, 1, 1, 8, 0, 0, 0, time.UTC))
		u := Uplink{State: Online, Terms: UplinkTerms{SilentAfter: 10 * time.Second, Grace: 2 * time.Minute, Allowance: 8 * time.Hour}, Daemon: eight}
		if td.HasArg("no-clock") {
			u.Daemon = 0
		}
		td.MaybeScanArgs(t, "doubt", &u.Doubt)
		g := Grant{Policy: Policy{Policy: job.ConnectivityPolicy(policy), For: mustSpan(t, length)}}
		if end != "" {
			g.End = eight + forgeyard.Wall(mustSpan(t, end).Milliseconds())
		}
		silent := mustSpan(t, used)
		out := fmt.Sprintf("left %s\n", g.Left(u, silent))
		if why := g.Ended(u, silent); why != "" {
			out += why + "\n"
		} else if why := g.Finishes(u, silent, mustSpan(t, need), td.HasArg("resumable")); why != "" {
			out += "not begun: " + why + "\n"
		} else {
			out += "may begin\n"
		}
		return out
	})
}

// FuzzGrant: what is left only shrinks while silence is counted, a hard end only shortens
// it, and nothing that would outlast a hard end begins.
func FuzzGrant(f *testing.F) {
	f.Add(int64(time.Hour), int64(time.Minute), int64(time.Second), int64(2*time.Hour), int64(time.Minute), false)
	f.Fuzz(func(t *testing.T, length, used, more, end, need int64, resumable bool) {
		span := func(n int64) time.Duration { return time.Duration(uint64(n) % uint64(48*time.Hour)) }
		u := Uplink{Terms: UplinkTerms{SilentAfter: 10 * time.Second, Grace: time.Minute, Allowance: 8 * time.Hour}, Daemon: 1_800_000_000_000}
		open := Grant{Policy: Policy{Policy: job.OfflineAuthorized, For: span(length)}}
		hard := open
		hard.End = u.Daemon + forgeyard.Wall(1+span(end).Milliseconds())
		now, later := span(used), span(used)+span(more)
		for _, g := range []Grant{open, hard} {
			if g.Left(u, later) > g.Left(u, now) {
				t.Fatalf("%+v: silence stretches it from %s to %s", g, g.Left(u, now), g.Left(u, later))
			}
			if (g.Ended(u, now) == "") != (g.Left(u, now) > 0) {
				t.Fatalf("%+v: left %s, and %q", g, g.Left(u, now), g.Ended(u, now))
			}
		}
		if hard.Left(u, now) > open.Left(u, now) {
			t.Fatal("a hard end stretches a grant")
		}
		if hard.Finishes(u, now, span(need), resumable) == "" && span(need) > time.Duration(hard.End-u.DaemonNow(now))*time.Millisecond {
			t.Fatal("what may outlast the hard end begins")
		}
	})
}

// TestReadiness prints what keeps a site from its promise. Each line of the input is one
// member; what it does not say is in order.
func TestReadiness(t *testing.T) {
	datadriven.RunTest(t, "testdata/readiness.txt", func(t *testing.T, td *datadriven.TestData) string {
		p := Promise{Copies: 2, DriftPPM: 10_000}
		allowance, daemonOff := "8h", ""
		td.MaybeScanArgs(t, "allowance", &allowance)
		td.MaybeScanArgs(t, "copies", &p.Copies)
		td.MaybeScanArgs(t, "doubt", &p.Doubt)
		td.MaybeScanArgs(t, "daemon-off", &daemonOff)
		p.Allowance = mustSpan(t, allowance)
		if daemonOff != "" {
			p.DaemonOff, p.DaemonTold = mustSpan(t, daemonOff), true
		}
		var all []Facts
		for line := range strings.Lines(td.Input) {
			all = append(all, factsOf(t, strings.Fields(line)))
		}
		lacks := Readiness(p, all)
		if len(lacks) == 0 {
			return "ready\n"
		}
		var out strings.Builder
		for _, s := range lacks {
			fmt.Fprintln(&out, s)
		}
		return out.String()
	})
}

func factsOf(t *testing.T, words []string) Facts {
	f := Facts{Node: words[0], Heard: true, Told: true, Voter: true, Credential: 365 * 24 * time.Hour, ClockSet: true, StoreFree: 1 << 40, SpoolFree: 1 << 30}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "silent":
			f.Heard = false
		case "untold":
			f.Told = false
		case "runner":
			f.Voter = false
		case "credential":
			f.Credential = mustSpan(t, value)
		case "clock-unset":
			f.ClockSet = false
		case "clock-off":
			f.ClockOff = mustSpan(t, value)
		case "store":
			f.StoreFree = mib(t, value)
		case "spool":
			f.SpoolFree = mib(t, value)
		case "spool-limit":
			f.SpoolLimit = mib(t, value)
		default:
			t.Fatalf("%q", w)
		}
	}
	return f
}

func mib(t *testing.T, s string) int64 {
	var n int64
	if _, err := fmt.Sscanf(s, "%dMiB", &n); err != nil {
		t.Fatal(s, err)
	}
	return n << 20
}
