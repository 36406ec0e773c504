package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node/internal/cli"
)

// app is what every command has: the shell it stands in and where its daemon is.
type app struct {
	*cli.Shell
	stop func() // stops catching signals: the next one ends the process at once

	dataDir   string
	addr      string
	tokenFile string
	explicit  func(flag string) bool // whether a flag stands on the command line
}

func run(ctx context.Context, stop func(), s *cli.Shell, args []string) int {
	a := &app{Shell: s, stop: stop}
	root := a.root()
	return s.Execute(ctx, root, args)
}

// root puts the command line together.
func (a *app) root() *cobra.Command {
	root := a.Build(cli.Command{
		Use:   "forgeyard-node",
		Short: "Runs jobs in a site of a few machines that goes on when its uplink does not",
		Example: `  forgeyard-node up --init --site lab            start a site with this machine
  forgeyard-node token create                    let another one in
  forgeyard-node up --join TOKEN                 (there)
  forgeyard-node submit job.yaml --watch         run something
  forgeyard-node site status                     see how it stands`,
	})
	f := root.PersistentFlags()
	f.StringVar(&a.dataDir, "data-dir", "", "folder of the node, also FORGEYARD_DATA_DIR (default "+defaultDataDir(os.Getenv)+")")
	f.StringVar(&a.addr, "addr", "", "HOST:PORT of a daemon instead of the control socket, also FORGEYARD_ADDR")
	f.StringVar(&a.tokenFile, "token-file", "", "file with the bearer token for --addr")
	a.explicit = func(name string) bool { return f.Changed(name) }
	root.AddCommand(
		a.initCommand(), a.joinCommand(), a.upCommand(), a.tokenCommand(), a.secretCommand(),
		a.statusCommand(), a.doctorCommand(), a.capabilitiesCommand(), a.versionCommand(), a.logStoreCommand(), a.drainCommand(), a.resumeCommand(), a.cleanupCommand(),
		a.siteCommand(), a.runnerCommand(),
		a.submitCommand(), a.jobCommand(), a.checkpointCommand(), a.leaseCommand(), a.runCommand(),
		a.casCommand(), a.cacheCommand(), a.gocacheCommand(), a.bundleCommand(), a.deviceCommand(), a.uplinkCommand(),
		a.demoCommand(), a.debugCommand(), a.ownWorkCommand(),
	)
	return root
}

// daemonAddr is the address of the daemon; empty: its control socket is used.
func (a *app) daemonAddr() string {
	if a.addr == "" && !a.explicit("data-dir") {
		return a.Getenv("FORGEYARD_ADDR")
	}
	return a.addr
}

// dir is the data dir, made absolute so that messages can be acted on from anywhere.
func (a *app) dir() string {
	d := a.dataDir
	if d == "" {
		d = a.Getenv("FORGEYARD_DATA_DIR")
	}
	if d == "" {
		d = defaultDataDir(a.Getenv)
	}
	if abs, err := filepath.Abs(d); err == nil {
		return abs
	}
	return d
}

func defaultDataDir(getenv func(string) string) string {
	if os.Geteuid() == 0 {
		return "/var/lib/forgeyard-node"
	}
	if s := getenv("XDG_STATE_HOME"); s != "" {
		return filepath.Join(s, "forgeyard-node")
	}
	if h, err := os.UserHomeDir(); err == nil {
		return filepath.Join(h, ".local", "state", "forgeyard-node")
	}
	return "forgeyard-node.data"
}

// commandLine writes a command for a person to paste: it reaches the same daemon.
func (a *app) commandLine(words ...string) string {
	line := []string{a.Program}
	switch {
	case a.daemonAddr() != "":
		line = append(line, "--addr", a.daemonAddr())
	case a.dir() != defaultDataDir(a.Getenv):
		line = append(line, "--data-dir", a.dir())
	}
	if a.explicit("token-file") {
		line = append(line, "--token-file", a.tokenFile)
	}
	line = append(line, words...)
	for i, w := range line {
		line[i] = shellWord(w)
	}
	return strings.Join(line, " ")
}

func shellWord(w string) string {
	plain := strings.IndexFunc(w, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@%+,", r))
	}) < 0
	if plain && w != "" {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// now is for people only: how long ago something was.
func now() time.Time { return time.Now() }
