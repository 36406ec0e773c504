package reckon

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
)

// CheckTerms says why terms cannot be given, or nil. The daemon checks what it
// hands out, the site what it is handed.
func CheckTerms(t lease.UplinkTerms) error {
	bad := func(what string, v time.Duration, bound string) error {
		return forgeyard.E("terms", forgeyard.Invalid, fmt.Errorf("%s %s is not in %s", what, v, bound))
	}
	switch {
	case t.SilentAfter < MinSilentAfter || t.SilentAfter > MaxSilentAfter:
		return bad("silent_after", t.SilentAfter, fmt.Sprintf("[%s, %s]", MinSilentAfter, MaxSilentAfter))
	case t.Grace < 0 || t.Grace > MaxAllowance:
		return bad("grace", t.Grace, fmt.Sprintf("[0s, %s]", MaxAllowance))
	case t.Allowance < t.SilentAfter || t.Allowance > MaxAllowance:
		return bad("allowance", t.Allowance, fmt.Sprintf("[silent_after %s, %s]", t.SilentAfter, MaxAllowance))
	}
	return nil
}

// Interval is how often to exchange under the terms.
func Interval(t lease.UplinkTerms) time.Duration {
	return max(minInterval, t.SilentAfter/intervalsPerSilence)
}

// CallTimeout bounds one exchange: half of the silence that ends Online, doubled for
// each call before that ended by its bound, so that a thin link gets through in the end.
func CallTimeout(t lease.UplinkTerms, timeouts int) time.Duration {
	base := min(max(t.SilentAfter/2, minCall), maxCall)
	return min(base<<min(timeouts, 6), maxCall)
}

// BatchAfter is how many bytes of records go with the next exchange, after one that was
// in time or late.
func BatchAfter(batch int, late bool) int {
	if late {
		return max(batch/2, minBatchBytes)
	}
	return min(batch*2, MaxBatchBytes)
}
