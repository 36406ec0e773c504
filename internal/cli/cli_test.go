package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/strictyaml"
)

func TestDur(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Microsecond: "1ms", 1500 * time.Millisecond: "1.5s", 3 * time.Second: "3s", 59 * time.Second: "59s", 90 * time.Second: "1m30s",
		2 * time.Hour: "2h", 26*time.Hour + 5*time.Minute: "26h5m", 50 * time.Hour: "2d2h", -time.Minute: "-1m",
	} {
		if got := Dur(d); got != want {
			t.Errorf("%v: %s, not %s", d, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 1<<20 - 1: "1MiB", 5 << 30: "5GiB", 1 << 62: "4EiB"} {
		if got := Size(n); got != want {
			t.Errorf("%d: %s, not %s", n, got, want)
		}
	}
}

// TestErrorLines: an error is one line, and a file has one for each fault.
func TestErrorLines(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{forgeyard.Errorf("join", forgeyard.Denied, "spent").WithHint("ask again"), "p: join: spent (ask again)\n"},
		{forgeyard.E("join", forgeyard.Other, forgeyard.Errorf("join", forgeyard.Denied, "spent")), "p: join: spent\n"},
		{errors.New("dial failed\n  * tcp\n  * quic"), "p: dial failed * tcp * quic\n"},
		{strictyaml.Fail([]strictyaml.Problem{
			{Pos: strictyaml.Pos{Name: "f", Line: 2, Column: 1}, Text: "b"}, {Pos: strictyaml.Pos{Name: "f", Line: 1, Column: 1}, Text: "a"},
		}), "p: f:1:1: a\np: f:2:1: b\n"},
		{Exit(3), ""},
		{nil, ""},
	} {
		var b bytes.Buffer
		s := &Shell{Program: "p", Err: &b}
		s.report(c.err)
		if b.String() != c.want {
			t.Errorf("%q, not %q", b.String(), c.want)
		}
	}
	var b bytes.Buffer
	s := &Shell{Program: "p", Err: &b, Verbose: true}
	s.report(forgeyard.E("a", forgeyard.Denied, errors.New("why")))
	if !strings.Contains(b.String(), "[denied]") || strings.Count(b.String(), "\n") != 3 {
		t.Errorf("the chain: %q", b.String())
	}
}

func TestExitCodes(t *testing.T) {
	for err, want := range map[error]int{nil: 0, Exit(0): 0, Exit(130): 130, errors.New("x"): 1, forgeyard.Errorf("", forgeyard.Stale, "x"): 4} {
		if got := ExitCode(err); got != want {
			t.Errorf("%v: %d, not %d", err, got, want)
		}
	}
}

// TestPage: columns stand under each other, and nothing from elsewhere can move the
// cursor.
func TestPage(t *testing.T) {
	var b bytes.Buffer
	s := &Shell{Out: &b}
	err := s.Text(func(p *Page) {
		p.Row("A", "LONG", "C")
		p.Row("aaaa", "b\x1b[2J", "")
		p.Fact("none", "")
		p.Line("end")
	})
	if want := "A     LONG   C\naaaa  b [2J  -\nend\n"; err != nil || b.String() != want {
		t.Errorf("%q, not %q (%v)", b.String(), want, err)
	}
}
