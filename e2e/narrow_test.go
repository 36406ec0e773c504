package e2e

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// passage is a way to a daemon's control socket that lets some bytes through and then no
// more, as a line does that was cut: who waits for an answer waits.
type passage struct {
	mu     sync.Mutex // guards left
	left   int64
	closed chan struct{} // nothing passes any more
}

// narrow makes DIR a data dir whose daemon is another's, BYTES away from standing still.
func narrow(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: narrow NAME DIR BYTES")
	}
	n, err := strconv.ParseInt(args[2], 10, 64)
	ts.Check(err)
	dir := ts.MkAbs(args[1])
	ts.Check(os.MkdirAll(dir, 0o700))
	sock := filepath.Join(dir, "control.sock")
	_ = os.Remove(sock) // of an earlier one
	l, err := net.Listen("unix", sock)
	ts.Check(err)
	p := &passage{left: n, closed: make(chan struct{})}
	worldOf(ts).passages[args[1]] = p
	ts.Defer(func() { _ = l.Close() })
	to := filepath.Join(ts.MkAbs(args[0]), "control.sock")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.carry(c, to)
		}
	}()
}

func (p *passage) carry(c net.Conn, to string) {
	defer c.Close()
	d, err := net.Dial("unix", to)
	if err != nil {
		return
	}
	defer d.Close()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{c, d}, {d, c}} {
		go func() {
			_, _ = io.Copy(way[0], counted{way[1], p}) // it ends with either side
			done <- struct{}{}
		}()
	}
	<-done
}

type counted struct {
	io.Reader
	p *passage
}

// Read gives what still passes; the rest is lost, until one side ends.
func (c counted) Read(b []byte) (int, error) {
	for {
		n, err := c.Reader.Read(b)
		if n = c.p.pass(n); n > 0 || err != nil {
			return n, err
		}
	}
}

func (p *passage) pass(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = int(min(int64(n), p.left))
	if p.left -= int64(n); p.left == 0 && n > 0 {
		close(p.closed)
	}
	return n
}

// stalled waits until nothing passes any more.
func stalled(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 || worldOf(ts).passages[args[0]] == nil {
		ts.Fatalf("usage: stalled DIR (of narrow)")
	}
	select {
	case <-worldOf(ts).passages[args[0]].closed:
	case <-time.After(saidWithin):
		worldOf(ts).logs(ts)
		ts.Fatalf("not so many bytes pass within %s", saidWithin)
	}
}
