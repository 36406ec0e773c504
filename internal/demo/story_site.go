package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"connectrpc.com/connect"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
)

// How long a step may take on a slow machine that does other things too.
const (
	soon  = 20 * time.Second
	later = 60 * time.Second
	work  = 4 * time.Minute
)

// quick is the policy of a site that notices silence soon.
func quick() map[string]any {
	return map[string]any{"lease": map[string]any{"ttl": "3s", "renew": "1s", "grace": "1s"}}
}

// settings are a node's. All nodes show the gate to their sandboxes, and the toolchain
// where it does not stand below /usr.
func (d *demo) settings(name string) localsite.Settings {
	binds := []string{filepath.Join(d.dir, gateDir)}
	if !seenInside(d.root) {
		binds = append(binds, d.root)
	}
	s := localsite.Settings{
		"sandbox":  m{"read_only_binds": binds},
		"shutdown": m{"grace": "1s"},
		"limits":   m{"reserve": m{"memory": "128MiB", "disk": "256MiB"}},
	}
	if name == "n1" {
		s["labels"] = m{"role": "desk"}
		s["devices"] = []m{{
			"id": boardID, "kind": "serial", "path": filepath.Join(d.dir, "board-tty"), "labels": m{"board": "rev4"},
			"reset": m{"send": "RESET\n", "expect": "READY", "timeout": "10s"},
		}}
	} else {
		s["labels"] = m{"role": "worker"}
	}
	return s
}

const boardID = "board-1"

