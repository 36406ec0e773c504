//go:build linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
)

var long = flag.Bool("long", false, "1,000 attempts in TestNothingLeaks instead of 200")

const (
	atOnce = 64
	// inFlight is how many are under way in the row: as many as keep two cores busy.
	inFlight = 4
	// settles bounds every wait for something to be given back.
	settles = 60 * time.Second
)

// leaky are kinds of work that could leave something: one that passes, one that fails, one
// whose daemon escapes from its session, one with an output, one that fills its log, one
// that is cancelled while it runs. %[1]s is what marks their processes.
var leaky = []struct {
	sh, more string
	cancel   bool
	ends     string
}{
	{sh: "exit 0", ends: "done"},
	{sh: "exit 3", ends: "failed"},
	{sh: "(setsid sh -c 'sleep 1000; : %[1]s' >/dev/null 2>&1 &); exit 0", ends: "done"},
	{sh: "echo made > out.txt", more: "  outputs: [{path: out.txt}]\n", ends: "done"},
	{sh: "head -c 200000 /dev/zero", ends: "done"},
	{sh: "echo up; sleep 1000; : %[1]s", cancel: true, ends: "cancelled"},
}

// hoard is a node whose belongings are counted.
type hoard struct {
	t    *testing.T
	site *localsite.Site
	node *localsite.Node
	mark string

	mu       sync.Mutex
	attempts map[string]bool
	number   int
}

// held is what the node's daemon has at one moment. Sockets are all descriptors that no file has.
type held struct {
	Children, Sockets, Files, Mounts, Routines int
	RSS                                        int64
}

// After 1,000 attempts (200 unless -long), and 64 at once after them, of both executors and
// with all kinds of ends, the node has what it had before: no workspace (RA-468), process,
// not even a dead one (RA-469), control group, mount, open file, pin, user of the machine or
// reservation (RA-470) more, no routine, and the memory that it had within a tenth. What many
// at once cost beside each other is what RA-466 asks to be looked at.
func TestNothingLeaks(t *testing.T) {
	needs.Root(t, "give each attempt a user and a group of its own")
	h := newHoard(t)
	row := 200
	if *long {
		row = 1000
	}
	h.run(atOnce, atOnce) // what the first of a kind makes stays: pools, caches, connections
	before := h.settled(held{Children: 1 << 20, Sockets: 1 << 20, Files: 1 << 20, Mounts: 1 << 20, Routines: 1 << 20, RSS: 1 << 40})
	began := time.Now()
	h.run(row, inFlight)
	h.run(atOnce, atOnce)
	took := time.Since(began)
	after := h.settled(before)
	t.Logf("%d attempts in %s: before %+v, after %+v", row+atOnce, took.Round(time.Millisecond), before, after)
	h.wholeMachine()
}

