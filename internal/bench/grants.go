package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/bench/rpc"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// The runner that all leases of a trio go to.
const (
	runnerID  = forgeyard.RunnerID("01JD0000000000000000000R01")
	sessionID = forgeyard.SessionID("01JD0000000000000000000S01")
)

// trio is three processes, ours or the peer's, and where they answer.
type trio struct {
	procs []*exec.Cmd
	at    []string // where clients ask
	rpc   []string // where those ask that are compared with the peer's
	peer  string   // the peer's program; empty: ours
	http  *http.Client
}

func freePorts(n int) (out []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out, nil
}

func (t *trio) start(log string, c *exec.Cmd) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	c.Stdout, c.Stderr = f, f
	c.SysProcAttr = dieWithParent()
	t.procs = append(t.procs, c)
	return c.Start()
}

func (t *trio) stop() {
	for _, p := range t.procs {
		if p.Process != nil {
			_ = p.Process.Kill() // it may be dead already
			_ = p.Wait()
		}
	}
}

func (t *trio) pids() (out []int) {
	for _, p := range t.procs {
		out = append(out, p.Process.Pid)
	}
	return out
}

// startOurs forms a group of three and makes it a site. beat 0 is our default.
func startOurs(ctx context.Context, dir string, beat time.Duration) (*trio, error) {
	t := &trio{http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	ports, err := freePorts(9)
	if err != nil {
		return t, err
	}
	peers := map[string]string{}
	for i := range 3 {
		peers[ports[i]] = ports[3+i]
	}
	for i := range 3 {
		n := trioNode{ID: ports[i], Dir: filepath.Join(dir, fmt.Sprint("ours", i)), Raft: ports[i], HTTP: ports[3+i], RPC: ports[6+i], Peers: peers, HeartbeatMS: int(beat.Milliseconds())}
		b, err := json.Marshal(n)
		if err != nil {
			return t, err
		}
		self, err := os.Executable()
		if err != nil {
			return t, err
		}
		c := exec.CommandContext(ctx, self)
		c.Env = append(os.Environ(), envNode+"="+string(b))
		if err := t.start(n.Dir+".log", c); err != nil {
			return t, err
		}
		t.at, t.rpc = append(t.at, n.HTTP), append(t.rpc, n.RPC)
	}
	if err := t.retry(ctx, "/bootstrap", nil); err != nil {
		return t, err
	}
	for i := range 2 {
		if err := t.retry(ctx, "/add", []byte(ports[1+i])); err != nil {
			return t, err
		}
	}
	return t, t.found(ctx)
}

var requests atomic.Uint64 // the request ids of this process

// retry asks the first process until it can.
func (t *trio) retry(ctx context.Context, path string, body []byte) (err error) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if _, err = rpc.Post[any](ctx, t.http, t.at[0], path, body); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

func encoded(b site.Body) []byte {
	return site.Command{ID: forgeyard.MessageID(fmt.Sprintf("b%d", requests.Add(1))), At: forgeyard.WallOf(time.Now()), By: "bench", Body: b}.Encode()
}

func replyOf(b []byte, err error) (r site.Reply, _ error) {
	if err == nil {
		err = cborx.Unmarshal(b, &r)
	}
	if err == nil {
		err = r.Err()
	}
	return r, err
}

func (t *trio) command(ctx context.Context, at string, b site.Body) (site.Reply, error) {
	r, err := rpc.Post[site.Reply](ctx, t.http, at, "/propose", encoded(b))
	if err == nil {
		err = r.Err()
	}
	return r, err
}

func (t *trio) found(ctx context.Context) error {
	if _, err := t.command(ctx, t.at[0], initCommand()); err != nil {
		return err
	}
	_, err := t.command(ctx, t.at[0], registerCommand())
	return err
}

func initCommand() site.Body {
	return site.Init{Site: "01JD0000000000000000000001", Name: "bench", Config: sitecfg.DefaultSite(), Runner: runnerID, Node: "n1", Peer: "p1"}
}

func registerCommand() site.Body {
	return site.Register{Runner: runnerID, Session: sessionID, Formats: site.Formats, Caps: job.Capabilities{MilliCPU: 1 << 40, Memory: 1 << 50, Disk: 1 << 50, MaxJobs: 1 << 20}}
}

// startPeer starts three etcd servers. beat 0 is their default election timeout, 1s.
func startPeer(ctx context.Context, program, dir string, beat time.Duration) (*trio, error) {
	t := &trio{peer: program}
	ports, err := freePorts(6)
	if err != nil {
		return t, err
	}
	var cluster []string
	for i := range 3 {
		cluster = append(cluster, fmt.Sprintf("e%d=http://%s", i, ports[3+i]))
	}
	for i := range 3 {
		name, data := fmt.Sprint("e", i), filepath.Join(dir, fmt.Sprint("etcd", i))
		args := []string{"serve", "--name", name, "--data-dir", data, "--listen-client-urls", "http://" + ports[i], "--advertise-client-urls", "http://" + ports[i],
			"--listen-peer-urls", "http://" + ports[3+i], "--initial-advertise-peer-urls", "http://" + ports[3+i],
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new", "--log-level", "error"}
		if beat > 0 {
			args = append(args, "--heartbeat-interval", fmt.Sprint(beat.Milliseconds()/10), "--election-timeout", fmt.Sprint(beat.Milliseconds()))
		}
		if err := t.start(data+".log", exec.CommandContext(ctx, program, args...)); err != nil {
			return t, err
		}
		t.at = append(t.at, ports[i])
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if _, err = t.leader(ctx); err == nil {
			return t, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return t, err
}

// ask runs a question of the peer's program.
func (t *trio) ask(ctx context.Context, into any, question string, args ...string) error {
	out, err := exec.CommandContext(ctx, t.peer, append([]string{question, strings.Join(t.at, ",")}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %.300s", question, err, exit.Stderr)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(out, into)
}

// leader is the index of the process that leads.
func (t *trio) leader(ctx context.Context) (int, error) {
	if t.peer != "" {
		var v struct{ Leader string }
		if err := t.ask(ctx, &v, "leader"); err != nil {
			return 0, err
		}
		for i, at := range t.at {
			if at == v.Leader {
				return i, nil
			}
		}
		return 0, fmt.Errorf("the leader %q is none of them", v.Leader)
	}
	for i, at := range t.at {
		if st, err := rpc.Post[trioStat](ctx, t.http, at, "/stat", nil); err == nil && st.Leads {
			return i, nil
		}
	}
	return 0, fmt.Errorf("nobody leads")
}

// grants measures so many grants by so many clients, each one durable command. They share
// a connection, as the peer's do: either side grants more that way than with one each.
func (t *trio) grants(ctx context.Context, clients, ops int) (f figures, err error) {
	if t.peer != "" {
		return f, t.ask(ctx, &f, "load", fmt.Sprint(clients), fmt.Sprint(ops))
	}
	i, err := t.leader(ctx)
	if err != nil {
		return f, err
	}
	conn, err := rpc.Dial(ctx, t.rpc[i])
	if err != nil {
		return f, err
	}
	defer conn.Close()
	var took []float64
	var all time.Duration
	for len(took) < ops {
		some, lasted, err := t.granted(ctx, conn, t.at[i], clients, min(queued, ops-len(took)))
		if err != nil {
			return f, err
		}
		took, all = append(took, some...), all+lasted
	}
	return figuresOf(took, all), nil
}

// queued is how many jobs wait for their grants at once. A site is not meant to have many
// thousands that could run and do not, and the peer has no queue that it looks through.
const queued = 2000

// granted submits jobs, measures their grants, and ends them.
func (t *trio) granted(ctx context.Context, conn *grpc.ClientConn, at string, clients, ops int) (took []float64, all time.Duration, err error) {
	jobs, err := t.submitted(ctx, at, ops)
	if err != nil {
		return nil, 0, err
	}
	var mu sync.Mutex
	var replies []site.Reply
	began := time.Now()
	err = rpc.Each(clients, jobs, func(id forgeyard.JobID) error {
		at := time.Now()
		r, err := replyOf(rpc.Ask(ctx, conn, encoded(site.Offer{Job: id, Runner: runnerID, Session: sessionID})))
		d := time.Since(at).Seconds()
		mu.Lock()
		took, replies = append(took, d), append(replies, r)
		mu.Unlock()
		return err
	})
	all = time.Since(began)
	if err != nil {
		return nil, 0, err
	}
	return took, all, t.ended(ctx, at, replies)
}

// ended ends the jobs of grants: a site has a bound of open jobs.
func (t *trio) ended(ctx context.Context, at string, granted []site.Reply) error {
	return rpc.Each(many, granted, func(r site.Reply) error {
		a, err := site.Value[forgeyard.Authority](r)
		if err != nil {
			return err
		}
		if _, err := t.command(ctx, at, site.Accept{Authority: a}); err != nil {
			return err
		}
		_, err = t.command(ctx, at, site.Complete{Authority: a, Message: forgeyard.MessageID("m" + string(a.Lease)), Result: job.Result{Outcome: job.OutcomeDone}})
		return err
	})
}

// many is how many clients do what is not measured.
const many = 64

// submitted puts jobs into the queue, for the grants to be about.
func (t *trio) submitted(ctx context.Context, at string, n int) ([]forgeyard.JobID, error) {
	raw := job.Spec{Title: "bench", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
	ids := make([]forgeyard.JobID, n)
	slots := make([]int, n)
	for i := range slots {
		slots[i] = i
	}
	err := rpc.Each(many, slots, func(i int) error {
		r, err := t.command(ctx, at, site.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)})
		if err != nil {
			return err
		}
		v, err := site.Value[site.Submitted](r)
		ids[i] = v.Job
		return err
	})
	return ids, err
}

// killed kills the leader and returns the time to the next grant.
func (t *trio) killed(ctx context.Context) (time.Duration, error) {
	i, err := t.leader(ctx)
	if err != nil {
		return 0, err
	}
	left := &trio{peer: t.peer, http: t.http}
	for k, at := range t.at {
		if k != i {
			left.at = append(left.at, at)
		}
	}
	if t.peer != "" {
		return left.probePeer(ctx, t.procs[i])
	}
	jobs, err := t.submitted(ctx, t.at[i], 2)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	began := time.Now()
	if err := t.procs[i].Process.Kill(); err != nil {
		return 0, err
	}
	won := make(chan time.Duration, 2)
	for k, at := range left.at {
		go func() {
			for ctx.Err() == nil {
				_, err := t.command(ctx, at, site.Offer{Job: jobs[k], Runner: runnerID, Session: sessionID})
				// A conflict: an earlier try was granted, and its answer was lost.
				if err == nil || forgeyard.KindOf(err) == forgeyard.Conflict {
					won <- time.Since(began)
					return
				}
				time.Sleep(2 * time.Millisecond)
			}
		}()
	}
	select {
	case d := <-won:
		return d, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("nobody granted for 30s after the leader was killed")
	}
}

func (t *trio) probePeer(ctx context.Context, victim *exec.Cmd) (time.Duration, error) {
	c := exec.CommandContext(ctx, t.peer, "probe", strings.Join(t.at, ","))
	in, err := c.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := c.Start(); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(out)
	lines.Scan() // it is ready
	if err := victim.Process.Kill(); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return 0, err
	}
	var v struct{ Seconds float64 }
	lines.Scan()
	err = json.Unmarshal(lines.Bytes(), &v)
	return time.Duration(v.Seconds * float64(time.Second)), errors.Join(err, c.Wait())
}

// accepted makes so many live leases.
func (t *trio) accepted(ctx context.Context, at string, n int) ([]forgeyard.Authority, error) {
	jobs, err := t.submitted(ctx, at, n)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var held []forgeyard.Authority
	err = rpc.Each(many, jobs, func(id forgeyard.JobID) error {
		r, err := t.command(ctx, at, site.Offer{Job: id, Runner: runnerID, Session: sessionID})
		if err != nil {
			return err
		}
		a, err := site.Value[forgeyard.Authority](r)
		if err != nil {
			return err
		}
		mu.Lock()
		held = append(held, a)
		mu.Unlock()
		_, err = t.command(ctx, at, site.Accept{Authority: a})
		return err
	})
	return held, err
}

// heartbeats cuts leases into requests of a runner's size.
func heartbeats(held []forgeyard.Authority, size int) (out [][]byte) {
	for len(held) > 0 {
		n := min(size, len(held))
		out = append(out, cborx.Marshal(held[:n]))
		held = held[n:]
	}
	return out
}
