// Package reckon decides what package uplink carries out: how much of the silence of
// the central daemon is used up, what of it enters the log when, what a voter can
// vouch for, and what follows from one exchange in which order.
//
//	committed figure ─┐
//	what voters vouch ┴▶ Resume ─▶ Keeper.Begin ─▶ counting ─▶ Look: commit now, or wait so long
//	                                                  ▲
//	                       Keeper.Heard, at the send ─┘
//
// Invariants:
//   - the figure never shrinks without a contact: each voter may have seen less of
//     the silence than there was and none can have seen more, so the largest elapsed
//     time that anybody vouches for is taken; with nobody able to say, the allowance
//     counts as used up;
//   - a contact counts from the send of its exchange (decision 1);
//   - what the daemon took back is cancelled before the contact is committed (E15);
//   - delegations are taken in in the daemon's order, each after its inputs.
//
// The package is pure: the link's goroutines (uplink) and the simulation obey the same
// rules. It knows no connection, no file and no clock.
package reckon
