package node

import (
	"context"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

// Gone says when a stored object went and why; empty when that is not known.
func (n *Node) Gone(d forgeyard.Digest) string {
	if g, ok := n.store.Gone(d); ok {
		return g.String()
	}
	return ""
}

// Verify reads all that is stored and sets aside what is not what its name says; with
// index it makes the index agree with the files first. told hears how far it is.
func (n *Node) Verify(ctx context.Context, index bool, rate int64, told func(*forgeyardv1.VerifyResponse)) (*forgeyardv1.VerifyResponse, error) {
	var repaired disk.Checked
	if index {
		var err error
		if repaired, err = n.store.Repair(ctx, func(c disk.Checked) { told(verifyMessage(c, disk.Checked{})) }); err != nil {
			return nil, err
		}
	}
	c, err := n.store.Verify(ctx, rate, func(c disk.Checked) { told(verifyMessage(repaired, c)) })
	if err != nil {
		return nil, err
	}
	n.metrics.casDamaged.Add(float64(len(c.Damaged) + len(repaired.Damaged)))
	return verifyMessage(repaired, c), nil
}

func verifyMessage(repaired, c disk.Checked) *forgeyardv1.VerifyResponse {
	m := &forgeyardv1.VerifyResponse{Objects: c.Objects, Bytes: c.Bytes, Indexed: repaired.Indexed, Proved: repaired.Proved, Forgotten: repaired.Forgotten}
	for _, d := range append(repaired.Damaged, c.Damaged...) {
		m.Damaged = append(m.Damaged, d.String())
	}
	return m
}
