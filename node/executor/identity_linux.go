package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
)

// Proc is one line of /proc: who it is, and what it takes.
type Proc struct {
	PID, PPID, PGRP, Session int
	State                    byte
	Birth                    uint64 // clock ticks since boot
	Ticks                    int64  // of processor time, with those of children that it collected
	Pages                    int64  // that are resident
}

// ReadProc reads /proc/<pid>/stat; NotFound when there is no such process.
func ReadProc(pid int) (Proc, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Proc{}, forgeyard.E("read process", forgeyard.NotFound, err)
	}
	return parseStat(b)
}

// parseStat reads the stat line. The name in parentheses may hold anything, so
// fields count from the last parenthesis.
func parseStat(b []byte) (Proc, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return Proc{}, forgeyard.Errorf("read process", forgeyard.Corrupt, "stat line %q has no name", forgeyard.Clip(string(b), 80))
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return Proc{}, forgeyard.Errorf("read process", forgeyard.Corrupt, "stat line has %d fields after the name, 20 are needed", len(f))
	}
	p := Proc{State: f[0][0]}
	var errs [10]error
	p.PID, errs[0] = strconv.Atoi(strings.TrimSpace(string(b[:open])))
	p.PPID, errs[1] = strconv.Atoi(f[1])
	p.PGRP, errs[2] = strconv.Atoi(f[2])
	p.Session, errs[3] = strconv.Atoi(f[3])
	p.Birth, errs[4] = strconv.ParseUint(f[19], 10, 64)
	for i, at := range [...]int{11, 12, 13, 14} { // utime, stime, cutime, cstime
		var n int64
		n, errs[5+i] = strconv.ParseInt(f[at], 10, 64)
		p.Ticks += n
	}
	if len(f) > 21 {
		p.Pages, errs[9] = strconv.ParseInt(f[21], 10, 64)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return Proc{}, forgeyard.E("read process", forgeyard.Corrupt, err)
	}
	return p, nil
}

// Alive reports whether p still runs; a zombie does not.
func (p Proc) Alive() bool { return p.State != 'Z' && p.State != 'X' }

// Processes lists all that /proc shows. Those that end meanwhile are left out.
func Processes() ([]Proc, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, forgeyard.E("list processes", forgeyard.Unavailable, err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, forgeyard.E("list processes", forgeyard.Unavailable, err)
	}
	var ps []Proc
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if p, err := ReadProc(pid); err == nil {
			ps = append(ps, p)
		}
	}
	return ps, nil
}

// BootID names this boot: a pid and a birth mean nothing in another.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// SignalExactly signals the process only if it was born at birth. The process is
// held by a pidfd while its birth is compared, so the number cannot pass to
// another in between. sent is false when that process is gone.
func SignalExactly(pid int, birth uint64, sig unix.Signal) (sent bool, err error) {
	if pid <= 1 || pid == os.Getpid() {
		return false, forgeyard.Errorf("signal", forgeyard.Invalid, "process %d is never a workload", pid)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, forgeyard.E("signal", forgeyard.Unavailable, fmt.Errorf("process %d: %w", pid, err))
	}
	defer unix.Close(fd)
	p, err := ReadProc(pid)
	if err != nil || p.Birth != birth || !p.Alive() {
		return false, nil
	}
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, forgeyard.E("signal", forgeyard.Denied, fmt.Errorf("process %d: %w", pid, err))
	}
	return true, nil
}

// KillOrphan ends one process that an earlier run of this runner started, and
// waits until it is gone. A process that merely has the same number is left alone.
func KillOrphan(ctx context.Context, pid int, birth uint64) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		sent, err := SignalExactly(pid, birth, unix.SIGKILL)
		if err != nil || !sent {
			return err
		}
		select {
		case <-ctx.Done():
			return forgeyard.Errorf("kill", forgeyard.Unavailable, "process %d (born %d) still runs after SIGKILL", pid, birth)
		case <-time.After(wait):
		}
	}
}
