package e2e

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
)

// openPTY makes a serial console with a board behind it, which echoes each line as
// `board: LINE` and answers `reset` with `baseline`.
func openPTY(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: pty LINK")
	}
	master, slave, err := pty.Open()
	ts.Check(err)
	link := ts.MkAbs(args[0])
	ts.Check(os.Symlink(slave.Name(), link))
	go board(master)
	w := worldOf(ts)
	pull := sync.OnceFunc(func() {
		_ = os.Remove(link)
		_ = slave.Close() // both ends go: there is nobody to tell
		_ = master.Close()
	})
	w.cables[args[0]] = pull
	w.undo = append(w.undo, pull)
}

// pullPTY takes a device away as a hand does that pulls its cable: who has it open hears of
// it, and nothing stands at its place.
func pullPTY(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: unplug LINK")
	}
	pull := worldOf(ts).cables[args[0]]
	if pull == nil {
		ts.Fatalf("there is no device %s: make it with pty", args[0])
	}
	pull()
}

// board ends when its console is closed.
func board(console *os.File) {
	r := bufio.NewScanner(console)
	for r.Scan() {
		line := strings.TrimSpace(r.Text())
		if line == "" {
			continue
		}
		answer := "board: " + line
		if line == "reset" {
			answer = "baseline"
		}
		if _, err := fmt.Fprintf(console, "%s\r\n", answer); err != nil {
			return
		}
	}
}
