package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/site"
)

// GrantPin is the owner of what the site keeps for a delegation that it has not taken in
// yet, and for the job that comes of it. The name says by what it is judged: the number of
// the daemon's record, and the hard end of the authority, 0 for none.
func GrantPin(d site.Delegation) string {
	return fmt.Sprintf("grant/%s/%d/%d", d.Grant.ID, d.Seq, d.Grant.End)
}

const (
	logPin        = "log/"
	checkpointPin = "checkpoint/"
)

// committed is a job's checkpoint whose identity begins so.
func committed(j site.Job, hex string) (checkpoint.Commit, bool) {
	i := slices.IndexFunc(j.Checkpoints, func(c checkpoint.Commit) bool { return strings.HasPrefix(c.Manifest.Hex(), hex) })
	if i < 0 {
		return checkpoint.Commit{}, false
	}
	return j.Checkpoints[i], true
}

// PayloadNeedless reports that of what is pinned for a checkpoint only the manifest is kept
// from now on: nothing will resume from it. st is as for Needless.
func PayloadNeedless(st *site.State, owner string, wall time.Time) bool {
	id, hex, ok := strings.Cut(strings.TrimPrefix(owner, "job/"), "/"+checkpointPin)
	j, known := st.Jobs.Get(forgeyard.JobID(id))
	if !ok || !known || !strings.HasPrefix(owner, "job/") {
		return false
	}
	c, kept := committed(j, hex)
	return kept && j.PayloadGone(c, forgeyard.WallOf(wall))
}

// LogPin is the owner of what an epoch's log has in the store, on each node that has it.
func LogPin(a forgeyard.Authority) string {
	return "job/" + string(a.Job) + "/" + logPin + strconv.FormatUint(a.Fence.Epoch, 10)
}

const stepPin = "step/"

// StepPin is the owner of what a step of an epoch made, until its job ends or nobody needs it.
func StepPin(a forgeyard.Authority, step int) string {
	return fmt.Sprintf("job/%s/%s%d/%d", a.Job, stepPin, a.Fence.Epoch, step)
}

// stepNeedless: no committed result names what the step made, and its epoch is over (69§127).
func stepNeedless(j site.Job, rest string) bool {
	epochText, stepText, _ := strings.Cut(rest, "/")
	epoch, err1 := strconv.ParseUint(epochText, 10, 64)
	step, err2 := strconv.Atoi(stepText)
	if err1 != nil || err2 != nil || step < 0 || step >= len(j.Spec.Steps) || (epoch == j.Epoch && j.Lease.Live()) {
		return false
	}
	return !slices.ContainsFunc(j.Steps, func(c site.CommittedStep) bool { return c.Epoch == epoch && c.Name == j.Spec.Steps[step].Name })
}

// Needless reports whether nothing needs a pin of this node's store any more: inputs
// when the job has ended, outputs, log and manifests of checkpoints when it is forgotten, what was to be
// a checkpoint when nobody can commit it, an attempt's when it is over here. An owner that is not ours to judge is left alone.
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
		if made, ok := strings.CutPrefix(what, stepPin); ok && stepNeedless(j, made) {
			return true
		}
		if hex, ok := strings.CutPrefix(what, checkpointPin); ok {
			_, kept := committed(j, hex)
			return !kept && !j.Lease.Live() // while somebody holds the job, it may be about to be committed
		}
		return j.Status.Terminal() && what != "outputs" && !strings.HasPrefix(what, logPin)
	case "attempt":
		return !here(forgeyard.AttemptID(rest)) && olderThan(rest, wall, time.Minute)
	case "checkpoint": // a slot on its way to its commit: of no use when its attempt is over here
		attempt, _, _ := strings.Cut(rest, ".")
		return !here(forgeyard.AttemptID(attempt)) && olderThan(attempt, wall, time.Minute)
	case "grant":
		return grantIsUsed(st, rest, wall)
	}
	return false
}

// NameNeedless is Needless for what an ingest brought in under names: it is kept while one
// of them points at it, while a job uses it, and as long as it is not known how the ingest
// ended.
func NameNeedless(st *site.State, ingest forgeyard.JobID, content []forgeyard.Digest, wall time.Time) bool {
	j, ok := st.Jobs.Get(ingest)
	if ok && !j.Status.Terminal() {
		return false
	}
	return (ok || olderThan(string(ingest), wall, time.Hour)) && !st.NameNeeds(ingest, content, wall)
}

// grantIsUsed judges a delegation's pin by what became of it, however long its inputs took
// to arrive: its job has ended, it was taken back, its hard end has passed, or no daemon is
// left that could give it. A name without a number is of an older version of this program.
func grantIsUsed(st *site.State, rest string, wall time.Time) bool {
	id, more, _ := strings.Cut(rest, "/")
	if st.HasOpenGrant(forgeyard.GrantID(id)) {
		return false
	}
	seqText, endText, _ := strings.Cut(more, "/")
	seq, err1 := strconv.ParseUint(seqText, 10, 64)
	end, err2 := strconv.ParseInt(endText, 10, 64)
	if err1 != nil || err2 != nil || st.Central.Peer == "" {
		return olderThan(id, wall, time.Hour)
	}
	over := end != 0 && st.Uplink.DaemonNow(st.Uplink.Used) >= forgeyard.Wall(end)
	return seq <= st.Cursor || over
}

// olderThan reports whether an id was born that long ago; what is no id is not old.
func olderThan(id string, now time.Time, d time.Duration) bool {
	u, err := ulid.ParseStrict(id)
	return err == nil && now.Sub(ulid.Time(u.Time())) > d
}
