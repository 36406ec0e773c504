//go:build !linux

package keeper

import (
	"fmt"
	"os"
	"syscall"
)

// Main says that this platform has no keeper: it has no executor either.
func Main() int {
	fmt.Fprintln(os.Stderr, "keeper: there is none for this platform")
	return 1
}

func apart() *syscall.SysProcAttr { return nil }
