//go:build !linux

package process

import (
	"context"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Executor cannot be made on this platform.
type Executor struct{}

// New says that this platform has no such executor.
func New(Config) (*Executor, error) { return nil, errPlatform() }

func errPlatform() error {
	return forgeyard.Errorf("process executor", forgeyard.Unavailable, "there is none for this platform")
}

// Kind implements executor.Executor.
func (*Executor) Kind() job.Sandbox { return job.SandboxProcess }

// View implements executor.Executor.
func (*Executor) View(root string) string { return root }

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
