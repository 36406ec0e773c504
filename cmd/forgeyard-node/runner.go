package main

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) runnerCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "runner", Aliases: []string{"runners"}, Short: "Show and steer the runners of the site"})
	g.AddCommand(
		a.Build(cli.Command{
			Use: "list", Aliases: []string{"ls"}, Short: "List the runners; * leads", Example: "  forgeyard-node runner list", Exits: []int{1, 5, 130},
			Run: func(ctx context.Context, _ []string) error { return a.listMembers(ctx) },
		}),
		a.runnerShow(),
		a.runnerDrain(),
		a.runnerSet("resume", "Give a drained runner work again"),
		a.runnerSet("disable", "Give a runner nothing until it is enabled, across its restarts"),
		a.runnerSet("enable", "Give a disabled runner work again"),
		a.runnerSet("approve", "Let a runner that waits for it work, and vote if its token said so"),
		a.runnerAssign(),
		a.runnerPreempt(),
		a.runnerAttestOff(),
	)
	return g
}

// member finds a member by its runner id or name.
func member(ctx context.Context, c *client, word string) (*forgeyardv1.Member, error) {
	return memberOf(ctx, c, word, &forgeyardv1.MembersRequest{})
}

func memberOf(ctx context.Context, c *client, word string, r *forgeyardv1.MembersRequest) (*forgeyardv1.Member, error) {
	all, err := unary(ctx, c.site.Members, r)
	if err != nil {
		return nil, err
	}
	for _, m := range all.Members {
		if m.RunnerId == word || m.Name == word {
			return m, nil
		}
	}
	return nil, forgeyard.Errorf("runner", forgeyard.NotFound, "no runner %q in the site", forgeyard.Clip(word, 60)).WithHint("`runner list` shows them")
}

func (a *app) runnerShow() *cobra.Command {
	return a.Build(cli.Command{
		Use: "show ID", Short: "Show one runner, by id or name", Args: cobra.ExactArgs(1), Example: "  forgeyard-node runner show bench-2", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			m, err := memberOf(ctx, c, args[0], &forgeyardv1.MembersRequest{HeartbeatOf: args[0]})
			if err != nil {
				return err
			}
			return a.Print(m, func(p *cli.Page) { runnerText(p, m) })
		},
	})
}

func runnerText(p *cli.Page, m *forgeyardv1.Member) {
	p.Fact("runner", "%s (%s)", m.Name, m.RunnerId)
	p.Fact("peer", "%s", m.PeerId)
	p.Fact("role", "%s", m.Role)
	p.Fact("state", "%s, as of %s", m.State, cli.Since(now(), m.AsOf))
	p.Fact("work", "%s", work(m))
	p.Fact("session", "%s", m.SessionId)
	p.Fact("version", "%s", m.Version)
	p.Fact("joined", "%s", cli.At(m.Joined))
	p.Fact("labels", "%s", cli.Labels(m.Labels))
	for _, addr := range m.Addrs {
		p.Fact("mesh", "%s", addr)
	}
	p.Fact("http", "%s", m.Http)
	heartbeatText(p, m)
	if m.Capabilities != nil {
		capabilities(p, m.Capabilities)
	}
}

// heartbeatText is what the leader last heard of a runner.
func heartbeatText(p *cli.Page, m *forgeyardv1.Member) {
	h := m.Heartbeat
	if h == nil {
		p.Fact("heartbeat", "none that the leader knows of")
		return
	}
	p.Fact("heartbeat", "%s ago: %s, pressure %s", cli.PDur(h.Ago), h.AgentState, h.Pressure)
	if h.Contest != "" {
		p.Fact("contested", "%s", h.Contest)
	}
	r := h.Resources
	p.Fact("taken", "%d leases: %.1f cores, %s of memory, %s of disk; %s of its disk are free", r.GetJobs(), float64(r.GetMilliCpu())/1000, cli.Size(r.GetMemory()), cli.Size(r.GetDisk()), cli.Size(r.GetDiskFree()))
	if w := r.GetMilliCpuWithheld(); w > 0 {
		p.Fact("withheld", "%.1f cores from new work, while other programs use them", float64(w)/1000)
	}
	if c := m.Capabilities; c != nil && h.CapabilityDigest != "" && c.Digest != h.CapabilityDigest {
		p.Fact("changed", "the machine is no longer what it registered: %s", h.CapabilityDigest)
	}
	for _, a := range h.ActiveAttempts {
		p.Fact("attempt", "%s epoch %d: %s, log up to %d", a.JobId, a.Epoch, a.Phase, a.LastLogSeq)
	}
}

