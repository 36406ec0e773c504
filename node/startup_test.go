package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// RA-083: a start goes from what a node has to what it needs of others: settings and data
// dir, identity, session, store, what the machine is; then it connects, proves who it is,
// speaks a version that both know, registers, and takes work. What fails ends it there, and
// nothing that comes later has begun.
func TestStartStopsWhereItFails(t *testing.T) {
	for _, c := range []struct {
		what      string
		spoil     func(t *testing.T, dir string)
		kind      forgeyard.Kind
		untouched []string // below the data dir, that a later step would have made
	}{
		{"no data dir", func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, forgeyard.NotFound, []string{""}},
		{"no enrolment", func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, "identity")))
		}, forgeyard.NotFound, []string{"identity/node.key", filePorts, fileControl}},
		{"another node's key", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "identity", "node.key")))
		}, forgeyard.Denied, []string{"cas/index", filePorts, fileControl}},
		{"no store", func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, dirCAS)))
			must(t, os.WriteFile(filepath.Join(dir, dirCAS), nil, 0o600))
		}, 0, []string{filePorts, fileControl}},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "n1")
			if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
				t.Fatal(err)
			}
			c.spoil(t, dir)
			set := sitecfg.DefaultNode()
			set.Name, set.Listen, set.Gossip, set.HTTP = "n1", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := Run(ctx, Config{Version: "test", DataDir: dir, Settings: set, Ready: func(*Node) { t.Error("it said that it is ready") }})
			if err == nil || ctx.Err() != nil || (c.kind != 0 && forgeyard.KindOf(err) != c.kind) {
				t.Fatalf("ended with %v, of kind %v", err, forgeyard.KindOf(err))
			}
			for _, name := range c.untouched {
				if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
					t.Errorf("%q is there: %v", name, err)
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The second half of the start: with nobody to answer, a node is ready for its operator, has
// its session and knows its machine, tries to register for as long as it takes, and holds no
// lease meanwhile; once it is heard, the log has all of that in one entry. RA-088: what a
// registered node goes by is what the site gave it: how long a lease is, how often it is
// renewed, the format of the log; and the clock of others is known, for people.
func TestStartWaitsForTheSite(t *testing.T) {
	root := t.TempDir()
	d1, d2 := filepath.Join(root, "n1"), filepath.Join(root, "n2")
	if _, err := Init(InitRequest{DataDir: d1, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	first := startNode(t, d1, "n1")
	tok, err := first.sites().CreateToken(t.Context(), connect.NewRequest(&forgeyardv1.CreateTokenRequest{Ttl: durationpb.New(time.Hour)}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := JoinSite(t.Context(), JoinSiteRequest{DataDir: d2, Token: tok.Msg.Token, Name: "n2", Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	first.end()

	second := startNode(t, d2, "n2")
	n := second.node
	second.wait("it registers", func() bool { return n.State() == StateRegistering && n.caps.Load() != nil })
	if n.session == "" || n.enrolment.RunnerID == "" || len(n.caps.Load().OS) == 0 {
		t.Errorf("session %q of runner %q on %q", n.session, n.enrolment.RunnerID, n.caps.Load().OS)
	}
	if _, known := n.replica.State().Members.Get(n.enrolment.RunnerID); known {
		t.Error("it knows a log that nobody has given it")
	}
	if got := n.local.book.Active(); got != 0 {
		t.Errorf("it holds %d leases", got)
	}

	first = startNode(t, d1, "n1")
	second.wait("it is online", func() bool { return n.State() == StateOnline })
	second.wait("its own copy of the log has it", func() bool {
		m, ok := n.replica.State().Members.Get(n.enrolment.RunnerID)
		return ok && m.Session.ID == n.session && n.allows(site.FormatNow) && !n.capsUntold()
	})
	st := n.replica.State()
	m, _ := st.Members.Get(n.enrolment.RunnerID)
	if m.Digest != capsDigest(*n.caps.Load()) || m.Session.Version != "test" || m.Session.Index == 0 {
		t.Errorf("the log has %+v", m)
	}
	if want := quick(t).Lease; st.Config.Lease != want || n.renewEvery() != want.Renew {
		t.Errorf("leases of %+v, renewed every %s; the site says %+v", st.Config.Lease, n.renewEvery(), want)
	}
	if f := st.LogFormat(); f < site.Formats.Min || f > site.Formats.Max {
		t.Errorf("the log is at format %d, this program reads %+v", f, site.Formats)
	}
	if off, of := n.mesh.ClockOff(); of == 0 || off.Abs() > time.Minute {
		t.Errorf("the clocks of %d others are off by %s", of, off)
	}
	if p := n.mesh.Peers(); len(p) != 1 || p[0].Runner != first.node.enrolment.RunnerID || p[0].Class != mesh.ClassMember {
		t.Errorf("it speaks with %+v", p)
	}
}

// RA-321: who was removed while it was away ends when it starts again. Its own copy of the log
// never tells it, since nobody gives it more of the log: it goes by what the others say at the
// door, and does not wait out the time that a registration waits for the log.
func TestStartOfWhoWasRemoved(t *testing.T) {
	all := makeSite(t, 3)
	one, away := all[0], all[2]
	one.wait("three voters", func() bool { return votersOf(one) == 3 })
	away.end()
	if _, err := one.sites().SetMember(t.Context(), connect.NewRequest(&forgeyardv1.SetMemberRequest{Member: "n3", Action: "remove"})); err != nil {
		t.Fatal(err)
	}
	again := startNode(t, away.dir, "n3")
	select {
	case err := <-again.done:
		if forgeyard.KindOf(err) != forgeyard.Denied || !strings.Contains(err.Error(), "n3 was removed from site cell") {
			t.Errorf("it ended with %v", err)
		}
		again.done <- nil
	case <-time.After(formatWait / 2):
		t.Errorf("it goes on after %s", formatWait/2)
	}
}

// RA-085: the loop serves everybody. While work prints without end into a log that its reader
// does not read, heartbeats go out in time, another job is offered, taken and done, the
// machine is looked at again, a cancellation arrives, and the node stops when it is told.
func TestNobodyIsStarved(t *testing.T) {
	one := makeSite(t, 1)[0]
	loud := strings.Replace(helloJob, "echo hello from $FORGEYARD_EPOCH;", "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done;", 1)
	_, id := one.submit(loud)
	one.wait("it runs", func() bool { return one.show(id).Status == "running" })
	follow, err := one.jobs().Log(t.Context(), connect.NewRequest(&forgeyardv1.LogRequest{JobId: id, Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	if !follow.Receive() { // and no more: its reader has gone to lunch
		t.Fatal(follow.Err())
	}
	before, _ := one.node.way.status()
	_, other := one.submit(helloJob)
	if j := one.waitDone(other); j.Status != "done" || j.Epoch != 1 {
		t.Fatalf("%v", j)
	}
	one.node.refresh(t.Context())
	one.wait("later heartbeats", func() bool {
		s, _ := one.node.way.status()
		return s.Answered > before.Answered
	})
	if s, _ := one.node.way.status(); s.Fails != 0 || s.Returns != 0 {
		t.Errorf("%d heartbeats in a row failed, the site was away %d times", s.Fails, s.Returns)
	}
	if j := one.show(id); j.Status != "running" || j.Epoch != 1 {
		t.Fatalf("%v", j)
	}
	if _, err := one.jobs().Cancel(t.Context(), connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: id, Force: true})); err != nil {
		t.Fatal(err)
	}
	if j := one.waitDone(id); j.Status != "cancelled" {
		t.Fatalf("%v", j)
	}
	one.end()
}

// BenchmarkRegister is a registration (RA-462): from the proposal to its answer, committed and
// on the disk of the one voter.
func BenchmarkRegister(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "n1")
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: sitecfg.DefaultSite(), Clock: clock.System()}); err != nil {
		b.Fatal(err)
	}
	set := sitecfg.DefaultNode()
	set.Name, set.Listen, set.Gossip, set.HTTP = "n1", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithCancel(b.Context())
	ready, done := make(chan *Node, 1), make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{Version: "test", DataDir: dir, Settings: set, Ready: func(n *Node) { ready <- n }})
	}()
	n := <-ready
	if err := n.until(ctx, func(st *site.State) bool {
		m, ok := st.Members.Get(n.enrolment.RunnerID)
		return ok && m.Session.ID == n.session
	}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := n.register(ctx); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
