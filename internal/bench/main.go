// Command bench measures what the design promises, on the built programs as real
// processes on this machine:
//
//	go run ./internal/bench -suite lease|node|content|store|checkpoint|sim|runner|all
//
// It ends with one line a promise, readable by a program,
//
//	RATIO name median min max goal <=100ms ok
//
// with `short` where the goal is missed and `absent: reason` where it could not be
// measured, and exits 0 whichever it is: a number is no verdict on a change. Quote no
// figure without what else ran: the load is printed too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/forgeyard/forgeyard-node/internal/bench/content"
	"github.com/forgeyard/forgeyard-node/internal/bench/party"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
)

func main() {
	suite := flag.String("suite", "all", "lease, node, content, store, checkpoint, sim, runner or all")
	bin := flag.String("bin", "bin", "folder of the built programs")
	rounds := flag.Int("rounds", 5, "leaders killed")
	objects := flag.Int("objects", 10_000_000, "objects of the large store")
	jobs := flag.Int("jobs", 40, "jobs submitted")
	part := flag.String("part", "", "the one part of the suite lease, content, store, checkpoint or runner that is measured (all of them when empty)")
	keep := flag.Bool("keep-logs", false, "keep the folder with the daemons' logs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if node := os.Getenv(envNode); node != "" {
		if err := runTrioNode(ctx, node); err != nil {
			fmt.Fprintln(os.Stderr, "bench node:", err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv(content.EnvStore); dir != "" {
		if err := content.AskStore(ctx, dir); err != nil {
			fmt.Fprintln(os.Stderr, "bench store:", err)
			stop()
			os.Exit(1)
		}
		return
	}
	if os.Getenv(party.Env) != "" {
		if err := party.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench party:", err)
			stop()
			os.Exit(1)
		}
		return
	}
	if err := run(ctx, options{suite: *suite, bin: *bin, rounds: *rounds, jobs: *jobs, objects: *objects, part: *part, keep: *keep}); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	suite, bin   string
	part         string
	rounds, jobs int
	objects      int
	keep         bool
}

// suites in the order of their running; each takes a site that has just come up, but
// those that run in this process and need none.
var suites = []struct {
	name string
	bare bool
	part string // the one part of the suite that this is; "": it looks for itself
	run  func(*bench, context.Context) error
}{
	{"sim", true, "", (*bench).simSuite},
	{"node", false, "", (*bench).nodeSuite},
	{"lease", true, "", (*bench).raftSuite},
	{"lease", false, jobsPart, (*bench).leaseSuite},
	{"content", true, "", func(b *bench, ctx context.Context) error { return b.content().Content(ctx) }},
	{"store", true, "", func(b *bench, ctx context.Context) error { return b.content().Store(ctx) }},
	{"checkpoint", true, "restic", func(b *bench, ctx context.Context) error { return b.content().Checkpoints(ctx) }},
	{"checkpoint", false, "killed", (*bench).resumeSuite},
	{"runner", true, "", (*bench).runnerSuite},
}

// bench is one run.
type bench struct {
	options
	*report.Sheet
	site *localsite.Site
}

func (b *bench) content() *content.Bench {
	return &content.Bench{Sheet: b.Sheet, Rounds: b.rounds, Objects: b.objects, Part: b.part}
}

func run(ctx context.Context, o options) (err error) {
	known := o.suite == "all"
	for _, s := range suites {
		known = known || s.name == o.suite
	}
	if !known {
		return fmt.Errorf("there is no suite %q; lease, node, content, store, checkpoint, sim, runner and all are there", o.suite)
	}
	if o.part != "" && !slices.Contains([]string{"lease", "content", "store", "checkpoint", "runner"}, o.suite) {
		return fmt.Errorf("-part %s: the suites lease, content, store, checkpoint and runner have parts, %s has none", o.part, o.suite)
	}
	if o.suite == "checkpoint" && !slices.Contains([]string{"", "restic", "killed"}, o.part) {
		return fmt.Errorf("there is no part %q; restic and killed are there", o.part)
	}
	if o.rounds < 5 || o.jobs < 5 {
		return fmt.Errorf("-rounds %d and -jobs %d: a median of fewer than 5 says nothing", o.rounds, o.jobs)
	}
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	programs, err := localsite.FindPrograms(bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "forgeyard-bench-")
	if err != nil {
		return err
	}
	b := &bench{options: o, Sheet: &report.Sheet{Out: os.Stdout}, site: localsite.New(dir, programs)}
	fmt.Fprintf(b.Out, "%s/%s, %d cores, load %s, data in %s\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), report.Load(), dir)
	err = b.all(ctx)
	b.site.Stop()
	if err != nil {
		fmt.Fprint(os.Stderr, b.site.Tails(15))
	}
	if o.keep {
		fmt.Fprintf(b.Out, "the daemons' logs are in %s\n", dir)
	} else {
		err = errors.Join(err, b.site.Remove())
	}
	fmt.Fprintf(b.Out, "load at the end %s\n\n", report.Load())
	b.Results()
	return err
}

func (b *bench) all(ctx context.Context) error {
	formed := false
	for _, s := range suites {
		if b.suite != "all" && b.suite != s.name {
			continue
		}
		if b.part != "" && s.part != "" && b.part != s.part {
			continue
		}
		if !s.bare && !formed {
			if err := b.form(ctx); err != nil {
				return err
			}
			formed = true
		}
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("suite %s: %w", s.name, err)
		}
	}
	return nil
}
