package keeper

import (
	"io"
	"time"
)

// spout carries lines out without ever keeping the keeper waiting: who does not read its
// pipe, a daemon that is stopped or a logger that hangs, must not stop the counting. What
// finds the queue full is lost.
type spout struct {
	lines chan []byte
	done  chan struct{}
}

// queued bounds the lines of one spout: the answers to all orders that a full pipe can hold,
// and more.
const queued = 4096

// drainWithin is how long the end waits for the last words.
const drainWithin = time.Second

// newSpout has one goroutine, which ends at an error of w or after finish.
func newSpout(w io.Writer) *spout {
	s := &spout{lines: make(chan []byte, queued), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for line := range s.lines {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}()
	return s
}

// Write implements io.Writer. It never fails and never waits.
func (s *spout) Write(b []byte) (int, error) {
	select {
	case s.lines <- append([]byte(nil), b...):
	default:
	}
	return len(b), nil
}

// finish lets what is queued out, if somebody reads it. Nothing may be written after it.
func (s *spout) finish() {
	close(s.lines)
	select {
	case <-s.done:
	case <-time.After(drainWithin):
	}
}
