package controllers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// TestVoterStories plays testdata/voters: who is heard, second by second, and what the
// leader does about the group. Each change is carried out at once.
//
//	members N          so many nodes, all of them may vote; the first leads and votes
//	heard FOR NAMES    time passes, and only they are heard
//	restart NAME       a new session of it
//	set NAME draining|spare|unspare|removed
//	reads NAME MAX     a new session, of a program that reads log formats up to MAX
func TestVoterStories(t *testing.T) {
	datadriven.Walk(t, "testdata/voters", func(t *testing.T, path string) {
		var s *voterStory
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			if td.Cmd == "members" {
				var n int
				td.ScanArgs(t, "count", &n)
				s = newVoterStory(t, n)
				return s.group()
			}
			return s.run(t, td)
		})
	})
}

type voterStory struct {
	*rig
	names map[string]forgeyard.RunnerID
	seen  map[forgeyard.RunnerID]int // sessions
	begin forgeyard.Instant
}

func newVoterStory(t *testing.T, n int) *voterStory {
	s := &voterStory{rig: newRig(t), names: map[string]forgeyard.RunnerID{}, seen: map[forgeyard.RunnerID]int{}}
	s.names["n1"], s.names["n2"] = s.r[0], s.r[1]
	if n > 2 {
		s.apply(site.TokenCreate{Token: "U", Expires: forgeyard.WallOf(s.at.Add(time.Hour)), Uses: n, MayVote: true})
	}
	for i := 3; i <= n; i++ {
		v, err := site.Value[site.Joined](s.apply(site.Join{Token: "U", Peer: fmt.Sprint("p", i), Name: fmt.Sprint("n", i)}))
		if err != nil {
			t.Fatal(err)
		}
		s.names[fmt.Sprint("n", i)] = v.Runner
	}
	for i := 1; i <= n; i++ {
		s.session(fmt.Sprint("n", i), 1)
	}
	s.elect()
	s.in.Group = []GroupMember{{Runner: s.r[0], Voter: true}}
	s.begin = s.now
	return s
}

func (s *voterStory) session(name string, reads site.Format) {
	id := s.names[name]
	s.seen[id]++
	s.apply(site.Register{Runner: id, Session: forgeyard.SessionID(fmt.Sprint(name, "/", s.seen[id])), Formats: site.FormatRange{Max: reads}})
}

func (s *voterStory) run(t *testing.T, td *datadriven.TestData) string {
	var out strings.Builder
	yes, no := true, false
	arg := func(i int) string { return td.CmdArgs[i].Key }
	switch td.Cmd {
	case "heard":
		d, err := time.ParseDuration(arg(0))
		if err != nil {
			t.Fatal(err)
		}
		for range int(d / time.Second) {
			s.after(time.Second)
			for _, a := range td.CmdArgs[1:] {
				m, _ := s.s.Members.Get(s.names[a.Key])
				s.in.Mem.Hello(m.Runner, Sign{Session: m.Session.ID, At: s.now})
			}
			s.obeyGroup(&out)
		}
	case "restart":
		s.session(arg(0), 1)
	case "reads":
		s.session(arg(0), site.FormatNow)
	case "set":
		b := site.MemberSet{Runner: s.names[arg(0)]}
		switch arg(1) {
		case "draining":
			b.Draining = &yes
		case "spare":
			b.Spare = &yes
		case "unspare":
			b.Spare = &no
		case "removed":
			b.Removed = &yes
		}
		s.apply(b)
	}
	return out.String() + s.group()
}

// obeyGroup carries out what concerns the group and the log's format.
func (s *voterStory) obeyGroup(out *strings.Builder) {
	s.in.State = s.s
	effects, _ := Step(s.now, s.in)
	for _, e := range effects {
		switch e := e.(type) {
		case SetVoter:
			m, _ := s.s.Members.Get(e.Runner)
			fmt.Fprintf(out, "%s: %s becomes %s\n", s.now.Sub(s.begin), m.Name, e.Role)
			s.in.Group = slices.DeleteFunc(slices.Clone(s.in.Group), func(g GroupMember) bool { return g.Runner == e.Runner })
			if e.Role != Gone {
				s.in.Group = append(s.in.Group, GroupMember{Runner: e.Runner, Voter: e.Role == Voter})
			}
		case Propose:
			if b, ok := e.Body.(site.FormatRaise); ok {
				fmt.Fprintf(out, "%s: log format %d\n", s.now.Sub(s.begin), b.To)
				s.apply(b)
			}
		}
	}
}

func (s *voterStory) group() string {
	var voters, others []string
	for _, g := range s.in.Group {
		m, _ := s.s.Members.Get(g.Runner)
		if g.Voter {
			voters = append(voters, m.Name)
		} else {
			others = append(others, m.Name)
		}
	}
	slices.Sort(voters)
	slices.Sort(others)
	return fmt.Sprintf("voters %v, others %v\n", voters, others)
}
