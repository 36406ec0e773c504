package forgeyard

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Fence orders the rights to act on one job. It is compared left to right.
type Fence struct {
	// Incarnation grows when an operator forcibly recovers a site that lost
	// its quorum for good: every lease of before is dead.
	Incarnation uint64
	// Term is the central daemon's delegation of the job to this site. Zero
	// for the site's own work.
	Term uint64
	// Epoch counts the executions of the job: every start or resume is one.
	Epoch uint64
}

// Compare returns -1, 0 or +1.
func (f Fence) Compare(g Fence) int {
	return cmp.Or(cmp.Compare(f.Incarnation, g.Incarnation), cmp.Compare(f.Term, g.Term), cmp.Compare(f.Epoch, g.Epoch))
}

// IsZero reports whether the fence is unset. A zero fence admits nobody.
func (f Fence) IsZero() bool { return f == Fence{} }

func (f Fence) String() string { return fmt.Sprintf("%d.%d.%d", f.Incarnation, f.Term, f.Epoch) }

// Authority is the whole tuple under which a runner acts (decision 2, 07§36).
// Every execution-side action carries it, and Apply compares all of it.
type Authority struct {
	Job     JobID
	Attempt AttemptID
	Lease   LeaseID
	Spec    Digest
	Runner  RunnerID
	Session SessionID
	Fence   Fence
}

// ParseFence reads what String writes.
func ParseFence(s string) (Fence, error) {
	var f Fence
	parts := strings.Split(s, ".")
	if len(parts) == 3 {
		ok := true
		for i, to := range []*uint64{&f.Incarnation, &f.Term, &f.Epoch} {
			n, err := strconv.ParseUint(parts[i], 10, 64)
			*to, ok = n, ok && err == nil
		}
		if ok && f.String() == s {
			return f, nil
		}
	}
	return Fence{}, E("parse", Invalid, fmt.Errorf("%q is not a fence: incarnation.term.epoch is expected", Clip(s, 80)))
}
