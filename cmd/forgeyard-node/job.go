package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/job"
)

func (a *app) jobCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "job", Aliases: []string{"jobs"}, Short: "Show, follow, suspend and cancel jobs"})
	g.AddCommand(a.jobList(), a.jobShow(), a.jobLog(), a.attachCommand("job"), a.cancelCommand("job"), a.jobCheckpoint(), a.jobSuspend(), a.jobResume(), a.jobEffect(), a.jobOutputs(), a.jobProvenance())
	return g
}

func (a *app) jobList() *cobra.Command {
	var all bool
	var status string
	c := a.Build(cli.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List jobs that have not ended",
		Example: "  forgeyard-node job list --all\n  forgeyard-node jobs list --status failed -o json", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.job.List, &forgeyardv1.ListJobsRequest{All: all, Status: status})
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, l.Jobs, func(p *cli.Page) { jobTable(p, l.Jobs) })
		},
	})
	c.Flags().BoolVar(&all, "all", false, "ended ones too")
	c.Flags().StringVar(&status, "status", "", "only those: queued, leased, running, suspended, unknown, done, failed, cancelled")
	return c
}

func (a *app) jobShow() *cobra.Command {
	return a.Build(cli.Command{
		Use: "show ID", Short: "Show all about a job: where it is and why, its epochs, checkpoints and results", Args: cobra.ExactArgs(1),
		Long: "Show all about a job: where it is and why, for each runner when it waits; its epochs, checkpoints, outputs, results that came too late, " +
			"and its last events: each decision about its leases with the reason. " +
			"ID is a job id, a run id, or the last letters of either.",
		Example: "  forgeyard-node job show 7KQ2", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: args[0]})
			if err != nil {
				return err
			}
			return a.Print(j, func(p *cli.Page) { jobText(p, j) })
		},
	})
}

func (a *app) jobLog() *cobra.Command {
	var req forgeyardv1.LogRequest
	c := a.Build(cli.Command{
		Use: "log ID", Short: "Print what a job has printed so far", Args: cobra.ExactArgs(1),
		Long:    "Print what a job has printed so far, of all epochs: its stdout to stdout, its stderr to stderr. With -o json one frame a line, data in base64.",
		Example: "  forgeyard-node job log 7KQ2 --stream stdout\n  forgeyard-node job log 7KQ2 --follow", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			req.JobId = args[0]
			if err := a.copyLog(ctx, c, &req); err != nil {
				return a.detached(ctx, args[0], err)
			}
			return nil
		},
	})
	f := c.Flags()
	f.StringVar(&req.Stream, "stream", "", "only this one: stdout, stderr, agent, structured")
	f.BoolVarP(&req.Follow, "follow", "f", false, "go on until the job has ended")
	f.Uint64Var(&req.After, "after", 0, "only frames after this number")
	return c
}

// attachCommand is `job attach` and `run attach`.
func (a *app) attachCommand(noun string) *cobra.Command {
	return a.Build(cli.Command{
		Use: "attach ID", Short: "Follow until the end: exits 0 for done, 1 for failed or cancelled", Args: cobra.ExactArgs(1),
		Long: "Follow until the end: exits 0 for done, 1 for failed or cancelled. Events come from the first one on, numbered without a gap; with -o json they are all that is printed, one a line. " +
			"In text the job's own output goes to stdout and stderr. Ctrl-C only detaches.",
		Example: "  forgeyard-node " + noun + " attach 7KQ2", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			return a.attach(ctx, c, args[0], !a.JSON() && noun == "job")
		},
	})
}

// cancelled is what cancel prints.
type cancelled struct {
	JobID     string `json:"job_id"`
	Changed   bool   `json:"changed"`
	Confirmed bool   `json:"confirmed"`
	Status    string `json:"status"`
}

