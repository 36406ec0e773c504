package controllers

import (
	"reflect"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
)

// A copy has all of the memory and shares nothing with it; its text names every field. A
// field that is new here is one that Clone and Text must learn.
func TestCopyIsWhole(t *testing.T) {
	full := func() *Memory {
		m := NewMemory(forgeyard.Instant(time.Hour))
		m.Hello("r", Sign{Session: "s", At: 2})
		m.leases["l"] = holder{heard: 3, state: lease.Accepted}
		m.avoided[avoidKey{"j", "r"}] = refusals{since: 5, times: 1}
		m.devices["d"] = 6
		m.claims["r"] = []claim{{session: "u", first: 4}}
		m.sessions["r"], m.disabled["l"], m.ready = seenSession{"s", 7}, 8, 9
		return m
	}
	changes := []func(*Memory){
		func(m *Memory) { m.Elected++ }, func(m *Memory) { m.mark("l", true) }, func(m *Memory) { m.Hello("r", Sign{Session: "t", At: 2}) },
		func(m *Memory) { m.avoided[avoidKey{"j", "r"}] = refusals{since: 5, times: 2} }, func(m *Memory) { delete(m.devices, "d") },
		func(m *Memory) { m.sessions["r"] = seenSession{"s", 8} }, func(m *Memory) { delete(m.disabled, "l") }, func(m *Memory) { m.ready++ },
		func(m *Memory) { m.returns["r"] = back{times: 2} }, func(m *Memory) { m.gap++ }, func(m *Memory) { m.claims["r"] = []claim{{session: "v"}} },
	}
	if n := reflect.TypeFor[Memory]().NumField(); n != len(changes) {
		t.Fatalf("a memory has %d fields, %d are tried here", n, len(changes))
	}
	for i, change := range changes {
		m := full()
		c := m.Clone()
		if !reflect.DeepEqual(c, m) || c.Text() != m.Text() {
			t.Fatalf("%+v is no copy of %+v", c, m)
		}
		change(c)
		if !reflect.DeepEqual(m, full()) || c.Text() == m.Text() {
			t.Errorf("change %d of a copy: the memory is %+v, the texts are %q and %q", i, m, m.Text(), c.Text())
		}
	}
}
