// Package explore looks at everything that can happen, to a depth: two runners, one job,
// one device, one uplink, and every order in which messages come, are lost or come
// twice, processes begin anew, leaders change, clocks run on and drift, the uplink is cut
// and healed, a client cancels, a checkpoint is taken, a device is used.
//
//	world ──every action──▶ worlds ──each new one──▶ invariants ──▶ the next depth
//
// It goes over the rules of the product themselves (site.Apply, which is over lease, job,
// checkpoint and devices; node/agent; node/controllers; uplink/reckon), and keeps no copy
// of any. What
// it models is the shell around them: who hears what, and when. Breadth comes first, so
// the first broken invariant that it finds is a shortest way to one, and is printed as a
// transcript.
//
// The rules are pure. So every state of the site, of a book, of a leader's memory, and
// every message has a number, a world is a few of these numbers, and what a rule answered
// once it is not called for again. A step is one action tried in one world, together with
// the check of every invariant; questions to rules and calls of rules are counted beside.
//
// The simulation (package simulation) has more nodes, more time and more faults than any
// enumeration can hold, and sees some of them; this package sees all of a little.
package explore
