package users

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

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

// Shared memory is no process's: it goes with the loan, and that of others stays.
func TestSharedMemoryGoesWithTheLoan(t *testing.T) {
	needs.Root(t, "change the user")
	const first = 69_130
	p, err := New(Config{First: first, Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	lent, err := p.Lend("a")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "fyusers-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	others := dir + ".others"
	t.Cleanup(func() { os.Remove(others) })
	for _, err := range []error{os.WriteFile(dir+"/x", []byte("x"), 0o600), os.Chown(dir, lent.UID, lent.GID), os.WriteFile(others, nil, 0o600), os.Chown(others, first+1, first+1)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	segment := func(uid int) int {
		c := exec.Command("ipcmk", "-M", "4096")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		var id int
		if _, err := fmt.Sscanf(string(out[bytes.LastIndexByte(bytes.TrimSpace(out), ' ')+1:]), "%d", &id); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		t.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
		return id
	}
	its, another := segment(lent.UID), segment(first+1)
	p.Return("a")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("its file is there: %v", err)
	}
	var ds unix.SysvShmDesc
	if _, err := unix.SysvShmCtl(its, unix.IPC_STAT, &ds); err == nil {
		t.Error("its segment is there")
	}
	if _, err := os.Stat(others); err != nil {
		t.Errorf("another's file: %v", err)
	}
	if _, err := unix.SysvShmCtl(another, unix.IPC_STAT, &ds); err != nil {
		t.Errorf("another's segment: %v", err)
	}
}
