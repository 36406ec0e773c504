package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) cleanupCommand() *cobra.Command {
	var dry, kept bool
	c := a.Build(cli.Command{
		Use:   "cleanup",
		Short: "Remove what ended work left on this node",
		Long: "Remove what ended work left on this node: workspaces and logs that no work names, and what a clean-up could not remove when its work ended. The node does so by itself every minute, with the grace of retention.stale_workspace; " +
			"this does it now. Nothing that is in use goes, and no result changes. Exits 1 when something stays that should go.",
		Example: "  forgeyard-node cleanup --dry-run\n  forgeyard-node cleanup\n  forgeyard-node cleanup --kept", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.node.Cleanup, &forgeyardv1.CleanupRequest{DryRun: dry, Kept: kept})
			if err != nil {
				return err
			}
			if err := a.Print(r, func(p *cli.Page) { cleanupText(p, r.Found, dry) }); err != nil {
				return err
			}
			return stays(r.Found, dry)
		},
	})
	f := c.Flags()
	f.BoolVar(&dry, "dry-run", false, "say what would go, and touch nothing")
	f.BoolVar(&kept, "kept", false, "also what is kept for a look: workspaces of failed jobs (retention.debug_failed), and logs that could not be saved")
	return c
}

// stays is the error of a clean-up that did not remove all that is to go.
func stays(found []*forgeyardv1.Leftover, dry bool) error {
	n := 0
	for _, f := range found {
		if f.Due && !f.Removed {
			n++
		}
	}
	if n == 0 || dry {
		return nil
	}
	return forgeyard.Errorf("cleanup", forgeyard.Other, "%d of %d stay", n, len(found)).WithHint("remove what stands in their way, and clean up again")
}

func cleanupText(p *cli.Page, found []*forgeyardv1.Leftover, dry bool) {
	if len(found) == 0 {
		p.Line("ended work has left nothing here")
		return
	}
	p.Head("left by ended work", "WHAT", "NAME", "AGE", "STATE")
	for _, f := range found {
		p.Row(f.What, f.Name, f.Age.AsDuration().Round(time.Second).String(), leftoverState(f, dry))
	}
}

func leftoverState(f *forgeyardv1.Leftover, dry bool) string {
	switch {
	case f.Removed:
		return "removed"
	case !f.Due:
		return "stays for now"
	case dry && f.Why != "":
		return "would be tried again: " + f.Why
	case dry:
		return "would go"
	}
	return "cannot be removed: " + f.Why
}
