package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/ptree"
)

// Main is the keeper's program; it returns the exit code.
func Main() int {
	// Only the end of the pipe ends a keeper: it must outlive a service manager that
	// signals the whole group, and a pipe that nobody reads.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTSTP)
	// A keeper that does not get the processor is none. Only a privileged daemon's may ask.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -10)
	a, err := newTimer()
	if err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		return 1
	}
	err = keep(os.Stdin, os.Stdout, parts{
		now: clock.System().Now, alarm: a, say: os.Stderr,
		reap: func(ctx context.Context, o executor.Orphan) error { return ptree.Reap(ctx, nil, o) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		return 1
	}
	return 0
}

// timer is an alarm on the clock that runs through sleep: Go's own timers do not.
type timer struct {
	f    *os.File
	bell chan struct{}
}

func newTimer() (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, forgeyard.E("timer", forgeyard.Unavailable, err)
	}
	t := &timer{f: os.NewFile(uintptr(fd), "timer"), bell: make(chan struct{}, 1)}
	go func() {
		var b [8]byte
		for {
			if _, err := t.f.Read(b[:]); err != nil && !errors.Is(err, unix.ECANCELED) {
				return
			}
			select {
			case t.bell <- struct{}{}:
			default: // one ring is due already
			}
		}
	}()
	return t, nil
}

func (t *timer) rings() <-chan struct{} { return t.bell }

func (t *timer) set(at forgeyard.Instant) error {
	at = max(at, 1) // zero would switch it off
	c, err := t.f.SyscallConn()
	if err != nil {
		return forgeyard.E("timer", forgeyard.Unavailable, err)
	}
	var serr error
	err = c.Control(func(fd uintptr) {
		serr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}, nil)
	})
	if err = errors.Join(err, serr); err != nil {
		return forgeyard.E("timer", forgeyard.Unavailable, err)
	}
	return nil
}

// apart makes the keeper's process one that no signal to the daemon's group reaches.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

var _ alarm = (*timer)(nil)
