package agent

import (
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// pinned-never-gone, as far as one node decides it: what a job that has not ended needs
// stays, and what nobody can judge stays. The checkpoints of a job that is done, which
// nobody resumes any more, are for the next collection (CK-196).
func TestNeedless(t *testing.T) {
	now := time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC)
	id := func(age time.Duration, n byte) string { return forgeyard.NewULID(now.Add(-age), [10]byte{n}) }
	open, ended, young, old := id(time.Hour, 1), id(time.Hour, 2), id(time.Minute, 3), id(2*time.Hour, 4)
	grant, spent := id(2*time.Hour, 5), id(2*time.Hour, 6)
	st := &site.State{}
	st.Jobs = st.Jobs.Put(forgeyard.JobID(open), site.Job{ID: forgeyard.JobID(open), Status: job.Running, Lease: lease.Lease{State: lease.Accepted}, Grant: &lease.Grant{ID: forgeyard.GrantID(grant)}})
	st.Open = st.Open.Put(forgeyard.JobID(open), 1)
	st.Jobs = st.Jobs.Put(forgeyard.JobID(ended), site.Job{ID: forgeyard.JobID(ended), Status: job.Done})
	waits := id(time.Hour, 9)
	kept := checkpoint.Commit{Manifest: forgeyard.Digest{0xaa}}
	st.Jobs = st.Jobs.Put(forgeyard.JobID(waits), site.Job{ID: forgeyard.JobID(waits), Status: job.Queued, Checkpoints: []checkpoint.Commit{kept}})
	here := func(a forgeyard.AttemptID) bool { return string(a) == old }
	for owner, want := range map[string]bool{
		"job/" + open + "/inputs":          false,
		"job/" + open + "/checkpoint/ab":   false,
		"job/" + ended + "/inputs":         true,
		"job/" + ended + "/checkpoint/ab":  true,
		"job/" + waits + "/checkpoint/aa0": false,
		"job/" + waits + "/checkpoint/ab":  true, // CK-090: nobody is left who could commit it
		"job/" + ended + "/outputs":        false,
		"job/" + ended + "/log/3":          false,
		"job/" + old + "/log/3":            true,  // forgotten
		"job/" + young + "/inputs":         false, // being submitted
		"job/" + old + "/outputs":          true,  // forgotten
		"attempt/" + old:                   false, // at work here
		"attempt/" + id(2*time.Minute, 7):  true,
		"attempt/" + id(30*time.Second, 8): false,
		"checkpoint/" + old + ".2.7":       false, // being committed
		"checkpoint/" + ended + ".2.7":     true,  // nobody commits it any more
		"checkpoint/ana":                   false,
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

// CK-195 196: the payload of a checkpoint goes when the site has let it go, when its job is done,
// and a day after it failed; its manifest stays as long as its job is known.
func TestPayloadNeedless(t *testing.T) {
	now := time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) forgeyard.Wall { return forgeyard.WallOf(now.Add(-d)) }
	good, gone := checkpoint.Commit{Manifest: forgeyard.Digest{0xaa}}, checkpoint.Commit{Manifest: forgeyard.Digest{0xbb}, Dropped: true}
	spec := job.Spec{Resume: job.Resume{Mode: job.ResumeApplication}}
	st := &site.State{}
	for id, j := range map[string]site.Job{
		"OPEN": {Status: job.Running}, "DONE": {Status: job.Done, Ended: ago(0)},
		"FAILED": {Status: job.Failed, Ended: ago(time.Hour)}, "LONGAGO": {Status: job.Failed, Ended: ago(25 * time.Hour)},
	} {
		j.ID, j.Spec, j.Checkpoints = forgeyard.JobID(id), spec, []checkpoint.Commit{good, gone}
		st.Jobs = st.Jobs.Put(j.ID, j)
	}
	for owner, want := range map[string]bool{
		"job/OPEN/checkpoint/aa": false, "job/OPEN/checkpoint/bb": true, "job/OPEN/checkpoint/cc": false,
		"job/DONE/checkpoint/aa": true, "job/FAILED/checkpoint/aa": false, "job/LONGAGO/checkpoint/aa": true,
		"job/UNKNOWN/checkpoint/aa": false, "job/DONE/outputs": false, "person/checkpoint/aa": false,
	} {
		if got := PayloadNeedless(st, owner, now); got != want {
			t.Errorf("%s: %v, want %v", owner, got, want)
		}
		if want && Needless(st, owner, nil, now) {
			t.Errorf("%s: its manifest goes too", owner)
		}
	}
}

// What a delegation needs stays for as long as the delegation may be used, however old its
// grant is: a thin link may take a day for the inputs. It goes when the site has decided on
// it and no job of it is open, at its hard end, and with the daemon.
func TestGrantPins(t *testing.T) {
	now := time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC)
	id := func(n byte) forgeyard.GrantID {
		return forgeyard.GrantID(forgeyard.NewULID(now.Add(-24*time.Hour), [10]byte{n}))
	}
	daemon := forgeyard.Wall(now.UnixMilli())
	st := &site.State{Cursor: 7, Central: site.Central{Peer: "P"}, Uplink: lease.Uplink{Daemon: daemon}}
	st.Jobs = st.Jobs.Put("J", site.Job{ID: "J", Status: job.Unknown, Grant: &lease.Grant{ID: id(1)}})
	st.Open = st.Open.Put("J", 1)
	none := func(forgeyard.AttemptID) bool { return false }
	pin := func(n byte, seq uint64, end forgeyard.Wall) string {
		return GrantPin(site.Delegation{Seq: seq, Grant: lease.Grant{ID: id(n), End: end}})
	}
	for name, c := range map[string]struct {
		owner string
		want  bool
	}{
		"its job is open":                       {pin(1, 7, 0), false},
		"its job is open, past the hard end":    {pin(1, 7, daemon-1), false},
		"not taken in yet":                      {pin(2, 8, 0), false},
		"not taken in yet, the end is ahead":    {pin(3, 8, daemon+1), false},
		"never taken in, the end has passed":    {pin(4, 8, daemon), true},
		"taken in, and no job of it is open":    {pin(5, 7, 0), true},
		"of an older program, a day old":        {"grant/" + string(id(6)), true},
		"a name that cannot be read, a day old": {"grant/" + string(id(6)) + "/x/y", true},
		"an id that cannot be read is nobody's": {"grant/x", false},
	} {
		if got := Needless(st, c.owner, none, now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	st.Central = site.Central{}
	if !Needless(st, pin(2, 8, 0), none, now) {
		t.Error("the daemon is gone, and what it never gave is kept")
	}
}

// What a step made is kept while its epoch runs, and after that only where its result is
// committed; not beyond the end of its job (CK-170, CK-171).
func TestStepPins(t *testing.T) {
	a := forgeyard.Authority{Job: "J", Fence: forgeyard.Fence{Epoch: 2}}
	live := lease.Lease{Authority: a, State: lease.Accepted}
	steps := []job.Step{{Name: "compile"}, {Name: "link"}}
	committed := []site.CommittedStep{{Name: "link", Epoch: 2}}
	for why, c := range map[string]struct {
		job  site.Job
		step int
		want bool
	}{
		"its epoch runs":                     {site.Job{Epoch: 2, Lease: live}, 0, false},
		"its epoch has ended":                {site.Job{Epoch: 2}, 0, true},
		"another epoch runs":                 {site.Job{Epoch: 3, Lease: live}, 0, true},
		"its result is committed":            {site.Job{Epoch: 3, Steps: committed}, 1, false},
		"another step's result is committed": {site.Job{Epoch: 3, Steps: committed}, 0, true},
		"its job has ended":                  {site.Job{Epoch: 3, Steps: committed, Status: job.Done}, 1, true},
		"it is of no step":                   {site.Job{Epoch: 3}, 7, false},
	} {
		c.job.ID, c.job.Spec.Steps = "J", steps
		s := &site.State{}
		s.Jobs = s.Jobs.Put("J", c.job)
		if got := Needless(s, StepPin(a, c.step), nil, time.Now()); got != c.want {
			t.Errorf("%s: needless %v", why, got)
		}
	}
}
