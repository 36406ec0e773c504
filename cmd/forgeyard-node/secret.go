package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/secrets"
)

func (a *app) secretCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "secret", Short: "Set, list and remove the secrets that jobs of the site may ask for"})
	g.AddCommand(a.secretSet(), a.secretList(), a.secretRemove())
	return g
}

func (a *app) secretSet() *cobra.Command {
	var nodes []string
	c := a.Build(cli.Command{
		Use:   "set NAME [FILE|-]",
		Short: "Seal a value for the nodes that may have it",
		Long: "Seal a value for the nodes that may have it, and put it into the site's log: only their keys open it. The value is that of FILE, or of standard input, " +
			"never an argument; it is sealed here, and no daemon sees it before a job needs it. A name that is there gets the new value. A node that joins later is not among them: set it again.",
		Example: "  forgeyard-node secret set prod/pin pin.txt --for bench-1 --for bench-2\n  pass show prod/pin | forgeyard-node secret set prod/pin -",
		Exits:   []int{1, 2, 5, 6, 7, 130},
		Args:    cobra.RangeArgs(1, 2),
		Run: func(ctx context.Context, args []string) error {
			value, err := a.secretValue(args[1:])
			if err != nil {
				return err
			}
			defer clear(value)
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.site.Members, &forgeyardv1.MembersRequest{})
			if err != nil {
				return err
			}
			ids, keys, err := recipients(l.Members, nodes)
			if err != nil {
				return err
			}
			sealed, err := mesh.Seal(value, keys)
			if err != nil {
				return err
			}
			if _, err := unary(ctx, c.site.SetSecret, &forgeyardv1.SetSecretRequest{Name: args[0], Sealed: sealed, RunnerIds: ids}); err != nil {
				return err
			}
			return a.PrintValue(map[string]any{"name": args[0], "runner_ids": ids}, func(p *cli.Page) { p.Line("%s is set for %d node(s)", args[0], len(ids)) })
		},
	})
	c.Flags().StringArrayVar(&nodes, "for", nil, "name or id of a node that may have it (repeat); default: all members of now")
	return c
}

// secretValue reads a value from a file or from standard input.
func (a *app) secretValue(from []string) (b []byte, err error) {
	in := io.Reader(os.Stdin)
	if len(from) == 1 && from[0] != "-" {
		f, err := os.Open(from[0])
		if err != nil {
			return nil, forgeyard.E("secret set", forgeyard.NotFound, err)
		}
		defer f.Close()
		in = f
	}
	b, err = io.ReadAll(io.LimitReader(in, secrets.MaxValue+1))
	if err != nil {
		return nil, forgeyard.E("secret set", forgeyard.Other, err)
	}
	if len(b) == 0 || len(b) > secrets.MaxValue {
		clear(b)
		return nil, forgeyard.Errorf("secret set", forgeyard.Invalid, "the value has %d bytes or more, not 1 to %d", len(b), secrets.MaxValue)
	}
	return b, nil
}

// recipients are the members that are named, or all of them, and their keys.
func recipients(all []*forgeyardv1.Member, named []string) (ids []string, keys []peer.ID, err error) {
	left := map[string]bool{}
	for _, n := range named {
		left[n] = true
	}
	for _, m := range all {
		if m.State == "removed" {
			continue // it is listed for its vote
		}
		if len(named) > 0 && !left[m.Name] && !left[m.RunnerId] {
			continue
		}
		delete(left, m.Name)
		delete(left, m.RunnerId)
		k, err := peer.Decode(m.PeerId)
		if err != nil {
			return nil, nil, forgeyard.E("secret set", forgeyard.Invalid, err)
		}
		ids, keys = append(ids, m.RunnerId), append(keys, k)
	}
	for n := range left {
		return nil, nil, forgeyard.Errorf("secret set", forgeyard.NotFound, "no member is called %q", forgeyard.Clip(n, 80)).WithHint("forgeyard-node site members shows them")
	}
	return ids, keys, nil
}

func (a *app) secretList() *cobra.Command {
	return a.Build(cli.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List secrets, without their values",
		Example: "  forgeyard-node secret list -o json", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.site.ListSecrets, &forgeyardv1.ListSecretsRequest{})
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, l.Secrets, func(p *cli.Page) {
				p.Row("SECRET", "FOR", "SET", "BY")
				for _, s := range l.Secrets {
					p.Row(s.Name, strings.Join(s.Nodes, " "), cli.At(s.Set), s.By)
				}
			})
		},
	})
}

func (a *app) secretRemove() *cobra.Command {
	return a.Build(cli.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove a secret", Args: cobra.ExactArgs(1),
		Example: "  forgeyard-node secret remove prod/pin", Exits: []int{1, 3, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if _, err := unary(ctx, c.site.RemoveSecret, &forgeyardv1.RemoveSecretRequest{Name: args[0]}); err != nil {
				return err
			}
			return a.PrintValue(map[string]any{"name": args[0], "removed": true}, func(p *cli.Page) { p.Line("removed %s", args[0]) })
		},
	})
}
