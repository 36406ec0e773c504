// Package checkpoint decides what a checkpoint is, whether one may be believed,
// and from which one an attempt goes on.
//
// A checkpoint is a committed fact, not a leftover. It comes to be in this order,
// and before the last step it is garbage:
//
//	payload (a tree in the store) → marker → manifest → CheckMarker → replicate → Record in the site's log
//
//	contract   what the job declared about resuming, bounded by the site (69§13)
//	marker     the workload's own statement, `.fy-checkpoint.json`, written last
//	manifest   what the site binds the payload to: job, attempt, epoch, spec, contract, platform (69§27)
//	commit     the log's record of one manifest; the list of them is an attempt's history
//
//	commit:  good ──ResumeFailed, limit reached──▶ quarantined      Quarantine: a copy proved corrupt
//	           └──────────────Revoke─────────────▶ revoked
//
// To resume: Select the newest good commit, fetch its manifest and payload, ask
// Usable. If any of that fails, Quarantine it (or leave it out of the next Select)
// and go on with the one before: each is tried once, so trouble ends (K01).
//
// Invariants: the verdict is Valid or the checkpoint isn't used, and Unknown, the
// zero value, is not Valid (69§57); a slot (attempt, epoch, seq) is committed once,
// in ascending order (K04); a history is never shortened by its owner's epoch: what
// epoch 1 committed serves epoch 3 when epoch 2 died early (K03).
//
// The package is pure. It reads no file and no clock; package checkpoint/capture
// takes and restores, and the site's Apply calls Record only under the current fence.
package checkpoint
