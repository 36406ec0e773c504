package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/job"
)

// A follower stays with a run while its daemon restarts, for this long, asking again
// after a pause that grows.
const (
	patience   = 60 * time.Second
	firstPause = 200 * time.Millisecond
	lastPause  = 3 * time.Second
	// logTail is how long the rest of the output may take after the run has ended.
	logTail = 10 * time.Second
)

// attach follows a run until its terminal status: events as they come, and with
// output what the job prints. Ctrl-C detaches and leaves the job alone.
func (a *app) attach(ctx context.Context, c *client, id string, output bool) error {
	j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: id})
	if err != nil {
		return a.detached(ctx, id, err)
	}
	logDone := make(chan struct{})
	logCtx, stopLog := context.WithCancel(ctx)
	defer stopLog()
	go func() {
		defer close(logDone)
		if !output {
			return
		}
		if err := a.copyLog(logCtx, c, &forgeyardv1.LogRequest{JobId: j.JobId, Follow: true}); err != nil && logCtx.Err() == nil {
			a.Note("%s: the output cannot be followed: %v", a.Program, err)
		}
	}()
	status, err := a.events(ctx, c, j.RunId)
	if err != nil {
		stopLog()
		<-logDone
		return a.detached(ctx, j.JobId, err)
	}
	select {
	case <-logDone:
	case <-time.After(logTail):
		stopLog()
		<-logDone
	}
	if job.Status(status) == job.Done {
		return nil
	}
	return cli.Exit(1)
}

// detached says what goes on without us, and how to end it.
func (a *app) detached(ctx context.Context, id string, err error) error {
	if ctx.Err() == nil && forgeyard.KindOf(err) != forgeyard.Interrupted {
		return err
	}
	a.Note("detached: %s goes on. To cancel it: %s", id, a.commandLine("job", "cancel", id))
	return cli.Exit(forgeyard.Interrupted.ExitCode())
}

// events prints the events of a run in order, each once, until the terminal one.
func (a *app) events(ctx context.Context, c *client, run string) (status string, err error) {
	last := uint64(0)
	err = a.stay(ctx, func() (bool, error) {
		s, err := c.run.Attach(ctx, connect.NewRequest(&forgeyardv1.AttachRequest{RunId: run, After: last}))
		if err != nil {
			return false, err
		}
		defer func() { _ = s.Close() }() // it was only read
		before := last
		for s.Receive() {
			e := s.Msg()
			if e.Seq != last+1 {
				return true, forgeyard.Errorf("attach", forgeyard.Corrupt, "event %d came after event %d", e.Seq, last)
			}
			last = e.Seq
			if err := a.event(e); err != nil {
				return true, err
			}
			if e.Kind == string(job.EventStatus) && job.Status(e.Status).Terminal() {
				status = e.Status
				return true, nil
			}
		}
		if err := s.Err(); err != nil {
			return last > before, err
		}
		// A stream that ends before the run has: the daemon stops.
		return last > before, forgeyard.Errorf("attach", forgeyard.Unavailable, "the daemon ended the stream")
	})
	return status, err
}

// event prints one event. In text, events are messages for people and the output is
// the fact.
func (a *app) event(e *forgeyardv1.RunEvent) error {
	if a.JSON() {
		return a.Line(e, "")
	}
	what := e.Message
	if e.Kind == string(job.EventStatus) {
		what = e.Status + ": " + e.Message
	}
	a.Note("[%s] %s", e.At.AsTime().Local().Format(time.TimeOnly), what)
	return nil
}

// stay calls f again while the daemon is away. f says whether it got anywhere.
func (a *app) stay(ctx context.Context, f func() (progress bool, err error)) error {
	pause, since := firstPause, now()
	for {
		progress, err := f()
		if err == nil || forgeyard.KindOf(err) != forgeyard.Unavailable || wire.Answered(err) || ctx.Err() != nil {
			return err // with an answer, the daemon is there and says what is wrong
		}
		if progress {
			pause, since = firstPause, now()
		}
		if now().Sub(since) > patience {
			return err
		}
		if pause == firstPause {
			a.Note("%s: the daemon is away (%v), trying again for %s", a.Program, err, cli.Dur(patience))
		}
		select {
		case <-ctx.Done():
			return forgeyard.E("attach", forgeyard.Interrupted, ctx.Err())
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// copyLog prints the frames of a job's log, each once.
func (a *app) copyLog(ctx context.Context, c *client, req *forgeyardv1.LogRequest) error {
	return a.stay(ctx, func() (bool, error) {
		s, err := c.job.Log(ctx, connect.NewRequest(req))
		if err != nil {
			return false, err
		}
		defer func() { _ = s.Close() }() // it was only read
		before := req.After
		for s.Receive() {
			f := s.Msg()
			req.After = f.Seq // it may go back: a lost tail's numbers are given anew in the next epoch
			if err := a.frame(f, req.Stream == "structured"); err != nil {
				return true, err
			}
		}
		if err := s.Err(); err != nil || !req.Follow {
			return req.After > before, err
		}
		return a.logEnded(ctx, c, req, before)
	})
}

// logEnded tells a log that is over from a daemon that stops.
func (a *app) logEnded(ctx context.Context, c *client, req *forgeyardv1.LogRequest, before uint64) (bool, error) {
	j, err := unary(ctx, c.job.Show, &forgeyardv1.ShowJobRequest{JobId: req.JobId})
	if err == nil && !job.Status(j.Status).Terminal() {
		err = forgeyard.Errorf("log", forgeyard.Unavailable, "the daemon ended the stream")
	}
	return req.After > before, err
}

// frame prints a piece of a log: its bytes as they are, the workload's errors to
// stderr; what the agent says is marked. The structured stream is for programs: text
// shows it only to who asks for it.
func (a *app) frame(f *forgeyardv1.LogFrame, asked bool) error {
	if a.JSON() {
		return a.Line(f, "")
	}
	var err error
	switch f.Stream {
	case "stdout":
		_, err = a.Out.Write(f.Data)
	case "structured":
		if asked {
			_, err = fmt.Fprintln(a.Out, trimNewline(f.Data))
		}
	case "stderr":
		_, err = a.Err.Write(f.Data)
	default:
		_, err = fmt.Fprintf(a.Err, "[%s] %s\n", f.Stream, trimNewline(f.Data))
	}
	if err != nil {
		return forgeyard.E("write the log", forgeyard.Other, err)
	}
	return nil
}

func trimNewline(b []byte) string {
	for len(b) > 0 && b[len(b)-1] == '\n' {
		b = b[:len(b)-1]
	}
	return string(b)
}

// untilTerminal waits for the end of a run without printing, for at most d.
func untilTerminal(ctx context.Context, c *client, run string, d time.Duration) (status string, err error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	s, err := c.run.Attach(ctx, connect.NewRequest(&forgeyardv1.AttachRequest{RunId: run}))
	if err != nil {
		return "", err
	}
	defer func() { _ = s.Close() }() // it was only read
	for s.Receive() {
		if e := s.Msg(); e.Kind == string(job.EventStatus) && job.Status(e.Status).Terminal() {
			return e.Status, nil
		}
	}
	if err := s.Err(); err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "", err
	}
	return "", nil
}
