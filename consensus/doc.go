// Package consensus is the site's Raft group: it puts opaque commands into one
// order on every node, and knows nothing of what they mean.
//
// It decides which command has which log index, who may propose (the leader),
// who votes, and when a read is current. It runs hashicorp/raft behind guards
// for that library's open faults (decision 26) and keeps one StateMachine alive
// across restarts of the library inside the process.
//
// States of a Group:
//
//	          ┌── fault: store, transfer, loop ──┐
//	          ▼                                  │
//	Open ─▶ down ──store opens, raft starts──▶ running ──Close──▶ closed
//	          ▲                                  │
//	          └── diverged: wipe, reset ─────────┘
//	              (quarantined until as current as before the wipe)
//
// Invariants:
//
//   - StateMachine.Apply sees every command once, in index order, whatever
//     restarts inside this process; never an internal entry.
//   - A node that wiped its log neither votes nor stands for election until its
//     log is at least as current as the one it gave up.
//   - The term that Term reports is on disk.
//   - After a failed write no further write reaches that store before it is
//     closed and opened again, so no entry stands on it behind one that it lost.
//   - What is committed is on the disks of a majority, the leader's among them,
//     though a leader sends entries while it still writes them (see ahead).
//
// It does not retry proposals, does not forward them, and does not know request
// ids: an error of kind Unknown means that the command may commit, and the
// command itself must make a repeat harmless.
//
// Goroutines of a Group: supervise owns the current instance (start, stop,
// rebuild); each instance has watchLeadership, for its transport relay, lossWatch's
// run and those of package carry, and in its store catchUp while something is
// ahead of the disk, with a preparer's run beside it, and in its log one that makes the next
// segment; each mark has one that hashes the state it captured; the shared layer has accept;
// Confirm starts rounds on demand.
// hashicorp/raft's own: main loop, FSM, snapshots, two per follower. Stop order:
// refuse new proposals, let pending ones end, close connections, stop raft,
// write what is ahead, close stores.
package consensus
