package telling

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/job"
)

func tool(name string, state job.ToolState) job.Happening {
	return job.Happening{Kind: job.EventTool, Tool: &job.Tool{Source: job.ToolExecutor, Name: name, State: state}}
}

func message(text string) job.Happening {
	return job.Happening{Kind: job.EventMessage, Message: text}
}

// words are the messages and tools of what is told, in their order.
func words(t job.Told) []string {
	out := []string{}
	for _, h := range t.Events {
		switch {
		case h.Tool != nil:
			out = append(out, h.Tool.Name+" "+string(h.Tool.State))
		case h.Output != nil:
			out = append(out, fmt.Sprintf("%d-%d", h.Output.FirstSeq, h.Output.LastSeq))
		default:
			out = append(out, h.Message)
		}
	}
	return out
}

func is(t *testing.T, got job.Told, first uint64, want ...string) {
	t.Helper()
	if got.First != first || !slices.Equal(words(got), want) {
		t.Errorf("from %d: %q, not from %d: %q", got.First, words(got), first, want)
	}
}

// What is under way keeps its number and its words until it is known to have arrived,
// however often it is sent; what came meanwhile follows it. This is all there is of a journal
// of events for a link that comes back (RA-174): it is in memory, and bounded.
func TestNumbersStay(t *testing.T) {
	var w Tellings
	w.Add(message("a"))
	w.Add(message("b"))
	is(t, w.Take(1), 1, "a")
	w.Add(message("c"))
	is(t, w.Take(Most), 1, "a", "b", "c")
	w.Arrived(2)
	is(t, w.Take(Most), 3, "c")
	w.Arrived(1) // an answer that was overtaken
	is(t, w.Take(Most), 3, "c")
	w.Arrived(9) // never more than was there
	if n := w.Waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
	if got := w.Take(Most); len(got.Events) != 0 {
		t.Errorf("%+v", got)
	}
}

// A step of a second is one event, not two, as long as nobody has been told that it began.
func TestShortStepsAreOneEvent(t *testing.T) {
	var w Tellings
	w.Add(tool("compile", job.ToolStarted))
	w.Add(message("between"))
	w.Add(tool("compile", job.ToolEnded))
	is(t, w.Take(Most), 1, "between", "compile ended")
	w.Add(tool("test", job.ToolStarted))
	is(t, w.Take(Most), 1, "between", "compile ended", "test started")
	w.Add(tool("test", job.ToolEnded)) // its begin is under way: it stays
	is(t, w.Take(Most), 1, "between", "compile ended", "test started", "test ended")
}

// Output is told with the numbers of the log that has it, each number once; what nothing
// came between is one event, unless the one before is under way.
func TestOutputIsCoveredOnce(t *testing.T) {
	var w Tellings
	w.Begin(5)
	w.Mark(4) // nothing was written
	w.Wrote(false, 10)
	w.Mark(7)
	w.Wrote(true, 3)
	w.Mark(8)
	got := w.Take(Most)
	is(t, got, 1, "5-8")
	if o := got.Events[0].Output; o.Stdout != 10 || o.Stderr != 3 {
		t.Errorf("%+v", o)
	}
	w.Wrote(false, 1)
	w.Mark(9)
	is(t, w.Take(Most), 1, "5-8", "9-9")
	w.Mark(9)
	w.Add(message("a step"))
	w.Wrote(false, 1)
	w.Mark(12)
	is(t, w.Take(Most), 1, "5-8", "9-9", "a step", "10-12")
}

// However much happens while nobody can be told, what waits is bounded, and what is left out
// is told by its number.
func TestWaitingIsBounded(t *testing.T) {
	var w Tellings
	for n := range 3 * Most {
		w.Add(message(fmt.Sprint(n)))
	}
	first := words(w.Take(Most))
	if w.Waiting() != Most || len(first) != Most || !strings.HasPrefix(first[Most-1], fmt.Sprint(2*Most+1, " events are not told")) {
		t.Errorf("%d wait, the last is %q", w.Waiting(), first[len(first)-1])
	}
	w.Add(message("nobody hears this"))
	w.Arrived(10)
	w.Add(message("later"))
	got := words(w.Take(Most))
	if end := got[len(got)-3:]; got[0] != "10" || end[0] != first[Most-1] || !strings.HasPrefix(end[1], "1 events are not told") || end[2] != "later" {
		t.Errorf("%q to %q", got[0], end)
	}
}

// FuzzTellings lets a site take what is sent, some of it twice and with answers that are
// lost: it counts as the log does, and has each telling once, in order.
func FuzzTellings(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0, 3, 4, 0, 5, 3, 3})
	f.Add([]byte{0, 0, 4, 0, 3, 1, 2, 6, 6, 3, 4})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 300 {
			return
		}
		var w Tellings
		w.Begin(1)
		var site []string
		told, said, line := uint64(0), 0, uint64(0)
		want := []string{}
		take := func(got job.Told) {
			for i, h := range words(got) {
				if n := got.First + uint64(i); n > told {
					if n != told+1 {
						t.Fatalf("after %d comes %d", told, n)
					}
					told, site = n, append(site, h)
				}
			}
		}
		var before job.Told
		for _, op := range ops {
			switch op % 7 {
			case 0, 1:
				said++
				want = append(want, fmt.Sprint(said))
				w.Add(message(fmt.Sprint(said)))
			case 2:
				line++
				w.Wrote(op > 100, 1)
				w.Mark(line)
			case 3: // sent, taken and answered
				before = w.Take(1 + int(op)/7)
				take(before)
				w.Arrived(told)
			case 4: // sent and taken; the answer is lost
				before = w.Take(Most)
				take(before)
			case 5: // sent and lost
				w.Take(Most)
			case 6: // an old packet comes again
				take(before)
			}
		}
		take(w.Take(2 * Most))
		w.Arrived(told)
		if w.Waiting() != 0 {
			t.Fatalf("%d wait", w.Waiting())
		}
		next, messages := uint64(1), []string{}
		for _, s := range site {
			var a, b uint64
			if n, _ := fmt.Sscanf(s, "%d-%d", &a, &b); n == 2 {
				if a != next || b < a {
					t.Fatalf("after line %d comes %s in %q", next-1, s, site)
				}
				next = b + 1
				continue
			}
			messages = append(messages, s)
		}
		if next != line+1 || !reflect.DeepEqual(messages, want) {
			t.Fatalf("lines to %d of %d, messages %q of %q", next-1, line, messages, want)
		}
	})
}
