package node

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// proc is a node under test, in this process.
type proc struct {
	t    *testing.T
	dir  string
	node *Node
	stop context.CancelFunc
	done chan error
}

func (p *proc) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(p.dir, fileControl))
	}}}
}

func (p *proc) sites() forgeyardv1connect.SiteServiceClient {
	return forgeyardv1connect.NewSiteServiceClient(p.client(), "http://node", connect.WithInterceptors(wire.Interceptor{}))
}

func (p *proc) jobs() forgeyardv1connect.JobServiceClient {
	return forgeyardv1connect.NewJobServiceClient(p.client(), "http://node", connect.WithInterceptors(wire.Interceptor{}))
}

func (p *proc) runs() forgeyardv1connect.RunServiceClient {
	return forgeyardv1connect.NewRunServiceClient(p.client(), "http://node", connect.WithInterceptors(wire.Interceptor{}))
}

// quick is a site that notices silence soon.
func quick(t *testing.T) sitecfg.Site {
	t.Helper()
	s := sitecfg.DefaultSite()
	s.Lease.TTL, s.Lease.Renew, s.Lease.Grace = 3*time.Second, time.Second, time.Second
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

func startNode(t *testing.T, dir, name string, change ...func(*Config)) *proc {
	t.Helper()
	set := sitecfg.DefaultNode()
	set.Name, set.Listen, set.Gossip, set.HTTP = name, "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	set.Limits.Reserve.Disk, set.Limits.Reserve.Memory = 0, 0
	set.Shutdown.Grace = time.Second
	ctx, cancel := context.WithCancel(context.Background())
	p := &proc{t: t, dir: dir, stop: cancel, done: make(chan error, 1)}
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("node", name)
	ready := make(chan *Node, 1)
	cfg := Config{Version: "test", DataDir: dir, Settings: set, Log: log, Ready: func(n *Node) { ready <- n }}
	for _, c := range change {
		c(&cfg)
	}
	go func() { p.done <- Run(ctx, cfg) }()
	select {
	case p.node = <-ready:
	case err := <-p.done:
		t.Fatalf("%s: %v", name, err)
	case <-time.After(30 * time.Second):
		t.Fatalf("%s is not ready after 30s", name)
	}
	t.Cleanup(p.end)
	return p
}

func (p *proc) end() {
	p.stop()
	select {
	case err := <-p.done:
		if err != nil {
			p.t.Errorf("the node ended with %v", err)
		}
		p.done <- nil
	case <-time.After(30 * time.Second):
		p.t.Error("the node does not stop")
	}
}

// wait waits for a condition, looking again when any of its node's state changes.
func (p *proc) wait(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		changed := p.node.Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond): // what is awaited may not be in the state
		case <-deadline:
			p.t.Fatalf("%s: not seen in 60s", what)
		}
	}
}

func makeSite(t *testing.T, size int, change ...func(*Config)) []*proc {
	t.Helper()
	root := t.TempDir()
	first := filepath.Join(root, "n1")
	if _, err := Init(InitRequest{DataDir: first, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	all := []*proc{startNode(t, first, "n1", change...)}
	for i := 2; i <= size; i++ {
		name := "n" + string(rune('0'+i))
		dir := filepath.Join(root, name)
		tok, err := all[0].sites().CreateToken(t.Context(), connect.NewRequest(&forgeyardv1.CreateTokenRequest{Ttl: durationpb.New(time.Hour)}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := JoinSite(t.Context(), JoinSiteRequest{DataDir: dir, Token: tok.Msg.Token, Name: name, Clock: clock.System()}); err != nil {
			t.Fatal(err)
		}
		all = append(all, startNode(t, dir, name, change...))
	}
	return all
}

func (p *proc) submit(f string) (string, string) {
	p.t.Helper()
	file, err := job.ParseFile("job.yaml", []byte(f), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	spec, err := file.Spec(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := p.jobs().Submit(p.t.Context(), connect.NewRequest(&forgeyardv1.SubmitRequest{Kind: "build", Spec: spec.Canonical(), Title: file.Title}))
	if err != nil {
		p.t.Fatal(err)
	}
	return r.Msg.RunId, r.Msg.JobIds[0]
}

func (p *proc) show(id string) *forgeyardv1.Job {
	p.t.Helper()
	r, err := p.jobs().Show(p.t.Context(), connect.NewRequest(&forgeyardv1.ShowJobRequest{JobId: id}))
	if err != nil {
		p.t.Fatal(err)
	}
	return r.Msg
}

func (p *proc) log(id string) string {
	p.t.Helper()
	st, err := p.jobs().Log(p.t.Context(), connect.NewRequest(&forgeyardv1.LogRequest{JobId: id, Stream: "stdout"}))
	if err != nil {
		p.t.Fatal(err)
	}
	var b bytes.Buffer
	for st.Receive() {
		b.Write(st.Msg().Data)
	}
	if err := st.Err(); err != nil {
		p.t.Fatal(err)
	}
	return b.String()
}

const helloJob = `
version: 1
kind: build
title: hello
job:
  steps:
    - {name: greet, sh: "echo hello from $FORGEYARD_EPOCH; echo made > out.txt"}
  outputs: [{path: out.txt}]
  resources: {cpu: 0.1, memory: 64MiB, disk: 64MiB, pids: 32}
`

// RA-068, RA-069, RA-070, RA-007, RA-008: a node that is started again is the same runner in a new session,
// which the log has in the place of the one before; nothing of that is found on the disk
// and used again (RA-497, RA-544, RA-545).
func TestRestartIsANewSession(t *testing.T) {
	first := makeSite(t, 1)[0]
	runner, session := first.node.enrolment.RunnerID, first.node.session
	registered := func(p *proc) func() bool {
		return func() bool {
			m, ok := p.node.replica.State().Members.Get(runner)
			return ok && m.Session.ID == p.node.session
		}
	}
	first.wait("the first session", registered(first))
	first.end()
	again := startNode(t, first.dir, "n1")
	if again.node.enrolment.RunnerID != runner || again.node.session == session || again.node.session == "" {
		t.Fatalf("runner %s, session %s after %s in %s", again.node.enrolment.RunnerID, again.node.session, runner, session)
	}
	again.wait("the second session", registered(again))
	if m, _ := again.node.replica.State().Members.Get(runner); m.Session.Previous != session {
		t.Errorf("the log has %+v after %s", m.Session, session)
	}
}

// A site of three comes up, votes, and runs a job whose outputs are on two nodes: a build is
// placed, leased and executed as the first epoch of its attempt (RS-012).
func TestSiteRunsAJob(t *testing.T) {
	site := makeSite(t, 3)
	one := site[0]
	one.wait("three voters", func() bool { return votersOf(one) == 3 })
	_, id := one.submit(helloJob)
	var j *forgeyardv1.Job
	one.wait("the job's end", func() bool { j = one.show(id); return job.Status(j.Status).Terminal() })
	if j.Status != "done" || len(j.Outputs) != 1 || len(j.Replicas) != 2 {
		t.Fatalf("%v", j)
	}
	for _, p := range site {
		p.wait("the log everywhere", func() bool { return p.log(id) == "hello from 1\n" })
	}
	d, err := forgeyard.ParseDigest(j.Outputs[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	holders := 0
	for _, p := range site {
		if p.node.store.Has(t.Context(), d) {
			holders++
		}
	}
	if holders < 2 {
		t.Fatalf("the output is on %d nodes", holders)
	}
}
