//go:build unix

package explore

import (
	"syscall"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// processorTime is what this process has used of all cores: a machine that is busy with
// something else does not make it longer.
func processorTime() time.Duration {
	var u syscall.Rusage
	invariant.NoError(syscall.Getrusage(syscall.RUSAGE_SELF, &u), "a process can ask what it used")
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
