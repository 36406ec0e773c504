package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) tokenCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "token", Short: "Make, list and revoke the tokens that let nodes join"})
	g.AddCommand(a.tokenCreate(), a.tokenList(), a.tokenRevoke())
	return g
}

func (a *app) tokenCreate() *cobra.Command {
	var ttl time.Duration
	var uses int32
	var role string
	var approve bool
	c := a.Build(cli.Command{
		Use:   "create",
		Short: "Make a token that lets a node join",
		Long:  "Make a token that lets a node join. Stdout is the token and nothing else; the site keeps only a hash of its secret, so it is shown this once.",
		Example: `  forgeyard-node token create
  forgeyard-node token create --ttl 10m --uses 3 --role runner
  forgeyard-node token create --approve
  ssh bench-2 forgeyard-node up --join "$(forgeyard-node token create)"`,
		Exits: []int{1, 5, 6, 130},
		Run: func(ctx context.Context, _ []string) error {
			if uses < 1 {
				return a.Usage("token create", "--uses %d is not 1 or more", uses)
			}
			if ttl <= 0 {
				return a.Usage("token create", "--ttl %s is not above 0", ttl)
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			t, err := unary(ctx, c.site.CreateToken, &forgeyardv1.CreateTokenRequest{Ttl: durationpb.New(ttl), Uses: uses, Role: role, Approve: approve})
			if err != nil {
				return err
			}
			if !a.JSON() {
				a.Note("token %s lets %d node(s) join as %s, until %s", t.TokenId, t.UsesLeft, t.Role, cli.At(t.Expires))
				if t.Approve {
					a.Note("each of them waits until you say: forgeyard-node runner approve NAME")
				}
			}
			return a.Print(t, func(p *cli.Page) { p.Line("%s", t.Token) })
		},
	})
	c.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long it is good")
	c.Flags().Int32Var(&uses, "uses", 1, "how many nodes it lets in")
	c.Flags().StringVar(&role, "role", "voter", "voter: the node may be promoted; runner: it never votes")
	c.Flags().BoolVar(&approve, "approve", false, "who joins with it gets no work and no vote until a voter says runner approve")
	return c
}

func (a *app) tokenList() *cobra.Command {
	return a.Build(cli.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List tokens, without their secrets",
		Example: "  forgeyard-node token list -o json", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.site.ListTokens, &forgeyardv1.ListTokensRequest{})
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, l.Tokens, func(p *cli.Page) {
				p.Row("TOKEN", "ROLE", "USES LEFT", "EXPIRES", "STATE", "BY")
				for _, t := range l.Tokens {
					p.Row(t.TokenId, t.Role, fmt.Sprint(t.UsesLeft), cli.Until(now(), t.Expires), tokenState(t), t.By)
				}
			})
		},
	})
}

func tokenState(t *forgeyardv1.Token) string {
	switch {
	case t.Revoked:
		return "revoked"
	case t.Expires != nil && t.Expires.AsTime().Before(now()):
		return "expired"
	case t.UsesLeft == 0:
		return "spent"
	case t.Approve:
		return "good, to be approved"
	}
	return "good"
}

func (a *app) tokenRevoke() *cobra.Command {
	return a.Build(cli.Command{
		Use: "revoke ID", Short: "Make a token useless", Args: cobra.ExactArgs(1),
		Example: "  forgeyard-node token revoke 01K5…", Exits: []int{1, 3, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if _, err := unary(ctx, c.site.RevokeToken, &forgeyardv1.RevokeTokenRequest{TokenId: args[0]}); err != nil {
				return err
			}
			return a.PrintValue(map[string]any{"token_id": args[0], "revoked": true}, func(p *cli.Page) { p.Line("revoked %s", args[0]) })
		},
	})
}
