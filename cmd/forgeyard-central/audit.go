package main

import (
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

func (c *cli) audit() *cobra.Command {
	var limit int64
	cmd := &cobra.Command{
		Use: "audit", Short: "What was enrolled, delegated, cancelled and taken back, oldest first", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			r, err := cl.Audit(cmd.Context(), connect.NewRequest(&v1.AuditRequest{Limit: limit}))
			if err != nil {
				return err
			}
			return list(c, r.Msg.Entries, func(w io.Writer) {
				for _, a := range r.Msg.Entries {
					line(w, a.Seq, when(a.At), a.Kind, orDash(a.SiteId), orDash(a.GrantId), a.Text)
				}
			})
		},
	}
	cmd.Flags().Int64Var(&limit, "limit", 100, "the newest so many entries")
	return cmd
}
