package executor

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// What a tree takes is what its processes take, those below them and those that ended; another
// process of the same number is not of it, and a circle of parents is no endless walk.
func TestUsed(t *testing.T) {
	page := int64(os.Getpagesize())
	all := []Proc{
		{PID: 1, Ticks: 99, Pages: 99},
		{PID: 10, PPID: 1, Birth: 5, Ticks: 1, Pages: 1},
		{PID: 11, PPID: 10, Ticks: 10, Pages: 10},
		{PID: 12, PPID: 11, Ticks: 100, Pages: 100},
		{PID: 20, PPID: 1, Birth: 7, Ticks: 3, Pages: 3},
		{PID: 30, PPID: 31, Ticks: 9}, {PID: 31, PPID: 30, Ticks: 9},
	}
	got := used(all, map[int]uint64{10: 5, 20: 8, 40: 1})
	if len(got) != 1 || got[10] != (Use{CPU: 1110 * time.Millisecond, Memory: 111 * page}) {
		t.Errorf("%+v", got)
	}
}

// The numbers are those of the kernel.
func TestUsedOfALiveTree(t *testing.T) {
	c := exec.Command("sh", "-c", "sh -c 'while :; do :; done' & wait")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		all, _ := Processes()
		for _, p := range all {
			if p.PPID == c.Process.Pid {
				_, _ = SignalExactly(p.PID, p.Birth, 9)
			}
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	p, err := ReadProc(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		got, err := Used(map[int]uint64{p.PID: p.Birth})
		if err != nil {
			t.Fatal(err)
		}
		if u := got[p.PID]; u.CPU >= 30*time.Millisecond && u.Memory > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a loop of 30 s took %+v", got)
		}
	}
}
