// Package raftsim runs the site's real log in virtual time: hashicorp/raft with its own
// network transport behind our guards (consensus), the replicated state (site), the way
// of a proposal (node/replica), the leader's shell around the controllers (node/leading),
// the agent, and in some sites the node's gossip (mesh, with memberlist), on three or five
// machines, in a testing/synctest bubble.
//
//	seed ─▶ shape ─▶ boot ─▶ faults and clients ─▶ heal ─▶ progress ─▶ same state everywhere
//
// What stands around them is ours, and as hostile as what it stands for:
//
//   - the network (network.go): byte streams with delay, cut one way or both ways (bytes
//     wait, as a TCP connection's do), clogged, reset, or refused; calls of the mesh and
//     packets of gossip that get lost;
//   - disks (disk.go): a write takes time, and one that is under way when the machine
//     loses its power may be there afterwards or not; slow and hanging ones;
//   - machines (machine.go): processes crash and come back with what was on disk;
//     a stopped machine hears nothing, writes nothing, and its clock goes on; one machine
//     may have a Raft whose timers are many times too slow, as after a long stop;
//   - clocks whose rates differ by almost the drift bound;
//   - workloads (runner.go) that act until they are dead.
//
// Checkers (check.go) see what no node sees: all machines, in true time.
//
// Built with the runtime overlay (internal/overlay, tag simoverlay) and run with one
// processor, a process plays a seed byte for byte as any other does. Without, everything
// runs and is checked all the same, and the run says that it does not replay. Two things
// in here are for replaying alone: a collection of garbage happens only while everything
// else is at rest, and no path depends on where the run lives.
//
// It does not model: content, devices, the uplink, checkpoints, sandboxes (package
// simulation and the other nets have those).
package raftsim
