package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
	"github.com/forgeyard/forgeyard-node/cas/gocache"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/node"
)

func (a *app) cacheCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "cache", Short: "The build cache of this node, for build tools"})
	g.AddCommand(a.cacheToken())
	return g
}

// cacheTokenOut is a token as JSON.
type cacheTokenOut struct {
	Right string `json:"right"`
	Token string `json:"token"`
}

func (a *app) cacheToken() *cobra.Command {
	var read bool
	c := a.Build(cli.Command{
		Use:   "token",
		Short: "Print the token that lets a build tool write to this node's cache",
		Long: "Print the token that lets a build tool write to this node's build cache. Stdout is the token and nothing else. Both tokens stand in cache-tokens " +
			"in the data dir; remove that file and restart the daemon to make new ones.",
		Example: `  forgeyard-node cache token
  bazel build --remote_cache=grpc://127.0.0.1:7446 --remote_header="Authorization=Bearer $(forgeyard-node cache token)" //...`,
		Exits: []int{1, 3, 6},
		Run: func(context.Context, []string) error {
			if _, err := os.Stat(a.dir()); err != nil {
				return forgeyard.E("cache token", fileKind(err), err).WithHint("run it on the node, or name its --data-dir")
			}
			text, err := node.CacheTokens(a.dir())
			if err != nil {
				return err
			}
			right := "write"
			if read {
				right = "read"
			}
			token, ok := cacheapi.TokenOf(text, right)
			if !ok {
				return forgeyard.Errorf("cache token", forgeyard.NotFound, "there is no %s token in %s", right, a.dir())
			}
			return a.PrintValue(cacheTokenOut{right, token}, func(p *cli.Page) { p.Line("%s", token) })
		},
	})
	c.Flags().BoolVar(&read, "read", false, "the token that may only read, for callers that are not on this machine")
	return c
}

func (a *app) gocacheCommand() *cobra.Command {
	var at, dir, stats string
	c := a.Build(cli.Command{
		Use:   "gocache",
		Short: "Serve the go command as its build cache (GOCACHEPROG)",
		Long: "Serve the go command as its build cache: set GOCACHEPROG to this command. What was built stands in a folder of this machine, and in the site by way of a " +
			"node's build cache: the one at --cache, else that of the daemon in --data-dir. Without a token (--token-file, FORGEYARD_CACHE_TOKEN, or the daemon's own " +
			"where its data dir can be read) the node is only read from; without a node the folder serves alone.",
		Example: `  GOCACHEPROG="forgeyard-node gocache" go build ./...
  GOCACHEPROG="forgeyard-node gocache --cache 127.0.0.1:7446 --token-file ~/.cache-token --stats /tmp/hits.json" go test ./...`,
		Exits: []int{1, 2, 130},
		Run: func(ctx context.Context, _ []string) error {
			cfg, err := a.gocacheConfig(at, dir)
			if err != nil {
				return err
			}
			s, err := gocache.Run(ctx, cfg, a.In, a.Out)
			if stats != "" {
				err = errors.Join(err, writeStats(stats, s))
			}
			return err
		},
	})
	f := c.Flags()
	f.StringVar(&at, "cache", "", "HOST:PORT of a node's build cache, or off (default: that of the daemon in --data-dir)")
	f.StringVar(&dir, "dir", "", "folder on this machine (default: forgeyard-gocache in the account's cache folder)")
	f.StringVar(&stats, "stats", "", "file for the counts of this run, as JSON")
	return c
}

// gocacheConfig finds folder, node and token. A daemon that does not answer is no error: a
// build must not stand still for want of its cache.
func (a *app) gocacheConfig(at, dir string) (gocache.Config, error) {
	cfg := gocache.Config{Dir: dir, Log: slog.New(slog.NewTextHandler(a.Err, nil))}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return cfg, forgeyard.E("gocache", forgeyard.Invalid, err).WithHint("name a folder with --dir")
		}
		cfg.Dir = filepath.Join(base, "forgeyard-gocache")
	}
	abs, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return cfg, forgeyard.E("gocache", forgeyard.Invalid, err)
	}
	cfg.Dir = abs
	switch at {
	case "off":
		return cfg, nil
	case "":
		at = a.cacheOfDaemon()
	}
	cfg.Node = at
	cfg.Token, err = a.cacheTokenOf()
	return cfg, err
}

// cacheOfDaemon is the address of the daemon's build cache, empty when there is none.
func (a *app) cacheOfDaemon() string {
	at, err := node.CacheAddress(a.dir())
	if err != nil {
		a.Note("no build cache of a site is used: %v", err)
	}
	return at
}

// cacheTokenOf finds the token to write with. None is no error.
func (a *app) cacheTokenOf() (string, error) {
	if t := a.Getenv("FORGEYARD_CACHE_TOKEN"); t != "" {
		return t, nil
	}
	path := a.tokenFile
	if path == "" {
		path = filepath.Join(a.dir(), "cache-tokens")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		if a.tokenFile == "" {
			return "", nil
		}
		return "", forgeyard.E("token file", fileKind(err), err)
	}
	if t, ok := cacheapi.TokenOf(string(b), "write"); ok {
		return t, nil
	}
	return strings.TrimSpace(string(b)), nil
}

// gocacheRun is what a run of the helper tells.
type gocacheRun struct {
	gocache.Stats
	At time.Time `json:"at"`
}

func writeStats(path string, s gocache.Stats) error {
	b, err := json.Marshal(gocacheRun{s, now().UTC()})
	if err != nil {
		return forgeyard.E("gocache", forgeyard.Other, err)
	}
	if err := durable.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return forgeyard.E("gocache", forgeyard.Other, err)
	}
	return nil
}
