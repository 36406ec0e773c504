// Package partition runs sites of the real daemons on machines of their own and lets
// the weather turn: links are cut one way and both, cables are slow and lose frames,
// daemons and machines sleep and die, disks fill up and lose their power, wall clocks
// are wrong, and the central daemon goes away. Clients submit, cancel and lease all the
// while and write down what they were told.
//
// One seed draws a run: its shape, its schedule, and what the clients want. The
// schedule replays; what the daemons make of it in real time does not, so a failure
// keeps all that was seen, and the checkers judge it again without any daemon:
//
//	make partition SEED=7 MINUTES=2      the same weather again
//	go test ./e2e/partition -run TestHistory -args -history DIR/history.json
//
// When the weather is over everything is healed, and must come to its end. The
// checkers of checks_test.go then judge; porcupine searches an order of the clients'
// calls that a site could have answered so. Each checker is shown a history with a lie
// in it first (lies_test.go).
//
// Besides, cases that need a cut, a cold boot or a wrong clock of their own stand in
// cases_test.go by their ids.
package partition

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/lab"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

var (
	seedFlag    = flag.Uint64("seed", 1, "seed of TestPartition")
	minutesFlag = flag.Float64("minutes", 2, "how long TestPartition takes, about")
	historyFlag = flag.String("history", "", "a kept history.json for TestHistory")
	keepFlag    = flag.String("keep", "", "folder that gets the history and the logs of a run (default: a new one in the temporary folder, when it fails)")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(withBinaries(m))
}

// withBinaries builds the programs when nobody says where they are.
func withBinaries(m *testing.M) int {
	if os.Getenv("FORGEYARD_BIN") != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "forgeyard-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=e2e", "-o", dir+"/", "../../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		return 1
	}
	os.Setenv("FORGEYARD_BIN", dir)
	return m.Run()
}

const (
	aroundIt   = 35 * time.Second // of a run: the site comes up, and everything drains
	drainBound = 2 * time.Minute  // for what takes a moment on a machine that is not busy
)

// TestPartition is the whole: E01, E08, E15, E24 under a drawn schedule, and the
// invariants of all of them.
func TestPartition(t *testing.T) {
	t.Parallel()
	length := time.Duration(*minutesFlag * float64(time.Minute))
	if length < 2*aroundIt {
		t.Fatalf("-minutes %g is not at least %g: the site must come up and drain", *minutesFlag, (2 * aroundIt).Minutes())
	}
	s := draw(*seedFlag, length-aroundIt, lab.WallRefused() == nil)
	if err := lab.WallRefused(); err != nil {
		needs.Less(t, "no wall clock is set wrong in this run: %v", err)
	}
	air := func(int, int) lab.Weather { return lab.Weather{Delay: s.Delay, Jitter: s.Jitter, Loss: s.Loss} }
	w := newWorld(t, options{
		seed: s.Seed, nodes: nodes, voters: s.Voters, central: true, alone: s.Allowed, base: air,
		devices: map[string][]string{nameOf(s.Hosts[0]): {jobsDevice}, nameOf(s.Hosts[1]): {peoplesDevice}},
	})
	rec := &recorder{began: time.Now()}
	rec.e.Shape = s
	err := w.weatherAndDrain(t.Context(), rec, air)
	e := rec.e
	wrong := verdict(e)
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	t.Logf("seed %d, %d voters: %s", s.Seed, s.Voters, count(e))
	if len(wrong) > 0 {
		t.Errorf("%s\n%s", strings.Join(wrong, "\n"), w.keep(e))
	} else if *keepFlag != "" {
		t.Log(w.keep(e))
	}
}

// weatherAndDrain does the plan while the clients call, then heals, waits for the end
// of everything, and collects the rest of the evidence.
func (w *world) weatherAndDrain(ctx context.Context, rec *recorder, air func(int, int) lab.Weather) error {
	x := &weatherman{w: w, rec: rec, base: air, plan: rec.e.Shape.Acts}
	c := newCrowd(w, rec, rec.e.Shape.Seed)
	calls, enough := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); c.run(calls) }()
	err := x.run(ctx)
	enough()
	<-done
	err = errors.Join(err, w.lab.Heal(), w.site.Unasked())
	rec.did(fmt.Sprintf("%8.2fs healed", float64(rec.now())/1e9))
	w.drain(ctx, rec)
	return errors.Join(err, w.collect(ctx, rec, c))
}

