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

// should answers whether a checkpoint is worth writing now: one was asked for since the
// last, or the advised interval has passed.
func (h *helper) should(args []string) error {
	if err := none(args, "fyjob ckpt should"); err != nil {
		return err
	}
	if h.mode != checkpoint.ModeApplication {
		return no()
	}
	r, err := h.request()
	if err != nil {
		return err
	}
	m, known := h.recall()
	if r.WantCheckpoint && r.Seq > m.Request {
		if !known {
			m.Committed = h.now().UnixMilli()
		}
		m.Asks, m.Told = true, r.Seq
		if err := h.remember(m); err != nil { // it only advises: a full disk keeps no program from hearing that it is to stop
			_ = os.Remove(filepath.Join(h.ctl, memoryName)) // should-exit says what it says without one
		}
		return nil
	}
	now := h.now().UnixMilli()
	if !known || !m.Asks {
		if !known { // the first question of the epoch starts the interval
			m.Committed = now
		}
		m.Asks = true
		if err := h.remember(m); err != nil {
			return err
		}
	}
	if !known {
		return no()
	}
	since := time.Duration(now-m.Committed) * time.Millisecond
	if h.interval > 0 && (since >= h.interval || since < 0) { // A clock that was set back must not silence us.
		return nil
	}
	return no()
}

// shouldExit answers whether to end. A program that asks should is told there first: one
// that asked between the two questions would else end with what it did since its last
// checkpoint.
func (h *helper) shouldExit(args []string) error {
	if err := none(args, "fyjob ckpt should-exit"); err != nil {
		return err
	}
	r, err := h.request()
	if err != nil {
		return err
	}
	m, _ := h.recall()
	if !r.WantExit || (m.Asks && r.WantCheckpoint && r.Seq > max(m.Told, m.Request)) {
		return no()
	}
	return nil
}

// begin makes NNNNNN.tmp. Numbers grow within an epoch and go on from the restored
// checkpoint's; making the directory claims its number.
func (h *helper) begin(args []string) error {
	if err := none(args, "fyjob ckpt begin"); err != nil {
		return err
	}
	if h.mode != checkpoint.ModeApplication {
		return exitf(exitRejected, "the job's resume mode is %q: it takes no checkpoints", h.mode)
	}
	last, err := h.lastSlot()
	if err != nil {
		return err
	}
	for seq := max(last, h.restoreSeq) + 1; seq <= checkpoint.MaxSeq; seq++ {
		dir := filepath.Join(h.ckpt, checkpoint.StagedName(seq))
		err := os.Mkdir(dir, 0o755)
		switch {
		case errors.Is(err, fs.ErrExist):
		case err != nil:
			return err
		case exists(filepath.Join(h.ckpt, checkpoint.SlotName(seq))): // Sealed since we looked.
			if err := os.Remove(dir); err != nil {
				return err
			}
		default:
			return h.print(dir)
		}
	}
	return exitf(exitLimit, "%d checkpoints in one epoch are the bound", checkpoint.MaxSeq)
}

// lastSlot is the highest slot that was ever used in this epoch: the runner frees slots
// that it has answered, so their numbers are kept in files of the helper's own.
func (h *helper) lastSlot() (int, error) {
	last := 0
	b, err := os.ReadFile(filepath.Join(h.ctl, slotName))
	if err == nil {
		last, _, _ = checkpoint.ParseSlot(string(b))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	entries, err := os.ReadDir(h.ckpt)
	for _, e := range entries {
		if seq, _, ok := checkpoint.ParseSlot(e.Name()); ok {
			last = max(last, seq)
		}
	}
	return last, err
}

// slotName holds the highest slot that was sealed.
const slotName = "fyjob.slot"

// abort removes a directory that was not sealed.
func (h *helper) abort(args []string) error {
	rest, err := parse(flag.NewFlagSet("", flag.ContinueOnError), args, 1, "fyjob ckpt abort DIR")
	if err != nil {
		return err
	}
	seq, err := h.slot(rest[0])
	if err != nil {
		return err
	}
	if exists(filepath.Join(h.ckpt, checkpoint.SlotName(seq))) {
		return exitf(exitRejected, "checkpoint %d is sealed", seq)
	}
	return os.RemoveAll(filepath.Join(h.ckpt, checkpoint.StagedName(seq)))
}

// slot reads the number of a directory that begin printed.
func (h *helper) slot(dir string) (int, error) {
	seq, _, ok := checkpoint.ParseSlot(filepath.Base(dir))
	if !ok {
		return 0, exitf(exitUsage, "%q is no directory of `fyjob ckpt begin`", dir)
	}
	parent, err := os.Stat(filepath.Dir(filepath.Clean(dir)))
	ckpt, err2 := os.Stat(h.ckpt)
	if err != nil || err2 != nil || !os.SameFile(parent, ckpt) {
		return 0, exitf(exitUsage, "%q is not in %s", dir, h.ckpt)
	}
	return seq, nil
}
