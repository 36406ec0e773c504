package clock

import (
	"testing"
	"time"
)

func TestSystemNeverGoesBack(t *testing.T) {
	c := System()
	last := c.Now()
	for range 1000 {
		now := c.Now()
		if now < last || now.IsZero() {
			t.Fatalf("%d after %d", now, last)
		}
		last = now
	}
}

func TestManualFiresInOrder(t *testing.T) {
	m := NewManual(time.UnixMilli(0))
	a, b := m.After(2*time.Second), m.After(time.Second)
	m.Advance(time.Second)
	select {
	case <-a:
		t.Fatal("early")
	case <-b:
	}
	m.SetWall(time.UnixMilli(0))
	m.Advance(time.Second)
	<-a
	if m.Now().Sub(0) != 3*time.Second {
		t.Fatalf("the wall clock moved the monotonic one: %v", m.Now())
	}
}
