package users

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// What runs on this machine under a user is seen, so that user is not lent.
func TestBusyOfThisMachine(t *testing.T) {
	busy, err := busyUsers(os.Geteuid(), 1)
	if err != nil || !busy[os.Geteuid()] {
		t.Errorf("this process runs as %d: %v %v", os.Geteuid(), busy, err)
	}
	needs.Root(t, "change the user")
	const uid = 69_123
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	p, err := New(Config{First: uid, Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	if u, err := p.Lend("a"); err != nil || u.UID != uid+1 {
		t.Errorf("%v %v", u, err)
	}
	// Dead, and not yet collected by this test: nothing of it can be read.
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for state := byte(0); state != 'Z'; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		state = b[bytes.LastIndexByte(b, ')')+2]
	}
	if u, err := p.Lend("b"); err != nil || u.UID != uid {
		t.Errorf("%v %v", u, err)
	}
}

func TestIDMap(t *testing.T) {
	container := []byte("         0       1000          1\n         1     100000      65536\n")
	for _, c := range []struct {
		m            string
		first, count int
		want         bool
	}{
		{"0 0 4294967295", DefaultFirst, DefaultCount, true},
		{string(container), DefaultFirst, DefaultCount, false},
		{string(container), smallFirst, smallCount, true},
		{string(container), 65_500, 100, false},
		{"0 1000 1", nobody, 1, false},
		{"nonsense", 1, 1, false},
	} {
		if got := covers([]byte(c.m), c.first, c.count); got != c.want {
			t.Errorf("%q has %d and %d more: %v", c.m, c.first, c.count-1, got)
		}
	}
}
