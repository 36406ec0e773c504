package main

import (
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/uplink/central"
)

func (c *cli) ticket() *cobra.Command {
	cmd := group(&cobra.Command{Use: "ticket", Short: "Tickets, with which a site connects"})
	cmd.AddCommand(c.ticketCreate())
	return cmd
}

func (c *cli) ticketCreate() *cobra.Command {
	d := lease.DefaultUplinkTerms()
	var ttl, grace, offline, silent time.Duration
	cmd := &cobra.Command{
		Use:     "create",
		Short:   "Print a ticket for one site, with the terms it will get",
		Long:    "Print a ticket. It enrols one site, once, before it expires: forgeyard-node uplink connect TICKET.\nWhoever holds it can do that, so hand it over like a password.",
		Example: "  forgeyard-central ticket create --ttl 1h --offline-for 8h",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			r, err := cl.CreateTicket(cmd.Context(), connect.NewRequest(&v1.CreateTicketRequest{
				Ttl:   durationpb.New(ttl),
				Terms: &v1.UplinkTerms{SilentAfter: durationpb.New(silent), Grace: durationpb.New(grace), Allowance: durationpb.New(offline)},
			}))
			if err != nil {
				return err
			}
			if c.format == "text" {
				fmt.Fprintf(c.errs, "ticket %s, until %s; on a node of the site: forgeyard-node uplink connect TICKET\n", r.Msg.TicketId, when(r.Msg.Expires))
			}
			return c.show(r.Msg, func(w io.Writer) { line(w, r.Msg.Ticket) })
		},
	}
	f := cmd.Flags()
	f.DurationVar(&ttl, "ttl", central.DefaultTicketTTL, "how long the ticket can be used")
	f.DurationVar(&silent, "silent-after", d.SilentAfter, "silence after which the site is no longer online")
	f.DurationVar(&grace, "grace", d.Grace, "grace after that")
	f.DurationVar(&offline, "offline-for", d.Allowance, "all silence together, after which nothing delegated may go on")
	return cmd
}
