package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

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
	fmt.Fprintf(b.out, "a site of one after %s, three online after %s, three voters after %s\n", inMillis(seconds(alone)), inMillis(seconds(online)), inMillis(seconds(time.Since(began))))
	b.add(measured("node.three_nodes_joined", inMillis, 10, []float64{seconds(time.Since(began))}))
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
		p := 100 * (after[i].cpu - before[i].cpu).Seconds() / idleFor.Seconds()
		rss, cpu = append(rss, after[i].rss), append(cpu, p)
		st, err := n.Status(ctx)
		if err != nil {
			return err
		}
		leads := map[bool]string{true: ", leads"}[st.Leader == n.Name]
		fmt.Fprintf(b.out, "%s: RSS %s (peak %s), %s of a core%s\n", n.Name, inMiB(after[i].rss), inMiB(after[i].peak), inPercent(p), leads)
	}
	b.add(measured("node.idle_rss", inMiB, 120<<20, rss))
	b.add(measured("node.idle_cpu", inPercent, 1, cpu))
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

// cost is what a process has taken.
type cost struct {
	rss, peak float64 // bytes
	cpu       time.Duration
}

func (b *bench) usage() ([]cost, error) {
	var out []cost
	for _, n := range b.site.Nodes {
		c, err := costOf(n.Daemon.PID)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// ticks a second that /proc counts in: USER_HZ, which is 100 on every Linux that Go runs on.
const userHZ = 100

func costOf(pid int) (c cost, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return c, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return c, err
	}
	return parseCost(string(status), string(stat))
}

func parseCost(status, stat string) (c cost, err error) {
	for line := range strings.Lines(status) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		kb, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return c, err
		}
		switch f[0] {
		case "VmRSS:":
			c.rss = kb * 1024
		case "VmHWM:":
			c.peak = kb * 1024
		}
	}
	_, rest, ok := strings.Cut(stat, ") ") // the name may hold anything
	f := strings.Fields(rest)
	if !ok || len(f) < 13 || c.rss == 0 {
		return c, fmt.Errorf("/proc says something else than expected: %.80q", stat)
	}
	user, err := strconv.ParseInt(f[11], 10, 64)
	if err != nil {
		return c, err
	}
	system, err := strconv.ParseInt(f[12], 10, 64)
	if err != nil {
		return c, err
	}
	c.cpu = time.Duration(user+system) * time.Second / userHZ
	return c, nil
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
