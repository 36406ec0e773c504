package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/internal/heap"
	"github.com/forgeyard/forgeyard-node/internal/watcher"
	"github.com/forgeyard/forgeyard-node/node"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

type upFlags struct {
	init             bool
	site, siteConfig string
	join             string
}

func (a *app) upCommand() *cobra.Command {
	var n nodeFlags
	var o upFlags
	c := a.Build(cli.Command{
		Use:   "up",
		Short: "Run the daemon in the foreground",
		Long: "Run the daemon in the foreground. One line on stdout says when it answers; what it does goes to stderr. SIGTERM and Ctrl-C end it in order, " +
			"a second Ctrl-C at once; SIGHUP reads node.yaml again. Under systemd use Type=notify.\n\n" +
			"With --init or --join it enrols first if it is not enrolled yet: both are safe to repeat.",
		Example: `  forgeyard-node up
  forgeyard-node up --init --site lab
  forgeyard-node up --join TOKEN --name bench-2 --label bench=a
  forgeyard-node up --data-dir /tmp/n2 --listen 127.0.0.1:0 --gossip 127.0.0.1:0 --http 127.0.0.1:0 --join TOKEN`,
		Exits: []int{1, 3, 4, 5, 6, 7, 130},
		Run:   func(ctx context.Context, _ []string) error { return a.up(ctx, &n, o) },
	})
	n.add(c)
	f := c.Flags()
	f.BoolVar(&o.init, "init", false, "create a site first, if this node is in none")
	f.StringVar(&o.site, "site", "", "name of the site, for --init")
	f.StringVar(&o.siteConfig, "site-config", "", "site.yaml with the site's first policy, for --init")
	f.StringVar(&o.join, "join", "", "enrol with this token first, if this node is in no site; - reads it from stdin")
	return c
}

func (a *app) up(ctx context.Context, n *nodeFlags, o upFlags) error {
	switch {
	case o.init && o.join != "":
		return a.Usage("up", "--init and --join exclude each other")
	case !o.init && (o.site != "" || o.siteConfig != ""):
		return a.Usage("up", "--site and --site-config belong to --init")
	case o.init && o.site == "":
		return a.Usage("up", "--init needs --site NAME")
	}
	again := *a // as it is before the first reading finds the data dir
	s, from, err := a.settings(n)
	if err != nil {
		return err
	}
	if o.init || o.join != "" {
		if err := a.enrolOnce(ctx, n, o); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() {
		a.stop() // the next signal ends the process at once
		notifySystemd(a.Getenv, "STOPPING=1")
	})
	level := &slog.LevelVar{}
	level.Set(node.LevelOf(s.Log))
	log := a.logger(s.Log, level)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	heap.Leave(heap.Room)
	watch, err := watcher.Find()
	if err != nil {
		log.Debug("the runtime's watcher keeps its pace, which costs some processor time", "err", err)
	} else {
		go watch.Run(ctx)
	}
	var unsaid error
	err = node.Run(ctx, node.Config{
		Version: version, DataDir: a.dir(), Settings: s, Sources: from, Log: log, Helper: findHelper(), Keeper: ownProgram(), Own: ownProgram(), Committed: watch.Committed,
		Load: func() (sitecfg.Node, []sitecfg.Setting, error) { a := again; return a.settings(n) }, Reload: hangups, Level: level,
		Ready: func(n *node.Node) {
			if unsaid = a.ready(n.Status(ctx)); unsaid != nil {
				cancel() // nobody can know that it runs
			}
			notifySystemd(a.Getenv, "READY=1")
		},
	})
	if err == nil && unsaid != nil {
		return forgeyard.E("up", forgeyard.Other, unsaid)
	}
	return err
}

// ready tells that the daemon answers, and where.
func (a *app) ready(s *forgeyardv1.NodeStatus) error {
	at := s.GetAddresses()
	if a.JSON() {
		return json.NewEncoder(a.Out).Encode(map[string]any{
			"ready": true, "name": s.Name, "site": s.SiteName, "site_id": s.SiteId, "runner_id": s.RunnerId, "peer_id": s.PeerId,
			"mesh": at.GetMesh(), "gossip": at.GetGossip(), "http": at.GetHttp(), "control": at.GetControl(), "cache_api": at.GetCacheApi(), "pid": os.Getpid(),
		})
	}
	_, err := fmt.Fprintf(a.Out, "ready: %s in site %s, mesh %s, http %s, control %s\n", s.Name, s.SiteName, strings.Join(at.GetMesh(), " "), orDash(at.GetHttp()), at.GetControl())
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (a *app) logger(c sitecfg.LogConfig, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.Err, o))
	}
	return slog.New(slog.NewTextHandler(a.Err, o))
}

// ownProgram is this program, to be started under another name: as the kernel has it, so
// that a newer file in its place is not mixed with a daemon of before. Where the kernel
// does not tell, there are no executors either.
func ownProgram() string {
	if _, err := os.Stat("/proc/self/exe"); err == nil {
		return "/proc/self/exe"
	}
	return ""
}

// findHelper finds the workload's helper: beside this program, else in the PATH.
func findHelper() string {
	if self, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(self), "fyjob"); isFile(p) {
			return p
		}
	}
	p, err := exec.LookPath("fyjob")
	if err != nil {
		return ""
	}
	return p
}

func isFile(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular()
}

// notifySystemd tells the service manager, if there is one, how far the daemon is.
// It is a datagram: a manager that does not listen changes nothing.
func notifySystemd(getenv func(string) string, state string) {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = c.Write([]byte(state))
}
