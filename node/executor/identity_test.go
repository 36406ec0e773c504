//go:build linux

package executor

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
)

func TestParseStat(t *testing.T) {
	line := "77 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21"
	p, err := parseStat([]byte(line))
	if err != nil || p != (Proc{PID: 77, PPID: 1, PGRP: 2, Session: 3, State: 'R', Birth: 4242, Ticks: 11 + 12 + 13 + 14, Pages: 21}) {
		t.Fatalf("%+v %v", p, err)
	}
	for _, bad := range []string{"", "1", "1 (x", "1 (x) R", ") (", "x (y) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"} {
		if _, err := parseStat([]byte(bad)); forgeyard.KindOf(err) != forgeyard.Corrupt {
			t.Errorf("%q gave %v", bad, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("77 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseStat(b) })
}

// RS-066, RS-067, RS-091, CK-420: nobody shoots a process that only has the number of ours; it is
// known by its birth.
func TestKillOrphanKnowsItsOwn(t *testing.T) {
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	p, err := ReadProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := KillOrphan(ctx, pid, p.Birth+1); err != nil {
		t.Fatal(err)
	}
	if now, err := ReadProc(pid); err != nil || !now.Alive() {
		t.Fatal("another birth, and it was killed")
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	if err := KillOrphan(ctx, pid, p.Birth); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := KillOrphan(ctx, pid, p.Birth); err != nil {
		t.Fatalf("a second time: %v", err)
	}
	for _, never := range []int{0, 1, -1, unix.Getpid()} {
		if _, err := SignalExactly(never, 0, unix.SIGKILL); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("process %d: %v", never, err)
		}
	}
}
