package node

import (
	"context"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/secrets"
	"github.com/forgeyard/forgeyard-node/site"
)

// siteSecrets are the secrets of the site that are sealed for this node.
type siteSecrets struct{ n *Node }

var _ secrets.Provider = siteSecrets{}

func (p siteSecrets) get(name string) (site.Secret, error) {
	s, ok := p.n.replica.State().Secrets.Get(name)
	switch {
	case !ok:
		return s, forgeyard.Errorf("secret", forgeyard.NotFound, "the site has no secret %q", name)
	case !slices.Contains(s.For, p.n.enrolment.RunnerID):
		return s, forgeyard.Errorf("secret", forgeyard.Denied, "secret %q of the site is not for %s", name, p.n.enrolment.Name).
			WithHint("set it anew with --for %s", p.n.enrolment.Name)
	}
	return s, nil
}

// Has implements secrets.Provider.
func (p siteSecrets) Has(name string) error {
	_, err := p.get(name)
	return err
}

// Resolve implements secrets.Provider.
func (p siteSecrets) Resolve(_ context.Context, name string) ([]byte, error) {
	s, err := p.get(name)
	if err != nil {
		return nil, err
	}
	b, err := p.n.identity.Open(s.Sealed)
	if err != nil {
		return nil, forgeyard.E("secret "+name, forgeyard.Denied, err)
	}
	return b, nil
}

// sealCheckpoint seals the key of a restricted checkpoint for the nodes that could go on with the
// job, this one among them.
func (n *Node) sealCheckpoint(key []byte, j site.Job) (sealed []byte, to []forgeyard.RunnerID, err error) {
	var peers []peer.ID
	for _, m := range n.replica.State().Openers(j, n.enrolment.RunnerID) {
		id, err := peer.Decode(m.Peer)
		if err != nil {
			return nil, nil, forgeyard.Errorf("seal", forgeyard.Invalid, "%s has no key that can be sealed for: %v", m.Name, err)
		}
		peers, to = append(peers, id), append(to, m.Runner)
	}
	sealed, err = mesh.Seal(key, peers)
	return sealed, to, err
}

// Unseal opens what was sealed for this node.
func (n *Node) Unseal(sealed []byte) ([]byte, error) { return n.identity.Open(sealed) }
