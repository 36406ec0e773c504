//go:build !unix

package preempt

import "os/exec"

const noWait = 0

func ownGroup(*exec.Cmd) {}
