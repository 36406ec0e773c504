package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

// askEvery is how often a command that waits asks again.
const askEvery = 200 * time.Millisecond

// drained is what drain prints.
type drained struct {
	Changed bool  `json:"changed"`
	Active  int32 `json:"active"`
	Drained bool  `json:"drained"`
}

func (a *app) drainCommand() *cobra.Command {
	var cancel, wait bool
	var deadline time.Duration
	c := a.Build(cli.Command{
		Use:   "drain",
		Short: "Take no new work on this node",
		Long: "Take no new work on this node. Work that runs goes on, unless --cancel or --deadline gives it back to the site, which runs it elsewhere. With --wait the command returns when nothing runs any more " +
			"and every output is acknowledged; without, it says how much is left.",
		Example: "  forgeyard-node drain --wait\n  forgeyard-node drain --deadline 1h --wait\n  forgeyard-node drain --cancel", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			if deadline < 0 {
				return a.Usage("drain", "--deadline %s is below 0", deadline)
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			req := &forgeyardv1.DrainRequest{Cancel: cancel}
			if deadline > 0 {
				req.Deadline = durationpb.New(deadline)
			}
			first, err := unary(ctx, c.node.Drain, req)
			if err != nil {
				return err
			}
			v := drained{Changed: first.Changed, Active: first.Active}
			if wait {
				v.Active, err = a.waitDrained(ctx, c, first.Active)
			}
			if err != nil {
				return err
			}
			v.Drained = v.Active == 0
			return a.PrintValue(v, func(p *cli.Page) { drainedText(p, v) })
		},
	})
	f := c.Flags()
	f.BoolVar(&cancel, "cancel", false, "give the work that runs back at once")
	f.DurationVar(&deadline, "deadline", 0, "give back what still runs then (default: never)")
	f.BoolVar(&wait, "wait", false, "return when nothing runs any more")
	return c
}

func drainedText(p *cli.Page, v drained) {
	if v.Drained {
		p.Line("drained: nothing runs here, and nothing is taken")
		return
	}
	p.Line("draining: %s to go", plural(int(v.Active), "attempt"))
}

// waitDrained asks until no attempt is left. Asking again changes nothing.
func (a *app) waitDrained(ctx context.Context, c *client, active int32) (int32, error) {
	if active > 0 {
		a.Note("waiting for %s to end", plural(int(active), "attempt"))
	}
	for active > 0 {
		select {
		case <-ctx.Done():
			return active, forgeyard.Errorf("drain", forgeyard.Interrupted, "%s left; the drain goes on", plural(int(active), "attempt")).WithHint("undo it with: %s", a.commandLine("resume"))
		case <-time.After(askEvery):
		}
		s, err := unary(ctx, c.node.Status, &forgeyardv1.NodeStatusRequest{})
		if err != nil {
			return active, err
		}
		active = int32(len(s.ActiveAttempts))
	}
	return 0, nil
}

func (a *app) resumeCommand() *cobra.Command {
	return a.Build(cli.Command{
		Use: "resume", Short: "Take work on this node again", Example: "  forgeyard-node resume", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.node.Resume, &forgeyardv1.ResumeRequest{})
			if err != nil {
				return err
			}
			return a.Print(r, func(p *cli.Page) {
				if r.Changed {
					p.Line("takes work again")
				} else {
					p.Line("was not drained")
				}
			})
		},
	})
}
