package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/executor/process"
	"github.com/forgeyard/forgeyard-node/node/garden"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/node/runner/ownrun"
	"github.com/forgeyard/forgeyard-node/site"
)

// A run of kind ingest or garden is carried out by a child of this process, which asks it
// over the control socket for what only the owner of the store can do. What is done here
// for a child ends with the child's call, and the run's end is reported only when all of it
// has ended: so an end that the log knows is one for the daemon too (RS-106).

// errands counts what this process does for one attempt's child.
type errands struct {
	mu     sync.Mutex // guards all below
	active int
	over   bool
	idle   chan struct{} // closed when over and none is active
}

func newErrands() *errands { return &errands{idle: make(chan struct{})} }

// begin admits one more; false when the attempt is over.
func (e *errands) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return false
	}
	e.active++
	return true
}

func (e *errands) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.active--; e.active == 0 && e.over {
		close(e.idle)
	}
}

// finish admits no more, and returns when none is active.
func (e *errands) finish() {
	e.mu.Lock()
	if !e.over {
		e.over = true
		if e.active == 0 {
			close(e.idle)
		}
	}
	e.mu.Unlock()
	<-e.idle
}

// openOwn makes the executor of the node's own program, where there is one.
func (n *Node) openOwn() error {
	if n.cfg.Own == "" {
		return nil
	}
	e, err := process.New(process.Config{Own: true})
	if forgeyard.KindOf(err) == forgeyard.Unavailable {
		n.log.Info("this platform carries out no ingest and no garden runs", "why", err)
		return nil
	}
	if err == nil {
		n.executors[job.SandboxOwn] = e
	}
	return err
}

// ownProgram is the argv of the child; the attempt is named by its environment.
func (n *Node) ownProgram() []string {
	if _, ok := n.executors[job.SandboxOwn]; !ok {
		return nil
	}
	return []string{n.cfg.Own, "--data-dir", n.dir.path, OwnCommand}
}

// OwnCommand is the command of the node's program that is such a child.
const OwnCommand = "own-work"

// own finds the attempt that a child speaks for, with its execution.
func (n *Node) own(id forgeyard.AttemptID) (*execution, *runner.Attempt, error) {
	for _, x := range n.local.executions() {
		if x.authority.Attempt != id || !x.job.Spec.Own() {
			continue
		}
		x.mu.Lock()
		a := x.attempt
		x.mu.Unlock()
		if a != nil && !a.Lost() {
			return x, a, nil
		}
	}
	return nil, nil, forgeyard.Errorf("own work", forgeyard.Stale, "attempt %q is not at work here", forgeyard.Clip(string(id), 40))
}

// OwnTask implements control.Node.
func (n *Node) OwnTask(id forgeyard.AttemptID) (*forgeyardv1.OwnTask, error) {
	x, _, err := n.own(id)
	if err != nil {
		return nil, err
	}
	return &forgeyardv1.OwnTask{
		Kind: string(x.job.Spec.Kind), Spec: x.job.Spec.Canonical(), Hold: ownrun.HoldName(id),
		Here: x.job.Via == n.enrolment.RunnerID, Paths: n.settings().Policy.Ingest,
	}, nil
}

// OwnReport implements control.Node.
func (n *Node) OwnReport(id forgeyard.AttemptID, h job.Happening) error {
	_, a, err := n.own(id)
	if err != nil {
		return err
	}
	a.Tell(h)
	return nil
}

// errand does something for a child, unless its attempt is over.
func (n *Node) errand(id forgeyard.AttemptID, do func() error) error {
	x, _, err := n.own(id)
	if err != nil {
		return err
	}
	if !x.errands.begin() {
		return forgeyard.Errorf("own work", forgeyard.Stale, "attempt %q is over", forgeyard.Clip(string(id), 40))
	}
	defer x.errands.end()
	return do()
}

// OwnVerify implements control.Node.
func (n *Node) OwnVerify(ctx context.Context, id forgeyard.AttemptID, d forgeyard.Digest, isTree bool) (*forgeyardv1.OwnVerifyResponse, error) {
	out := &forgeyardv1.OwnVerifyResponse{}
	return out, n.errand(id, func() error {
		if !n.store.Has(ctx, d) { // a digest that the site has elsewhere
			if err := n.Bring(ctx, cas.Ref{Digest: d}, isTree); err != nil {
				return err
			}
		}
		r, err := garden.Whole(ctx, n.store, d, isTree)
		if err != nil {
			return err
		}
		i, err := n.store.Stat(ctx, d)
		if err != nil {
			return err
		}
		out.Objects, out.Bytes, out.Size = r.Objects, r.Bytes, i.Ref.Size
		if !i.Ref.Manifest.IsZero() {
			out.Manifest = i.Ref.Manifest.String()
		}
		return nil
	})
}

// OwnGarden implements control.Node: one step of maintenance. None of them touches what
// is pinned or in use, wherever it is ended (RS-104).
func (n *Node) OwnGarden(ctx context.Context, id forgeyard.AttemptID, action string) (*forgeyardv1.OwnGardenResponse, error) {
	step, ok := map[string]func(context.Context, *forgeyardv1.OwnGardenResponse) error{
		"retention": n.gardenPins, "workspaces": n.gardenWorkspaces, "gc": n.gardenStore, "scrub": n.gardenScrub, "devices": n.gardenDevices,
	}[action]
	if !ok {
		return nil, forgeyard.Errorf("garden", forgeyard.Invalid, "action %q is not retention, workspaces, gc, scrub or devices", forgeyard.Clip(action, 40))
	}
	out := &forgeyardv1.OwnGardenResponse{}
	err := n.errand(id, func() error { return step(ctx, out) })
	if err == nil {
		n.metrics.gardened.WithLabelValues(action).Add(float64(out.Done))
	}
	return out, err
}

