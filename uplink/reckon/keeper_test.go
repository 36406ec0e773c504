package reckon

import (
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/lease"
)

var testTerms = lease.UplinkTerms{SilentAfter: 10 * time.Second, Grace: 20 * time.Second, Allowance: time.Minute}

func TestResumeTakesTheLargestThatAnyoneVouchesFor(t *testing.T) {
	for name, c := range map[string]struct {
		vs    []Vouch
		want  time.Duration
		how   How
		doubt string
	}{
		"nobody":                  {nil, 0, "", "no voter answered"},
		"one by boot":             {[]Vouch{{By: "a", Known: true, Elapsed: 5 * time.Second, How: ByBoot}}, 5 * time.Second, ByBoot, ""},
		"the largest":             {[]Vouch{{Known: true, Elapsed: time.Second, How: ByBoot}, {Known: true, Elapsed: time.Hour, How: ByWall}}, time.Hour, ByWall, ""},
		"one that can't is no no": {[]Vouch{{By: "a", Why: "clock is behind"}, {Known: true, Elapsed: time.Second, How: ByWall}}, time.Second, ByWall, ""},
		"none can":                {[]Vouch{{By: "a", Why: "clock is behind"}, {By: "b", Why: "not seen"}}, 0, "", "a: clock is behind; b: not seen"},
		"never negative":          {[]Vouch{{Known: true, Elapsed: -time.Second, How: ByBoot}}, 0, ByBoot, ""},
	} {
		best, doubt := largest(c.vs)
		if best.Elapsed != c.want || best.How != c.how || (doubt == "") != (c.doubt == "") || !strings.Contains(doubt, c.doubt) {
			t.Errorf("%s: %v by %q, doubt %q", name, best.Elapsed, best.How, doubt)
		}
	}
}

func TestWish(t *testing.T) {
	online := lease.Uplink{State: lease.Online, Terms: testTerms, Marked: 5}
	grace := lease.Uplink{State: lease.InGrace, Terms: testTerms, Used: 11 * time.Second, Marked: 5}
	reconciling := lease.Uplink{State: lease.Reconciling, Terms: testTerms, Marked: 5}
	exhausted := lease.Uplink{State: lease.Exhausted, Terms: testTerms, Used: time.Minute, Marked: 5}
	other := testTerms
	other.Grace = time.Hour
	same := testTerms
	const s = time.Second
	for name, c := range map[string]struct {
		s       sight
		yes     bool
		contact bool
		terms   bool
	}{
		"online, contact, no tick":         {sight{uplink: online, used: s, fresh: true, terms: &same, since: s}, false, true, false},
		"online, contact, tick":            {sight{uplink: online, used: s, fresh: true, terms: &same, since: 5 * s}, true, true, false},
		"online, terms changed":            {sight{uplink: online, used: s, fresh: true, terms: &other, since: s}, true, true, true},
		"online, silence, no tick":         {sight{uplink: online, used: 4 * s, since: s}, false, false, false},
		"online, silence, tick":            {sight{uplink: online, used: 6 * s, since: 5 * s}, true, false, false},
		"threshold at once":                {sight{uplink: online, used: 10 * s, since: s}, true, false, false},
		"grace, contact at once":           {sight{uplink: grace, used: s, fresh: true, terms: &same, since: 0}, true, true, false},
		"grace, nothing new":               {sight{uplink: grace, used: 12 * s, since: s}, false, false, false},
		"to offline at once":               {sight{uplink: grace, used: 30 * s, since: s}, true, false, false},
		"reconciling with backlog":         {sight{uplink: reconciling, pending: 3, used: s, fresh: true, terms: &same, since: s}, false, true, false},
		"reconciling, drained":             {sight{uplink: reconciling, used: s, fresh: true, terms: &same, since: s}, true, true, false},
		"exhausted says it once":           {sight{uplink: exhausted, used: time.Hour, since: time.Hour}, false, false, false},
		"exhausted, contact":               {sight{uplink: exhausted, used: s, fresh: true, terms: &same, since: s}, true, true, false},
		"new leader commits what it found": {sight{uplink: grace, used: 15 * s, first: true}, true, false, false},
	} {
		o, yes := wish(c.s)
		if yes != c.yes || o.Contact != c.contact || (o.Terms != nil) != c.terms {
			t.Errorf("%s: %v %+v", name, yes, o)
		}
		if yes && time.Duration(o.Used) != c.s.used {
			t.Errorf("%s: commits %v of %v", name, time.Duration(o.Used), c.s.used)
		}
	}
}

func TestUntilThreshold(t *testing.T) {
	for used, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 10 * time.Second: 20 * time.Second, 29 * time.Second: time.Second, 30 * time.Second: 30 * time.Second} {
		if d, ok := untilThreshold(testTerms, used); !ok || d != want {
			t.Errorf("%s: %s %v, want %s", used, d, ok, want)
		}
	}
	if _, ok := untilThreshold(testTerms, time.Minute); ok {
		t.Error("nothing comes after the allowance")
	}
	short := lease.UplinkTerms{SilentAfter: 10 * time.Second, Grace: time.Hour, Allowance: 20 * time.Second}
	if d, _ := untilThreshold(short, 12*time.Second); d != 8*time.Second {
		t.Errorf("an allowance that ends within the grace comes first: %s", d)
	}
}

func TestCheckTerms(t *testing.T) {
	for _, c := range []struct {
		t  lease.UplinkTerms
		ok bool
	}{
		{lease.DefaultUplinkTerms(), true},
		{lease.UplinkTerms{SilentAfter: time.Second, Allowance: time.Second}, true},
		{lease.UplinkTerms{}, false},
		{lease.UplinkTerms{SilentAfter: time.Second, Grace: -1, Allowance: time.Hour}, false},
		{lease.UplinkTerms{SilentAfter: 10 * time.Second, Allowance: time.Second}, false},
		{lease.UplinkTerms{SilentAfter: time.Second, Allowance: MaxAllowance + 1}, false},
	} {
		if err := CheckTerms(c.t); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.t, err)
		}
	}
}
