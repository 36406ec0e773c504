package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/scrub"
)

// maxLost bounds what a verification tells of objects that were set aside before it.
const maxLost = 1000

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
	c.Damaged = append(repaired.Damaged, c.Damaged...)
	repaired.Damaged = nil
	n.scrub.Passed(c)
	lost, err := n.store.Lost(ctx, forgeyard.Digest{}, maxLost) // what was found before, and is not here yet
	if err != nil {
		return nil, err
	}
	for _, d := range lost {
		if !slices.Contains(c.Damaged, d) {
			c.Damaged = append(c.Damaged, d)
		}
	}
	return verifyMessage(repaired, c), nil
}

func verifyMessage(repaired, c disk.Checked) *forgeyardv1.VerifyResponse {
	m := &forgeyardv1.VerifyResponse{Objects: c.Objects, Bytes: c.Bytes, Indexed: repaired.Indexed, Proved: repaired.Proved, Forgotten: repaired.Forgotten}
	for _, d := range append(repaired.Damaged, c.Damaged...) {
		m.Damaged = append(m.Damaged, d.String())
	}
	return m
}

// openScrub opens what reads the store again from time to time.
func (n *Node) openScrub() (err error) {
	set := n.settings().CAS
	n.scrub, err = scrub.Open(scrub.Config{
		Store: n.store, File: n.dir.join(fileScrub), Name: string(n.enrolment.RunnerID), Every: set.ScrubEvery, Rate: int64(set.ScrubRate),
		Load: n.scrubLoad, Clock: n.clock, Log: n.log,
		Heal: func(ctx context.Context, d forgeyard.Digest) error { return n.Bring(ctx, cas.Ref{Digest: d}, false) },
	})
	return err
}

// scrubLoad says what else this node does.
func (n *Node) scrubLoad() scrub.Load {
	switch {
	case n.pressure() != pressureNormal:
		return scrub.Short
	case len(n.runner.Active()) > 0:
		return scrub.Working
	}
	return scrub.Idle
}

// checkScrub looks when the store was read through, and whether something of it is lost.
func (n *Node) checkScrub() *forgeyardv1.Health_Check { return judgeScrub(n.scrub.Status()) }

func judgeScrub(s scrub.Status) *forgeyardv1.Health_Check {
	c := check("scrub")
	switch {
	case s.Last.IsZero():
		c.Detail = "not all of the store was read yet"
	default:
		c.Detail = fmt.Sprintf("all %d objects were read by %s", s.Objects, s.Last.UTC().Format(time.RFC3339))
	}
	switch {
	case s.Reading:
		c.Detail += "; they are being read"
	case s.Next.IsZero():
		c.Detail += "; they are not read again by themselves"
	default:
		c.Detail += "; again from " + s.Next.UTC().Format(time.RFC3339)
	}
	if s.Overdue {
		c.Status, c.Detail = checkWarn, c.Detail+"; that is overdue"
		c.Fix = "raise cas.scrub_rate in node.yaml, or run: forgeyard-node cas verify --repair"
	}
	if len(s.Lost) > 0 {
		c.Status = checkWarn
		c.Detail += fmt.Sprintf("; %d objects were damaged, and no peer had them, such as %s", len(s.Lost), s.Lost[0])
		c.Fix = "put them again from where they came; look at the disk (smartctl), and who needs them: forgeyard-node cas stat DIGEST"
	}
	return c
}
