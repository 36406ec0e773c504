package node

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/mesh"
)

func (p *proc) waitDone(id string) *forgeyardv1.Job {
	p.t.Helper()
	var j *forgeyardv1.Job
	p.wait("the end of "+id, func() bool { j = p.show(id); return job.Status(j.Status).Terminal() })
	return j
}

func votersOf(p *proc) int {
	n := 0
	for _, m := range p.node.Members() {
		if m.Voter {
			n++
		}
	}
	return n
}

const checkpointJob = `
version: 1
kind: build
title: counts to six with a checkpoint after each
job:
  steps:
    - name: count
      sh: |
        mkdir -p state
        n=$(cat state/n 2>/dev/null || echo 0)
        n=$((n+1))
        echo "item $n in epoch $FORGEYARD_EPOCH"
        echo $n > state/n
        [ $n -ge 6 ] || exit 85
        cp state/n out.txt
  outputs: [{path: out.txt}]
  resources: {cpu: 0.1, memory: 64MiB, disk: 64MiB, pids: 32}
  resume: {mode: application, checkpoint: {files: [state/]}}
`

// Exit 85 commits a checkpoint and grants the next epoch in place, one log entry each
// time; no item is done twice (FYCP/1 §4 way 2).
func TestExitDrivenCheckpoints(t *testing.T) {
	one := makeSite(t, 1)[0]
	_, id := one.submit(checkpointJob)
	j := one.waitDone(id)
	if j.Status != "done" || j.Epoch != 6 || len(j.Checkpoints) != 5 || j.Interruptions != 0 {
		t.Fatalf("%s at epoch %d with %d checkpoints: %s", j.Status, j.Epoch, len(j.Checkpoints), j.Reason)
	}
	want := ""
	for i := range 6 {
		want += "item " + string(rune('1'+i)) + " in epoch " + string(rune('1'+i)) + "\n"
	}
	if got := one.log(id); got != want {
		t.Fatalf("log:\n%s", got)
	}
}

// E02: all nodes restart with no uplink, and the site is the same and goes on: nothing that
// matters was in memory alone (RA-571).
func TestRestartOfAll(t *testing.T) {
	site := makeSite(t, 3)
	one := site[0]
	one.wait("three voters", func() bool { return votersOf(one) == 3 })
	_, before := one.submit(helloJob)
	one.waitDone(before)
	for _, p := range site {
		p.end()
	}
	for i, p := range site {
		site[i] = startNode(t, p.dir, p.node.enrolment.Name)
	}
	one = site[0]
	one.wait("the state of before", func() bool { _, ok := one.node.Site().Jobs.Get(forgeyard.JobID(before)); return ok })
	// The log is gone through once more, so the job is seen on its way first.
	if j := one.waitDone(before); j.Status != "done" {
		t.Fatalf("%v", j)
	}
	_, after := one.submit(helloJob)
	if j := one.waitDone(after); j.Status != "done" {
		t.Fatalf("%v", j)
	}
}

// All end, and the two come back that had joined by way of the third alone: nothing of the
// log is known to be committed before they have a leader, and the only address that they
// were told is that of a dead node. They find each other by what they noted.
func TestTwoOfThreeFindEachOther(t *testing.T) {
	one := makeSite(t, 1)[0]
	var dirs []string
	for _, name := range []string{"n2", "n3"} { // neither runs when the other joins
		tok, err := one.sites().CreateToken(t.Context(), connect.NewRequest(&forgeyardv1.CreateTokenRequest{Ttl: durationpb.New(time.Hour)}))
		must(t, err)
		dir := filepath.Join(t.TempDir(), name)
		_, err = JoinSite(t.Context(), JoinSiteRequest{DataDir: dir, Token: tok.Msg.Token, Name: name, Clock: clock.System()})
		must(t, err)
		dirs = append(dirs, dir)
	}
	all := []*proc{one, startNode(t, dirs[0], "n2"), startNode(t, dirs[1], "n3")}
	for _, p := range all {
		p.wait("three voters, and the others' addresses on disk", func() bool {
			e, err := mesh.LoadEnrolment(p.dir)
			must(t, err)
			found := 0
			for _, a := range e.Peers {
				if a.GossipAddr != "" && len(a.Addrs) > 0 {
					found++
				}
			}
			return votersOf(p) == 3 && found == 2
		})
	}
	for _, p := range all {
		p.end()
	}
	left := []*proc{startNode(t, dirs[0], "n2"), startNode(t, dirs[1], "n3")}
	left[0].wait("a leader", func() bool { return slices.ContainsFunc(left, (*proc).leads) })
	left[1].wait("the state of before", func() bool { return left[1].node.Site().Members.Len() == 3 })
}

// A cancelled job ends as cancelled once its tree is dead, as its holder has confirmed
// (RS-089, RS-099), and a second cancel changes nothing (RS-062). It is a call of the control
// API (CK-232).
func TestCancelRunning(t *testing.T) {
	one := makeSite(t, 1)[0]
	_, id := one.submit(strings.Replace(helloJob, "echo hello", "sleep 600; echo hello", 1))
	one.wait("running", func() bool { return one.show(id).Status == "running" })
	r, err := one.jobs().Cancel(t.Context(), connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: id}))
	if err != nil || !r.Msg.Changed {
		t.Fatalf("%v %v", r, err)
	}
	if j := one.waitDone(id); j.Status != "cancelled" {
		t.Fatalf("%v", j)
	}
	r, err = one.jobs().Cancel(t.Context(), connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: id}))
	if err != nil || r.Msg.Changed {
		t.Fatalf("a no-op cancel: %v %v", r, err)
	}
}

// Attach streams a run's events from 1 without a gap until the terminal one, which is
// the last, and ends there (RS-007, RS-078, RS-079).
func TestAttachHasNoGap(t *testing.T) {
	one := makeSite(t, 1)[0]
	run, _ := one.submit(helloJob)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	st, err := one.runs().Attach(ctx, connect.NewRequest(&forgeyardv1.AttachRequest{RunId: run}))
	if err != nil {
		t.Fatal(err)
	}
	var last *forgeyardv1.RunEvent
	for n := uint64(1); st.Receive(); n++ {
		if last = st.Msg(); last.Seq != n {
			t.Fatalf("event %d where %d is due", last.Seq, n)
		}
	}
	if st.Err() != nil || last == nil || last.Status != "done" || last.Kind != "status" {
		t.Fatalf("%v %v", last, st.Err())
	}
	// RS-077: of a run that has ended, the record and all of its events are there at once.
	r, err := one.runs().Show(ctx, connect.NewRequest(&forgeyardv1.ShowRunRequest{RunId: run}))
	if err != nil || r.Msg.Status != "done" || r.Msg.LastSeq != last.Seq {
		t.Fatalf("%v %v", r, err)
	}
	again, err := one.runs().Attach(ctx, connect.NewRequest(&forgeyardv1.AttachRequest{RunId: run}))
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for again.Receive() {
		n++
	}
	if again.Err() != nil || n != last.Seq {
		t.Fatalf("%d events of %d, %v", n, last.Seq, again.Err())
	}
}