// join makes a site of three from nothing.
func (d *demo) join(ctx context.Context) error {
	began := time.Now()
	policy, err := d.site.SiteFile(quick())
	if err != nil {
		return err
	}
	n1, config, err := d.site.AddNode("n1", d.settings("n1"))
	if err != nil {
		return err
	}
	if _, err := d.run(ctx, n1, "", "init", "--site", "bench", "--config", config, "--site-config", policy); err != nil {
		return err
	}
	if err := d.up(ctx, n1); err != nil {
		return err
	}
	token, err := d.run(ctx, n1, "", "token", "create", "--uses", "2")
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, name := range []string{"n2", "n3"} {
		n, config, err := d.site.AddNode(name, d.settings(name))
		if err != nil {
			return err
		}
		fmt.Fprintf(d.cfg.Out, "         %s$ forgeyard-node join - --config %s.yaml < token\n", name, name)
		g.Go(func() error {
			_, err := d.site.Command(gctx, d.cfg.Programs.Node, n.Env(), token, "join", "-", "--config", config)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := d.up(ctx, d.site.Nodes[1:]...); err != nil {
		return err
	}
	st, err := d.site.AwaitVoters(ctx, n1, 3, later)
	if err != nil {
		return err
	}
	took := time.Since(began)
	d.say("site %s has three voters, promoted by themselves; %s leads", st.Site.Name, st.Leader.Name)
	d.table.add(took < 10*time.Second, "three nodes are up and joined in under 10 s", "%d voters alive, quorum, after %.1f s", len(st.Voters), took.Seconds())
	return nil
}

// up starts daemons and waits until they are online.
func (d *demo) up(ctx context.Context, nodes ...*localsite.Node) error {
	for _, n := range nodes {
		fmt.Fprintf(d.cfg.Out, "         %s$ forgeyard-node up &\n", n.Name)
		if err := n.Up(); err != nil {
			return err
		}
	}
	return d.site.AwaitOnline(ctx, later, nodes...)
}

// connect starts the central daemon and enrols the site.
func (d *demo) connect(ctx context.Context) error {
	n1 := d.site.Nodes[0]
	fmt.Fprintln(d.cfg.Out, "         central$ forgeyard-central up --listen 127.0.0.1:0 --name hq &")
	if err := d.site.UpCentral("hq"); err != nil {
		return err
	}
	err := d.await(ctx, "the central daemon", later, func(ctx context.Context) (bool, error) {
		_, err := d.site.Central.API.Status(ctx, connect.NewRequest(&forgeyardv1.CentralStatusRequest{}))
		return err == nil, err
	})
	if err != nil {
		return err
	}
	ticket, err := d.runCentral(ctx, "ticket", "create", "--silent-after", "1s", "--grace", "1s", "--offline-for", "8h")
	if err != nil {
		return err
	}
	if _, err := d.run(ctx, n1, strings.TrimSpace(ticket), "uplink", "connect", "-"); err != nil {
		return err
	}
	if err := d.awaitUplink(ctx, soon, "online"); err != nil {
		return err
	}
	d.say("the site is online: it may work for 8h of silence, after 1s it knows of it, after 1s more it goes on by itself")
	return nil
}

func (d *demo) awaitUplink(ctx context.Context, bound time.Duration, state string) error {
	return d.await(ctx, "uplink "+state, bound, func(ctx context.Context) (bool, error) {
		st, err := d.site.Nodes[0].SiteStatus(ctx)
		return err == nil && st.Connectivity.GetState() == state, err
	})
}

// cut cuts the uplink once the work has its first checkpoint, and waits until the site
// goes on by the authority it has, and has shown it.
func (d *demo) cut(ctx context.Context) error {
	n1 := d.site.Nodes[0]
	err := d.await(ctx, "the first checkpoint", work, func(ctx context.Context) (bool, error) {
		j, err := n1.Job(ctx, d.facts.verify)
		if err != nil {
			return false, err
		}
		return len(j.Checkpoints) > 0, d.alive(ctx, j)
	})
	if err != nil {
		return err
	}
	d.say("the first package is vetted and tested, and its checkpoint is on two nodes")
	st, err := n1.SiteStatus(ctx)
	if err != nil {
		return err
	}
	d.facts.cutIndex = st.AppliedIndex
	if _, err := d.run(ctx, n1, "", "uplink", "drill", "cut"); err != nil {
		return err
	}
	if err := d.awaitUplink(ctx, soon, "offline_authorized"); err != nil {
		return err
	}
	before, err := n1.Job(ctx, d.facts.verify)
	if err != nil {
		return err
	}
	last := newest(before)
	var j *forgeyardv1.Job
	err = d.await(ctx, "a checkpoint while offline", work, func(ctx context.Context) (bool, error) {
		if j, err = n1.Job(ctx, d.facts.verify); err != nil {
			return false, err
		}
		return newest(j).GetSeq() > last.GetSeq(), d.alive(ctx, j)
	})
	if err != nil {
		return err
	}
	events, err := d.uplinkEvents(ctx)
	if err != nil {
		return err
	}
	d.say("the site goes on without the central daemon: %s", strings.Join(events, "; "))
	d.table.add(inOrder(events, "drill: cut=true", "grace", "offline_authorized") && newest(j).GetSeq() > last.GetSeq(),
		"the uplink is cut, and the site goes on within its allowance", "%s, then checkpoint %d committed", "grace → offline_authorized", newest(j).GetSeq())
	return nil
}

// uplinkEvents are what the site noted of its uplink since the cut.
func (d *demo) uplinkEvents(ctx context.Context) ([]string, error) {
	all, err := d.site.Nodes[0].Events(ctx, d.facts.cutIndex)
	var out []string
	for _, e := range all {
		if e.Kind == "uplink" {
			out = append(out, e.Text)
		}
	}
	return out, err
}

// afterRestore are the states that followed the end of the drill: reconciling is
// among them unless everything was acknowledged before it could be noted.
func afterRestore(events []string) (out []string) {
	back := false
	for _, e := range events {
		word, _, _ := strings.Cut(strings.TrimSpace(e), " ")
		if back {
			out = append(out, strings.TrimSuffix(word, ":"))
		}
		back = back || strings.HasPrefix(e, "drill: cut=false")
	}
	return out
}

// newest is the last committed checkpoint of a job; nil when there is none.
func newest(j *forgeyardv1.Job) *forgeyardv1.Checkpoint {
	var c *forgeyardv1.Checkpoint
	for _, k := range j.GetCheckpoints() {
		if k.Seq > c.GetSeq() {
			c = k
		}
	}
	return c
}

// reconcile restores the uplink and asks the central daemon what it has.
func (d *demo) reconcile(ctx context.Context) error {
	n1 := d.site.Nodes[0]
	st, err := n1.SiteStatus(ctx)
	if err != nil {
		return err
	}
	pending := st.Outbox.GetPending()
	if _, err := d.run(ctx, n1, "", "uplink", "drill", "restore"); err != nil {
		return err
	}
	if err := d.awaitUplink(ctx, later, "online"); err != nil {
		return err
	}
	var jobs []*forgeyardv1.CentralJob
	err = d.await(ctx, "the results at the central daemon", later, func(ctx context.Context) (bool, error) {
		l, err := d.site.Central.API.ListJobs(ctx, connect.NewRequest(&forgeyardv1.ListCentralJobsRequest{}))
		if err != nil {
			return false, err
		}
		jobs = l.Msg.Jobs
		for _, j := range jobs {
			if j.Received == nil || !j.ObjectsComplete {
				return false, nil
			}
		}
		return len(jobs) > 0, nil
	})
	if err != nil {
		return err
	}
	text, err := d.runCentral(ctx, "job", "list")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		fmt.Fprintf(d.cfg.Out, "         %s\n", strings.TrimRight(line, "\n"))
	}
	return d.judgeResults(ctx, jobs, pending)
}

func (d *demo) judgeResults(ctx context.Context, jobs []*forgeyardv1.CentralJob, pending int64) error {
	events, err := d.uplinkEvents(ctx)
	if err != nil {
		return err
	}
	st, err := d.site.Nodes[0].SiteStatus(ctx)
	if err != nil {
		return err
	}
	back := afterRestore(events)
	d.table.add(len(back) > 0 && pending > 0 && st.Outbox.GetPending() == 0 && st.Connectivity.GetState() == "online",
		"the link returns, and what waited is delivered", "%d records waited; %s; %d wait now", pending, strings.Join(back, ", "), st.Outbox.GetPending())
	want := map[string]bool{d.facts.verifyGrant: true, d.facts.boardGrant: true}
	ok := len(jobs) == len(want)
	var said []string
	for _, j := range jobs {
		ok = ok && want[j.GrantId] && j.Outcomes == 1 && j.Status == "done" && j.ObjectsComplete && len(j.Outputs) == 1
		said = append(said, fmt.Sprintf("%s: outcomes %d, objects complete %v, fence %s", j.Title, j.Outcomes, j.ObjectsComplete, j.Fence))
	}
	d.table.add(ok, "the central daemon has each result exactly once", "%s", strings.Join(said, "; "))
	return nil
}
