package main

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// restorePath prints where the verified payload lies.
func (h *helper) restorePath(args []string) error {
	if err := none(args, "fyjob restore path"); err != nil {
		return err
	}
	if h.restoreDir == "" {
		return no()
	}
	return h.print(h.restoreDir)
}

func (h *helper) restoreOK(args []string) error {
	if err := none(args, "fyjob restore ok"); err != nil {
		return err
	}
	return h.restored(checkpoint.Message{Kind: checkpoint.MessageRestoreOK})
}

func (h *helper) restoreReject(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	reason := flags.String("reason", "", "")
	const usage = "fyjob restore reject --reason TEXT"
	if _, err := parse(flags, args, 0, usage); err != nil {
		return err
	}
	if *reason == "" {
		return exitf(exitUsage, "a reason is needed; usage: %s", usage)
	}
	return h.restored(checkpoint.Message{Kind: checkpoint.MessageRestoreReject, Reason: *reason})
}

func (h *helper) restored(m checkpoint.Message) error {
	if h.restoreDir == "" {
		return exitf(exitNo, "nothing was restored: this epoch started fresh")
	}
	_, err := h.post(m)
	return err
}

// criticalBegin asks that a stop wait. The file is there before the request is read, so
// either we see the stop or the runner sees us.
func (h *helper) criticalBegin(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	longest := flags.Duration("max", 20*time.Second, "")
	if _, err := parse(flags, args, 0, "fyjob critical begin [--max 20s]"); err != nil {
		return err
	}
	if *longest < time.Millisecond || *longest > checkpoint.MaxCritical {
		return exitf(exitUsage, "--max %v is not in [1ms, %v]", *longest, checkpoint.MaxCritical)
	}
	c := checkpoint.CriticalSection{PID: os.Getppid(), MaxMillis: longest.Milliseconds(), Until: h.now().Add(*longest).UTC().Round(time.Millisecond)}
	if err := replaceFile(filepath.Join(h.ctl, checkpoint.CriticalName), c.Encode()); err != nil {
		return err
	}
	r, err := h.request()
	if err != nil || r.WantExit {
		return errors.Join(err, h.endCritical(), no())
	}
	return nil
}

func (h *helper) criticalEnd(args []string) error {
	if err := none(args, "fyjob critical end"); err != nil {
		return err
	}
	return h.endCritical()
}

func (h *helper) endCritical() error {
	err := os.Remove(filepath.Join(h.ctl, checkpoint.CriticalName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// progress leaves a sign of life. A beat lost between two helpers at once is no loss.
func (h *helper) progress(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	unit := flags.String("unit", "", "")
	rest, err := parse(flags, args, 1, "fyjob progress DONE[/TOTAL] [--unit NAME]")
	if err != nil {
		return err
	}
	p, err := parseProgress(rest[0])
	if err != nil {
		return err
	}
	if p.Unit = *unit; len(p.Unit) > checkpoint.MaxText {
		return exitf(exitUsage, "a unit has at most %d bytes", checkpoint.MaxText)
	}
	name := filepath.Join(h.ctl, checkpoint.ProgressName)
	beat := checkpoint.Heartbeat{Beat: 1, Progress: p}
	if b, err := os.ReadFile(name); err == nil {
		if old, err := checkpoint.ParseHeartbeat(b); err == nil {
			beat.Beat = old.Beat + 1
		}
	}
	return replaceFile(name, beat.Encode())
}

// why prints the kind of the stop that is under way, and its reason.
func (h *helper) why(args []string) error {
	if err := none(args, "fyjob why"); err != nil {
		return err
	}
	r, err := h.request()
	if err != nil {
		return err
	}
	if r.Kind == checkpoint.StopNone {
		return no()
	}
	line := string(r.Kind)
	if r.Reason != "" {
		line += ": " + r.Reason
	}
	if !r.Deadline.IsZero() {
		line += " (until " + r.Deadline.Format(time.RFC3339) + ", not promised)"
	}
	return h.print(line)
}
