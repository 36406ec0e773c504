package controllers

import (
	"fmt"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// Who is handed the leadership. A word stands for one voter: d drains, s is to lose its
// vote, x was removed, q is silent, l was not heard for a moment, u is not in the state; a digit is how far it is behind.
func TestSuccessor(t *testing.T) {
	for _, c := range []struct {
		name          string
		voters        []string
		drain, onStop int // its place, from 1; 0: nobody
	}{
		{"the first of equals", []string{"0", "0"}, 1, 1},
		{"the most current", []string{"7", "2", "5"}, 2, 2},
		{"not one that drains too, though it is more current", []string{"d0", "9"}, 2, 2},
		{"all drain: a drained leader goes on, one that stops does not", []string{"d5", "d0"}, 0, 2},
		{"not one that is silent", []string{"q0", "3"}, 2, 2},
		{"one that was just heard before one that may be gone", []string{"l0", "3"}, 2, 2},
		{"better one that may be gone than none", []string{"d0", "l3"}, 2, 2},
		{"a drained one before a silent one", []string{"q0", "d3"}, 0, 2},
		{"not one that is to lose its vote", []string{"s0", "3"}, 2, 2},
		{"not one that was removed, nor a stranger", []string{"x0", "u0"}, 0, 0},
		{"alone", nil, 0, 0},
	} {
		st := &site.State{Config: sitecfg.DefaultSite()}
		var heirs []Heir
		for i, word := range c.voters {
			id := forgeyard.RunnerID(fmt.Sprint("R", i+1))
			m, h := site.Member{Runner: id, Order: uint64(i + 1)}, Heir{Runner: id, Silent: time.Second}
			for _, x := range word {
				switch x {
				case 'd':
					m.Draining = true
				case 's':
					m.Spare = true
				case 'x':
					m.Removed = true
				case 'l':
					h.Silent = st.Config.Lease.Renew + time.Second
				case 'q':
					h.Silent = time.Hour
				default:
					h.Behind = uint64(x - '0')
				}
			}
			if word[0] != 'u' {
				st.Members = st.Members.Put(id, m)
			}
			heirs = append(heirs, h)
		}
		for stops, want := range map[bool]int{false: c.drain, true: c.onStop} {
			got, ok := Successor(st, heirs, stops)
			if ok != (want > 0) || (ok && got != heirs[want-1].Runner) {
				t.Errorf("%s, stops %v: %q %v, want number %d", c.name, stops, got, ok, want)
			}
		}
	}
}
