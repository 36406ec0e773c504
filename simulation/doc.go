// Package simulation runs whole sites from one seed: one to five nodes, of which an odd
// number votes, and a central daemon, in one goroutine, over the real rules of site, lease,
// job, checkpoint and devices, and the real node/controllers, node/agent and
// uplink/reckon.
//
//	seed ─▶ scenario (shape, jobs, damage) ─▶ safety half ─▶ heal ─▶ progress
//
// What stands around the rules is a model, and each model is at least as hostile as
// the thing it stands for:
//
//   - the log (raft.go): terms, votes, replication and commit of a small Raft, and
//     changes of its group. Leaders change, proposals are lost, delayed, or committed by
//     the next leader after their caller gave up; followers apply late; commands share
//     entries;
//   - a forced recovery (recover.go): all voters but one are lost for good, and the site
//     goes on from what that one has, while holders of before go on in the old world;
//   - programs (format.go): some nodes run the one before, and are upgraded or left behind;
//   - disks (disk.go): they lose what was not synced, are slow, full or unreadable, and
//     damage the spool, the witness's figure, the tokens of devices, stored objects;
//   - the network (network.go): delay, loss, duplicates, reordering, links cut both
//     ways or one way, clogged links that deliver late;
//   - clocks (clock.go): rates that differ by almost the drift bound, wall clocks that
//     jump, boots that begin a new count;
//   - processes: they stop (SIGSTOP of a whole machine: its clock goes on and it acts
//     late), sleep, crash, lose their memory and keep what they wrote;
//   - workloads (work.go): they take time, checkpoint, act on the world and on
//     devices until they are dead, which may take until KillMax after the kill;
//   - content (content.go): who has which object, who keeps it, copies before a commit,
//     collections by the rule of the real upkeep;
//   - the central daemon (central.go): numbered records, each taken once; it restarts, is
//     slow, is away for long, takes a job back or gives it anew.
//
// Time is true time in nanoseconds; nodes see it only through their clocks. Checkers
// (check_*.go, one invariant each) see true time and the committed log, which no node
// sees.
//
// Invariants of the simulator itself: the same seed gives the same trace, byte for
// byte; no map is ranged over where order shows.
//
// It does not model: the bytes of content, snapshots of the log, the sandbox. Other nets
// catch those.
package simulation
