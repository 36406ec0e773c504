package node

import (
	"context"
	"slices"

	"github.com/forgeyard/forgeyard-node"
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
