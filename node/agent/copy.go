package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// Clone returns a book that shares nothing with b, for those who ask what could happen
// next (simulation/explore).
func (b *Book) Clone() *Book {
	c := &Book{leases: make(map[forgeyard.LeaseID]*entry, len(b.leases)), doubted: maps.Clone(b.doubted), upkeep: maps.Clone(b.upkeep), past: slices.Clone(b.past), notice: b.notice}
	for id, e := range b.leases {
		same := *e
		c.leases[id] = &same
	}
	return c
}

// TrustLog drops what the book keeps for the case that the log is wrong or goes back.
// Where that never happens, books that differ by it decide alike.
func (b *Book) TrustLog() { b.past = nil }

// Text writes down all that the book knows: two books with the same text decide alike.
func (b *Book) Text() string {
	var out strings.Builder
	for _, id := range slices.Sorted(maps.Keys(b.leases)) {
		fmt.Fprintf(&out, "lease %s %+v\n", id, *b.leases[id])
	}
	for _, id := range slices.Sorted(maps.Keys(b.doubted)) {
		fmt.Fprintf(&out, "doubted %s\n", id)
	}
	for _, id := range slices.Sorted(maps.Keys(b.upkeep)) {
		fmt.Fprintf(&out, "device %s %+v\n", id, b.upkeep[id])
	}
	for _, id := range b.past {
		fmt.Fprintf(&out, "past %s\n", id)
	}
	if b.notice.step != 0 {
		fmt.Fprintf(&out, "notice %+v\n", b.notice)
	}
	return out.String()
}
