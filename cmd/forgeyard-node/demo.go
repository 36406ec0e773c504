package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/internal/demo"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
)

func (a *app) demoCommand() *cobra.Command {
	var keep bool
	c := a.Build(cli.Command{
		Use:   "demo",
		Short: "Show a site that loses its uplink and a runner, and goes on",
		Long: "Show a site that loses its uplink and a runner, and goes on: a central daemon and three nodes as real processes in a temporary folder, with real work. " +
			"It ends with a table of what was proved, and with 0 only if all of it was seen. It needs forgeyard-central and fyjob beside this program, bubblewrap, and Go.",
		Example: "  forgeyard-node demo\n  forgeyard-node demo --keep",
		Exits:   []int{1, 3, 130},
		Run: func(ctx context.Context, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return forgeyard.E("demo", forgeyard.Other, err)
			}
			p, err := localsite.FindPrograms(filepath.Dir(self))
			if err != nil {
				return err
			}
			return demo.Run(ctx, demo.Config{Programs: p, Out: a.Out, Err: a.Err, Keep: keep})
		},
	})
	c.Flags().BoolVar(&keep, "keep", false, "leave the site running at the end, and tell how to look at it, until Ctrl-C")
	return c
}