// cancelCommand is `job cancel` and `run cancel`.
func (a *app) cancelCommand(noun string) *cobra.Command {
	var req forgeyardv1.CancelJobRequest
	var security bool
	var timeout, within time.Duration
	c := a.Build(cli.Command{
		Use: "cancel ID", Short: "Cancel, and wait until its runner has confirmed it", Args: cobra.ExactArgs(1),
		Long: "Cancel, and wait until its runner has confirmed it. The request is durable: a runner that is out of reach ends the work when it hears of it, or when its lease ends. " +
			"What has ended stays as it is. A cancelled job is never suspended instead, and nobody resumes it. --after-checkpoint asks for a checkpoint first, for evidence or to begin from by hand; a job that declares none is refused. " +
			"--security kills at once and revokes what this execution has saved, until somebody has looked at it.",
		Example: "  forgeyard-node " + noun + " cancel 7KQ2\n  forgeyard-node " + noun + " cancel 7KQ2 --force\n  forgeyard-node " + noun + " cancel 7KQ2 --after-checkpoint --within 30s\n  forgeyard-node " + noun + " cancel 7KQ2 --reason budget --note 'the quarter is over'", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			if timeout <= 0 {
				return a.Usage(noun+" cancel", "--timeout %s is not above 0", timeout)
			}
			if within < 0 || (within > 0 && !req.AfterCheckpoint) {
				return a.Usage(noun+" cancel", "--within %s is below 0, or stands without --after-checkpoint", within)
			}
			if within > 0 {
				req.Within = durationpb.New(within)
			}
			if security {
				if req.Reason != "" && req.Reason != string(job.CancelSecurity) {
					return a.Usage(noun+" cancel", "--security and --reason %s exclude each other", req.Reason)
				}
				req.Reason = string(job.CancelSecurity)
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			return a.cancel(ctx, c, args[0], &req, timeout)
		},
	})
	c.Flags().BoolVar(&req.Force, "force", false, "kill at once instead of asking first")
	c.Flags().BoolVar(&security, "security", false, "kill at once, and revoke what this execution has saved")
	c.Flags().BoolVar(&req.AfterCheckpoint, "after-checkpoint", false, "ask for a checkpoint first")
	c.Flags().DurationVar(&within, "within", 0, "how long that checkpoint may take (default: as the job declares)")
	c.Flags().StringVar(&req.Reason, "reason", "", "why: user, timeout, budget, incident, shutdown, preemption, policy, superseded, security (default: user)")
	c.Flags().StringVar(&req.Note, "note", "", "why, in words: it stands in the run's events")
	c.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the confirmation")
	return c
}

func (a *app) cancel(ctx context.Context, c *client, id string, req *forgeyardv1.CancelJobRequest, timeout time.Duration) error {
	j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: id})
	if err != nil {
		return err
	}
	req.JobId = j.JobId
	r, err := unary(ctx, c.job.Cancel, req)
	if err != nil {
		return err
	}
	v := cancelled{JobID: j.JobId, Changed: r.Changed, Status: r.Status}
	if !job.Status(r.Status).Terminal() {
		status, err := untilTerminal(ctx, c, j.RunId, timeout)
		if err != nil {
			return err
		}
		if status != "" {
			v.Status = status
		}
	}
	v.Confirmed = job.Status(v.Status).Terminal()
	if err := a.PrintValue(v, func(p *cli.Page) { p.Line("%s %s%s", v.JobID, v.Status, unchanged(v.Changed)) }); err != nil {
		return err
	}
	switch {
	case !v.Confirmed:
		return a.unconfirmed(ctx, c, j.JobId, timeout)
	case v.Changed && v.Status != string(job.Cancelled):
		return forgeyard.Errorf("cancel", forgeyard.Other, "%s was faster: it is %s", j.JobId, v.Status)
	}
	return nil
}

func unchanged(changed bool) string {
	if changed {
		return ""
	}
	return " (nothing was changed)"
}

