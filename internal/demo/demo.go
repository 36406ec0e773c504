// Package demo tells the story of a site as it happens: three nodes and a central
// daemon as real processes on this machine, real work, a lost uplink, a killed
// runner, and what is true at the end.
//
// It claims nothing that it has not seen: each step waits for what the daemons say
// of themselves over their own API, with a bound and without a scripted pause, and
// the table at the end names the evidence of each claim. One claim that was not seen
// is a failure.
//
// It decides nothing of the product and imports none of its parts but the clients of
// the API, and a pty for the board that it plays.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
)

// Config says where the demonstration runs. Programs and the writers are required.
type Config struct {
	Programs localsite.Programs
	Out      io.Writer // the story and its table
	Err      io.Writer // the logs' ends, when it fails
	Keep     bool      // leave the site running
}

// demo is one telling.
type demo struct {
	cfg   Config
	began time.Time
	dir   string
	root  string // of the Go toolchain
	input chan copied
	site  *localsite.Site
	board *board
	step  string // under way
	facts facts
	table proofs
}

// facts are what later steps need of earlier ones.
type facts struct {
	copied       copied
	deviceLease  string
	boardGrant   string
	verifyGrant  string
	verify       string // job id at the site
	cutIndex     uint64 // the log when the link was cut
	runner       *localsite.Node
	treePID      int
	successor    *localsite.Node
	holderBefore bool // the successor had the input before it needed it
}

// act is one step of the story.
type act struct {
	name string
	run  func(*demo, context.Context) error
}

var story = []act{
	{"three nodes become a site", (*demo).join},
	{"the site gets an uplink", (*demo).connect},
	{"a person takes the board, and the board's job waits", (*demo).leaseBoard},
	{"the central daemon delegates work", (*demo).delegate},
	{"the uplink is cut, the work goes on", (*demo).cut},
	{"kill -9 of the runner, in the middle of its work", (*demo).kill},
	{"the board is given back, reset, and used by its job", (*demo).useBoard},
	{"the killed node returns", (*demo).comeBack},
	{"the work is finished, with nothing done twice", (*demo).finish},
	{"a result that comes too late", (*demo).late},
	{"the uplink is back", (*demo).reconcile},
}

// Run tells the story. It returns an error when anything of it was not seen. The
// processes that it started have ended when it returns, unless they are to be kept.
func Run(ctx context.Context, cfg Config) (err error) {
	d := &demo{cfg: cfg, began: time.Now(), input: make(chan copied, 1)}
	if d.root, err = toolchain(ctx); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "forgeyard-demo-"); err != nil {
		return forgeyard.E("demo", forgeyard.Other, err)
	}
	d.site = localsite.New(d.dir, cfg.Programs)
	err = d.tell(ctx)
	if err == nil && len(d.table.missing()) > 0 {
		d.step = "what was proved"
		err = forgeyard.Errorf("demo", forgeyard.Other, "not seen: %s", strings.Join(d.table.missing(), "; "))
	}
	if err == nil && cfg.Keep {
		d.leave()
		<-ctx.Done() // the board is played here
	}
	return d.end(err)
}

func (d *demo) tell(ctx context.Context) error {
	if err := d.prepare(ctx); err != nil {
		return err
	}
	for i, a := range story {
		d.step = a.name
		fmt.Fprintf(d.cfg.Out, "\n%6.1fs  %d. %s\n", d.elapsed(), i+1, a.name)
		if err := a.run(d, ctx); err != nil {
			return err
		}
	}
	d.step = ""
	fmt.Fprintf(d.cfg.Out, "\n%6.1fs  all steps were seen\n\n", d.elapsed())
	return d.table.print(d.cfg.Out)
}

// prepare puts the input aside while the site comes up, and plugs the board in.
func (d *demo) prepare(ctx context.Context) (err error) {
	d.step = "prepare"
	if err := os.Chmod(d.dir, 0o755); err != nil { // sandboxes run as another user
		return forgeyard.E("demo", forgeyard.Other, err)
	}
	if err := os.Mkdir(filepath.Join(d.dir, gateDir), 0o755); err != nil {
		return forgeyard.E("demo", forgeyard.Other, err)
	}
	go func() { d.input <- copyLibrary(ctx, filepath.Join(d.root, "src"), d.source()) }()
	d.board, err = newBoard(context.WithoutCancel(ctx), filepath.Join(d.dir, "board-tty"))
	return err
}