// drain waits until nothing is open any more, and notes what is.
func (w *world) drain(ctx context.Context, rec *recorder) {
	var open string
	err := w.site.Await(ctx, "everything has come to its end", drainBound, func(ctx context.Context) (bool, error) {
		var err error
		open, err = w.open(ctx)
		return err == nil && open == "", err
	})
	if err != nil {
		rec.e.Stuck = append(rec.e.Stuck, strings.TrimSpace(err.Error()+"; "+open))
	}
	rec.did(fmt.Sprintf("%8.2fs drained", float64(rec.now())/1e9))
}

// open says what is not at its end: a node, a job, a device, the uplink.
func (w *world) open(ctx context.Context) (string, error) {
	var index uint64
	for _, n := range w.site.Nodes {
		st, err := n.Status(ctx)
		if err != nil {
			return n.Name, err
		}
		if st.State != "online" || !st.Quorum || len(st.ActiveAttempts) > 0 || st.Leader == "" {
			return fmt.Sprintf("%s is %s, quorum %v, leader %q, %d attempts", n.Name, st.State, st.Quorum, st.Leader, len(st.ActiveAttempts)), nil
		}
		s, err := n.SiteStatus(ctx)
		if err != nil {
			return n.Name, err
		}
		j := s.Jobs
		if j.Queued+j.Running+j.Suspended+j.Unknown > 0 {
			return fmt.Sprintf("at %s %d jobs are queued, %d running, %d suspended, %d unknown", n.Name, j.Queued, j.Running, j.Suspended, j.Unknown), nil
		}
		if s.Devices.Leased+s.Devices.Other > 0 {
			return fmt.Sprintf("at %s %d devices are leased, %d neither free nor in quarantine", n.Name, s.Devices.Leased, s.Devices.Other), nil
		}
		if w.site.Central != nil && (s.Outbox.GetPending() > 0 || s.Connectivity.GetState() != "online") {
			return fmt.Sprintf("at %s the uplink is %s and %d records wait", n.Name, s.Connectivity.GetState(), s.Outbox.GetPending()), nil
		}
		index = max(index, s.AppliedIndex)
	}
	return w.openUpstream(ctx)
}

func (w *world) openUpstream(ctx context.Context) (string, error) {
	if w.site.Central == nil {
		return "", nil
	}
	l, err := w.site.Central.API.ListJobs(ctx, connect.NewRequest(&forgeyardv1.ListCentralJobsRequest{}))
	if err != nil {
		return "the central daemon", err
	}
	for _, j := range l.Msg.Jobs {
		if j.Outcomes == 0 || !j.ObjectsComplete {
			return fmt.Sprintf("grant %s (%s) is %s with %d outcomes, objects complete: %v", j.GrantId, j.Title, j.Status, j.Outcomes, j.ObjectsComplete), nil
		}
	}
	return "", nil
}

// collect asks all nodes and the daemon what they have.
func (w *world) collect(ctx context.Context, rec *recorder, c *crowd) error {
	rec.e.Beats = w.side.log(rec.began)
	for _, b := range w.boards {
		rec.e.Touches = append(rec.e.Touches, b.log())
	}
	var errs []error
	for _, n := range w.site.Nodes {
		errs = append(errs, w.collectNode(ctx, rec, n))
	}
	rec.e.Ops = append(rec.e.Ops, finals(rec, c)...)
	if w.site.Central != nil {
		errs = append(errs, w.collectUplink(ctx, rec))
	}
	return errors.Join(errs...)
}

