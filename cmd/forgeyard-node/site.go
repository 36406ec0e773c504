package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) siteCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "site", Short: "Show and steer the site"})
	cfg := a.Build(cli.Command{Use: "config", Short: "Show and change the site's policy"})
	cfg.AddCommand(a.configGet(), a.configSet())
	g.AddCommand(a.siteStatus(), a.siteMembers(), a.siteEvents(), a.memberSet("site", "remove", "Remove a node that holds no lease from the site, for good"), cfg,
		a.memberSet("site", "promote", "Let a node vote again that was demoted"), a.memberSet("site", "demote", "Take a node's vote; it keeps its copy of the log and gets no vote by itself"),
		a.siteBackup(), a.siteRestore(), a.siteRecover(), a.siteRejoin())
	return g
}

func (a *app) siteStatus() *cobra.Command {
	return a.Build(cli.Command{
		Use: "status", Short: "Show how the site stands: members, uplink, work, devices",
		Example: "  forgeyard-node site status\n  forgeyard-node site status -o json | jq .connectivity.state", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			s, err := unary(ctx, c.site.Status, &forgeyardv1.SiteStatusRequest{})
			if err != nil {
				return err
			}
			return a.Print(s, func(p *cli.Page) { siteStatus(p, s) })
		},
	})
}

func siteStatus(p *cli.Page, s *forgeyardv1.SiteStatus) {
	p.Fact("site", "%s (%s), incarnation %d", s.Site.GetName(), s.Site.GetId(), s.Site.GetIncarnation())
	leader := s.Leader.GetName()
	if leader == "" {
		leader = "nobody"
	}
	p.Fact("leader", "%s, quorum %s, %s, log at %d", leader, cli.Yes(s.Quorum), plural(len(s.Voters), "voter"), s.AppliedIndex)
	connectivity(p, s.Connectivity)
	outbox(p, s.Outbox)
	j := s.Jobs
	p.Fact("jobs", "%d queued, %d running, %d suspended, %d unknown, %d ended", j.GetQueued(), j.GetRunning(), j.GetSuspended(), j.GetUnknown(), j.GetEnded())
	d := s.Devices
	p.Fact("devices", "%d available, %d leased, %d quarantined, %d other", d.GetAvailable(), d.GetLeased(), d.GetQuarantined(), d.GetOther())
	for _, a := range s.Advice {
		p.Fact("advice", "%s", a)
	}
	p.Fact("as of", "%s", cli.At(s.AsOf))
	p.Line("")
	members(p, s.Members)
}

func connectivity(p *cli.Page, c *forgeyardv1.Connectivity) {
	if c == nil {
		return
	}
	text := c.State
	if c.Since != nil {
		text += " since " + cli.Since(now(), c.Since)
	}
	if c.Central != "" {
		text += ", central daemon " + c.Central
	}
	if c.Drill {
		text += ", cut by a drill"
	}
	p.Fact("uplink", "%s", text)
	if c.Allowance.AsDuration() > 0 {
		line := fmt.Sprintf("%s of %s used, %s left", cli.PDur(c.Used), cli.PDur(c.Allowance), cli.PDur(c.Left))
		if c.Until != nil {
			line += ", until " + cli.At(c.Until)
		}
		p.Fact("allowance", "%s", line)
	}
	p.Fact("doubt", "%s", c.Doubt)
	switch {
	case c.Readiness == "ready":
		p.Fact("could go on alone", "yes, for %s", cli.PDur(c.Allowance))
	case c.Readiness != "":
		for i, f := range c.Shortfalls {
			name := "could go on alone"
			if i > 0 {
				name = ""
			}
			p.Row(name, "no: "+strings.TrimPrefix(f.Node+": "+f.What+": "+f.Detail, ": "))
		}
	}
}

func outbox(p *cli.Page, o *forgeyardv1.Outbox) {
	if o == nil || o.Pending == 0 && o.Sent == 0 {
		return
	}
	line := fmt.Sprintf("%d pending, %d acknowledged", o.Pending, o.Acked)
	if o.Oldest != nil {
		line += ", the oldest from " + cli.Since(now(), o.Oldest)
	}
	p.Fact("outbox", "%s", line)
}

