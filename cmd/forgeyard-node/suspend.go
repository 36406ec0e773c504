package main

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/job"
)

// askTime is how long a command waits for what it asked a holder for.
const askTime = 2 * time.Minute

type asked struct {
	JobID      string `json:"job_id"`
	Changed    bool   `json:"changed"`
	Status     string `json:"status"`
	Checkpoint string `json:"checkpoint_id,omitempty"` // the one that was asked for
	Suspension string `json:"suspension,omitempty"`    // its state
	Why        string `json:"why,omitempty"`           // the suspension failed
}

func (a *app) jobCheckpoint() *cobra.Command {
	var timeout time.Duration
	c := a.Build(cli.Command{
		Use: "checkpoint ID", Short: "Ask a running job for a checkpoint, and wait until it is committed", Args: cobra.ExactArgs(1),
		Long: "Ask a running job for a checkpoint, and wait until the site has committed it. The job runs on. Whether and when it writes one is the program's to say: " +
			"a job that declares no checkpoints is refused.",
		Example: "  forgeyard-node job checkpoint 7KQ2", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			return a.askJob(ctx, args[0], "checkpoint", "", timeout)
		},
	})
	c.Flags().DurationVar(&timeout, "timeout", askTime, "how long to wait for it")
	return c
}

func (a *app) jobSuspend() *cobra.Command {
	var timeout time.Duration
	var restart, cancel bool
	c := a.Build(cli.Command{
		Use: "suspend ID", Short: "Stop a job at a checkpoint, until it is resumed", Args: cobra.ExactArgs(1),
		Long: "Stop a job at a checkpoint: it gives up its runner and its devices, and waits until `job resume`. A job that waits for a runner is held back at once. " +
			"Without a committed checkpoint nothing is stopped: the job runs on and says why. With --or-restart it is stopped all the same and begins anew from what is committed; with --or-cancel it is cancelled.",
		Example: "  forgeyard-node job suspend 7KQ2\n  forgeyard-node job suspend 7KQ2 --or-restart", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			otherwise := ""
			switch {
			case restart && cancel:
				return a.Usage("job suspend", "--or-restart and --or-cancel exclude each other")
			case restart:
				otherwise = "restart"
			case cancel:
				otherwise = "cancel"
			}
			return a.askJob(ctx, args[0], "suspend", otherwise, timeout)
		},
	})
	c.Flags().BoolVar(&restart, "or-restart", false, "when it cannot be suspended, stop it: it begins anew when it is resumed")
	c.Flags().BoolVar(&cancel, "or-cancel", false, "when it cannot be suspended, cancel it")
	c.Flags().DurationVar(&timeout, "timeout", askTime, "how long to wait for it")
	return c
}

func (a *app) jobResume() *cobra.Command {
	var from, reason string
	cmd := a.Build(cli.Command{
		Use: "resume ID", Short: "Let a suspended job go on, from its newest checkpoint", Args: cobra.ExactArgs(1),
		Long: "Let a suspended job go on, from its newest good checkpoint. --from names another of its checkpoints: newer ones are passed over, also when that one proves unusable, until " +
			"the job has committed one again. A checkpoint of another job, one that was revoked, quarantined or let go, and one that fits no member is refused, with the reasons. The choice and --reason stand in the site's events.",
		Example: "  forgeyard-node job resume 7KQ2\n  forgeyard-node job resume 7KQ2 --from 1f3a5c --reason 'the later ones have the wrong rate'", Exits: []int{1, 2, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			if (from == "") != (strings.TrimSpace(reason) == "") {
				return a.Usage("job resume", "--from and --reason go together: the choice stands in the site's events with why")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: args[0]})
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.job.Resume, &forgeyardv1.ResumeJobRequest{JobId: j.JobId, From: from, Reason: reason})
			if err != nil {
				return err
			}
			v := asked{JobID: j.JobId, Changed: r.Changed, Status: r.Status}
			return a.PrintValue(v, func(p *cli.Page) { p.Line("%s %s", v.JobID, v.Status) })
		},
	})
	cmd.Flags().StringVar(&from, "from", "", "checkpoint to go on from")
	cmd.Flags().StringVar(&reason, "reason", "", "why that one; required with --from")
	return cmd
}

