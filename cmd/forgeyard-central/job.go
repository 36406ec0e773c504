package main

import (
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

func (c *cli) job() *cobra.Command {
	cmd := group(&cobra.Command{Use: "job", Aliases: []string{"jobs"}, Short: "Delegated jobs"})
	cmd.AddCommand(c.jobList(), c.jobShow(), c.jobCancel())
	return cmd
}

func (c *cli) jobList() *cobra.Command {
	var of string
	cmd := &cobra.Command{
		Use: "list", Short: "List delegated jobs, oldest first", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			r, err := cl.ListJobs(cmd.Context(), connect.NewRequest(&v1.ListCentralJobsRequest{Site: of}))
			if err != nil {
				return err
			}
			return list(c, r.Msg.Jobs, func(w io.Writer) {
				line(w, "GRANT", "SITE", "STATUS", "OBJECTS", "TITLE")
				for _, j := range r.Msg.Jobs {
					line(w, j.GrantId, j.Site, statusText(j), objectsText(j), orDash(j.Title))
				}
			})
		},
	}
	cmd.Flags().StringVar(&of, "site", "", "only of this site, by name or id")
	return cmd
}

func (c *cli) jobShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one delegated job, by its grant id", Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			r, err := cl.ShowJob(cmd.Context(), connect.NewRequest(&v1.ShowCentralJobRequest{GrantId: args[0]}))
			if err != nil {
				return err
			}
			return c.show(r.Msg, func(w io.Writer) { jobText(w, r.Msg) })
		},
	}
}

func (c *cli) jobCancel() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "Take a delegated job back",
		Long:  "Take a delegated job back. The request is pending until the site hears of it; it is then the first\nthing that the site does. While the site is cut off, its own authority ends the job in the end.",
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			r, err := cl.CancelJob(cmd.Context(), connect.NewRequest(&v1.CancelCentralJobRequest{GrantId: args[0]}))
			if err != nil {
				return err
			}
			return c.show(r.Msg, func(w io.Writer) {
				if r.Msg.Changed {
					line(w, "cancel pending; the job is "+r.Msg.Status)
				} else {
					line(w, "nothing changed; the job is "+r.Msg.Status)
				}
			})
		},
	}
}

func statusText(j *v1.CentralJob) string {
	if j.CancelRequested != nil && j.Received == nil {
		if j.CancelTaken != nil {
			return j.Status + ", cancelling since " + when(j.CancelRequested)
		}
		return j.Status + ", cancel pending since " + when(j.CancelRequested)
	}
	if j.SiteStatus != "" {
		return j.Status + ", " + j.SiteStatus + " at the site"
	}
	return j.Status
}

func objectsText(j *v1.CentralJob) string {
	switch {
	case j.Received == nil:
		return "-"
	case j.ObjectsComplete:
		return "complete"
	}
	return "on their way"
}

func jobText(w io.Writer, j *v1.CentralJob) {
	line(w, "grant", j.GrantId)
	line(w, "title", orDash(j.Title))
	line(w, "site", j.Site+" ("+j.SiteId+")")
	line(w, "status", statusText(j))
	line(w, "delegated", when(j.DelegatedAt)+", term "+fmt.Sprint(j.Term))
	if j.HardEnd != nil {
		line(w, "hard end", when(j.HardEnd))
	}
	line(w, "job at the site", orDash(j.JobId))
	if j.SiteStatus != "" {
		line(w, "it stands still", j.SiteStatus+": "+j.SiteReason+", as of "+when(j.SiteAsOf))
	}
	line(w, "fence", orDash(j.Fence))
	if j.Received != nil {
		line(w, "ended", when(j.Ended)+", heard "+when(j.Received)+" with record "+fmt.Sprint(j.Record))
		line(w, "exit code", j.ExitCode)
		line(w, "category", orDash(j.Category))
		line(w, "message", orDash(j.Message))
		line(w, "objects", objectsText(j)+" "+j.ObjectsError)
	}
	for _, o := range j.Outputs {
		line(w, "output", o.Path, o.Size, o.Digest)
	}
}
