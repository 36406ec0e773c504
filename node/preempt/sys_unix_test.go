//go:build unix

package preempt

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// A pipe in the place of the file is refused: to open it would wait for its writer for ever.
func TestPipeIsNoNotice(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "notice")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		n, err := File(pipe).Look(context.Background())
		if n != nil {
			t.Errorf("%+v", n)
		}
		done <- err
	}()
	select {
	case err := <-done:
		if forgeyard.KindOf(err) != forgeyard.Invalid || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for somebody who writes")
	}
}

// A command whose time is over takes with it what it started; what it said of its trouble is told.
func TestCommandEndsWithItsChildren(t *testing.T) {
	held := filepath.Join(t.TempDir(), "held")
	if err := syscall.Mkfifo(held, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(held, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	ctx, cancel := context.WithCancel(context.Background())
	began := make(chan struct{})
	go func() {
		defer cancel()
		b := make([]byte, 1)
		for n := 0; n == 0; time.Sleep(time.Millisecond) {
			n, _ = r.Read(b)
		}
		close(began)
	}()
	// The child holds the pipe open as long as it lives.
	if n, err := (Command{"/bin/sh", "-c", "(echo >&3; sleep 60) 3>" + held + " & wait"}).Look(ctx); n != nil || err == nil {
		t.Errorf("%v %v", n, err)
	}
	<-began
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 1)
		for {
			if n, err := r.Read(b); n == 0 && err != nil {
				return // io.EOF: no writer is left
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the child runs on")
	}
	_, err = Command{"/bin/sh", "-c", "echo no token >&2; echo more >&2; exit 3"}.Look(context.Background())
	if err == nil || !strings.HasSuffix(err.Error(), "exit status 3: no token") {
		t.Errorf("%v", err)
	}
}
