package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) leaseCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "lease", Aliases: []string{"leases"}, Short: "Show who holds which work, and take it back"})
	g.AddCommand(a.leaseList(), a.leaseRevoke())
	return g
}

func (a *app) leaseList() *cobra.Command {
	var all bool
	c := a.Build(cli.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the live leases of the site",
		Long:    "List the live leases of the site: who holds which job, and what that runner may do while it hears nothing. What became of leases is in `site events --kind lease`.",
		Example: "  forgeyard-node lease list\n  forgeyard-node lease list --all -o json", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.job.ListLeases, &forgeyardv1.ListLeasesRequest{All: all})
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, l.Leases, func(p *cli.Page) { leaseTable(p, l.Leases) })
		},
	})
	c.Flags().BoolVar(&all, "all", false, "the last ended one of every open job too")
	return c
}

func leaseTable(p *cli.Page, all []*forgeyardv1.Lease) {
	p.Row("LEASE", "JOB", "EPOCH", "RUNNER", "STATE", "POLICY", "GRANTED", "WHY")
	for _, l := range all {
		p.Row(l.LeaseId, l.JobId, strconv.FormatUint(l.Epoch, 10), l.Runner, l.State, l.Policy, cli.Since(now(), l.Granted), leaseWhy(l))
	}
}

// leaseWhy is what a person must know of a lease beside its state.
func leaseWhy(l *forgeyardv1.Lease) string {
	switch {
	case l.SilentSince != nil:
		return "its runner has not renewed since " + cli.Since(now(), l.SilentSince)
	case l.Ended == nil:
		return ""
	}
	why := strings.TrimSuffix(l.Reason+": "+l.Detail, ": ")
	if !l.Certain {
		why += " (it may still run there)"
	}
	return why
}

func (a *app) leaseRevoke() *cobra.Command {
	var req forgeyardv1.RevokeLeaseRequest
	c := a.Build(cli.Command{
		Use: "revoke ID", Short: "Take a lease from its holder, whether that can be reached or not", Args: cobra.ExactArgs(1),
		Long: "Take a lease from its holder, whether that can be reached or not. Nothing commits under it from then on, and its holder kills the work as soon as it hears of it. " +
			"The job goes on elsewhere: at once where the fence is enough, else when its holder has certainly stopped. ID is a lease, a job or a run, or the last letters of one. " +
			"--security is for a runner that is not trusted any more; disable or remove that one too.",
		Example: "  forgeyard-node lease revoke 7KQ2 --reason 'the bench is needed'\n  forgeyard-node lease revoke 7KQ2 --reason 'key stolen' --security", Exits: []int{1, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			if strings.TrimSpace(req.Reason) == "" {
				return a.Usage("lease revoke", "--reason is empty; say why, it stands in the site's events")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			req.Lease = args[0]
			l, err := unary(ctx, c.job.RevokeLease, &req)
			if err != nil {
				return err
			}
			return a.Print(l, func(p *cli.Page) { p.Line("%s of %s: revoked; the job is %s", l.LeaseId, l.Runner, l.JobStatus) })
		},
	})
	c.Flags().StringVar(&req.Reason, "reason", "", "why; required")
	c.Flags().BoolVar(&req.Security, "security", false, "the runner is not trusted any more")
	return c
}