func members(p *cli.Page, all []*forgeyardv1.Member) {
	p.Row("NODE", "ROLE", "STATE", "WORK", "PLATFORM", "LABELS", "ASSIGNED", "AS OF", "RUNNER")
	for _, m := range all {
		name := m.Name
		if m.Leader {
			name += " *"
		}
		platform := ""
		if c := m.Capabilities; c.GetOs() != "" { // else it has not said what it is
			platform = c.Os + "/" + c.Arch
		}
		p.Row(name, m.Role, m.State, work(m), platform, cli.Labels(m.Labels), assigned(m.Assigned), cli.Since(now(), m.AsOf), m.RunnerId)
	}
}

func work(m *forgeyardv1.Member) string {
	switch { // what a person decided first: it holds whether the node is heard or not
	case m.Waiting:
		return "not approved"
	case m.Disabled:
		return "disabled"
	case m.Draining:
		return "draining"
	case m.State != "alive":
		return "-"
	case m.SilentSince != nil:
		return "silent"
	}
	return "takes"
}

func (a *app) siteMembers() *cobra.Command {
	return a.Build(cli.Command{
		Use: "members", Short: "List the nodes of the site; * leads", Example: "  forgeyard-node site members -o json", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error { return a.listMembers(ctx) },
	})
}

func (a *app) listMembers(ctx context.Context) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	m, err := unary(ctx, c.site.Members, &forgeyardv1.MembersRequest{})
	if err != nil {
		return err
	}
	return cli.PrintList(a.Shell, m.Members, func(p *cli.Page) { members(p, m.Members) })
}

func (a *app) siteEvents() *cobra.Command {
	var follow bool
	var after uint64
	var kind string
	c := a.Build(cli.Command{
		Use: "events", Short: "Show what happened in the site",
		Long:    "Show what happened in the site: who joined, who leads, what was granted and refused, how the uplink stands and what is left of its allowance. `--kind lease` shows what became of leases, each with its reason. With -o json one object a line.",
		Example: "  forgeyard-node site events --follow\n  forgeyard-node site events -o json --after 120\n  forgeyard-node site events --kind lease", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			s, err := c.site.Events(ctx, connect.NewRequest(&forgeyardv1.SiteEventsRequest{Follow: follow, After: after, Kind: kind}))
			if err != nil {
				return err
			}
			defer func() { _ = s.Close() }() // it was only read
			for s.Receive() {
				e := s.Msg()
				if err := a.Line(e, fmt.Sprintf("%6d  %s  %-12s %s", e.Index, cli.At(e.At), e.Kind, e.Text)); err != nil {
					return err
				}
			}
			return s.Err()
		},
	})
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	c.Flags().StringVar(&kind, "kind", "", "only those: lease, uplink, readiness, member, session, capability, config, stale …")
	c.Flags().Uint64Var(&after, "after", 0, "only what came after this index of the log")
	return c
}

func (a *app) configGet() *cobra.Command {
	return a.Build(cli.Command{
		Use: "get [KEY]", Short: "Show the site's policy, or one value of it", Args: cobra.MaximumNArgs(1),
		Example: "  forgeyard-node site config get\n  forgeyard-node site config get lease.ttl", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.site.GetConfig, &forgeyardv1.GetConfigRequest{})
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return cli.PrintList(a.Shell, r.Settings, func(p *cli.Page) {
					for _, s := range r.Settings {
						p.Row(s.Key, s.Value)
					}
				})
			}
			i := slices.IndexFunc(r.Settings, func(s *forgeyardv1.Setting) bool { return s.Key == args[0] })
			if i < 0 {
				return forgeyard.Errorf("site config", forgeyard.NotFound, "there is no key %q", forgeyard.Clip(args[0], 80)).WithHint("`site config get` lists them")
			}
			return a.Print(r.Settings[i], func(p *cli.Page) { p.Line("%s", r.Settings[i].Value) })
		},
	})
}

func (a *app) configSet() *cobra.Command {
	return a.Build(cli.Command{
		Use: "set KEY VALUE", Short: "Change one value of the site's policy", Args: cobra.ExactArgs(2),
		Example: "  forgeyard-node site config set lease.ttl 20s", Exits: []int{1, 3, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if _, err := unary(ctx, c.site.SetConfig, &forgeyardv1.SetConfigRequest{Key: args[0], Value: args[1]}); err != nil {
				return err
			}
			return a.PrintValue(map[string]string{"key": args[0], "value": args[1]}, func(p *cli.Page) { p.Line("%s is %s", args[0], args[1]) })
		},
	})
}
