package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
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

// toolchainPin begins the owner of what keeps one of node.yaml's toolchains in this node's
// store; its name follows.
const toolchainPin = "toolchain/"

// keepToolchains pins what node.yaml names, from its arrival on, and lets go of what it named
// before.
func (n *Node) keepToolchains(ctx context.Context) error {
	pins, err := n.store.Pins(ctx)
	if err != nil {
		return err
	}
	want := n.managedToolchains()
	var errs []error
	for _, p := range pins {
		name, ok := strings.CutPrefix(p.Owner, toolchainPin)
		if !ok {
			continue
		}
		switch d, wanted := want[name]; {
		case !wanted:
			errs = append(errs, n.store.Unpin(ctx, p.Owner))
		case slices.Equal(p.Trees, []forgeyard.Digest{d}):
			delete(want, name)
		}
	}
	for name, d := range want {
		errs = append(errs, n.store.Pin(ctx, cas.Pin{Owner: toolchainPin + name, Trees: []forgeyard.Digest{d}}))
	}
	return errors.Join(errs...)
}

// asker puts a question to a peer, as the exchange does.
type asker func(ctx context.Context, peer string, digests []forgeyard.Digest) ([]caspeer.Answer, error)

// lackingToolchains are those of node.yaml whose tree is neither here nor at a peer that
// answers, by name.
func (n *Node) lackingToolchains(ctx context.Context, peers []string, ask asker) []string {
	managed := n.managedToolchains()
	maps.DeleteFunc(managed, func(_ string, d forgeyard.Digest) bool { return n.store.Has(ctx, d) })
	if len(managed) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(managed))
	digests := make([]forgeyard.Digest, len(names))
	for i, name := range names {
		digests[i] = managed[name]
	}
	var mu sync.Mutex // guards managed
	var asked sync.WaitGroup
	for _, p := range peers {
		asked.Go(func() {
			a, err := ask(ctx, p, digests)
			if err != nil {
				return // who does not answer has nothing to offer now
			}
			mu.Lock()
			defer mu.Unlock()
			for i, name := range names {
				if a[i].Have {
					delete(managed, name)
				}
			}
		})
	}
	asked.Wait()
	return slices.Sorted(maps.Keys(managed))
}

// checkToolchainsOf refuses what names a toolchain of node.yaml whose tree is neither here nor
// at a peer that answers: its preparation could only fail. Where all is here nobody is asked.
func (n *Node) checkToolchainsOf(ctx context.Context, sp job.Spec, peers []string, ask asker) error {
	managed := n.managedToolchains()
	lacks := func(name string) bool {
		d, ok := managed[name]
		return ok && !n.store.Has(ctx, d)
	}
	if !slices.ContainsFunc(sp.Requires.Toolchains, lacks) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	for _, name := range n.lackingToolchains(ctx, peers, ask) {
		if slices.Contains(sp.Requires.Toolchains, name) {
			return forgeyard.Errorf("toolchain "+name, forgeyard.NotFound, "%s is neither here nor at a member that answers", managed[name])
		}
	}
	return nil
}
