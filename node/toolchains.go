package node

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// managedToolchains are those of node.yaml that are trees of the store, by name.
func (n *Node) managedToolchains() map[string]forgeyard.Digest {
	out := map[string]forgeyard.Digest{}
	for _, t := range n.settings().Toolchains {
		if !t.Digest.IsZero() {
			out[t.Name] = t.Digest
		}
	}
	return out
}

// warmToolchains are what jobs named as toolchains and this node has ready, without those that
// it lists by name.
func (n *Node) warmToolchains(listed []job.Toolchain) []forgeyard.Digest {
	if n.runner == nil {
		return nil
	}
	return slices.DeleteFunc(n.runner.WarmToolchains(), func(d forgeyard.Digest) bool {
		return slices.ContainsFunc(listed, func(t job.Toolchain) bool { return t.Digest == d })
	})
}
