package serial

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// TestBridgeWithARealProgram: a shell talks through the pty, opens and closes it as it
// likes, and its last words arrive.
func TestBridgeWithARealProgram(t *testing.T) {
	near, far := net.Pipe()
	link := filepath.Join(t.TempDir(), "dut")
	p, err := Bridge(within(t), near, link)
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(far)
		heard <- b
	}()
	cmd := exec.CommandContext(within(t), "/bin/sh", "-euc", `printf 'one\n' >"$1"; printf 'two\r\n\003' >"$1"`, "sh", link)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := p.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; string(got) != "one\ntwo\r\n\003" {
		t.Fatalf("%q", got)
	}
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	if _, err := os.Lstat(link); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the link stays: %v", err)
	}
}

// TestBridgeCarriesMuchBothWays and holds back who writes faster than is read.
func TestBridgeCarriesMuchBothWays(t *testing.T) {
	near, far := net.Pipe()
	p, err := Bridge(within(t), near, "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	work := workload(t, p.Path())
	data := bytes.Repeat([]byte("0123456789abcdef"), 16<<10) // 256 KiB
	errs := make(chan error, 2)
	go func() { _, err := work.Write(data); errs <- err }()
	go func() { _, err := far.Write(data); errs <- err }()
	got := make(chan string, 1)
	go func() {
		b := make([]byte, len(data))
		_, err := io.ReadFull(work, b)
		if err != nil {
			t.Error(err)
		}
		got <- string(b)
	}()
	if s := read(t, far, len(data)); s != string(data) {
		t.Fatal("bytes were lost on the way out")
	}
	if s := <-got; s != string(data) {
		t.Fatal("bytes were lost on the way in")
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

func TestBridgeEndsWithItsContextAndItsStream(t *testing.T) {
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(within(t))
	p, err := Bridge(ctx, near, "")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-p.Done()
	if forgeyard.KindOf(p.Err()) != forgeyard.Interrupted {
		t.Fatal(p.Err())
	}
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Fatal("the stream was not closed")
	}
	near, far = net.Pipe()
	p, err = Bridge(within(t), near, "")
	if err != nil {
		t.Fatal(err)
	}
	work := workload(t, p.Path())
	_ = far.Close()
	if _, err := work.Read(make([]byte, 1)); err == nil {
		t.Fatal("the workload was not told")
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBridgeRefusesATakenLink and leaks nothing then.
func TestBridgeRefusesATakenLink(t *testing.T) {
	near, far := net.Pipe()
	link := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(link, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Bridge(within(t), near, link); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Fatal(err)
	}
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Fatal("the stream leaks")
	}
	if b, err := os.ReadFile(link); err != nil || string(b) != "mine" {
		t.Fatal(err)
	}
}
