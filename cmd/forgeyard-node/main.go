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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, stop, cli.New("forgeyard-node"), os.Args[1:])
	stop()
	os.Exit(code)
}
