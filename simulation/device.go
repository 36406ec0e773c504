package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/site"
)

// hosted is what a device's host keeps on disk: the highest token seen, and whether it
// is closed to that one because its reset has begun. It stands for the gate of
// devices/supervisor.
type hosted struct {
	highest uint64
	closed  bool
	lost    bool // the file is damaged, and this process does not know
	damaged bool // it could not be read: nothing is admitted before the log was asked
}

func (n *node) gate(id forgeyard.DeviceID) *hosted {
	h := n.hosted[id]
	if h == nil {
		h = &hosted{}
		n.hosted[id] = h
	}
	return h
}

// learn tells the gate what the log says: the highest token ever granted, and whether its
// lease still stands.
func (g *hosted) learn(d devices.Device) {
	if d.HighestFence > g.highest {
		g.highest, g.closed = d.HighestFence, d.Lease == nil
	}
	g.damaged = false
}

// useDevice is one act of a workload on a device, wherever that stands.
func (n *node) useDevice(h site.HeldDevice, a forgeyard.Authority) {
	for _, host := range n.s.nodes {
		if host.runner == h.Host {
			n.send(host.id, func() { host.admit(h, a) })
		}
	}
}

// admit is the fence at the resource: lower tokens than the highest seen are refused,
// and so is one that the log does not call current.
func (n *node) admit(h site.HeldDevice, a forgeyard.Authority) {
	g := n.gate(h.Device)
	d, ok := n.state().Devices.Get(h.Device)
	if g.damaged && ok && n.applied >= n.bootLast {
		n.upToDate(func() {
			if d, ok := n.state().Devices.Get(h.Device); ok {
				g.learn(d)
			}
		})
	}
	current := ok && d.Admit(h.Token) == nil && h.Token >= g.highest && !(g.closed && h.Token == g.highest) && !g.damaged
	if h.Token > g.highest && n.disk.full > 0 {
		current = false // it could not be remembered
	}
	if !current && !n.s.faults.openGate && !(n.s.faults.blankGate && h.Token >= g.highest) {
		return
	}
	if h.Token > g.highest {
		g.highest, g.closed = h.Token, false
	}
	for _, c := range n.s.checks {
		c.touched(n.s, h, a)
	}
}

func (n *node) resetDevice(e agent.ResetDevice) {
	g := n.gate(e.Device)
	if e.Token >= g.highest {
		g.highest, g.closed = e.Token, true
	}
	for _, c := range n.s.checks {
		c.cleaning(n.s, e.Device, e.Token, n)
	}
	if n.s.faults.neverResets {
		return
	}
	n.after(n.s.within(100*time.Millisecond, 3*time.Second), func() {
		ev := devices.Evidence{Token: e.Token, Try: e.Try, OK: n.s.healing || !n.s.chance(80)}
		if !ev.OK {
			ev.Error = "it does not answer"
		}
		n.propose(n.name, site.DeviceReset{Device: e.Device, Host: n.runner, Evidence: ev}, proposeFor, func(_ site.Reply, known bool) {
			if !known {
				n.book.NotReported(e.Device)
			}
			n.nudge()
		})
	})
}

func (n *node) checkDevice(id forgeyard.DeviceID) {
	n.after(n.s.within(100*time.Millisecond, time.Second), func() {
		n.propose(n.name, site.DeviceHealth{Device: id, Action: "checked", OK: n.s.healing || !n.s.chance(20), Reason: "a look"}, proposeFor, func(_ site.Reply, known bool) {
			if !known {
				n.book.NotReported(id)
			}
			n.nudge()
		})
	})
}
