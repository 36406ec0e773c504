package node

import (
	"context"
	"net"
	"os"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/capability"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
	"github.com/forgeyard/forgeyard-node/node/pressure"
)

// Platform is what a node asks of its operating system (07§145). What workloads need of it
// beyond that, processes and walls around them, is the executors' contract.
//
// It is asked again and again and from many goroutines. What a platform cannot tell it says so
// by the zero value, of which nothing follows; an error means that it should have known.
type Platform interface {
	// Discover reads the physical bounds of the machine whose disk holds dir. NotFound: dir is
	// not there. A bound that is not known is zero, and what asks for it is placed elsewhere.
	Discover(dir string) (capability.Totals, error)
	// Strain is what the machine feels now.
	Strain() pressure.Sample
	// Free is what this account may still write on the disk of dir, in bytes.
	Free(dir string) (int64, error)
	// Place names where the process that holds the lock runs, in this boot; two processes of one
	// place never ran at the same time. Zero: nothing is proved.
	Place(lock *os.File, boot string) forgeyard.Digest
	// Changes tells that hardware came, went or became another, until ctx ends. Nil: it cannot
	// tell, and the machine is looked at by the clock alone.
	Changes(ctx context.Context) <-chan struct{}
	// ListenPrivate makes a socket that only this account may open.
	ListenPrivate(path string) (net.Listener, error)
	// Prepare makes the folders of a workspace below root, which is there and empty, and gives
	// the writable ones to u. The kind of its error is NoSpace for want of room.
	Prepare(u users.User, root string) error
}

// native is the platform that this program was compiled for. What differs between them is in
// the files platform_*.go, and in those of the packages that it hands on to.
type native struct{}

var _ Platform = native{}

// Discover implements Platform.
func (native) Discover(dir string) (capability.Totals, error) { return capability.Discover(dir) }

// Strain implements Platform.
func (native) Strain() pressure.Sample { return capability.Strain() }

// Changes implements Platform.
func (native) Changes(ctx context.Context) <-chan struct{} { return capability.Changes(ctx) }

// Prepare implements Platform.
func (native) Prepare(u users.User, root string) error { return executor.Layout(u, root) }

// platform is the one that this node runs on.
func (n *Node) platform() Platform {
	if n.cfg.Platform != nil {
		return n.cfg.Platform
	}
	return native{}
}
