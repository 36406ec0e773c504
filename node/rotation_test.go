package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// lasting is the credential of p's node with another end.
func (p *proc) lasting(t *testing.T, key mesh.Secret, left time.Duration) []byte {
	t.Helper()
	c, err := mesh.ParseCredential(p.node.credential.Load())
	must(t, err)
	c.NotAfter = p.node.clock.Wall().Add(left).Truncate(time.Second)
	c.NotBefore = c.NotAfter.Add(-credentialLife)
	raw, err := mesh.IssueCredential(key, c.Claims)
	must(t, err)
	return raw
}

// untilOf is when a credential ends.
func untilOf(t *testing.T, raw []byte) time.Time {
	t.Helper()
	c, err := mesh.ParseCredential(raw)
	must(t, err)
	return c.NotAfter
}

// onDisk is the credential that the next start would find.
func (p *proc) onDisk() []byte {
	p.t.Helper()
	e, err := mesh.LoadEnrolment(p.dir)
	must(p.t, err)
	return e.Credential
}

// renewed reports that the node has a credential of a whole life, in memory and on disk.
func (p *proc) renewed() bool {
	left := untilOf(p.t, p.node.credential.Load()).Sub(p.node.clock.Wall())
	return left > credentialLife-time.Hour && slices.Equal(p.node.credential.Load(), p.onDisk())
}

// runnerAlone is a site whose voter takes no work, and a runner that never votes.
func runnerAlone(t *testing.T) (voter, runner *proc) {
	t.Helper()
	voter = makeSite(t, 1)[0]
	tok, err := voter.sites().CreateToken(t.Context(), connect.NewRequest(&forgeyardv1.CreateTokenRequest{Ttl: durationpb.New(time.Hour), Role: mesh.RoleRunner}))
	must(t, err)
	dir := filepath.Join(t.TempDir(), "n2")
	_, err = JoinSite(t.Context(), JoinSiteRequest{DataDir: dir, Token: tok.Msg.Token, Name: "n2", Clock: clock.System()})
	must(t, err)
	runner = startNode(t, dir, "n2")
	_, err = voter.node.Drain(t.Context(), &forgeyardv1.DrainRequest{})
	must(t, err)
	return voter, runner
}

const untilCancelled = `
version: 1
kind: build
title: waits for its cancellation
job:
  steps: [{name: wait, sh: "echo up; sleep 1000"}]
  resources: {cpu: 0.1, memory: 64MiB, disk: 64MiB, pids: 32}
`

// RA-074, RA-480: a runner whose credential is near its end is given one that lasts longer by
// a voter, in memory and on disk, and what it runs goes on. While no voter can sign, a runner
// whose credential is over says so and is offered nothing; then it comes back by itself.
func TestCredentialIsRenewedUnderWork(t *testing.T) {
	voter, runner := runnerAlone(t)
	n, key := runner.node, voter.node.siteKey()
	_, id := voter.submit(untilCancelled)
	var before *forgeyardv1.Job
	voter.wait("the job runs on the runner", func() bool {
		before = voter.show(id)
		return before.Status == "running" && before.Runner == "n2"
	})
	short := runner.lasting(t, key, credentialRenew-time.Hour)
	must(t, n.note(func(e *mesh.Enrolment) bool { e.Credential = short; return true }))
	runner.wait("a credential of a whole life", runner.renewed)
	// Twice its lease: what it says under the new one is heard.
	said := voter.node.clock.Now()
	voter.wait("two leases", func() bool { return voter.node.clock.Now().Sub(said) > 6*time.Second })
	if j := voter.show(id); j.Status != "running" || j.Epoch != 1 || j.AttemptId != before.AttemptId {
		t.Errorf("%s in epoch %d of %s, it was %s", j.Status, j.Epoch, j.AttemptId, before.AttemptId)
	}
	_, err := voter.jobs().Cancel(t.Context(), connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: id}))
	must(t, err)
	voter.waitDone(id)

	voter.node.heldKey.Store(new(mesh.Secret))
	n.credential.Store(runner.lasting(t, key, -time.Minute))
	if _, err := n.freshCredential(t.Context()); forgeyard.KindOf(err) != forgeyard.Unavailable || !strings.Contains(err.Error(), "n1 holds no site key") {
		t.Errorf("of a voter that cannot sign: %v", err)
	}
	runner.wait("it says that its credential is over", func() bool {
		return slices.Contains(n.Status(t.Context()).NotTakingWork, "credential")
	})
	_, id = voter.submit(helloJob)
	voter.wait("the leader knows why nothing is offered", func() bool {
		return slices.ContainsFunc(voter.show(id).Candidates, func(c *forgeyardv1.Job_Candidate) bool {
			return c.Runner == "n2" && slices.Contains(c.Reasons, "credential")
		})
	})
	if j := voter.show(id); j.Epoch != 0 {
		t.Errorf("it was offered all the same: %v", j)
	}
	voter.node.heldKey.Store(&key)
	if j := voter.waitDone(id); j.Status != "done" || j.Epoch != 1 {
		t.Errorf("%s in epoch %d: %s", j.Status, j.Epoch, j.Reason)
	}
	if !runner.renewed() {
		t.Error("it works on with a credential that is over")
	}
}

// RA-074: a voter signs its own credential, and what else is noted at the same moment is not lost.
func TestNothingNotedIsLost(t *testing.T) {
	one := makeSite(t, 1)[0]
	n := one.node
	for i := range 20 {
		n.credential.Store(one.lasting(t, n.siteKey(), time.Hour))
		who, err := mesh.NewIdentity()
		must(t, err)
		guest := mesh.PeerAddr{RunnerID: forgeyard.RunnerID(fmt.Sprintf("R%02d", i)), PeerID: who.PeerID(), Addrs: []string{"/ip4/10.0.0.1/tcp/1"}}
		var both sync.WaitGroup
		both.Go(func() { n.renewCredential(t.Context()) })
		both.Go(func() {
			if err := n.noteAddrs(guest); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if !one.renewed() {
			t.Fatalf("round %d: the credential of the disk is not the one of the memory, or is short", i)
		}
		e, err := mesh.LoadEnrolment(one.dir)
		must(t, err)
		if !slices.ContainsFunc(e.Peers, func(p mesh.PeerAddr) bool { return p.PeerID == guest.PeerID }) {
			t.Fatalf("round %d: the address that was noted is not on disk", i)
		}
	}
}
