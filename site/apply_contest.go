package site

import (
	"cmp"

	"github.com/forgeyard/forgeyard-node"
)

// KindIdentity is the kind of the event of two processes with the key of one member.
const KindIdentity = "identity"

// contest tells people that a second process asked to be a runner. It changes nothing: the
// second was not let in.
func (c *change) contest(b Contest) error {
	m, ok := c.Members.Get(b.Runner)
	switch {
	case !ok:
		return forgeyard.Errorf("contest", forgeyard.NotFound, "no member %s", forgeyard.Clip(string(b.Runner), 40))
	case m.Session.ID != b.Session:
		return forgeyard.Errorf("contest", forgeyard.Stale, "session %s is not the current one of %s", forgeyard.Short(b.Session), m.Name)
	}
	c.note(KindIdentity, "%s: session %s at %s has its key too and is refused, while session %s is heard", m.Name, forgeyard.Short(b.Other), forgeyard.Clip(cmp.Or(b.Addr, "an unknown address"), 100), forgeyard.Short(b.Session))
	return nil
}