// unconfirmed tells a runner that does not follow from one that cannot hear.
func (a *app) unconfirmed(ctx context.Context, c *client, id string, waited time.Duration) error {
	j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: id})
	if err != nil {
		return err
	}
	state := "unknown"
	if m, err := member(ctx, c, j.RunnerId); err == nil {
		state = m.State
		if m.SilentSince != nil { // membership may take longer to notice than the leader does
			state = "silent"
		}
	}
	if job.Status(j.Status) == job.Unknown || state != "alive" {
		return forgeyard.Errorf("cancel", forgeyard.Unavailable, "%s is %s on %s, which is %s: the request is kept and not confirmed after %s", id, j.Status, j.Runner, state, waited).
			WithHint("watch it with: %s", a.commandLine("job", "show", id))
	}
	return forgeyard.Errorf("cancel", forgeyard.Other, "%s is %s (%s) on %s and not confirmed after %s", id, j.Status, j.Phase, j.Runner, waited).
		WithHint("end it at once with: %s", a.commandLine("job", "cancel", id, "--force"))
}

func (a *app) jobOutputs() *cobra.Command {
	var to string
	var failed, sensitive bool
	c := a.Build(cli.Command{
		Use: "outputs ID", Short: "List what a job brought out, or fetch it", Args: cobra.ExactArgs(1),
		Long: "List what a job brought out. With --to it is fetched into a folder, each output under its path, verified. What stands there already is not overwritten. " +
			"With --diagnostics it is what was kept of a job that failed (on_failure of the job file), which is no output; what is marked sensitive is fetched only with --sensitive.",
		Example: "  forgeyard-node job outputs 7KQ2\n  forgeyard-node job outputs 7KQ2 --to ./out\n  forgeyard-node job outputs 7KQ2 --diagnostics --to ./why", Exits: []int{1, 3, 4, 5, 6, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			if sensitive && !failed {
				return a.Usage("job outputs", "--sensitive stands with --diagnostics only")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: args[0]})
			if err != nil {
				return err
			}
			outs := j.Outputs
			if failed {
				outs = toFetch(j.Diagnostics, sensitive)
			}
			if to != "" {
				if err := a.fetchOutputs(ctx, c, j, outs, to); err != nil {
					return err
				}
			}
			if failed {
				return cli.PrintList(a.Shell, j.Diagnostics, func(p *cli.Page) { diagnosticTable(p, j.Diagnostics) })
			}
			return cli.PrintList(a.Shell, j.Outputs, func(p *cli.Page) { outputTable(p, j.Outputs) })
		},
	})
	f := c.Flags()
	f.StringVar(&to, "to", "", "folder to fetch them into")
	f.BoolVar(&failed, "diagnostics", false, "what was kept of a failure instead")
	f.BoolVar(&sensitive, "sensitive", false, "with --diagnostics --to: also what is marked sensitive")
	return c
}

// toFetch are the diagnostics that a person asks for, as outputs.
func toFetch(all []*forgeyardv1.Job_Diagnostic, sensitive bool) (out []*forgeyardv1.Output) {
	for _, d := range all {
		if d.Digest != "" && (sensitive || !d.Sensitive) {
			out = append(out, &forgeyardv1.Output{Path: d.Path, Digest: d.Digest, Size: d.Size, Tree: d.Tree, Manifest: d.Manifest})
		}
	}
	return out
}

func (a *app) fetchOutputs(ctx context.Context, c *client, j *forgeyardv1.Job, outs []*forgeyardv1.Output, to string) error {
	if !job.Status(j.Status).Terminal() {
		return forgeyard.Errorf("job outputs", forgeyard.Conflict, "%s is %s: outputs come with its end", j.JobId, j.Status).WithHint("wait with: %s", a.commandLine("job", "attach", j.JobId))
	}
	for _, o := range outs {
		name := filepath.FromSlash(o.Path)
		if !filepath.IsLocal(name) {
			return forgeyard.Errorf("job outputs", forgeyard.Invalid, "output %q would leave %s", o.Path, to)
		}
		dst := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			return forgeyard.E("job outputs", fileKind(err), err)
		}
		ref, err := parseRef(o.Digest, o.Manifest, o.Size)
		if err != nil {
			return err
		}
		if err := a.download(ctx, c, ref, o.Tree, dst); err != nil {
			return err
		}
	}
	return nil
}
