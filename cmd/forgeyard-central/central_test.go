package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// asDaemon makes the test binary be the program, so that a real process can be killed.
const asDaemon = "FORGEYARD_TEST_RUN_CENTRAL"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	peer.RegisterHasher()
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// process is a daemon in a process of its own.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr bytes.Buffer
	addrs  []string
	peer   string
	ended  bool
}

func startProcess(t *testing.T, dir, listen string) *process {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	p := &process{t: t, cmd: exec.Command(exe, "up", "--data-dir", dir, "--listen", listen, "-o", "json")}
	p.cmd.Env = append(os.Environ(), asDaemon+"=1")
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		p.kill()
		t.Fatalf("it did not start: %v\n%s", err, p.stderr.String())
	}
	var ready struct {
		PeerID string   `json:"peer_id"`
		Addrs  []string `json:"addrs"`
	}
	must(t, json.Unmarshal(line, &ready))
	p.addrs, p.peer = ready.Addrs, ready.PeerID
	return p
}

// kill is kill -9.
func (p *process) kill() {
	if !p.ended {
		p.ended = true
		_ = p.cmd.Process.Kill() // it may have ended by itself
		_ = p.cmd.Wait()
	}
}

// hostPort is where it listens, to be used again after a restart.
func (p *process) hostPort() string {
	f := strings.Split(p.addrs[0], "/") // /ip4/127.0.0.1/tcp/N
	return net.JoinHostPort(f[2], f[4])
}

// cmdline runs one command in this process.
func cmdline(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func ask[T any](t *testing.T, args ...string) T {
	t.Helper()
	code, out, errs := cmdline(t, append(args, "-o", "json")...)
	if code != 0 {
		t.Fatalf("%v: exit %d: %s", args, code, errs)
	}
	var v T
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %v in %s", args, err, out)
	}
	return v
}

type jobJSON struct {
	GrantID         string `json:"grant_id"`
	Status          string `json:"status"`
	Outcomes        int    `json:"outcomes"`
	Record          uint64 `json:"record"`
	CancelRequested string `json:"cancel_requested"`
	ObjectsComplete bool   `json:"objects_complete"`
}

// smallSite is a site's log with one voter, and its member on the mesh.
type smallSite struct {
	t    *testing.T
	clk  clock.Clock
	mu   sync.Mutex  // guards s and n
	s    *site.State // read without mu only while no Run is under way
	n    int
	mesh *mesh.Mesh
	key  mesh.Secret
}

func newSmallSite(t *testing.T) *smallSite {
	t.Helper()
	const id, runner = "01JD0000000000000000000001", "01JD0000000000000000000002"
	ss := &smallSite{t: t, s: &site.State{}, clk: clock.System()}
	key, pub, err := mesh.NewSiteKey()
	must(t, err)
	ident, err := mesh.NewIdentity()
	must(t, err)
	cred, err := mesh.IssueCredential(key, mesh.Claims{Site: id, Runner: runner, Peer: ident.PeerID(), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)})
	must(t, err)
	ss.key = key
	ss.mesh, err = mesh.New(mesh.Config{Identity: ident, SiteID: id, SiteName: "plant", SitePublicKey: pub, Credential: cred, Listen: "127.0.0.1:0"})
	must(t, err)
	t.Cleanup(func() { must(t, ss.mesh.Close()) })
	ss.must(site.Init{Site: id, Name: "plant", PublicKey: pub, Config: sitecfg.DefaultSite(), Runner: runner, Node: "n1", Peer: ident.PeerID().String()})
	return ss
}

func (ss *smallSite) propose(_ context.Context, b site.Body) (site.Reply, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.n++
	c := site.Command{ID: forgeyard.MessageID(strconv.Itoa(ss.n)), At: forgeyard.WallOf(ss.clk.Wall()), By: "test", Body: b}
	next, r := ss.s.Apply(ss.s.Index+1, c.Encode())
	ss.s = next
	return r, nil
}

func (ss *smallSite) state() *site.State {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.s
}

func (ss *smallSite) must(b site.Body) {
	ss.t.Helper()
	r, err := ss.propose(context.Background(), b)
	must(ss.t, err)
	must(ss.t, r.Err())
}

