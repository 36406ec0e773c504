// Command forgeyard-node is the node: the daemon and the command line in one.
//
// There is one file for each command noun, and one place, root.go, where the
// commands are put together. Commands ask the daemon over its control socket; only
// `init`, `join` and `up` touch the data dir themselves.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/node/executor/keeper"
)

// version is set by the linker.
var version = "unknown"

func main() {
	if keeper.Asked(os.Args) {
		os.Exit(keeper.Main())
	}
	// The first thread only waits: what is done to a thread for a workload's start, which then
	// ends with it, others would see as done to the process.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ended := make(chan int)
	go func() { ended <- run(ctx, stop, cli.New("forgeyard-node"), os.Args[1:]) }()
	code := <-ended
	stop()
	os.Exit(code)
}