func newHoard(t *testing.T) *hoard {
	t.Helper()
	programs, err := localsite.FindPrograms(os.Getenv("FORGEYARD_BIN"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "forgeyard-leaks-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // the users of process jobs pass through
		t.Fatal(err)
	}
	h := &hoard{t: t, site: localsite.New(dir, programs), mark: "fy-leaks-" + strconv.Itoa(os.Getpid()), attempts: map[string]bool{}}
	t.Cleanup(func() {
		h.site.Stop()
		if t.Failed() {
			t.Log(h.site.Tails(30))
		}
		if err := h.site.Remove(); err != nil {
			t.Error(err)
		}
	})
	n, config, err := h.site.AddNode("n1", localsite.Settings{
		"executors": []string{"sandbox", "process"},
		"limits":    map[string]any{"max_jobs": atOnce},
		"policy":    map[string]any{"network": "host"},               // which process jobs have
		"users":     map[string]any{"first": 72000, "count": atOnce}, // none to spare
	})
	if err != nil {
		t.Fatal(err)
	}
	h.node = n
	if _, err := h.site.Command(t.Context(), programs.Node, n.Env(), "", "init", "--site", "leaks", "--config", config); err != nil {
		t.Fatal(err)
	}
	if err := n.Up(); err != nil {
		t.Fatal(err)
	}
	if err := h.site.AwaitOnline(t.Context(), settles, n); err != nil {
		t.Fatal(err)
	}
	return h
}

// run has so many jobs done, some at once.
func (h *hoard) run(jobs, at int) {
	h.t.Helper()
	var g errgroup.Group
	g.SetLimit(at)
	for range jobs {
		i := h.number
		h.number++
		g.Go(func() error { return h.one(i) })
	}
	if err := g.Wait(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hoard) one(i int) error {
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*settles)
	defer cancel()
	k := leaky[i%len(leaky)]
	sandbox := []string{"strict", "process"}[i/len(leaky)%2]
	sh := k.sh
	if strings.Contains(sh, "%") {
		sh = fmt.Sprintf(sh, h.mark)
	}
	text := fmt.Sprintf("version: 1\nkind: build\ntitle: leaky\njob:\n  steps: [{sh: %q}]\n  sandbox: %s\n%s  resources: {cpu: 0.03, memory: 8MiB, disk: 8MiB, pids: 16}\n", sh, sandbox, k.more)
	if sandbox == "process" {
		text += "  network: host\n"
	}
	run, id, err := h.submit(ctx, text)
	if err != nil {
		return err
	}
	j, err := h.follow(ctx, run, id, k.cancel)
	if err != nil {
		return err
	}
	if j.Status != k.ends {
		return fmt.Errorf("job %d (%s, %s) ended as %s: %s", i, sandbox, k.sh, j.Status, j.Reason)
	}
	h.mu.Lock()
	h.attempts[j.AttemptId] = true
	h.mu.Unlock()
	return nil
}

func (h *hoard) submit(ctx context.Context, text string) (run, id string, err error) {
	f, err := job.ParseFile("leaky.yaml", []byte(text), nil)
	if err != nil {
		return "", "", err
	}
	s, err := f.Spec(nil)
	if err != nil {
		return "", "", err
	}
	r, err := h.node.API.Job.Submit(ctx, connect.NewRequest(&forgeyardv1.SubmitRequest{Kind: string(job.Build), Spec: s.Canonical(), Title: "leaky"}))
	if err != nil {
		return "", "", err
	}
	return r.Msg.RunId, r.Msg.JobIds[0], nil
}

// follow waits for the end, and cancels what waits for that once it runs.
func (h *hoard) follow(ctx context.Context, run, id string, cancel bool) (*forgeyardv1.Job, error) {
	s, err := h.node.API.Run.Attach(ctx, connect.NewRequest(&forgeyardv1.AttachRequest{RunId: run}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // it was read to its end, or the error says why not
	for s.Receive() {
		if s.Msg().Status != string(job.Running) || !cancel {
			continue
		}
		cancel = false
		if _, err := h.node.API.Job.Cancel(ctx, connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: id})); err != nil {
			return nil, err
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return h.node.Job(ctx, id)
}

// settled waits until nothing of any attempt is left and the daemon has no more than it had.
// Its last attempts are told as ended before they are cleaned up.
func (h *hoard) settled(than held) (now held) {
	h.t.Helper()
	err := h.site.Await(h.t.Context(), "everything given back", settles, func(ctx context.Context) (bool, error) {
		if err := h.leftovers(ctx); err != nil {
			return false, err
		}
		var err error
		if now, err = h.count(ctx); err != nil {
			return false, err
		}
		return true, now.within(than)
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return now
}

// within says what there is too much of. A connection more or less, a file that is just read, or
// the routine of a timer, comes and goes by itself; one of every twenty attempts would not.
func (n held) within(than held) error {
	const by = 8
	switch {
	case n.Children > than.Children || n.Mounts > than.Mounts:
		return fmt.Errorf("%+v, before it was %+v", n, than)
	case n.Sockets > than.Sockets+by || n.Files > than.Files+by || n.Routines > than.Routines+by:
		return fmt.Errorf("%+v, before it was %+v", n, than)
	case n.RSS > than.RSS+than.RSS/10:
		return fmt.Errorf("%+v: more than a tenth above %+v", n, than)
	}
	return nil
}

// leftovers names something that belongs to an attempt, which there is none of.
func (h *hoard) leftovers(ctx context.Context) error {
	for _, dir := range []string{"workspaces", "spool", "agent"} {
		if l, err := os.ReadDir(filepath.Join(h.node.Dir, dir)); err != nil || len(l) > 0 {
			return fmt.Errorf("%s holds %d entries, the first is %v (%v)", dir, len(l), l[:min(len(l), 1)], err)
		}
	}
	st, err := h.node.Status(ctx)
	if err != nil {
		return err
	}
	if len(st.ActiveAttempts) > 0 {
		return fmt.Errorf("%d attempts are active", len(st.ActiveAttempts))
	}
	return errors.Join(h.noProcess(), h.noGroup(), h.noPin(), h.noFile())
}

// noProcess looks through all processes of the machine: what escaped has another parent.
func (h *hoard) noProcess() error {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range all {
		b, rerr := os.ReadFile(f)
		if rerr == nil && bytes.Contains(b, []byte(h.mark)) {
			return fmt.Errorf("%s is %q", f, b)
		}
	}
	return err
}

// noGroup looks through all control groups of the machine.
func (h *hoard) noGroup() error {
	return filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // others' groups come and go
		}
		if i := strings.LastIndexByte(d.Name(), '-'); i > 0 && h.ran(d.Name()[:i]) {
			return fmt.Errorf("the control group %s is there", p)
		}
		return nil
	})
}

func (h *hoard) ran(attempt string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.attempts[attempt]
}

// noPin reads the pins: the jobs' own keep their results, the attempts' must be gone.
func (h *hoard) noPin() error {
	pins, err := filepath.Glob(filepath.Join(h.node.Dir, "cas", "pins", "*"))
	for _, p := range pins {
		if b, rerr := os.ReadFile(p); rerr == nil && bytes.Contains(b, []byte("attempt/")) {
			return fmt.Errorf("the pin %q is there", b)
		}
	}
	return err
}

// noFile looks at what the daemon has open.
func (h *hoard) noFile() error {
	for _, l := range h.open() {
		for _, dir := range []string{"workspaces", "spool", "agent"} {
			if strings.HasPrefix(l, filepath.Join(h.node.Dir, dir)+"/") {
				return fmt.Errorf("%s is open", l)
			}
		}
	}
	return nil
}

func (h *hoard) open() (out []string) {
	dir := fmt.Sprintf("/proc/%d/fd", h.node.Daemon.PID)
	l, _ := os.ReadDir(dir) // a daemon that is gone ends the wait by itself
	for _, e := range l {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			out = append(out, to)
		}
	}
	return out
}

// grows says that a file is one of those that are more the more they hold, and are open as long
// as they are there: the segments of the log, and the tables of the store's index.
func (h *hoard) grows(file string) bool {
	for _, kind := range []string{"raft/wal/*.wal", "cas/index/*.sst"} {
		if ok, _ := filepath.Match(filepath.Join(h.node.Dir, kind), file); ok { // the patterns are right
			return true
		}
	}
	return false
}

var (
	routines = regexp.MustCompile(`(?m)^go_goroutines ([0-9]+)`)
	resident = regexp.MustCompile(`(?m)^VmRSS:\s+([0-9]+) kB`)
)

// count is what the daemon has.
func (h *hoard) count(ctx context.Context) (n held, err error) {
	pid := h.node.Daemon.PID
	for _, to := range h.open() {
		switch {
		case !strings.HasPrefix(to, "/"):
			n.Sockets++
		case !h.grows(to):
			n.Files++
		}
	}
	if n.Children, err = children(pid); err != nil {
		return n, err
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return n, err
	}
	n.Mounts = bytes.Count(mounts, []byte("\n"))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return n, err
	}
	text, err := h.metrics(ctx)
	if err != nil {
		return n, err
	}
	kb, gs := resident.FindSubmatch(status), routines.FindStringSubmatch(text)
	if kb == nil || gs == nil {
		return n, errors.New("the daemon tells neither its memory nor its routines")
	}
	n.RSS, _ = strconv.ParseInt(string(kb[1]), 10, 64) // digits, as it matched
	n.RSS <<= 10
	n.Routines, _ = strconv.Atoi(gs[1])
	return n, nil
}

