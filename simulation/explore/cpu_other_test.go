//go:build !unix

package explore

import (
	"runtime"
	"time"
)

var began = time.Now()

// processorTime assumes that this process has every core for itself.
func processorTime() time.Duration {
	return time.Since(began) * time.Duration(runtime.GOMAXPROCS(0))
}
