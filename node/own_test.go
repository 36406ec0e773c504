package node

import (
	"sync"
	"testing"
	"testing/synctest"
)

// RS-106: an end that the log knows is one for the daemon too: it is told only when nothing
// is done any more for the run's child, and nothing more is begun for it.
func TestErrandsEndBeforeTheRunDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newErrands()
		for range 2 {
			if !e.begin() {
				t.Fatal("not admitted")
			}
		}
		var told sync.WaitGroup
		ended := make([]bool, 2) // finish may be asked for twice: by the end, and by a kill
		for i := range ended {
			told.Go(func() { e.finish(); ended[i] = true })
		}
		synctest.Wait()
		if e.begin() {
			t.Error("one more was begun for a run that is over")
		}
		if ended[0] || ended[1] {
			t.Error("the end was told while two errands were at work")
		}
		e.end()
		synctest.Wait()
		if ended[0] || ended[1] {
			t.Error("the end was told while an errand was at work")
		}
		e.end()
		told.Wait()
		if e.begin() {
			t.Error("one was begun after the end")
		}
		e.finish()
	})
}

// A run whose child asked for nothing is not held up.
func TestErrandsWithoutAny(t *testing.T) {
	e := newErrands()
	e.finish()
	if e.begin() {
		t.Error("admitted after the end")
	}
}
