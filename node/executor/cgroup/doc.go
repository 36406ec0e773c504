// Package cgroup gives each started tree a control group of its own, in whichever
// layout the machine has: version 2, version 1, or the hybrid of both.
//
//	<own group of the daemon>/forgeyard/<id>     in every hierarchy that is used
//
// Groups lie below the group that the daemon itself is in, so bounds that were
// put on the daemon from outside bind its workloads too. In the hybrid layout the
// limits come from version 1 controllers, and cgroup.kill from the version 2
// hierarchy that has none.
//
// Invariants: a group is entered before the workload's first instruction; Kill
// returns nil only when the group was read as empty; the daemon's own process is
// never signalled. Only Linux has an implementation.
package cgroup
