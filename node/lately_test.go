package node

import (
	"context"
	"testing"
)

// A question that is not answered is asked once, whoever comes; each is told what was said last
// when its own time is over, and the answer when it comes in time.
func TestLatelyAsksOnce(t *testing.T) {
	var l lately[int]
	over, cancel := context.WithCancel(t.Context())
	cancel()
	answer, asked := make(chan int), 0
	run := func(f func()) { go f() }
	hangs := func() int { asked++; return <-answer }
	for range 3 {
		if v, ok := l.ask(over, run, hangs); v != 0 || ok {
			t.Errorf("%d, %v of a question that hangs", v, ok)
		}
	}
	go func() { answer <- 7 }()
	if v, ok := l.ask(t.Context(), run, hangs); v != 7 || !ok {
		t.Errorf("%d, %v of the answer", v, ok)
	}
	if asked != 1 {
		t.Errorf("it was asked %d times", asked)
	}
	if v, ok := l.ask(over, func(func()) {}, nil); v != 7 || ok {
		t.Errorf("%d, %v of the next question, which hangs", v, ok)
	}
}
