package partition

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/creack/pty"
)

// touch is one line that reached a device, in the order in which it did: the device
// stands in one place, so this order is the true one.
type touch struct {
	Device string `json:"device"`
	Holder string `json:"holder"` // empty: the host resets it
}

// board is a device on a serial console. It writes down who touches it, and obeys one
// line at a time:
//
//	act HOLDER N   done by a holder; answers ok
//	reset          forgets the last holder; answers baseline
type board struct {
	name          string
	master, slave *os.File

	mu      sync.Mutex
	touches []touch
}

// newBoard makes the console and links it to a path.
func newBoard(name, link string) (*board, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	b := &board{name: name, master: master, slave: slave}
	if err := os.Symlink(slave.Name(), link); err != nil {
		b.close()
		return nil, err
	}
	go b.serve()
	return b, nil
}

func (b *board) serve() {
	for in := bufio.NewScanner(b.master); in.Scan(); {
		answer, t, ok := b.obey(strings.Fields(in.Text()))
		if !ok {
			continue
		}
		b.mu.Lock()
		b.touches = append(b.touches, t)
		b.mu.Unlock()
		if _, err := fmt.Fprintf(b.master, "%s\r\n", answer); err != nil {
			return // closed
		}
	}
}

func (b *board) obey(words []string) (answer string, t touch, ok bool) {
	switch {
	case len(words) == 1 && words[0] == "reset":
		return "baseline", touch{Device: b.name}, true
	case len(words) == 3 && words[0] == "act":
		return "ok", touch{Device: b.name, Holder: words[1]}, true
	}
	return "", t, false // noise of a line that was cut off by a reset
}

func (b *board) log() []touch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]touch(nil), b.touches...)
}

func (b *board) close() {
	_ = b.slave.Close() // both ends go: there is nobody to tell
	_ = b.master.Close()
}
