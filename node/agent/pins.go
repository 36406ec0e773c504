package agent

import (
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// Needless reports whether nothing needs a pin of this node's store any more: inputs
// and checkpoints when the job has ended, outputs when it is forgotten, an attempt's when it
// is over here. An owner that is not ours to judge is left alone.
//
// st must have everything that was committed when the question was asked: an old copy of the
// log says nothing of jobs that it does not know. here says whether an attempt is still at
// work on this node.
func Needless(st *site.State, owner string, here func(forgeyard.AttemptID) bool, wall time.Time) bool {
	kind, rest, _ := strings.Cut(owner, "/")
	switch kind {
	case "job":
		id, what, _ := strings.Cut(rest, "/")
		j, ok := st.Jobs.Get(forgeyard.JobID(id))
		if !ok {
			return olderThan(id, wall, time.Hour) // a job that is being submitted is not known yet
		}
		return j.Status.Terminal() && what != "outputs"
	case "attempt":
		return !here(forgeyard.AttemptID(rest)) && olderThan(rest, wall, time.Minute)
	case "grant":
		return !st.HasOpenGrant(forgeyard.GrantID(rest)) && olderThan(rest, wall, time.Hour)
	}
	return false
}

// olderThan reports whether an id was born that long ago; what is no id is not old.
func olderThan(id string, now time.Time, d time.Duration) bool {
	u, err := ulid.ParseStrict(id)
	return err == nil && now.Sub(ulid.Time(u.Time())) > d
}
