//go:build unix

package localsite

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// ownGroup puts a process into a group of its own: a signal of the terminal reaches us
// alone, and we decide in which order what ends.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

// Alive reports whether a process runs. One that has ended and was not collected by
// its parent does not.
func Alive(pid int) bool {
	if pid <= 0 || syscall.Kill(pid, 0) == syscall.ESRCH {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !os.IsNotExist(err) || !hasProc()
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func hasProc() bool {
	_, err := os.Stat("/proc/self/stat")
	return err == nil
}
