//go:build !linux

package sandbox

import (
	"context"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Executor cannot be made on this platform.
type Executor struct{}

// New says that this platform has no sandbox.
func New(Config) (*Executor, error) { return nil, errPlatform() }

func errPlatform() error {
	return forgeyard.Errorf("sandbox", forgeyard.Unavailable, "there is none for this platform: it needs Linux namespaces")
}

// Users implements executor.Executor.
func (*Executor) Users() *users.Pool { return nil }

// Probe implements executor.Executor.
func (*Executor) Probe(context.Context) (job.SandboxCapability, error) {
	return job.SandboxCapability{}, errPlatform()
}

// Start implements executor.Executor.
func (*Executor) Start(context.Context, executor.Request) (executor.Handle, error) {
	return nil, errPlatform()
}

// Named implements executor.Executor.
func (*Executor) Named(string) executor.Orphan { return executor.Orphan{} }

// Reap implements executor.Executor.
func (*Executor) Reap(context.Context, executor.Orphan) error { return errPlatform() }
