//go:build unix

package preempt

import (
	"os/exec"
	"syscall"
)

// noWait opens a pipe at once, so that it can be refused.
const noWait = syscall.O_NONBLOCK

// ownGroup makes a command, when its time is over, end with all that it started.
func ownGroup(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
