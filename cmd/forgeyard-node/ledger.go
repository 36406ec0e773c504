package main

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) runCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "run", Aliases: []string{"runs"}, Short: "Show, follow, suspend and cancel runs of the ledger"})
	g.AddCommand(a.runList(), a.runShow(), a.runLog(), a.attachCommand("run"), a.cancelCommand("run"), a.runSuspend(), a.runResume())
	return g
}

func (a *app) runList() *cobra.Command {
	var req forgeyardv1.ListRunsRequest
	c := a.Build(cli.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List runs", Example: "  forgeyard-node run list --kind build --status running", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.run.List, &req)
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, l.Runs, func(p *cli.Page) {
				p.Row("RUN", "KIND", "STATUS", "NODE", "AGE", "TITLE", "SUMMARY")
				for _, r := range l.Runs {
					p.Row(r.RunId, r.Kind, r.Status, r.Node, cli.Since(now(), r.Created), r.Title, r.Summary)
				}
			})
		},
	})
	c.Flags().StringVar(&req.Kind, "kind", "", "only this kind: build, ingest, garden")
	c.Flags().StringVar(&req.Status, "status", "", "only those: queued, running, done, failed, cancelled")
	return c
}

func (a *app) runShow() *cobra.Command {
	return a.Build(cli.Command{
		Use: "show ID", Short: "Show one run", Args: cobra.ExactArgs(1), Example: "  forgeyard-node run show 01K5…", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.run.Show, &forgeyardv1.ShowRunRequest{RunId: args[0]})
			if err != nil {
				return err
			}
			return a.Print(r, func(p *cli.Page) { runText(p, r) })
		},
	})
}

func runText(p *cli.Page, r *forgeyardv1.Run) {
	p.Fact("run", "%s", r.RunId)
	p.Fact("kind", "%s", r.Kind)
	p.Fact("title", "%s", r.Title)
	p.Fact("status", "%s", r.Status)
	p.Fact("summary", "%s", r.Summary)
	p.Fact("error", "%s", r.Error)
	p.Fact("category", "%s", r.Category)
	p.Fact("created", "%s by %s", cli.At(r.Created), orDash(r.By))
	p.Fact("started", "%s", cli.At(r.Started))
	p.Fact("ended", "%s", cli.At(r.Ended))
	if r.CancellationRequestedAt != nil {
		p.Fact("cancellation", "requested %s", cli.Since(now(), r.CancellationRequestedAt))
	}
	if r.Node != "" {
		p.Fact("runs on", "%s, pid %s", r.Node, orDash(pid(r.Pid)))
	}
	p.Fact("jobs", "%s", cli.Join(r.JobIds))
	if r.Group != "" {
		p.Fact("group", "%s, order %d", r.Group, r.Order)
	}
	p.Fact("superseded by", "%s", r.SupersededBy)
	if s := r.Suspension; s != nil {
		p.Fact("suspension", "%s: %s, asked for by %s %s", s.SuspensionId, s.State, s.By, cli.Since(now(), s.At))
	}
	p.Fact("events", "%d", r.LastSeq)
}

func (a *app) runLog() *cobra.Command {
	var after uint64
	c := a.Build(cli.Command{
		Use: "log ID", Aliases: []string{"events"}, Short: "Print the events of a run so far", Args: cobra.ExactArgs(1),
		Long:    "Print the events of a run so far. What its job prints is in `job log`.",
		Example: "  forgeyard-node run log 01K5… -o json", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			s, err := c.run.Attach(ctx, connect.NewRequest(&forgeyardv1.AttachRequest{RunId: args[0], After: after, Snapshot: true}))
			if err != nil {
				return err
			}
			defer func() { _ = s.Close() }() // it was only read
			for s.Receive() {
				e := s.Msg()
				if err := a.Line(e, cli.At(e.At)+"  "+e.Kind+"  "+e.Status+"  "+e.Message); err != nil {
					return err
				}
			}
			return s.Err()
		},
	})
	c.Flags().Uint64Var(&after, "after", 0, "only events after this number")
	return c
}

func (a *app) runSuspend() *cobra.Command {
	req := forgeyardv1.SuspendRunRequest{}
	var restart, cancel bool
	c := a.Build(cli.Command{
		Use: "suspend ID", Short: "Let a run wait as a whole, until it is resumed", Args: cobra.ExactArgs(1),
		Long: "Let a run wait as a whole, until `run resume`. It is refused where what is active can neither complete, be saved by a checkpoint nor be stopped safely. " +
			"The record of the suspension stays with the run; whether its job follows, `run show` tells.",
		Example: "  forgeyard-node run suspend 01K5…\n  forgeyard-node run suspend 01K5… --or-restart", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			switch {
			case restart && cancel:
				return a.Usage("run suspend", "--or-restart and --or-cancel exclude each other")
			case restart:
				req.Otherwise = "restart"
			case cancel:
				req.Otherwise = "cancel"
			}
			req.RunId = args[0]
			return a.printSuspended(ctx, func(c *client) (*forgeyardv1.SuspendRunResponse, error) { return unary(ctx, c.run.Suspend, &req) })
		},
	})
	c.Flags().BoolVar(&restart, "or-restart", false, "when it cannot be suspended, stop it: it begins anew when it is resumed")
	c.Flags().BoolVar(&cancel, "or-cancel", false, "when it cannot be suspended, cancel it")
	return c
}

func (a *app) runResume() *cobra.Command {
	return a.Build(cli.Command{
		Use: "resume ID", Short: "Let a suspended run go on", Args: cobra.ExactArgs(1),
		Example: "  forgeyard-node run resume 01K5…", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			return a.printSuspended(ctx, func(c *client) (*forgeyardv1.SuspendRunResponse, error) {
				return unary(ctx, c.run.Resume, &forgeyardv1.ResumeRunRequest{RunId: args[0]})
			})
		},
	})
}

func (a *app) printSuspended(ctx context.Context, ask func(*client) (*forgeyardv1.SuspendRunResponse, error)) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	r, err := ask(c)
	if err != nil {
		return err
	}
	return a.Print(r, func(p *cli.Page) {
		p.Line("suspension %s: its job is %s%s", r.SuspensionId, r.Status, unchanged(r.Changed))
	})
}
