// Package uplink is the site's side of its central daemon: it decides how much
// silence the site has used, and exchanges delegations for results.
//
// It acts, on the leader only; what is decided stands in uplink/reckon and is pure.
//
//	          Run begins
//	              │  committed figure + largest elapsed that a voter vouches for
//	              ▼
//	counting ◀───────── no voter can vouch ──▶ doubt: the allowance counts as used up
//	  │    ▲
//	  │    └── one exchange succeeded: count again from its send
//	  └─▶ the figure is committed at each threshold at once, and every few seconds
//
// One exchange (Sync) is idempotent and resumes anywhere:
//
//	site ── records after the last acknowledged, own cursor ──▶ daemon
//	site ◀── verdicts, acknowledged, delegations after the cursor ── daemon
//	cancellations → log, acknowledgement → log, contact → log, inputs → store, delegations → log
//
// Invariants:
//   - the figure never shrinks without a contact: no election, restart, night
//     without power or clock that was set back stretches the allowance;
//   - the holder counts from its send (decision 1), so a contact never starts
//     later than the daemon's answer;
//   - a record leaves the outbox only when the daemon has said that it is its own
//     for good (E01, E13);
//   - what the daemon took back is cancelled before the contact is committed, which
//     is what puts waiting work back into the queue (E15).
//
// What it does not do: choose what may run under the authority that is left
// (node/controllers), hold state that would be lost with a leader, carry bytes
// (mesh), or fetch content (Config.Prefetch).
package uplink
