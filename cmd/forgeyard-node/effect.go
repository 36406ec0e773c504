package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) jobEffect() *cobra.Command {
	g := a.Build(cli.Command{Use: "effect", Short: "Show what a job does outside, and settle what nobody else can tell"})
	g.AddCommand(a.effectList(), a.effectResolve())
	return g
}

func (a *app) effectList() *cobra.Command {
	return a.Build(cli.Command{
		Use: "list ID", Aliases: []string{"ls"}, Short: "List the effects of a job, with what is known of each", Args: cobra.ExactArgs(1),
		Example: "  forgeyard-node job effect list 7KQ2\n  forgeyard-node job effect list 7KQ2 -o json", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: args[0]})
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, j.Effects, func(p *cli.Page) { effects(p, j.Effects) })
		},
	})
}

func (a *app) effectResolve() *cobra.Command {
	var done, notDone, again bool
	var reason string
	c := a.Build(cli.Command{
		Use: "resolve ID KEY", Short: "Say what became of an effect, so that its job goes on", Args: cobra.ExactArgs(2),
		Long: "Say what became of an effect of an earlier epoch that has no outcome. Look at the outside system first: --done lets nobody perform it again, --not-done lets the next epoch perform it, " +
			"--again has the job's reconcile command look once more. Who said it, and the reason, are in the site's events and in the ledger.",
		Example: "  forgeyard-node job effect resolve 7KQ2 publish/a --done --reason 'it is in the registry, sha256 compared'", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			state, n := "", 0
			for s, given := range map[string]bool{"done": done, "aborted": notDone, "open": again} {
				if given {
					state, n = s, n+1
				}
			}
			switch {
			case n != 1:
				return a.Usage("job effect resolve", "exactly one of --done, --not-done and --again is needed")
			case reason == "":
				return a.Usage("job effect resolve", "--reason is needed: how is it known?")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			j, err := unary(ctx, c.job.ResolveEffect, &forgeyardv1.ResolveEffectRequest{JobId: args[0], Key: args[1], State: state, Reason: reason})
			if err != nil {
				return err
			}
			return a.PrintValue(j, func(p *cli.Page) { p.Line("%s %s %s", j.JobId, j.Status, j.Reason) })
		},
	})
	c.Flags().BoolVar(&done, "done", false, "it was performed")
	c.Flags().BoolVar(&notDone, "not-done", false, "it was not performed")
	c.Flags().BoolVar(&again, "again", false, "have the job look for it again")
	c.Flags().StringVar(&reason, "reason", "", "how that is known")
	return c
}

// effects is the ledger as people read it.
func effects(p *cli.Page, all []*forgeyardv1.Job_Effect) {
	if len(all) == 0 {
		return
	}
	p.Head("effects", "EFFECT", "KIND", "STATE", "EPOCH", "POLICY", "BY", "EVIDENCE OR REASON")
	for _, e := range all {
		said := e.Why
		if said == "" {
			said, _, _ = strings.Cut(e.Evidence, "\n")
		}
		p.Row(e.Key, e.Kind, e.State, strconv.FormatUint(e.Epoch, 10), e.Policy, e.By, said)
	}
}

// committedSteps are the results that no later epoch makes again.
func committedSteps(p *cli.Page, j *forgeyardv1.Job) {
	if len(j.CommittedSteps) == 0 {
		return
	}
	p.Head("committed steps", "STEP", "EPOCH", "EVIDENCE")
	for _, s := range j.CommittedSteps {
		p.Row(s.Name, strconv.FormatUint(s.Epoch, 10), s.Evidence)
	}
}