// assigned is what the site says of a runner.
func assigned(g *forgeyardv1.Assignment) string {
	var words []string
	if g.GetPool() != "" {
		words = append(words, "pool "+g.Pool)
	}
	for _, t := range g.GetTrust() {
		words = append(words, "trust "+t)
	}
	if g.GetClass() != "" {
		words = append(words, "class "+g.Class)
	}
	if l := cli.Labels(g.GetLabels()); l != "" {
		words = append(words, "labels "+l)
	}
	return strings.Join(words, "; ")
}

func (a *app) runnerAssign() *cobra.Command {
	var labels []string
	var with forgeyardv1.SetMemberRequest_Assign
	c := a.Build(cli.Command{
		Use: "assign ID", Short: "Say for the site which pool a runner is in, and what it is trusted with", Args: cobra.ExactArgs(1),
		Long: "Say for the site which pool a runner is in, what it is trusted with, and which labels it has whatever it says itself. A runner in a pool serves the jobs that ask for that pool (job.requires.pool) and no others; " +
			"one in no pool serves those that ask for none. Each option sets all of its kind, and what is not named stays. Work that was given to the runner goes on; only what is offered from now on goes by it.",
		Example: "  forgeyard-node runner assign bench-2 --pool release --trust confidential\n  forgeyard-node runner assign bench-2 --label bench=a\n  forgeyard-node runner assign bench-2 --no-pool --no-trust", Exits: []int{1, 2, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			var err error
			if with.Labels, err = pairs("--label", labels); err != nil {
				return err
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.site.SetMember, &forgeyardv1.SetMemberRequest{Member: args[0], Action: "assign", Assign: &with})
			if err != nil {
				return err
			}
			return a.Print(r.Member, func(p *cli.Page) {
				p.Line("%s: %s", r.Member.GetName(), cmp.Or(assigned(r.Member.GetAssigned()), "nothing is assigned"))
			})
		},
	})
	f := c.Flags()
	f.StringVar(&with.Pool, "pool", "", "the pool that it is in")
	f.BoolVar(&with.NoPool, "no-pool", false, "it is in no pool")
	f.StringSliceVar(&with.Trust, "trust", nil, "what it is trusted with: confidential, trusted-network; repeat for more")
	f.BoolVar(&with.NoTrust, "no-trust", false, "it is trusted with nothing that needs the site's word")
	f.StringArrayVar(&labels, "label", nil, "k=v that stands before its own; repeat for more")
	f.StringVar(&with.Class, "class", "", "how likely it is that it is taken away: stable, preemptible, spot, best-effort")
	f.BoolVar(&with.NoLabels, "no-labels", false, "the site gives it no labels")
	return c
}

