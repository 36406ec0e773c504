package main

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) runCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "run", Aliases: []string{"runs"}, Short: "Show, follow and cancel runs of the ledger"})
	g.AddCommand(a.runList(), a.runShow(), a.runLog(), a.attachCommand("run"), a.cancelCommand("run"))
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
