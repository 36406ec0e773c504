package capture

import (
	"context"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Watcher sees what a workload puts into its two directories, and brings it the answers.
//
//	sealed slot ─▶ Found.Sealed until Settle ─▶ answer to every message that names it, now or later
//	message     ─▶ commit: waits for its slot's Settle   others: Found.Messages, once
//
// A slot needs no message: a program without the helper is seen by its rename alone. One
// goroutine owns a Watcher. It polls, because there is nothing else on every platform
// that a hostile program cannot flood.
type Watcher struct {
	dir, ctl string
	attempt  forgeyard.AttemptID
	epoch    uint64
	answers  map[int]checkpoint.Answer // by slot
}

// NewWatcher watches the directories of one epoch, both as this process sees them.
func NewWatcher(ckptDir, ctlDir string, attempt forgeyard.AttemptID, epoch uint64) *Watcher {
	return &Watcher{dir: ckptDir, ctl: ctlDir, attempt: attempt, epoch: epoch, answers: map[int]checkpoint.Answer{}}
}

// Found is what one look brought.
type Found struct {
	Sealed   []int                // slots that wait for Settle, ascending
	Messages []checkpoint.Message // restore-ok, restore-reject; mark, until WriteAnswer
}

func (f Found) empty() bool { return len(f.Sealed) == 0 && len(f.Messages) == 0 }

// Poll looks once. Errors of one file are answered to the program, not returned.
func (w *Watcher) Poll() (Found, error) {
	// Messages first: a commit message is written after its slot was sealed, so that a
	// slot which is then not there was never sealed.
	deliveries, err := ReadOutbox(w.ctl)
	if err != nil {
		return Found{}, err
	}
	sealed, err := Sealed(w.dir)
	if err != nil {
		return Found{}, err
	}
	var found Found
	there := map[int]bool{}
	for _, seq := range sealed {
		there[seq] = true
		if _, done := w.answers[seq]; !done {
			found.Sealed = append(found.Sealed, seq)
		}
	}
	for _, d := range deliveries {
		if err := w.deliver(d, there, &found); err != nil {
			return Found{}, err
		}
	}
	return found, nil
}

func (w *Watcher) deliver(d Delivery, there map[int]bool, found *Found) error {
	m := d.Message
	reject := func(s checkpoint.Status, why string) error {
		return WriteAnswer(w.ctl, d.N, checkpoint.Answer{Seq: m.Seq, Status: s, Reason: why})
	}
	switch {
	case d.Err != nil:
		return reject(checkpoint.StatusRejected, d.Err.Error())
	case m.Attempt != w.attempt || m.Epoch != w.epoch:
		return reject(checkpoint.StatusStale, "another attempt or epoch is current")
	case m.Kind.Effect():
		return nil // whoever keeps the ledger answers
	case m.Kind == checkpoint.MessageMark: // found until it is answered
		found.Messages = append(found.Messages, m)
		return nil
	case m.Kind != checkpoint.MessageCommit:
		found.Messages = append(found.Messages, m)
		return DropMessage(w.ctl, d.N)
	}
	if a, done := w.answers[m.Seq]; done {
		return WriteAnswer(w.ctl, d.N, a)
	}
	if !there[m.Seq] {
		return reject(checkpoint.StatusRejected, "the slot is not sealed")
	}
	return nil // Stays in the outbox until the slot is settled.
}

// Settle says how a slot ended and answers those who wait for it. A slot that was settled
// as staged is not found again: its payload is in the store, and the caller settles it
// anew when the log has decided.
func (w *Watcher) Settle(a checkpoint.Answer) error {
	w.answers[a.Seq] = a
	deliveries, err := ReadOutbox(w.ctl)
	if err != nil {
		return err
	}
	for _, d := range deliveries {
		if d.Err == nil && d.Message.Kind == checkpoint.MessageCommit && d.Message.Seq == a.Seq {
			if err := WriteAnswer(w.ctl, d.N, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// Next polls until something is found, or the context ends.
func (w *Watcher) Next(ctx context.Context, c clock.Clock, every time.Duration) (Found, error) {
	for {
		found, err := w.Poll()
		if err != nil || !found.empty() {
			return found, err
		}
		select {
		case <-ctx.Done():
			return Found{}, forgeyard.E("watch", forgeyard.Interrupted, ctx.Err())
		case <-c.After(every):
		}
	}
}
