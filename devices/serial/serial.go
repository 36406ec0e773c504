// Package serial reaches a serial console: a tty, or a pty that behaves like one.
//
// Driver opens the console exclusively, raw and at its speed; resets the board
// behind it by sending a text and waiting for another; and reads again what the
// console is. Bridge gives a workload a pty of its own that is joined to a stream,
// so that a lease's console can be local or come through the mesh.
//
// Exclusive means an advisory lock on the device node (flock), which every careful
// serial program takes, because TIOCEXCL does not bind root. Both are set.
//
// Modem lines are raised where there are any: a pty has none and answers ENOTTY,
// which is no error. HUPCL is off, so that closing a console does not drop DTR,
// which resets many boards.
//
// The package knows nothing of leases: package devices/supervisor stands in front
// of it. It works on Linux; elsewhere every call fails with Unavailable and says so.
package serial

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Config is a console.
type Config struct {
	// Path of the tty, absolute; links are followed. Prefer /dev/serial/by-id.
	Path string
	// Baud is any speed that the hardware has. Default 115200; a pty ignores it.
	Baud int
	// Serial is the serial number that the hardware must have. Empty: not looked at.
	// Where the hardware tells none (a pty, a UART on the board) it cannot be
	// proved, and the place is the identity.
	Serial string
	// Send is written by Reset; Expect must then be read. Without both a reset only
	// drops what is buffered.
	Send, Expect string
}

const (
	defaultBaud = 115200
	maxHeard    = 64 << 10 // bytes of a reset's answer that are searched and kept
	maxTail     = 160      // bytes of it that go into the evidence
)

// Driver reaches one console. It is what the supervisor calls a driver.
type Driver struct {
	cfg Config
	clk clock.Clock
	sys string // /sys
}

// New makes the driver of a console; nothing is opened.
func New(cfg Config, clk clock.Clock) *Driver {
	if cfg.Baud == 0 {
		cfg.Baud = defaultBaud
	}
	return &Driver{cfg: cfg, clk: clk, sys: "/sys"}
}

// Open opens the console. The stream has Abort, which drops what is still to be
// sent. Kinds: NotFound, Conflict (another program has it, or identity_changed),
// Unavailable.
func (d *Driver) Open(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, forgeyard.E("open console", forgeyard.Interrupted, context.Cause(ctx))
	}
	p, err := d.open()
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Identify reads again what stands at the path.
func (d *Driver) Identify(context.Context) (devices.Identity, error) { return d.identify() }

// Reset brings the board to its baseline: it drops what is buffered, sends, and
// waits for the answer until the context ends.
func (d *Driver) Reset(ctx context.Context) ([]devices.Step, error) {
	var steps []devices.Step
	begin := d.clk.Now()
	done := func(name, detail string, err error) error {
		st := devices.Step{Name: name, OK: err == nil, Detail: detail, Took: d.clk.Now().Sub(begin)}
		if err != nil {
			st.Detail = strings.TrimSpace(detail + " " + err.Error())
		}
		steps, begin = append(steps, st), d.clk.Now()
		return err
	}
	p, err := d.open()
	if done("open", d.cfg.Path, err) != nil {
		return steps, err
	}
	// A stream that ends wakes the Read or Write below.
	unhook := context.AfterFunc(ctx, func() { _ = p.Abort() })
	defer func() {
		unhook()
		_ = p.Close() // nothing is left to be sent that matters
	}()
	if err := done("flush", "", p.flush()); err != nil {
		return steps, err
	}
	if d.cfg.Send == "" && d.cfg.Expect == "" {
		err := done("baseline", "no reset is configured: streams were ended and buffers dropped, the board was not touched", nil)
		return steps, err
	}
	if d.cfg.Send != "" {
		_, err := io.WriteString(p, d.cfg.Send)
		if done("send", fmt.Sprintf("%d bytes", len(d.cfg.Send)), ended(ctx, err)) != nil {
			return steps, forgeyard.E("reset console", forgeyard.Unavailable, fmt.Errorf("send: %w", ended(ctx, err)))
		}
	}
	if d.cfg.Expect != "" {
		tail, err := expect(p, d.cfg.Expect)
		if done("expect", fmt.Sprintf("%q in %q", d.cfg.Expect, tail), ended(ctx, err)) != nil {
			return steps, forgeyard.E("reset console", forgeyard.Unavailable, fmt.Errorf("%q was not seen; the last that was heard is %q: %w", d.cfg.Expect, tail, ended(ctx, err)))
		}
	}
	return steps, nil
}

// ended prefers the reason for which a wait was ended to what the stream then said.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// expect reads until the text was seen, and returns the tail of what was heard.
func expect(r io.Reader, text string) (tail string, err error) {
	var heard []byte
	buf := make([]byte, 1024)
	for {
		n, err := r.Read(buf)
		heard = append(heard, buf[:n]...)
		if i := bytes.Index(heard, []byte(text)); i >= 0 {
			return last(heard[:i+len(text)]), nil
		}
		if over := len(heard) - maxHeard; over > 0 {
			heard = append(heard[:0], heard[over:]...)
		}
		if err != nil {
			return last(heard), err
		}
	}
}

func last(b []byte) string { return strings.ToValidUTF8(string(b[max(0, len(b)-maxTail):]), "\uFFFD") }