// gardenPins lets go of what was kept for work that has ended.
func (n *Node) gardenPins(ctx context.Context, out *forgeyardv1.OwnGardenResponse) error {
	looked, dropped, err := n.dropPins(ctx)
	out.Looked, out.Done = int64(looked), int64(dropped)
	return err
}

func (n *Node) gardenWorkspaces(ctx context.Context, out *forgeyardv1.OwnGardenResponse) error {
	found, err := n.runner.Tidy(ctx, runner.Tidy{Keep: n.settings().Retention.DebugFailed, Logs: keepUnsaved})
	out.Looked = int64(len(found) + len(n.runner.Active()))
	for _, f := range found {
		switch {
		case f.Removed:
			out.Done++
		case f.Why != "":
			out.Trouble = append(out.Trouble, fmt.Sprintf("%s %s: %s", f.What, f.Name, f.Why))
		}
	}
	if err != nil {
		out.Trouble = append(out.Trouble, err.Error())
	}
	return nil
}

func (n *Node) gardenStore(ctx context.Context, out *forgeyardv1.OwnGardenResponse) error {
	r, err := n.store.GC(ctx, false)
	out.Looked, out.Done, out.Bytes = r.Examined, r.Removed, r.Freed
	return err
}

func (n *Node) gardenScrub(ctx context.Context, out *forgeyardv1.OwnGardenResponse) error {
	r, err := garden.Scrub(ctx, n.store, func(ctx context.Context, d forgeyard.Digest, isTree bool) error {
		return n.Bring(ctx, cas.Ref{Digest: d}, isTree)
	})
	out.Looked, out.Done, out.Bytes, out.Trouble = r.Objects, r.Mended, r.Bytes, r.Trouble
	return err
}

// gardenDevices looks whether each device hosted here is fit for its next lease. One that
// is leased is left alone; one that is not fit is told to the site, which quarantines it.
func (n *Node) gardenDevices(ctx context.Context, out *forgeyardv1.OwnGardenResponse) error {
	for id, d := range n.replica.State().Devices.All() {
		if d.Host != n.enrolment.RunnerID || d.Lease != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return forgeyard.E("garden", forgeyard.Interrupted, err)
		}
		out.Looked++
		ev, err := n.devices.Check(ctx, id)
		if err == nil && ev.OK {
			continue
		}
		why := ev.Error
		if err != nil {
			why = err.Error()
		}
		out.Done++
		out.Trouble = append(out.Trouble, fmt.Sprintf("device %s: %s", id, why))
		n.reportDevice(ctx, id, site.DeviceHealth{Device: id, Action: "checked", Reason: why})
	}
	return nil
}

// checkOwnRuns looks at the ingest and garden runs of this node: whether they can be carried
// out, what others may have it read, and how the last of each kind ended.
func (n *Node) checkOwnRuns() *forgeyardv1.Health_Check {
	c := check("own_runs")
	if n.ownProgram() == nil {
		c.Detail = "this process carries out no ingest and no garden runs"
		return c
	}
	said := judgeOwnRuns(c, n.replica.State(), n.enrolment.RunnerID)
	for _, p := range n.settings().Policy.Ingest {
		if _, err := os.Stat(p); err != nil {
			c.Status, c.Fix = checkWarn, "mount it, or take it out of policy.ingest in node.yaml"
			said = append(said, fmt.Sprintf("others may read %s, which is not there", p))
		}
	}
	c.Detail = forgeyard.Clip(strings.Join(said, "; "), 400)
	return c
}

// judgeOwnRuns says of each kind how the last run that ended on a node did, and warns of one
// that failed.
func judgeOwnRuns(c *forgeyardv1.Health_Check, st *site.State, here forgeyard.RunnerID) (said []string) {
	last := map[job.RunKind]site.Run{}
	for _, id := range st.Ended.All() { // by age
		if j, ok := st.Jobs.Get(id); ok && j.Spec.Own() && j.Spec.Node == here {
			last[j.Spec.Kind], _ = st.Runs.Get(j.Run)
		}
	}
	for _, kind := range []job.RunKind{job.Ingest, job.Garden} {
		r, ok := last[kind]
		at := r.Ended.Time().UTC().Format(time.RFC3339)
		switch {
		case !ok:
			said = append(said, fmt.Sprintf("no %s has ended here", kind))
		case r.Status == job.Failed:
			c.Status, c.Fix = checkWarn, "look at it with: forgeyard-node run show "+string(r.ID)
			said = append(said, fmt.Sprintf("the last %s failed at %s: %s", kind, at, forgeyard.Clip(r.Error, 120)))
		default:
			said = append(said, fmt.Sprintf("the last %s was %s at %s", kind, r.Status, at))
		}
	}
	return said
}

// needless says of a pin of this store what the agent decides.
func (n *Node) needless(st *site.State, p cas.Pin) bool {
	if id, ok := strings.CutPrefix(p.Owner, site.NamePin("")); ok {
		return agent.NameNeedless(st, forgeyard.JobID(id), append(p.Roots[:len(p.Roots):len(p.Roots)], p.Trees...), n.clock.Wall())
	}
	return agent.Needless(st, p.Owner, n.here, n.clock.Wall())
}

var errBehind = errors.New("this node's copy of the log may be behind")
