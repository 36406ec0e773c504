package runner

import (
	"context"
	"fmt"
	"io"

	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner/telling"
)

// Tell adds an event to the run's: what a tool did, or a word for people.
func (a *Attempt) Tell(h job.Happening) { a.told.Add(h) }

// Untold is what happened and was not acknowledged with Told yet. It is to be sent with the
// command that changes the epoch next.
func (a *Attempt) Untold() job.Told { return a.told.Take(telling.Most) }

// Told acknowledges that what was sent, up to that number, is in the site's log.
func (a *Attempt) Told(last uint64) { a.told.Arrived(last) }

// report sends what waits, on the teller's goroutine.
func (a *Attempt) report(ctx context.Context) {
	t := a.told.Take(job.MaxTold)
	if t.IsZero() || a.Lost() {
		return
	}
	if err := a.hooks.Report(ctx, t); err != nil {
		if ctx.Err() == nil {
			a.said().Debug("events wait", "err", err)
		}
		return
	}
	a.told.Arrived(t.Last())
}

// counted is a stream of output, counted.
type counted struct {
	w      io.Writer
	t      *telling.Tellings
	stderr bool
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.t.Wrote(c.stderr, n)
	return n, err
}

// CheckpointBegun tells that a checkpoint is being taken. What ends before anybody was told so
// is told once, by its end.
func (a *Attempt) CheckpointBegun(seq int) {
	a.tool(job.Tool{Source: job.ToolCheckpoint, Name: checkpointName(seq), State: job.ToolStarted}, "")
}

func checkpointName(seq int) string { return fmt.Sprintf("checkpoint %d", seq) }

// tool tells of the use of a tool.
func (a *Attempt) tool(t job.Tool, why string) {
	a.told.Add(job.Happening{Kind: job.EventTool, Message: a.clean(why), Tool: &t})
}
