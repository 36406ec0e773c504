package main

import (
	"context"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) uplinkCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "uplink", Short: "Show and steer the link to the central daemon"})
	drill := a.Build(cli.Command{
		Use: "drill", Short: "Cut the link on purpose, and restore it",
		Long: "Cut the link on purpose, and restore it: the site behaves as if the central daemon were out of reach, so people can see what would happen.",
	})
	drill.AddCommand(
		a.uplinkLeaf("cut", "Cut the link", []int{1, 4, 5, 130}, func(ctx context.Context, c *client) (*forgeyardv1.UplinkStatus, error) {
			return unary(ctx, c.uplink.Drill, &forgeyardv1.UplinkDrillRequest{Cut: true})
		}),
		a.uplinkLeaf("restore", "Restore the link", []int{1, 4, 5, 130}, func(ctx context.Context, c *client) (*forgeyardv1.UplinkStatus, error) {
			return unary(ctx, c.uplink.Drill, &forgeyardv1.UplinkDrillRequest{})
		}),
	)
	g.AddCommand(
		a.uplinkLeaf("status", "Show how the site stands to its central daemon", []int{1, 5, 130}, func(ctx context.Context, c *client) (*forgeyardv1.UplinkStatus, error) {
			return unary(ctx, c.uplink.Status, &forgeyardv1.UplinkStatusRequest{})
		}),
		a.uplinkConnect(),
		a.uplinkLeaf("disconnect", "Leave the central daemon; the site stands alone", []int{1, 4, 5, 130}, func(ctx context.Context, c *client) (*forgeyardv1.UplinkStatus, error) {
			return unary(ctx, c.uplink.Disconnect, &forgeyardv1.UplinkDisconnectRequest{})
		}),
		drill,
	)
	return g
}

func (a *app) uplinkLeaf(use, short string, exits []int, call func(context.Context, *client) (*forgeyardv1.UplinkStatus, error)) *cobra.Command {
	return a.Build(cli.Command{
		Use: use, Short: short, Example: "  forgeyard-node uplink " + map[bool]string{true: "drill "}[use == "cut" || use == "restore"] + use, Exits: exits,
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			s, err := call(ctx, c)
			if err != nil {
				return err
			}
			return a.Print(s, func(p *cli.Page) { uplinkText(p, s) })
		},
	})
}

func (a *app) uplinkConnect() *cobra.Command {
	return a.Build(cli.Command{
		Use: "connect TICKET", Short: "Enrol the site with a central daemon", Args: cobra.ExactArgs(1),
		Long:    "Enrol the site with a central daemon, with a ticket of `forgeyard-central ticket create`; `-` reads it from stdin.",
		Example: "  forgeyard-node uplink connect \"$(forgeyard-central ticket create)\"", Exits: []int{1, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			ticket, err := a.secret(args[0])
			if err != nil {
				return err
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			out, err := c.uplink.Connect(ctx, connect.NewRequest(&forgeyardv1.UplinkConnectRequest{Ticket: ticket}))
			if err != nil {
				return err
			}
			return a.Print(out.Msg, func(p *cli.Page) { uplinkText(p, out.Msg) })
		},
	})
}

func uplinkText(p *cli.Page, s *forgeyardv1.UplinkStatus) {
	connectivity(p, s.Connectivity)
	outbox(p, s.Outbox)
	p.Fact("central", "%s", s.CentralPeer)
	if s.CentralPeer != "" {
		p.Fact("delegations", "taken in up to %s", strconv.FormatUint(s.Cursor, 10))
		p.Fact("last contact", "%s", cli.Since(now(), s.LastContact))
		p.Fact("last error", "%s", s.LastError)
	}
	p.Fact("as of", "%s", cli.At(s.AsOf))
}
