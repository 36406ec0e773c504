package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node/internal/bench/report"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
)

const patience = time.Minute

// form makes a site of three with the policy that a site has by itself, and measures
// how long that takes from the first command on.
func (b *bench) form(ctx context.Context) error {
	began := time.Now()
	one, config, err := b.site.AddNode("n1", nil)
	if err != nil {
		return err
	}
	node := b.site.Programs.Node
	if _, err := b.site.Command(ctx, node, one.Env(), "", "init", "--site", "bench", "--config", config); err != nil {
		return err
	}
	if err := one.Up(); err != nil {
		return err
	}
	if err := b.site.AwaitOnline(ctx, patience, one); err != nil {
		return err
	}
	token, err := b.site.Command(ctx, node, one.Env(), "", "token", "create", "--uses", "2")
	if err != nil {
		return err
	}
	alone := time.Since(began)
	var g errgroup.Group
	for _, name := range []string{"n2", "n3"} {
		n, config, err := b.site.AddNode(name, nil)
		if err != nil {
			return err
		}
		g.Go(func() error {
			if _, err := b.site.Command(ctx, node, n.Env(), token, "join", "-", "--config", config); err != nil {
				return err
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, n := range b.site.Nodes[1:] {
		if err := n.Up(); err != nil {
			return err
		}
	}
	if err := b.site.AwaitOnline(ctx, patience, b.site.Nodes...); err != nil {
		return err
	}
	online := time.Since(began)
	if _, err := b.site.AwaitVoters(ctx, one, 3, patience); err != nil {
		return err
	}
	fmt.Fprintf(b.Out, "a site of one after %s, three online after %s, three voters after %s\n", report.Millis(alone.Seconds()), report.Millis(online.Seconds()), report.Millis(time.Since(began).Seconds()))
	b.Add(report.Measured("node.three_nodes_joined", report.Millis, 10, []float64{time.Since(began).Seconds()}))
	return nil
}

// idleFor is how long nothing is asked of the nodes before and while they are measured.
const idleFor = 10 * time.Second

// nodeSuite measures what idle nodes cost. A first job warms what the first job pays for.
func (b *bench) nodeSuite(ctx context.Context) error {
	if err := b.idle(ctx); err != nil {
		return err
	}
	before, err := b.usage()
	if err != nil {
		return err
	}
	if err := b.idle(ctx); err != nil {
		return err
	}
	after, err := b.usage()
	if err != nil {
		return err
	}
	var rss, cpu []float64
	for i, n := range b.site.Nodes {
		p := 100 * (after[i].CPU - before[i].CPU).Seconds() / idleFor.Seconds()
		rss, cpu = append(rss, after[i].RSS), append(cpu, p)
		st, err := n.Status(ctx)
		if err != nil {
			return err
		}
		leads := map[bool]string{true: ", leads"}[st.Leader == n.Name]
		fmt.Fprintf(b.Out, "%s: RSS %s (peak %s), %s of a core%s\n", n.Name, report.MiB(after[i].RSS), report.MiB(after[i].Peak), report.Percent(p), leads)
	}
	b.Add(report.Measured("node.idle_rss", report.MiB, 120<<20, rss))
	b.Add(report.Measured("node.idle_cpu", report.Percent, 1, cpu))
	return nil
}

// idle lets the nodes be. It waits for nothing: the time itself is what is measured.
func (b *bench) idle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(idleFor):
		return nil
	}
}

func (b *bench) usage() ([]report.Cost, error) {
	var out []report.Cost
	for _, n := range b.site.Nodes {
		c, err := report.CostOf(n.Daemon.PID)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// leaderOf finds the leader, and somebody else.
func (b *bench) leaderOf(ctx context.Context) (leader, other *localsite.Node, err error) {
	st, err := b.site.AwaitVoters(ctx, b.site.Nodes[0], len(b.site.Nodes), patience)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range b.site.Nodes {
		if n.Name == st.Leader.Name {
			leader = n
		} else {
			other = n
		}
	}
	if leader == nil {
		return nil, nil, fmt.Errorf("the leader %q is none of ours", st.Leader.Name)
	}
	return leader, other, nil
}
