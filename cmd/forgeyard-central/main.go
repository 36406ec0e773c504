// Command forgeyard-central is the reference central daemon and its command line:
// it delegates work to sites and takes their results back. `up` runs the daemon;
// every other command asks it, through the socket in its data directory.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main with its surroundings passed in; it returns the exit code.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := &cli{in: in, out: out, errs: errs}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && forgeyard.KindOf(err) != forgeyard.Invalid {
		return forgeyard.Interrupted.ExitCode()
	}
	fmt.Fprintln(errs, "forgeyard-central: "+err.Error())
	if c.verbose {
		for e := errors.Unwrap(err); e != nil; e = errors.Unwrap(e) {
			fmt.Fprintf(errs, "  because: %v\n", e)
		}
	}
	return forgeyard.KindOf(err).ExitCode()
}

// cli is what all commands share.
type cli struct {
	in        io.Reader
	out, errs io.Writer

	dataDir string
	format  string
	verbose bool
}

const exitHelp = `
Exit codes:
  0 done · 1 failed · 2 usage or invalid file · 3 not found · 4 conflict or stale ·
  5 unavailable: no daemon · 6 denied · 7 a limit was hit · 130 interrupted`

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "forgeyard-central",
		Short:         "Delegate work to sites and take their results back",
		Long:          "The reference central daemon. A site that is cut off goes on with exactly the authority it\nwas given, and hands over every result once, in order, when the link is back.\n" + exitHelp,
		Example:       "  forgeyard-central up --data-dir /srv/central --listen :7454\n  forgeyard-central ticket create --offline-for 8h\n  forgeyard-central delegate plant-a job.yaml",
		Version:       version,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if c.format != "text" && c.format != "json" {
				return usage("-o %q is neither text nor json", c.format)
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return forgeyard.E("", forgeyard.Invalid, err) })
	f := root.PersistentFlags()
	f.StringVar(&c.dataDir, "data-dir", defaultDataDir(), "the daemon's directory (env FORGEYARD_CENTRAL_DATA_DIR, FORGEYARD_DATA_DIR)")
	f.StringVarP(&c.format, "output", "o", "text", "text or json")
	f.BoolVar(&c.verbose, "verbose", false, "show the chain of causes of an error, and debug logs of the daemon")
	root.AddCommand(c.up(), c.ticket(), c.site(), c.delegate(), c.job(), c.audit())
	group(root)
	return root
}

// group makes a command that only holds others refuse what it does not know.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage("%q is no command of %s; see %s --help", forgeyard.Clip(args[0], 40), cmd.CommandPath(), cmd.CommandPath())
		}
		return errors.Join(cmd.Help(), usage("%s needs a command", cmd.CommandPath()))
	}
	return cmd
}

// exactly is cobra.ExactArgs with our error.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("%d arguments are given, %d expected: %s", len(args), n, cmd.UseLine())
		}
		return nil
	}
}

func usage(format string, args ...any) error {
	return forgeyard.Errorf("", forgeyard.Invalid, format, args...)
}

func defaultDataDir() string {
	// The second is what all our binaries share; the first tells a daemon and a node on
	// one machine apart.
	for _, name := range []string{"FORGEYARD_CENTRAL_DATA_DIR", "FORGEYARD_DATA_DIR"} {
		if d := os.Getenv(name); d != "" {
			return d
		}
	}
	if os.Geteuid() == 0 {
		return "/var/lib/forgeyard-central"
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "forgeyard-central"
		}
		state = home + "/.local/state"
	}
	return strings.TrimRight(state, "/") + "/forgeyard-central"
}
