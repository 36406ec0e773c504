package node

import (
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/scrub"
)

// What doctor says of the reading of a store: well, overdue, or something is lost.
func TestJudgeScrub(t *testing.T) {
	at := time.Date(2026, 11, 1, 2, 3, 4, 0, time.UTC)
	d := cas.Sum([]byte("gone"))
	for name, c := range map[string]struct {
		s    scrub.Status
		warn bool
		says string
	}{
		"well":    {scrub.Status{Last: at, Next: at.Add(time.Hour), Objects: 7}, false, "all 7 objects were read by 2026-11-01T02:03:04Z; again from 2026-11-01T03:03:04Z"},
		"new":     {scrub.Status{Next: at}, false, "not all of the store was read yet"},
		"reading": {scrub.Status{Last: at, Reading: true}, false, "they are being read"},
		"off":     {scrub.Status{}, false, "not read again by themselves"},
		"overdue": {scrub.Status{Next: at, Overdue: true}, true, "overdue"},
		"lost":    {scrub.Status{Last: at, Next: at, Lost: []forgeyard.Digest{d}}, true, "1 objects were damaged, and no peer had them, such as " + d.String()},
	} {
		h := judgeScrub(c.s)
		if (h.Status == checkWarn) != c.warn || (h.Fix != "") != c.warn || !strings.Contains(h.Detail, c.says) {
			t.Errorf("%s: %+v", name, h)
		}
	}
}
