package demo

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/forgeyard/forgeyard-node/devices/serial"
)

// board is the device of the demonstration: a board on a serial console, played by
// this process behind a pty. It obeys one line at a time:
//
//	RESET    forgets its state and answers READY
//	ID       tells what it is
//	MEASURE  answers a voltage, and counts
type board struct {
	pty             *serial.Pty
	resets, measure atomic.Int64
}

// newBoard starts a board; link is made to be its console.
func newBoard(ctx context.Context, link string) (*board, error) {
	near, far := net.Pipe()
	p, err := serial.Bridge(ctx, near, link)
	if err != nil {
		_ = far.Close() // the bridge has said what is wrong
		return nil, err
	}
	b := &board{pty: p}
	go b.serve(far)
	return b, nil
}

func (b *board) serve(c net.Conn) {
	defer func() { _ = c.Close() }() // a pipe's end
	in := bufio.NewScanner(c)
	for in.Scan() {
		answer := b.answer(strings.TrimSpace(in.Text()))
		if answer == "" {
			continue
		}
		if _, err := fmt.Fprintf(c, "%s\n", answer); err != nil {
			return // nobody is on the other side any more
		}
	}
}

// answer is the board's whole mind.
func (b *board) answer(line string) string {
	switch line {
	case "":
		return ""
	case "RESET":
		b.measure.Store(0)
		return fmt.Sprintf("READY %d", b.resets.Add(1))
	case "ID":
		return "rev4 board, 1 channel"
	case "MEASURE":
		return fmt.Sprintf("%d: 3.30 V", b.measure.Add(1))
	}
	return "? " + line
}

func (b *board) close() {
	if b != nil {
		_ = b.pty.Close() // it always succeeds
	}
}
