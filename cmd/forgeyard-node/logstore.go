package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/node"
)

// logStore is what log-store prints.
type logStore struct {
	Store   string `json:"store"`
	Changed bool   `json:"changed"`
	From    string `json:"from,omitempty"`
	Entries uint64 `json:"entries,omitempty"`
}

func (a *app) logStoreCommand() *cobra.Command {
	var to string
	c := a.Build(cli.Command{
		Use:   "log-store",
		Short: "Show what keeps this node's log, or move it",
		Long: "Show what keeps this node's log: wal (segment files) or boltdb. With --move it is copied into the other, compared entry by entry, and then the old one is cleared. " +
			"The daemon must be stopped. A move that is cut short, by a power cut too, leaves the whole log in one of the two, and can be done again.",
		Example: "  forgeyard-node log-store\n  forgeyard-node log-store --move wal", Exits: []int{1, 3, 4, 130},
		Run: func(_ context.Context, _ []string) error {
			v, err := a.logStore(to)
			if err != nil {
				return err
			}
			return a.PrintValue(v, func(p *cli.Page) {
				if v.Changed {
					p.Line("moved %d entries from %s to %s", v.Entries, v.From, v.Store)
					return
				}
				p.Line("the log is in %s", v.Store)
			})
		},
	})
	c.Flags().StringVar(&to, "move", "", "boltdb or wal: move the log there")
	return c
}

func (a *app) logStore(to string) (logStore, error) {
	if to == "" {
		at, err := node.LogStoreAt(a.dir())
		if err == nil && at == "" {
			err = forgeyard.Errorf("log-store", forgeyard.NotFound, "%s holds no log", a.dir())
		}
		return logStore{Store: at}, err
	}
	if to != "boltdb" && to != "wal" {
		return logStore{}, a.Usage("log-store", "--move %s: boltdb and wal are there", forgeyard.Clip(to, 40))
	}
	m, err := node.MoveLog(a.dir(), to, slog.New(slog.DiscardHandler))
	return logStore{Store: m.Store, Changed: m.From != m.Store, From: m.From, Entries: m.Entries}, err
}
