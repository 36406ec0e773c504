package site

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// Mark keeps where a program is, for its next epoch: a phase, or a reboot that it asked its
// device for. It is kept here, so that it is there on whatever node goes on. Of log format 2.
type Mark struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Name      string              `cbor:"2,keyasint"`
}

func (Mark) kind() Kind { return kindMark }

// mark takes the word of the current epoch alone: an older one must not put the next back.
func (c *change) mark(b Mark) error {
	j, err := c.current("mark", b.Authority, false)
	if err != nil {
		return err
	}
	if why := checkpoint.BadMark(b.Name); why != "" {
		return forgeyard.Errorf("mark", forgeyard.Invalid, "a mark %s", why)
	}
	if j.Lease.State != lease.Accepted {
		return forgeyard.Errorf("mark", forgeyard.Conflict, "lease %s is not accepted yet", b.Authority.Lease)
	}
	if j.Mark == b.Name {
		return nil
	}
	j.Mark = b.Name
	c.tell(j, job.EventMessage, "", "mark %s in epoch %d", b.Name, j.Epoch)
	c.putJob(j)
	return nil
}