func (w *world) collectNode(ctx context.Context, rec *recorder, n *localsite.Node) error {
	l, err := n.API.Job.List(ctx, connect.NewRequest(&forgeyardv1.ListJobsRequest{All: true}))
	if err != nil {
		return err
	}
	for _, short := range l.Msg.Jobs {
		j, err := n.Job(ctx, short.JobId)
		if err != nil {
			return err
		}
		e := ended{Node: n.Name, Job: j.JobId, Key: j.Title, Grant: j.GrantId, Status: j.Status, Epoch: j.Epoch, Category: j.Category}
		for _, p := range j.Epochs {
			e.Epochs = append(e.Epochs, p.Epoch)
			if p.ResumedFrom != "" {
				e.Resumed++
			}
			if p.Reason == "completed" && p.Detail == "done" { // one that failed may be tried again
				e.Completed = append(e.Completed, p.Epoch)
			}
		}
		for _, o := range j.Outputs {
			e.Outputs += o.Path + " " + o.Digest + " "
			if n == w.site.Nodes[0] {
				b, err := n.Content(ctx, o)
				if err != nil {
					return fmt.Errorf("the output of %s: %w", j.Title, err)
				}
				e.Result = strings.TrimSpace(string(b))
			}
		}
		rec.e.Ended = append(rec.e.Ended, e)
	}
	return nil
}

// finals are the last looks at each key, as calls at the end of the history.
func finals(rec *recorder, c *crowd) []op {
	byKey := map[string]ended{}
	for _, j := range rec.e.Ended {
		byKey[j.Key] = j
	}
	var out []op
	for _, k := range c.keys {
		at := rec.now()
		out = append(out, op{Client: clients, What: "final", Key: k, Call: at, Return: at + 1, Result: ok, Job: byKey[k].Job, Status: byKey[k].Status, Epoch: byKey[k].Epoch})
	}
	return out
}

func (w *world) collectUplink(ctx context.Context, rec *recorder) error {
	u := &rec.e.Uplink
	u.Expected = true
	api := w.site.Central.API
	l, err := api.ListJobs(ctx, connect.NewRequest(&forgeyardv1.ListCentralJobsRequest{}))
	if err != nil {
		return err
	}
	for _, j := range l.Msg.Jobs {
		u.Jobs = append(u.Jobs, delegated{Grant: j.GrantId, Status: j.Status, Outcomes: j.Outcomes, Record: j.Record})
	}
	a, err := api.Audit(ctx, connect.NewRequest(&forgeyardv1.AuditRequest{Limit: 10_000}))
	if err != nil {
		return err
	}
	for _, e := range a.Msg.Entries {
		u.Audit = append(u.Audit, e.Seq)
		var n uint64
		if _, err := fmt.Sscanf(e.Text, "record %d,", &n); e.Kind == "record" && err == nil && !strings.Contains(e.Text, "duplicate") {
			u.Taken = append(u.Taken, n)
		}
	}
	s, err := api.ListSites(ctx, connect.NewRequest(&forgeyardv1.ListSitesRequest{}))
	if err != nil {
		return err
	}
	for _, site := range s.Msg.Sites {
		u.Records = site.Records
	}
	st, err := w.site.Nodes[0].SiteStatus(ctx)
	if err == nil {
		u.Acked, u.Pending = st.Outbox.GetAcked(), st.Outbox.GetPending()
	}
	return err
}

// keep puts what was seen where it outlives the test, and says how to see it again.
func (w *world) keep(e evidence) string {
	dir := *keepFlag
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp("", fmt.Sprintf("forgeyard-partition-seed%d-", e.Shape.Seed))
	} else {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return "nothing could be kept: " + err.Error()
	}
	_, err = e.save(dir)
	logs, gerr := filepath.Glob(filepath.Join(w.dir, "*.log"))
	errs := []error{err, gerr, os.WriteFile(filepath.Join(dir, "weather.txt"), []byte(strings.Join(e.Done, "\n")+"\n"), 0o644)}
	for _, l := range logs {
		b, err := os.ReadFile(l)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, filepath.Base(l)), b, 0o644))
	}
	if err := errors.Join(errs...); err != nil {
		return "not all could be kept: " + err.Error()
	}
	minutes := (e.Shape.Length + aroundIt).Minutes()
	return fmt.Sprintf("seed %d. The history, the weather and the daemons' logs are in %s\nagain: make partition SEED=%d MINUTES=%g\njudge what was kept: go test ./e2e/partition -run TestHistory -args -history %s/history.json",
		e.Shape.Seed, dir, e.Shape.Seed, minutes, dir)
}

// TestHistory judges a history that was kept.
func TestHistory(t *testing.T) {
	if *historyFlag == "" {
		t.Skip("no -history was given")
	}
	e, err := load(*historyFlag)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(count(e))
	for _, w := range verdict(e) {
		t.Error(w)
	}
}
