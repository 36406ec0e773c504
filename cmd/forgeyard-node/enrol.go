package main

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// enrolled is what init and join print.
type enrolled struct {
	SiteID   string `json:"site_id"`
	Site     string `json:"site"`
	RunnerID string `json:"runner_id"`
	Name     string `json:"name"`
	DataDir  string `json:"data_dir"`
	Existed  bool   `json:"existed"`
}

func (a *app) initCommand() *cobra.Command {
	var n nodeFlags
	var site, siteConfig string
	c := a.Build(cli.Command{
		Use:   "init --site NAME",
		Short: "Create a site with this node as its first voter",
		Long:  "Create a site with this node as its first voter. `forgeyard-node up` then runs it. A data dir that belongs to a site already is refused.",
		Example: `  forgeyard-node init --site lab
  forgeyard-node init --site lab --site-config site.yaml --listen 10.0.0.5:7444`,
		Exits: []int{1, 3, 4, 6, 7},
		Run: func(ctx context.Context, _ []string) error {
			e, err := a.init(&n, site, siteConfig)
			if err != nil {
				return err
			}
			a.Note("start it with: %s", a.commandLine("up"))
			return a.printEnrolled(e)
		},
	})
	n.add(c)
	c.Flags().StringVar(&site, "site", "", "name of the site")
	c.Flags().StringVar(&siteConfig, "site-config", "", "site.yaml with the site's first policy")
	return c
}

// init founds a site.
func (a *app) init(n *nodeFlags, site, siteConfig string) (node.Enrolled, error) {
	if site == "" {
		return node.Enrolled{}, a.Usage("init", "--site NAME is missing")
	}
	s, _, err := a.settings(n)
	if err != nil {
		return node.Enrolled{}, err
	}
	policy, err := readSite(siteConfig)
	if err != nil {
		return node.Enrolled{}, err
	}
	e, err := node.Init(node.InitRequest{DataDir: a.dir(), SiteName: site, NodeName: s.Name, Site: policy, Clock: clock.System()})
	if err != nil {
		return e, err
	}
	return e, a.keep(n)
}

func readSite(name string) (sitecfg.Site, error) {
	if name == "" {
		return sitecfg.DefaultSite(), nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return sitecfg.Site{}, forgeyard.E("site config", fileKind(err), err)
	}
	return sitecfg.ParseSite(name, b)
}

// joinTimeout bounds a join: dialling, the leader's answer, and one election.
const joinTimeout = 60 * time.Second

func (a *app) joinCommand() *cobra.Command {
	var n nodeFlags
	c := a.Build(cli.Command{
		Use:   "join TOKEN",
		Short: "Enrol this node in a site",
		Long:  "Enrol this node in a site with a token of `forgeyard-node token create`; `-` reads it from stdin. `forgeyard-node up` then runs it. It is safe to repeat.",
		Example: `  forgeyard-node join fy1…
  forgeyard-node join - --name bench-2 --label bench=a < token`,
		Args:  cobra.ExactArgs(1),
		Exits: []int{1, 3, 4, 5, 6, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			e, err := a.join(ctx, &n, args[0])
			if err != nil {
				return err
			}
			a.Note("start it with: %s", a.commandLine("up"))
			return a.printEnrolled(e)
		},
	})
	n.add(c)
	return c
}

func (a *app) join(ctx context.Context, n *nodeFlags, token string) (node.Enrolled, error) {
	token, err := a.secret(token)
	if err != nil {
		return node.Enrolled{}, err
	}
	s, _, err := a.settings(n)
	if err != nil {
		return node.Enrolled{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	e, err := node.JoinSite(ctx, node.JoinSiteRequest{DataDir: a.dir(), Token: token, Name: s.Name, Labels: s.Labels, Version: version, Clock: clock.System()})
	if err != nil || e.Already {
		return e, err
	}
	return e, a.keep(n)
}

// secret is a word of the command line, or with `-` the first line of stdin, which
// no list of processes shows.
func (a *app) secret(word string) (string, error) {
	if word != "-" {
		return strings.TrimSpace(word), nil
	}
	b, err := io.ReadAll(io.LimitReader(a.In, 64<<10))
	if err != nil {
		return "", forgeyard.E("read stdin", forgeyard.Other, err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return strings.TrimSpace(first), nil
}

func (a *app) printEnrolled(e node.Enrolled) error {
	v := enrolled{SiteID: string(e.Site), Site: e.SiteName, RunnerID: string(e.Runner), Name: e.Name, DataDir: a.dir(), Existed: e.Already}
	return a.PrintValue(v, func(p *cli.Page) {
		p.Row("site", v.Site, v.SiteID)
		p.Row("node", v.Name, v.RunnerID)
		p.Row("data dir", v.DataDir)
	})
}

// enrolOnce makes `up --init` and `up --join` repeatable: a data dir that is in the
// site already goes on.
func (a *app) enrolOnce(ctx context.Context, n *nodeFlags, o upFlags) error {
	if o.join != "" {
		_, err := a.join(ctx, n, o.join)
		return err
	}
	e, err := mesh.LoadEnrolment(a.dir())
	if forgeyard.KindOf(err) == forgeyard.NotFound {
		_, err := a.init(n, o.site, o.siteConfig)
		return err
	}
	if err != nil {
		return err
	}
	if o.site != "" && e.SiteName != o.site {
		return forgeyard.Errorf("up", forgeyard.Conflict, "%s belongs to site %q, not to %q", a.dir(), e.SiteName, o.site).WithHint("another site needs another --data-dir")
	}
	return nil
}
