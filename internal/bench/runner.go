package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node/internal/bench/report"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
	"github.com/forgeyard/forgeyard-node/job"
)

// The measures of the suite.
const (
	submitters = 16
	// perSubmitter is how many jobs each has done in one round.
	perSubmitter = 4
	// logBytes is what a job prints: many times what its pipe holds, and below every bound.
	logBytes  = 256 << 20
	treeFiles = 10_000
)

// runnerSuite measures what a node adds to the work that it runs. Its site is of one node,
// as the peers have one machine: the log is committed to one disk, as theirs is.
func (b *bench) runnerSuite(ctx context.Context) error {
	at, err := b.formOne(ctx)
	if err != nil {
		return err
	}
	known := b.part == ""
	for _, p := range []struct {
		name string
		run  func(context.Context, *localsite.Node) error
	}{{"overhead", b.overhead}, {"rate", b.rate}, {"log", b.logRate}, {"tree", b.preparing}} {
		if b.part != "" && b.part != p.name {
			continue
		}
		known = true
		if err := p.run(ctx, at); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if !known {
		return fmt.Errorf("there is no part %q; overhead, rate, log and tree are there", b.part)
	}
	return nil
}

// formOne makes the site. It joins those that the run stops at its end.
func (b *bench) formOne(ctx context.Context) (*localsite.Node, error) {
	n, config, err := b.site.AddNode("alone", localsite.Settings{"limits": map[string]any{"max_jobs": submitters}})
	if err != nil {
		return nil, err
	}
	b.site.Nodes = b.site.Nodes[:len(b.site.Nodes)-1] // the other suites' site has no part of it
	if _, err := b.site.Command(ctx, b.site.Programs.Node, n.Env(), "", "init", "--site", "alone", "--config", config); err != nil {
		return nil, err
	}
	if err := n.Up(); err != nil {
		return nil, err
	}
	return n, b.site.AwaitOnline(ctx, patience, n)
}

// smallJob is a job of one step that needs next to nothing.
func smallJob(step, cpu, disk, inputs string) string {
	return "version: 1\nkind: build\ntitle: small\njob:\n  steps: [" + step + "]\n  resources: {cpu: " + cpu + ", memory: 64MiB, disk: " + disk + ", pids: 32}\n" + inputs
}

// trueJob does nothing, alone on a core; smallTrue leaves room for as many at once as there
// are submitters.
var (
	trueJob   = smallJob(`{run: ["true"]}`, "1", "16MiB", "")
	smallTrue = smallJob(`{run: ["true"]}`, "0.1", "16MiB", "")
)

func specOf(text string) ([]byte, error) {
	f, err := job.ParseFile("small.yaml", []byte(text), nil)
	if err != nil {
		return nil, err
	}
	s, err := f.Spec(nil)
	return s.Canonical(), err
}

// done submits a job and waits for its end. It returns when the end was heard.
func (b *bench) done(ctx context.Context, at *localsite.Node, spec []byte) (id string, took time.Duration, err error) {
	began := time.Now()
	r, err := submit(ctx, at, spec)
	if err != nil {
		return "", 0, err
	}
	if _, err := b.follow(ctx, at, r.RunId); err != nil {
		return "", 0, err
	}
	return r.JobIds[0], time.Since(began), nil
}

// plain is the sandbox that a person would make by hand.
func plain(ctx context.Context, argv ...string) (time.Duration, error) {
	began := time.Now()
	out, err := exec.CommandContext(ctx, "bwrap", append([]string{"--unshare-all", "--die-with-parent", "--new-session",
		"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"}, argv...)...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("bwrap %v: %w: %.200s", argv, err, out)
	}
	return time.Since(began), nil
}

// overhead is what a job that does nothing takes from submit to done beyond the same in a
// sandbox by hand, in turns.
func (b *bench) overhead(ctx context.Context, at *localsite.Node) error {
	spec, err := specOf(trueJob)
	if err != nil {
		return err
	}
	var ours, theirs, more []float64
	for i := range b.jobs + warmup {
		hand, err := plain(ctx, "true")
		if err != nil {
			b.Add(report.Result{Name: "runner.true_over_bwrap_p50", Unit: report.Millis, Goal: 0.06}.Lacking(err.Error()))
			return nil
		}
		_, took, err := b.done(ctx, at, spec)
		if err != nil {
			return err
		}
		if i >= warmup {
			ours, theirs, more = append(ours, took.Seconds()), append(theirs, hand.Seconds()), append(more, (took-hand).Seconds())
		}
	}
	b.Say("true: submit to done p50 %s, bwrap by hand %s, %d of each; load %s", report.Millis(median(ours)), report.Millis(median(theirs)), len(ours), report.Load())
	b.Add(report.Measured("runner.true_over_bwrap_p50", report.Millis, 0.06, more))
	return nil
}

// rate is how many jobs that do nothing are done in a second, by as many submitters as
// a small team: commands that wait for the end, beside the peer's, and calls of the API.
func (b *bench) rate(ctx context.Context, at *localsite.Node) error {
	command := report.Result{Name: "runner.jobs_a_second_to_srun", Unit: inTimes, Goal: 2}.AtLeast()
	calls := report.Result{Name: "runner.calls_a_second_to_srun", Unit: inTimes, Goal: 2}.AtLeast()
	peer, perr := startSlurm(ctx, filepath.Join(b.site.Dir, "slurm"))
	defer peer.stop()
	spec, err := specOf(smallTrue)
	if err != nil {
		return err
	}
	file := filepath.Join(b.site.Dir, "true.yaml")
	if err := os.WriteFile(file, []byte(smallTrue), 0o600); err != nil {
		return err
	}
	var byCommand, byCall []float64
	for i := range b.rounds {
		one, err := inParallel(func() error {
			_, err := b.site.Command(ctx, b.site.Programs.Node, at.Env(), "", "submit", file, "--watch")
			return err
		})
		if err != nil {
			return err
		}
		two, err := inParallel(func() error {
			_, _, err := b.done(ctx, at, spec)
			return err
		})
		if err != nil {
			return err
		}
		if perr != nil {
			b.Say("jobs a second by %d submitters, round %d: commands %.1f, calls %.1f; load %s", submitters, i+1, one, two, report.Load())
			continue
		}
		other, err := inParallel(func() error { return peer.task(ctx) })
		if err != nil {
			return err
		}
		b.Say("jobs a second by %d submitters, round %d: commands %.1f, calls %.1f, srun %.1f; load %s", submitters, i+1, one, two, other, report.Load())
		byCommand, byCall = append(byCommand, one/other), append(byCall, two/other)
	}
	if perr != nil {
		b.Add(command.Lacking("Slurm does not run here: " + perr.Error()))
		b.Add(calls.Lacking("Slurm does not run here: " + perr.Error()))
		return nil
	}
	b.Add(report.Measured(command.Name, inTimes, 2, byCommand).AtLeast())
	b.Add(report.Measured(calls.Name, inTimes, 2, byCall).AtLeast())
	return nil
}

// inParallel has each submitter do its jobs one after the other, and tells how many were done in a
// second.
func inParallel(one func() error) (float64, error) {
	began := time.Now()
	var g errgroup.Group
	for range submitters {
		g.Go(func() error {
			for range perSubmitter {
				if err := one(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return submitters * perSubmitter / time.Since(began).Seconds(), err
}

func inMBs(v float64) string { return fmt.Sprintf("%.0fMB/s", v/1e6) }

// logRate is how fast a job's output is read from its pipe, framed, summed and written, while
// what is there flows on into the store: by the time that its step took.
func (b *bench) logRate(ctx context.Context, at *localsite.Node) error {
	print := fmt.Sprintf("head -c %d /dev/zero", logBytes)
	spec, err := specOf(smallJob(fmt.Sprintf("{sh: %q}", print), "1", "1GiB", ""))
	if err != nil {
		return err
	}
	var all []float64
	for i := range b.rounds {
		hand, err := plain(ctx, "sh", "-c", fmt.Sprintf("%s | cat > /dev/null", print))
		if err != nil {
			return err
		}
		id, took, err := b.done(ctx, at, spec)
		if err != nil {
			return err
		}
		j, err := at.Job(ctx, id)
		if err != nil {
			return err
		}
		if len(j.Steps) != 1 {
			return fmt.Errorf("%d steps of a job that has one", len(j.Steps))
		}
		step := j.Steps[0].Took.AsDuration()
		b.Say("a job that prints %s, round %d: its step took %s, submit to done %s, a pipe by hand %s; load %s",
			report.MiB(logBytes), i+1, report.Millis(step.Seconds()), report.Millis(took.Seconds()), report.Millis(hand.Seconds()), report.Load())
		all = append(all, logBytes/step.Seconds())
	}
	b.Add(report.Measured("runner.log_into_spool", inMBs, 200e6, all).AtLeast())
	return nil
}

// preparing is what a job with many files as its input takes from submit to done, when their
// bytes are on this node: at the first job with a tree, and at the next ones.
func (b *bench) preparing(ctx context.Context, at *localsite.Node) error {
	dir := filepath.Join(b.site.Dir, "source")
	if err := writeTree(dir); err != nil {
		return err
	}
	var first, next []float64
	for i := range b.rounds {
		// One file differs, so that the tree is another.
		if err := os.WriteFile(filepath.Join(dir, "round"), fmt.Appendf(nil, "%d", i), 0o600); err != nil {
			return err
		}
		digest, err := b.put(ctx, at, dir)
		if err != nil {
			return err
		}
		spec, err := specOf(smallJob(`{run: ["true"]}`, "1", "1GiB", "  inputs: [{path: source, tree: true, digest: \""+digest+"\"}]\n"))
		if err != nil {
			return err
		}
		var took [2]float64
		for k := range took {
			_, d, err := b.done(ctx, at, spec)
			if err != nil {
				return err
			}
			took[k] = d.Seconds()
		}
		b.Say("a job with %d files, round %d: submit to done %s at the first, %s at the second; load %s", treeFiles, i+1, report.Millis(took[0]), report.Millis(took[1]), report.Load())
		first, next = append(first, took[0]), append(next, took[1])
	}
	b.Add(report.Measured("runner.tree_first_job", report.Millis, 2, first))
	b.Add(report.Measured("runner.tree_next_job", report.Millis, 2, next))
	return nil
}

// writeTree writes the files, a hundred to a folder as sources have them.
func writeTree(dir string) error {
	for i := range treeFiles {
		d := filepath.Join(dir, fmt.Sprintf("d%03d", i/100))
		if i%100 == 0 {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		text := fmt.Appendf(make([]byte, 0, 4<<10), "file %d\n", i)
		if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("f%02d", i%100)), text[:cap(text)], 0o600); err != nil {
			return err
		}
	}
	return nil
}

// put brings a folder into the node's store.
func (b *bench) put(ctx context.Context, at *localsite.Node, dir string) (string, error) {
	text, err := b.site.Command(ctx, b.site.Programs.Node, at.Env(), "", "cas", "put", dir, "-o", "json")
	if err != nil {
		return "", err
	}
	var out struct {
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return "", err
	}
	if out.Digest == "" {
		return "", errors.New("cas put tells no digest")
	}
	return out.Digest, nil
}
