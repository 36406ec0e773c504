package scenario

import (
	"strings"
	"testing"
	"time"
)

// What a failing run prints is what failed: a scenario goes through its file unchanged.
func TestFormatAndParse(t *testing.T) {
	for seed := uint64(1); seed <= 200; seed++ {
		s := Draw(seed, Taste{})
		text := s.Format()
		back, err := Parse("drawn", []byte(text))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		if again := back.Format(); again != text {
			t.Fatalf("seed %d:\n%s\nbecame\n%s", seed, text, again)
		}
		for _, c := range s.Smaller(20 * time.Second) {
			if _, err := Parse("smaller", []byte(c.Format())); err != nil {
				t.Fatalf("seed %d, cut down: %v\n%s", seed, err, c.Format())
			}
		}
	}
}

const frame = "# a story\nseed 1\nlength 1m\nnodes 3 voters 3\nlease ttl 3s grace 0s copies 2\nuplink silent 2s grace 0s allowance 10s\njob a at 1s work 5s policy continuous 0s cpu 500 budget 1 stop 1s\n"

// Bad input is answered with file, line, and what may stand there.
func TestRefusals(t *testing.T) {
	for line, want := range map[string]string{
		"at 1s cut n9 for 1s":                        `f:8: "n9" is no node; allowed: n1 to n5, leader, all`,
		"at 1s cut n4 for 1s":                        `f: "at 1s cut n4 for 1s", and there are 3 nodes`,
		"at 1s explode":                              `f:8: "explode" is no damage`,
		"at 1s cut n1 for 2h":                        `f:8: "2h" is no time from 0s to 1h0m0s`,
		"at 1s cut n1 for 1s again":                  `f:8: "again" is left over`,
		"at 1s cancel b":                             `f:8: no job "b" stands above`,
		"seed 2":                                     `f:8: a second line of "seed"`,
		"apply slow 0":                               `f:8: "0" is no number from 1 to 1000`,
		"expect wealth a":                            `f:8: "wealth" cannot be expected; allowed: done, failed, cancelled, trace, none`,
		"job a at 1s work 5s":                        `f:8: "a" is no name for a job, or was given before`,
		"job b at 1s work 5s policy sometimes 0s":    `f:8: "sometimes" is no policy; allowed: continuous, grace, offline`,
		"devices n1 10":                              `f:8: "10" is no number from 1 to 9`,
		"at 1s noise loss 1000 dup 0 tail 0 for 10s": `f:8: "1000" is no number from 0 to 999`,
	} {
		_, err := Parse("f", []byte(frame+line+"\n"))
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
	if _, err := Parse("f", []byte(strings.Replace(frame, "nodes 3 voters 3", "nodes 3 voters 2", 1))); err == nil {
		t.Error("an even number of voters was taken")
	}
	if _, err := Parse("f", make([]byte, maxFile+1)); err == nil {
		t.Error("a file over the bound was taken")
	}
}

// FuzzParse: whatever is taken means the same after it was written.
func FuzzParse(f *testing.F) {
	f.Add([]byte(frame))
	for seed := uint64(1); seed <= 5; seed++ {
		f.Add([]byte(Draw(seed, Taste{}).Format()))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse("fuzz", text)
		if err != nil {
			return
		}
		again, err := Parse("again", []byte(s.Format()))
		if err != nil || again.Format() != s.Format() {
			t.Fatalf("%v\n%s", err, s.Format())
		}
	})
}

// The shapes of a few hundred seeds are of every size, with every number of voters that it
// may have, and of terms that nobody picked.
func TestShapesAreWide(t *testing.T) {
	sizes, terms := map[[2]int]int{}, map[time.Duration]int{}
	for seed := uint64(1); seed <= 400; seed++ {
		s := Draw(seed, Taste{})
		sizes[[2]int{s.Nodes, s.Voters}]++
		terms[s.TTL]++
	}
	for _, want := range [][2]int{{1, 1}, {2, 1}, {3, 1}, {3, 3}, {4, 1}, {4, 3}, {5, 1}, {5, 3}, {5, 5}} {
		if sizes[want] == 0 {
			t.Errorf("no site of %d nodes with %d voters", want[0], want[1])
		}
	}
	if len(terms) < 40 {
		t.Errorf("%d lengths of leases", len(terms))
	}
	for seed := uint64(1); seed <= 50; seed++ { // who asks for certain company gets no other
		if s := Draw(seed, Taste{Kinds: []string{"kill"}}); s.Nodes < 3 || s.Voters < 3 {
			t.Errorf("seed %d: %d nodes, %d voters", seed, s.Nodes, s.Voters)
		}
	}
}
