//go:build !linux

package node

import "github.com/forgeyard/forgeyard-node"

// place is not known here: no session proves the end of the one before, and what matters
// waits until that has certainly stopped.
func (*dataDir) place(string) forgeyard.Digest { return forgeyard.Digest{} }