func (a *app) runnerPreempt() *cobra.Command {
	req := forgeyardv1.SetMemberRequest{Action: "preempt"}
	var left time.Duration
	var off bool
	c := a.Build(cli.Command{
		Use: "preempt ID", Short: "Say that a runner is being taken away", Args: cobra.ExactArgs(1),
		Long: "Say that a runner is being taken away, as its own sources would (preemption in node.yaml). It gets no new work; what runs there is asked for, what is worth most first, with a checkpoint where there is time, and goes on elsewhere. " +
			"Each such job is charged one interruption. --off takes the word back; the next process of the runner begins without it.",
		Example: "  forgeyard-node runner preempt bench-2 --left 2m\n  forgeyard-node runner preempt bench-2 --off", Exits: []int{1, 2, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			if left < 0 {
				return a.Usage("runner preempt", "--left %s is below 0", left)
			}
			if left > 0 {
				req.Left = durationpb.New(left)
			}
			if off {
				req.Action = "unpreempt"
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			req.Member = args[0]
			r, err := unary(ctx, c.site.SetMember, &req)
			if err != nil {
				return err
			}
			return a.Print(r.Member, func(p *cli.Page) {
				if r.Member.GetTakenAway() == "" {
					p.Line("%s is not being taken away", r.Member.GetName())
					return
				}
				p.Line("%s is being taken away, says %s", r.Member.GetName(), r.Member.GetTakenAway())
			})
		},
	})
	c.Flags().DurationVar(&left, "left", 0, "how long until it may be gone (default: nobody says)")
	c.Flags().StringVar(&req.Reason, "source", "", "who says so (default: you)")
	c.Flags().BoolVar(&off, "off", false, "it is not being taken away after all")
	return c
}

func (a *app) runnerAttestOff() *cobra.Command {
	req := forgeyardv1.SetMemberRequest{Action: "attest-off"}
	c := a.Build(cli.Command{
		Use: "attest-off ID", Short: "Say that a runner's machine is off, so that its work need not wait", Args: cobra.ExactArgs(1),
		Long: "Say that a runner's machine is off. Work with protected effects, or that asks for no replacement, waits until its holder has certainly stopped; your word makes that certain at once, " +
			"for all that the runner's last process held. Nothing can check it: pull the plug first. If the machine still works, two holders act on the same thing. " +
			"It is refused while the leader has heard the runner within the length of a lease, and stands in the site's events with your name, the reason and what it set free.",
		Example: "  forgeyard-node runner attest-off bench-2 --reason 'unplugged, and I stand beside it'", Exits: []int{1, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			if strings.TrimSpace(req.Reason) == "" {
				return a.Usage("runner attest-off", "--reason is empty; say how you know, it stands in the site's events")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			req.Member = args[0]
			r, err := unary(ctx, c.site.SetMember, &req)
			if err != nil {
				return err
			}
			return a.Print(r, func(p *cli.Page) {
				p.Line("%s is off; %d jobs that it held are free", args[0], len(r.Released))
				for _, id := range r.Released {
					p.Line("  %s", id)
				}
			})
		},
	})
	c.Flags().StringVar(&req.Reason, "reason", "", "how you know; required")
	return c
}

// runnerDrain drains one, several or all. All of them drain before the work of any moves: else it
// would move to the next that is emptied.
func (a *app) runnerDrain() *cobra.Command {
	var all, move bool
	c := a.Build(cli.Command{
		Use: "drain [ID...]", Short: "Give runners no new work; what runs goes on", Args: cobra.ArbitraryArgs,
		Long: "Give runners no new work; what runs there goes on. With --move work that takes checkpoints is asked back and goes on elsewhere, in the order of what it is worth to have saved for each second " +
			"of writing, at most two jobs of a machine at a time, and only as much as the rest of the site has room for. What takes none runs on; `drain --deadline` on the machine bounds the wait.",
		Example: "  forgeyard-node runner drain bench-2\n  forgeyard-node runner drain bench-2 bench-3 --move", Exits: []int{1, 2, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			if (len(args) == 0) != all {
				return a.Usage("runner drain", "name runners, or say --all, one of the two")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if all {
				l, err := unary(ctx, c.site.Members, &forgeyardv1.MembersRequest{})
				if err != nil {
					return err
				}
				for _, m := range l.Members {
					args = append(args, m.RunnerId)
				}
			}
			actions := []string{"drain"}
			if move {
				actions = append(actions, "move")
			}
			var out []*forgeyardv1.Member
			for _, action := range actions {
				out = nil
				for _, id := range args {
					r, err := unary(ctx, c.site.SetMember, &forgeyardv1.SetMemberRequest{Member: id, Action: action})
					if err != nil {
						return err
					}
					out = append(out, r.Member)
				}
			}
			if len(out) == 1 {
				return a.Print(out[0], func(p *cli.Page) { p.Line("%s: %s", out[0].Name, work(out[0])) })
			}
			return cli.PrintList(a.Shell, out, func(p *cli.Page) {
				for _, m := range out {
					p.Line("%s: %s", m.Name, work(m))
				}
			})
		},
	})
	c.Flags().BoolVar(&all, "all", false, "all members")
	c.Flags().BoolVar(&move, "move", false, "what runs there moves to others, as they have room")
	return c
}

func (a *app) runnerSet(action, short string) *cobra.Command {
	return a.memberSet("runner", action, short)
}

// memberSet is a command that changes what a member may do.
func (a *app) memberSet(noun, action, short string) *cobra.Command {
	return a.Build(cli.Command{
		Use: action + " ID", Short: short, Args: cobra.ExactArgs(1), Example: "  forgeyard-node " + noun + " " + action + " bench-2", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.site.SetMember, &forgeyardv1.SetMemberRequest{Member: args[0], Action: action})
			if err != nil {
				return err
			}
			m := r.Member
			if m == nil {
				m = &forgeyardv1.Member{Name: args[0]}
			}
			return a.Print(m, func(p *cli.Page) {
				if action == "remove" {
					p.Line("%s: removed", m.Name)
					return
				}
				p.Line("%s: %s", m.Name, work(m))
			})
		},
	})
}