// TestKilledAtAnyMoment: E01. The daemon is killed with -9 again and again while a
// site works against it over the mesh; in the end it has every outcome once, every
// record without a gap, and still knows what it had said.
func TestKilledAtAnyMoment(t *testing.T) {
	dir := t.TempDir()
	d := startProcess(t, dir, "127.0.0.1:0")
	listen := d.hostPort()
	ss := newSmallSite(t)
	tk := ask[struct {
		Ticket string `json:"ticket"`
	}](t, "ticket", "create", "--data-dir", dir, "--silent-after", "1s", "--grace", "2s", "--offline-for", "10m")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	connected, err := uplink.Connect(ctx, ss.mesh, uplink.ApplicantOf(ss.s, ss.key), tk.Ticket)
	must(t, err)
	ss.must(connected)
	link, err := uplink.New(uplink.Config{
		State: ss.state, Propose: ss.propose,
		Vouch:  func(context.Context, uint64) []uplink.Vouch { return nil },
		Client: func(c string) forgeyardv1connect.DelegationServiceClient { return uplink.NewClient(ss.mesh, c) },
	})
	must(t, err)
	file := filepath.Join(t.TempDir(), "job.yaml")
	must(t, os.WriteFile(file, []byte("version: 1\nkind: build\njob:\n  steps: [{name: a, run: [\"true\"]}]\n  inputs: [{path: source, from: src}]\n"), 0o600))
	must(t, os.MkdirAll(filepath.Join(filepath.Dir(file), "src", "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(filepath.Dir(file), "src", "sub", "a.txt"), []byte("content"), 0o600))

	const jobs, kills = 24, 6
	rng := rand.New(rand.NewPCG(1, 2))
	given, killed := 0, 0
	for round := 0; given < jobs || killed < kills || ss.s.Outbox.Len() > 0 || ss.s.Open.Len() > 0 || ss.s.Cursor < jobs; round++ {
		if ctx.Err() != nil {
			t.Fatalf("no progress: %d given, %d killed, outbox %d, open %d, cursor %d\n%s", given, killed, ss.s.Outbox.Len(), ss.s.Open.Len(), ss.s.Cursor, d.stderr.String())
		}
		if given < jobs {
			ask[jobJSON](t, "delegate", "plant", file, "--data-dir", dir)
			given++
		}
		for id := range ss.s.Open.All() {
			if rng.IntN(2) == 0 {
				ss.must(site.Cancel{Job: id})
			}
		}
		strike := killed < kills && rng.IntN(3) == 0
		hit := make(chan struct{})
		if strike {
			killed++
			go func() {
				defer close(hit)
				<-time.After(time.Duration(rng.IntN(8000)) * time.Microsecond)
				d.kill()
			}()
		}
		step(ctx, t, link)
		if strike {
			<-hit
			d = startProcess(t, dir, listen)
		}
	}
	checkAll(t, dir, ss, jobs)
	code, _, errs := cmdline(t, "up", "--data-dir", dir, "--listen", "127.0.0.1:0")
	if code != forgeyard.Conflict.ExitCode() || !strings.Contains(errs, fmt.Sprintf("in use by process %d", d.cmd.Process.Pid)) || strings.Count(errs, "\n") != 1 {
		t.Errorf("a second daemon on the folder: exit %d: %s", code, errs)
	}
}

// step is a short leadership: some exchanges, and what the daemon delegates is taken in.
func step(ctx context.Context, t *testing.T, link *uplink.Link) {
	t.Helper()
	run, stop := context.WithTimeout(ctx, 150*time.Millisecond)
	defer stop()
	if err := link.Run(run); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func checkAll(t *testing.T, dir string, ss *smallSite, jobs int) {
	t.Helper()
	all := ask[[]jobJSON](t, "job", "list", "--data-dir", dir)
	seen := map[uint64]bool{}
	for _, j := range all {
		if j.Outcomes != 1 || j.Status != "cancelled" || seen[j.Record] || j.Record == 0 || !j.ObjectsComplete {
			t.Errorf("%+v", j)
		}
		seen[j.Record] = true
	}
	sites := ask[[]struct {
		Records   uint64 `json:"records"`
		Delegated uint64 `json:"delegated"`
		JobsOpen  int    `json:"jobs_open"`
	}](t, "site", "list", "--data-dir", dir)
	if len(all) != jobs || len(sites) != 1 || sites[0].Records != ss.s.Sent || sites[0].Delegated != uint64(jobs) || sites[0].JobsOpen != 0 {
		t.Errorf("%d jobs, %+v, the site sent %d", len(all), sites, ss.s.Sent)
	}
	audit := ask[[]struct {
		Seq  uint64 `json:"seq"`
		Kind string `json:"kind"`
		Text string `json:"text"`
	}](t, "audit", "--data-dir", dir, "--limit", "1000")
	next := uint64(1)
	for _, a := range audit {
		if a.Kind == "record" {
			if !strings.HasPrefix(a.Text, fmt.Sprintf("record %d,", next)) {
				t.Errorf("%q, record %d is next", a.Text, next)
			}
			next++
		}
	}
}

// TestCommandLine: exit codes and one line for each error.
func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	d := startProcess(t, dir, "127.0.0.1:0")
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	must(t, os.WriteFile(bad, []byte("version: 1\nkind: build\njob:\n  stepz: []\n"), 0o600))
	garden := filepath.Join(t.TempDir(), "garden.yaml")
	must(t, os.WriteFile(garden, []byte("version: 1\nkind: garden\n"), 0o600))
	for _, c := range []struct {
		args string
		code int
		want string // on stderr, or on stdout with code 0
	}{
		{"", 2, "needs a command"},
		{"frobnicate", 2, `"frobnicate" is no command`},
		{"site frobnicate", 2, `"frobnicate" is no command`},
		{"site list --no-such-flag", 2, "unknown flag"},
		{"site list -o yaml", 2, "neither text nor json"},
		{"site list extra", 2, "1 arguments are given"},
		{"site list", 0, "NAME"},
		{"site show nowhere", 3, "nowhere"},
		{"job show x", 3, "no job"},
		{"job cancel x", 3, "no job"},
		{"job list --site nowhere", 3, "nowhere"},
		{"delegate nowhere " + bad, 2, "bad.yaml:4:3"},
		{"delegate nowhere " + garden, 2, "only a build"},
		{"delegate nowhere /no/such/file", 3, "no such file"},
		{"ticket create --ttl 0s", 2, "ttl 0s is not in"},
		{"ticket create --silent-after 1ms", 2, "silent_after 1ms is not in"},
		{"ticket create --offline-for 8h", 0, "fyt1_"},
		{"audit --limit 5", 0, "ticket"},
		{"audit --limit -1", 2, "limit -1 is not in"},
		{"job list", 0, "GRANT"},
		{"--help", 0, "Exit codes"},
	} {
		code, out, errs := cmdline(t, append(strings.Fields(c.args), "--data-dir", dir)...)
		text := out
		if c.code != 0 {
			text = errs
		}
		if code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%q: exit %d, want %d with %q: %s%s", c.args, code, c.code, c.want, out, errs)
		}
	}
	d.kill()
	for _, dir := range []string{dir, t.TempDir()} {
		code, _, errs := cmdline(t, "site", "list", "--data-dir", dir)
		if code != 5 || !strings.Contains(errs, "forgeyard-central up") {
			t.Errorf("without a daemon: exit %d: %s", code, errs)
		}
	}
}

// TestTicketJSON: the terms are those of the flags, as Go durations.
func TestTicketJSON(t *testing.T) {
	dir := t.TempDir()
	startProcess(t, dir, "127.0.0.1:0")
	tk := ask[struct {
		Ticket  string            `json:"ticket"`
		Expires time.Time         `json:"expires"`
		Terms   map[string]string `json:"terms"`
	}](t, "ticket", "create", "--data-dir", dir, "--ttl", "30m", "--silent-after", "3s", "--grace", "7s", "--offline-for", "90m")
	if tk.Terms["silent_after"] != "3s" || tk.Terms["grace"] != "7s" || tk.Terms["allowance"] != "1h30m0s" {
		t.Errorf("%v", tk.Terms)
	}
	if left := time.Until(tk.Expires); left < 29*time.Minute || left > 30*time.Minute {
		t.Errorf("expires in %s", left)
	}
	if _, err := uplink.ParseTicket(tk.Ticket); err != nil {
		t.Error(err)
	}
}