// askJob hands a wish to a job's holder and waits for what comes of it.
func (a *app) askJob(ctx context.Context, id, what, otherwise string, timeout time.Duration) error {
	if timeout <= 0 {
		return a.Usage("job "+what, "--timeout %s is not above 0", timeout)
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	before, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: id})
	if err != nil {
		return err
	}
	r, err := unary(ctx, c.job.Ask, &forgeyardv1.AskJobRequest{JobId: before.JobId, What: what, Otherwise: otherwise})
	if err != nil {
		return err
	}
	settled := func(j *forgeyardv1.Job) bool { return settled(j, what, r.Newest) }
	j, err := untilJob(ctx, c, before, timeout, settled)
	if err != nil {
		return err
	}
	v := asked{JobID: j.JobId, Changed: r.Changed, Status: j.Status, Suspension: j.Suspension.GetState(), Why: j.Suspension.GetWhy()}
	if n := newestCheckpoint(j); n != r.Newest {
		v.Checkpoint = n
	}
	if err := a.PrintValue(v, func(p *cli.Page) { p.Line("%s %s%s", v.JobID, v.Status, checkpointed(v.Checkpoint)) }); err != nil {
		return err
	}
	return a.asFar(j, what, otherwise, v.Checkpoint, timeout, settled(j))
}

func checkpointed(id string) string {
	if id == "" {
		return ""
	}
	return ", checkpoint " + id
}

// settled reports that a wish has come to its end, whichever.
func settled(j *forgeyardv1.Job, what, before string) bool {
	switch {
	case job.Status(j.Status).Terminal():
		return true
	case what == "checkpoint":
		return newestCheckpoint(j) != before
	}
	return job.Status(j.Status) == job.Suspended || j.Suspension.GetState() == "failed"
}

// asFar is how a command ends for what came of its wish.
func (a *app) asFar(j *forgeyardv1.Job, what, otherwise, checkpoint string, waited time.Duration, settled bool) error {
	show := a.commandLine("job", "show", j.JobId)
	switch {
	case !settled:
		return forgeyard.Errorf(what, forgeyard.Unavailable, "%s is %s and has no answer after %s: this execution is asked for it still", j.JobId, j.Status, waited).WithHint("watch it with: %s", show)
	case j.Suspension.GetState() == "failed" && what == "suspend":
		return forgeyard.Errorf(what, forgeyard.Conflict, "%s runs on: %s", j.JobId, j.Suspension.Why).
			WithHint("--or-restart stops it, and begins it anew when it is resumed; --or-cancel ends it")
	case j.Status == string(job.Cancelled) && otherwise == "cancel":
		return nil
	case job.Status(j.Status).Terminal() && (what == "suspend" || checkpoint == ""):
		return forgeyard.Errorf(what, forgeyard.Other, "%s was faster: it is %s", j.JobId, j.Status)
	}
	return nil
}

func newestCheckpoint(j *forgeyardv1.Job) string {
	if n := len(j.Checkpoints); n > 0 {
		return j.Checkpoints[n-1].CheckpointId
	}
	return ""
}

// lookAgain is the time between two looks at a job whose run tells nothing: it keeps no more
// than its first events.
const lookAgain = time.Second

// untilJob looks at a job at each event of its run until it is as asked, for at most d.
func untilJob(ctx context.Context, c *client, j *forgeyardv1.Job, d time.Duration, ok func(*forgeyardv1.Job) bool) (*forgeyardv1.Job, error) {
	look, cancel := context.WithTimeout(ctx, d)
	s, err := c.run.Attach(look, connect.NewRequest(&forgeyardv1.AttachRequest{RunId: j.RunId}))
	if err != nil {
		cancel()
		return nil, err
	}
	show := func() (*forgeyardv1.Job, error) {
		return unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: j.JobId})
	}
	told, again := make(chan struct{}, 1), time.NewTicker(lookAgain)
	defer again.Stop()
	over := make(chan struct{})
	defer func() {
		cancel()
		<-over
		_ = s.Close() // it was only read
	}()
	go func() {
		defer close(over)
		defer close(told)
		for s.Receive() {
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	for {
		now, err := show()
		if err != nil || ok(now) || look.Err() != nil {
			return now, err
		}
		select {
		case _, more := <-told:
			if !more {
				told = nil // the stream broke: the clock is left
			}
		case <-again.C:
		case <-look.Done():
		}
	}
}