// children are all that descend from a process, dead ones too that nobody has waited for.
func children(pid int) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	of := map[string][]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended meanwhile
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if w := strings.Fields(rest); len(w) > 1 {
			of[w[1]] = append(of[w[1]], filepath.Base(filepath.Dir(f)))
		}
	}
	all := slices.Clone(of[strconv.Itoa(pid)])
	for i := 0; i < len(all); i++ {
		all = append(all, of[all[i]]...)
	}
	return len(all), nil
}

func (h *hoard) metrics(ctx context.Context) (string, error) {
	st, err := h.node.Status(ctx)
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+st.Addresses.Http+"/metrics", nil)
	if err != nil {
		return "", err
	}
	r.Close = true // it leaves no connection to be counted
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = a.Body.Close() }() // it was read
	var b bytes.Buffer
	_, err = b.ReadFrom(a.Body)
	return b.String(), err
}

// wholeMachine runs a job that asks for all that the node offers: with a reservation left it
// would wait for ever.
func (h *hoard) wholeMachine() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), settles)
	defer cancel()
	m, err := h.node.API.Site.Members(ctx, connect.NewRequest(&forgeyardv1.MembersRequest{}))
	if err != nil || len(m.Msg.Members) != 1 {
		h.t.Fatal(m, err)
	}
	c := m.Msg.Members[0].Capabilities
	run, id, err := h.submit(ctx, fmt.Sprintf("version: 1\nkind: build\ntitle: all\njob:\n  steps: [{sh: exit 0}]\n  resources: {cpu: %dm, memory: %d, disk: 1GiB, pids: 64}\n", c.MilliCpu, c.Memory))
	if err != nil {
		h.t.Fatal(err)
	}
	if j, err := h.follow(ctx, run, id, false); err != nil || j.Status != "done" {
		h.t.Fatalf("a job that takes the whole machine: %v %v", j, err)
	}
}
