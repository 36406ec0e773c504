package agent

import (
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// pinned-never-gone, as far as one node decides it: what a job that has not ended needs
// stays, and what nobody can judge stays.
func TestNeedless(t *testing.T) {
	now := time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC)
	id := func(age time.Duration, n byte) string { return forgeyard.NewULID(now.Add(-age), [10]byte{n}) }
	open, ended, young, old := id(time.Hour, 1), id(time.Hour, 2), id(time.Minute, 3), id(2*time.Hour, 4)
	grant, spent := id(2*time.Hour, 5), id(2*time.Hour, 6)
	st := &site.State{}
	st.Jobs = st.Jobs.Put(forgeyard.JobID(open), site.Job{ID: forgeyard.JobID(open), Status: job.Running, Grant: &lease.Grant{ID: forgeyard.GrantID(grant)}})
	st.Open = st.Open.Put(forgeyard.JobID(open), 1)
	st.Jobs = st.Jobs.Put(forgeyard.JobID(ended), site.Job{ID: forgeyard.JobID(ended), Status: job.Done})
	here := func(a forgeyard.AttemptID) bool { return string(a) == old }
	for owner, want := range map[string]bool{
		"job/" + open + "/inputs":          false,
		"job/" + open + "/checkpoint/ab":   false,
		"job/" + ended + "/inputs":         true,
		"job/" + ended + "/checkpoint/ab":  true,
		"job/" + ended + "/outputs":        false,
		"job/" + young + "/inputs":         false, // being submitted
		"job/" + old + "/outputs":          true,  // forgotten
		"attempt/" + old:                   false, // at work here
		"attempt/" + id(2*time.Minute, 7):  true,
		"attempt/" + id(30*time.Second, 8): false,
		"grant/" + grant:                   false,
		"grant/" + spent:                   true,
		"person/ana":                       false,
		"hold/x":                           false,
	} {
		if got := Needless(st, owner, here, now); got != want {
			t.Errorf("%s: %v, want %v", owner, got, want)
		}
	}
}
