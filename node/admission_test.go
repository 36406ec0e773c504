package node

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
)

// CK-289: no more at a time than there are places; of those who wait the one that is worth
// most is next, and among equals the first. Who gives up takes no place with it.
func TestAdmission(t *testing.T) {
	ctx := context.Background()
	a := newAdmission(1)
	leave, err := a.enter(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	type came struct {
		name  string
		leave func()
	}
	in := make(chan came)
	waits := func(name string, worth int) {
		n := a.count()
		go func() {
			if l, err := a.enter(ctx, worth); err == nil {
				in <- came{name, l}
			}
		}()
		for a.count() == n {
			runtime.Gosched()
		}
	}
	waits("low", -1)
	waits("first", 0)
	waits("second", 0)
	waits("high", 1)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := a.enter(gone, 9); !errors.Is(err, context.Canceled) {
		t.Fatalf("whoever gives up has no place: %v", err)
	}
	var got []string
	for range 4 {
		leave()
		c := <-in
		got, leave = append(got, c.name), c.leave
	}
	leave()
	if want := []string{"high", "first", "second", "low"}; !slices.Equal(got, want) {
		t.Errorf("they came in as %v, want %v", got, want)
	}
	if a.free != 1 {
		t.Errorf("%d places are free", a.free)
	}
}

func (a *admission) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.waiting)
}
