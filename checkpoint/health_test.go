package checkpoint

import "testing"

// CK-276 to CK-280: each part that is in trouble has its word, all together are unhealthy, and a
// word other than healthy always has a reason.
func TestHealth(t *testing.T) {
	store := []string{"disk: nearly full"}
	for name, c := range map[string]struct {
		signs Signs
		want  Health
		why   int
	}{
		"nothing":              {Signs{}, Healthy, 0},
		"a full disk":          {Signs{Store: store}, CasDegraded, 1},
		"a disk that is gone":  {Signs{Store: store, StoreFails: true}, Unhealthy, 1},
		"one quarantined":      {Signs{Quarantined: 1}, ValidationDegraded, 1},
		"a broken chain":       {Signs{Broken: 2, Quarantined: 1}, ValidationDegraded, 2},
		"a loop":               {Signs{Loops: 1}, ResumeDegraded, 1},
		"a resume that died":   {Signs{Failing: 1}, ResumeDegraded, 1},
		"two of them":          {Signs{Quarantined: 1, Loops: 1}, ValidationDegraded, 2},
		"all three":            {Signs{Store: store, Quarantined: 1, Loops: 1}, Unhealthy, 3},
		"the store and a loop": {Signs{Store: store, Failing: 1}, CasDegraded, 2},
	} {
		got, why := c.signs.Health()
		if got != c.want || len(why) != c.why {
			t.Errorf("%s: %s for %q, want %s for %d reasons", name, got, why, c.want, c.why)
		}
	}
}
