package site

import (
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// Restored is what the program of an epoch says of the state that it was given (`fyjob restore
// ok` and `reject`, FYCP/1 §5). Of log format 2.
type Restored struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Rejected  bool                `cbor:"2,keyasint,omitempty"`
	Reason    string              `cbor:"3,keyasint,omitempty"` // of a rejection
}

func (Restored) kind() Kind { return kindRestored }

// RestoreWord is the last that a program said of what its epoch went on from.
type RestoreWord struct {
	Epoch    uint64         `cbor:"1,keyasint"`
	Rejected bool           `cbor:"2,keyasint,omitempty"`
	Reason   string         `cbor:"3,keyasint,omitempty"`
	At       forgeyard.Wall `cbor:"4,keyasint"`
}

// restored takes the program's word at once: a state that it rejects is nobody's next start,
// whatever becomes of the program after it said so. The first rejection of an epoch stands.
func (c *change) restored(b Restored) error {
	j, err := c.current("restore", b.Authority, false)
	if err != nil {
		return err
	}
	reason := forgeyard.Clip(strings.TrimSpace(b.Reason), checkpoint.MaxText)
	switch {
	case j.Lease.State != lease.Accepted:
		return forgeyard.Errorf("restore", forgeyard.Conflict, "lease %s is not accepted yet", b.Authority.Lease)
	case j.ResumeFrom.IsZero():
		return forgeyard.Errorf("restore", forgeyard.Invalid, "epoch %d began from nothing: there is no state to speak of", j.Epoch)
	case j.rejected() || j.said() && !b.Rejected:
		return nil
	case b.Rejected && reason == "":
		return forgeyard.Errorf("restore", forgeyard.Invalid, "a rejection needs its reason")
	}
	if !b.Rejected {
		reason = ""
	}
	j.Word = &RestoreWord{Epoch: j.Epoch, Rejected: b.Rejected, Reason: reason, At: c.at}
	if b.Rejected {
		c.tell(j, job.EventMessage, "", "the program of epoch %d rejects checkpoint %s: %s", j.Epoch, j.ResumeFrom.Short(), reason)
		c.resumeFailed(&j, true, "the program rejected it: "+reason)
	} else {
		c.tell(j, job.EventMessage, "", "the program of epoch %d has taken up checkpoint %s", j.Epoch, j.ResumeFrom.Short())
	}
	c.putJob(j)
	return nil
}

// said reports whether the current epoch's program has said anything of what it was given.
func (j Job) said() bool { return j.Word != nil && j.Word.Epoch == j.Epoch }

// rejected reports whether it has rejected it, which is charged once.
func (j Job) rejected() bool { return j.said() && j.Word.Rejected }
