package localsite

import (
	"os"
	"os/exec"
	"syscall"
)

func ownGroup(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// terminate has no orderly way here.
func terminate(p *os.Process) error { return p.Kill() }

// Alive reports whether a process runs.
func Alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	_ = p.Release() // it was only looked at
	return true
}
