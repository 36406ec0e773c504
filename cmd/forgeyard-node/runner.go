package main

import (
	"context"

	"github.com/spf13/cobra"

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
		a.runnerSet("drain", "Give a runner no new work; what runs goes on"),
		a.runnerSet("resume", "Give a drained runner work again"),
		a.runnerSet("disable", "Give a runner nothing until it is enabled, across its restarts"),
		a.runnerSet("enable", "Give a disabled runner work again"),
	)
	return g
}

// member finds a member by its runner id or name.
func member(ctx context.Context, c *client, word string) (*forgeyardv1.Member, error) {
	all, err := unary(ctx, c.site.Members, &forgeyardv1.MembersRequest{})
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
			m, err := member(ctx, c, args[0])
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
	if m.Capabilities != nil {
		capabilities(p, m.Capabilities)
	}
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
