package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/job"
)

func (a *app) casName() *cobra.Command {
	g := a.Build(cli.Command{Use: "name", Aliases: []string{"names"}, Short: "Show and end the names that ingests gave to content"})
	g.AddCommand(a.nameList(), a.nameShow(), a.nameRm())
	return g
}

func (a *app) nameList() *cobra.Command {
	return a.Build(cli.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the names of content", Example: "  forgeyard-node cas name list -o json", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.content.ListNames, &forgeyardv1.ListNamesRequest{})
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, l.Names, func(p *cli.Page) {
				p.Row("NAME", "KIND", "SIZE", "SINCE", "DIGEST")
				for _, n := range l.Names {
					p.Row(n.Name, n.Set.Kind, cli.Size(n.Set.Size), cli.Since(now(), n.Set.Since), n.Set.Digest)
				}
			})
		},
	})
}

func (a *app) nameShow() *cobra.Command {
	return a.Build(cli.Command{
		Use: "show NAME", Short: "Show what a name points at, and what it pointed at before", Args: cobra.ExactArgs(1),
		Example: "  forgeyard-node cas name show scope-7", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			n, err := findName(ctx, c, args[0])
			if err != nil {
				return err
			}
			return a.Print(n, func(p *cli.Page) {
				p.Fact("name", "%s", n.Name)
				p.Fact("digest", "%s", n.Set.Digest)
				p.Fact("kind", "%s, %s", n.Set.Kind, cli.Size(n.Set.Size))
				p.Fact("since", "%s, by run %s", cli.At(n.Set.Since), n.Set.RunId)
				for _, e := range n.Earlier {
					p.Fact("before", "%s until %s, by run %s", e.Digest, cli.At(e.Until), e.RunId)
				}
			})
		},
	})
}

func (a *app) nameRm() *cobra.Command {
	return a.Build(cli.Command{
		Use: "rm NAME", Short: "End a name: what it points at is kept no longer for it", Args: cobra.ExactArgs(1),
		Example: "  forgeyard-node cas name rm scope-7", Exits: []int{1, 3, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if _, err := unary(ctx, c.content.RemoveName, &forgeyardv1.RemoveNameRequest{Name: args[0]}); err != nil {
				return err
			}
			return a.PrintValue(map[string]any{"name": args[0], "removed": true}, func(p *cli.Page) { p.Line("ended %s", args[0]) })
		},
	})
}

func findName(ctx context.Context, c *client, name string) (*forgeyardv1.Name, error) {
	l, err := unary(ctx, c.content.ListNames, &forgeyardv1.ListNamesRequest{Name: name})
	if err != nil {
		return nil, err
	}
	return l.Names[0], nil
}

// named finds content by its digest, or by its name: no name has a colon.
func named(ctx context.Context, c *client, word string) (ref cas.Ref, isTree bool, err error) {
	if job.CheckName(word) != nil {
		ref, err = parseRef(word, "", 0)
		return ref, false, err
	}
	n, err := findName(ctx, c, word)
	if _, bare := forgeyard.ParseDigest("b3:" + word); forgeyard.KindOf(err) == forgeyard.NotFound && bare == nil {
		return ref, false, forgeyard.Errorf("name", forgeyard.NotFound, "no name %q", word).WithHint("if it is meant as a digest, write b3: before it")
	}
	if err != nil {
		return ref, false, err
	}
	ref, err = parseRef(n.Set.Digest, n.Set.Manifest, n.Set.Size)
	return ref, n.Set.Kind == kindTree, err
}
