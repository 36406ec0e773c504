// Package roll decides whether a voter that speaks is the one that was heard before, or
// a copy of its disk, or that disk as it was earlier. Either has forgotten what it voted
// for and what it acknowledged, and can undo what was committed.
//
// Each process of a voter has a boot: a number, one above that of the process before on
// the same disk, and a nonce that nobody else draws; it is on the disk before anybody
// hears of it. Who speaks says its boot and those before it, and where its log ends.
// Who listens keeps one Record of each:
//
//	number below the known one                  ─▶ Earlier: a copy, or its original, was started since
//	the known number, another nonce             ─▶ Twin: two were started from one disk
//	above, and its past has another nonce there ─▶ Forked: the same, some starts ago
//	above, and its log ends below the floor     ─▶ Behind: its disk is older than what it acknowledged
//	above, and none of these                    ─▶ it is the next process of that voter
//
// The floor is what the listener, while it led, had acknowledged by the voter and knows
// to be committed: no election and no truncation takes that away, so a voter whose writes
// reach its disk never ends below it, however it was killed.
//
// Invariants:
//
//   - Who was refused stays so, and all that is started from its disk, but for Earlier:
//     the later process has the earlier one in its own past.
//   - A Record only grows, so a listener whose own disk is old knows less and refuses less.
//
// It does not know what nobody told it: a copy that has all that its original acknowledged
// and is heard first takes its original's place, and the original is refused (Earlier).
package roll

import (
	"fmt"
	"slices"
)

// Boot is one process of a voter, and those before it.
type Boot struct {
	Number uint64   `cbor:"1,keyasint"`
	Chain  []uint64 `cbor:"2,keyasint"` // nonces, the own one first; at most MaxChain
}

// IsZero: there was no process yet.
func (b Boot) IsZero() bool { return b.Number == 0 }

// Next is the process after b.
func (b Boot) Next(nonce uint64) Boot {
	chain := append([]uint64{nonce}, b.Chain...)
	return Boot{Number: b.Number + 1, Chain: chain[:min(len(chain), MaxChain)]}
}

// nonce is that of the process with a number, zero where the chain does not reach.
func (b Boot) nonce(number uint64) uint64 {
	if back := b.Number - number; number <= b.Number && back < uint64(len(b.Chain)) {
		return b.Chain[back]
	}
	return 0
}

// Claim is what a node says of itself at the head of a connection.
type Claim struct {
	ID         string `cbor:"1,keyasint"`
	Boot       Boot   `cbor:"2,keyasint"`
	Lineage    string `cbor:"3,keyasint,omitempty"`
	Term       uint64 `cbor:"4,keyasint,omitempty"` // on its disk
	Index      uint64 `cbor:"5,keyasint,omitempty"` // where its log or its newest snapshot ends, whichever is higher
	Rebuilding bool   `cbor:"6,keyasint,omitempty"` // it gave its log up, and withholds its vote until it has it back
}

// Reason is why a process is refused. Append only.
type Reason uint8

// Reasons.
const (
	Welcome Reason = iota
	Earlier
	Twin
	Forked
	Behind
)

// Verdict is what one process is told.
type Verdict struct {
	Reason Reason `cbor:"1,keyasint"`
	Number uint64 `cbor:"2,keyasint,omitempty"` // that was known
	Index  uint64 `cbor:"3,keyasint,omitempty"` // Behind: the floor
	At     uint64 `cbor:"4,keyasint,omitempty"` // Behind: where its log ended
}

// OK says that it may speak.
func (v Verdict) OK() bool { return v.Reason == Welcome }

// String says it for a person.
func (v Verdict) String() string {
	switch v.Reason {
	case Welcome:
		return "it is welcome"
	case Earlier:
		return fmt.Sprintf("start %d of its data dir is known, and this is an earlier one: a copy of it was started, or an old copy put back", v.Number)
	case Twin, Forked:
		return fmt.Sprintf("another process was its start %d: two were started from copies of one data dir", v.Number)
	case Behind:
		return fmt.Sprintf("its log ends at %d, and it had acknowledged %d: its data dir is an old copy, or its disk lost what it had written", v.At, v.Index)
	}
	return fmt.Sprintf("reason %d, of a newer program", uint8(v.Reason))
}

// Refusal is a process that may not speak, and so nothing that is started from its disk.
type Refusal struct {
	Nonce   uint64  `cbor:"1,keyasint"`
	Verdict Verdict `cbor:"2,keyasint"`
}

// Record is what is known of one voter.
type Record struct {
	Number  uint64    `cbor:"1,keyasint"`
	Nonce   uint64    `cbor:"2,keyasint"`
	Floor   uint64    `cbor:"3,keyasint,omitempty"`
	Refused []Refusal `cbor:"4,keyasint,omitempty"` // the latest last; at most MaxRefused
}

// Judge says whether who claims c is the voter that r knows, and what is known from then
// on. acked is what it acknowledged to the listener in a term that the listener leads now,
// zero where it leads none: that, too, is on the disk of a voter that knows no later term.
func Judge(r Record, c Claim, acked, ackedTerm uint64) (Record, Verdict) {
	own := c.Boot.nonce(c.Boot.Number)
	if r, v, ok := refusedBefore(r, c.Boot, own); ok {
		return r, v
	}
	switch {
	case r.Number == c.Boot.Number && r.Nonce == own:
		return r, Verdict{}
	case c.Boot.Number < r.Number:
		return r, Verdict{Reason: Earlier, Number: r.Number}
	case c.Boot.Number == r.Number:
		return refuse(r, own, Verdict{Reason: Twin, Number: r.Number})
	}
	if n := c.Boot.nonce(r.Number); n != 0 && n != r.Nonce {
		return refuse(r, own, Verdict{Reason: Forked, Number: r.Number})
	}
	floor := r.Floor
	if c.Term <= ackedTerm {
		floor = max(floor, acked)
	}
	if c.Index < floor && !c.Rebuilding {
		return refuse(r, own, Verdict{Reason: Behind, Number: r.Number, Index: floor, At: c.Index})
	}
	r.Number, r.Nonce = c.Boot.Number, own
	return r, Verdict{}
}

// refusedBefore says that a process, or one that it was started from, was refused, and
// remembers the process: after MaxChain starts more, the first one is in no chain. The first
// stays as well, since others may have been started from its disk; of those in between, in
// one chain, only the last does.
func refusedBefore(r Record, b Boot, own uint64) (Record, Verdict, bool) {
	var past []int // of r.Refused, those in the chain
	for i, f := range r.Refused {
		if slices.Contains(b.Chain, f.Nonce) {
			past = append(past, i)
		}
	}
	if len(past) == 0 {
		return r, Verdict{}, false
	}
	last := past[len(past)-1]
	v := r.Refused[last].Verdict
	if slices.ContainsFunc(r.Refused, func(f Refusal) bool { return f.Nonce == own }) {
		return r, v, true
	}
	if len(past) > 1 {
		r.Refused = slices.Delete(slices.Clone(r.Refused), last, last+1)
	}
	r, v = refuse(r, own, v)
	return r, v, true
}

func refuse(r Record, nonce uint64, v Verdict) (Record, Verdict) {
	r.Refused = append(slices.Clip(r.Refused), Refusal{Nonce: nonce, Verdict: v})
	r.Refused = r.Refused[max(0, len(r.Refused)-MaxRefused):]
	return r, v
}
