package node

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// SignBundle implements control.Node.
func (n *Node) SignBundle(index []byte) ([]byte, error) {
	return n.identity.SignAsMember(mesh.BundleDomain, n.credential.Load(), index)
}

// SignEnvelope implements control.Node.
func (n *Node) SignEnvelope(data []byte) (keyID string, sig []byte, err error) {
	return n.identity.SignEnvelope(data)
}

// CheckEnvelope implements control.Node.
func (n *Node) CheckEnvelope(keyID string, data, sig []byte) error {
	return mesh.CheckEnvelope(keyID, data, sig)
}

// SiteID implements control.Node.
func (n *Node) SiteID() forgeyard.SiteID { return n.enrolment.SiteID }

// BundleSigner implements control.Node.
func (n *Node) BundleSigner(of forgeyard.SiteID, index, signature []byte, made time.Time) (forgeyard.RunnerID, error) {
	c, err := mesh.OpenMemberSignature(signature, mesh.BundleDomain, index, n.enrolment.SitePublicKey, made)
	if err != nil {
		return "", err
	}
	if of != n.enrolment.SiteID {
		return c.Runner, forgeyard.Errorf("bundle", forgeyard.Denied, "it is said to be of site %s, and a member of %s signed it", forgeyard.Clip(string(of), 64), n.enrolment.SiteID)
	}
	return c.Runner, nil
}