const gateDir = "gate"

func (d *demo) source() string { return filepath.Join(d.dir, "input", "go", "src") }

func (d *demo) elapsed() float64 { return time.Since(d.began).Seconds() }

// say tells one line.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.cfg.Out, "%6.1fs  %s\n", d.elapsed(), fmt.Sprintf(format, args...))
}

// run runs a command line of the node's program as a person would, and shows it.
func (d *demo) run(ctx context.Context, at *localsite.Node, stdin string, args ...string) (string, error) {
	fmt.Fprintf(d.cfg.Out, "         %s$ forgeyard-node %s%s\n", at.Name, d.short(args), from(stdin, args))
	return d.site.Command(ctx, d.cfg.Programs.Node, at.Env(), stdin, args...)
}

// runCentral is run for the central daemon's program.
func (d *demo) runCentral(ctx context.Context, args ...string) (string, error) {
	fmt.Fprintf(d.cfg.Out, "         central$ forgeyard-central %s\n", d.short(args))
	env := []string{"FORGEYARD_CENTRAL_DATA_DIR=" + d.site.Central.Dir}
	return d.site.Command(ctx, d.cfg.Programs.Central, env, "", append([]string{"--data-dir", d.site.Central.Dir}, args...)...)
}

// short writes arguments relative to the demonstration's folder, where they were run.
func (d *demo) short(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.TrimPrefix(a, d.dir+string(filepath.Separator))
	}
	return strings.Join(out, " ")
}

// from shows what came on stdin by its name: it is a secret.
func from(stdin string, args []string) string {
	if stdin == "" {
		return ""
	}
	if args[0] == "join" {
		return " < token"
	}
	return " < ticket"
}

// await waits for something that the site says.
func (d *demo) await(ctx context.Context, what string, bound time.Duration, look func(context.Context) (bool, error)) error {
	return d.site.Await(ctx, what, bound, look)
}

// end ends what was started and tells what went wrong.
func (d *demo) end(err error) error {
	interrupted := forgeyard.KindOf(err) == forgeyard.Interrupted || errors.Is(err, context.Canceled)
	if err != nil && !interrupted {
		fmt.Fprintf(d.cfg.Err, "\nfailed in step %q after %.1fs: %v\n\n", d.step, d.elapsed(), err)
		_ = d.table.print(d.cfg.Err) // what was seen until then; the error that matters is told
		fmt.Fprintf(d.cfg.Err, "\n%s", d.site.Tails(25))
	}
	d.site.Stop()
	d.board.close()
	if err != nil && !interrupted {
		fmt.Fprintf(d.cfg.Err, "every process was ended; the folder %s is left for a look\n", d.dir)
		return forgeyard.Errorf("demo", forgeyard.Other, "step %q: %v", d.step, err)
	}
	if rerr := d.site.Remove(); rerr != nil {
		fmt.Fprintf(d.cfg.Err, "the folder %s stays: %v\n", d.dir, rerr)
	}
	if interrupted && d.step == "" {
		return nil // a kept site was ended by its person
	}
	return err
}

// leave tells how to look at a site that is left running.
func (d *demo) leave() {
	w := d.cfg.Out
	fmt.Fprintf(w, "\nThe site runs on, in %s. To look at it:\n\n", d.dir)
	for _, n := range d.site.Nodes {
		fmt.Fprintf(w, "  forgeyard-node --data-dir %s status         # pid %d\n", n.Dir, n.Daemon.PID)
	}
	one := d.site.Nodes[0].Dir
	fmt.Fprintf(w, "  forgeyard-node --data-dir %s site status\n  forgeyard-node --data-dir %s job list --all\n", one, one)
	fmt.Fprintf(w, "  forgeyard-node --data-dir %s job show %s\n  forgeyard-node --data-dir %s site events\n", one, d.facts.verify, one)
	fmt.Fprintf(w, "  forgeyard-central --data-dir %s job list   # pid %d\n", d.site.Central.Dir, d.site.Central.Daemon.PID)
	fmt.Fprintf(w, "\nThe logs of the daemons are %s. Ctrl-C ends the site and removes the folder.\n", filepath.Join(d.dir, "*.log"))
}
