package site

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// Secret is a secret of the site: sealed for the keys of the members that may have it, so
// that the log, its voters and its backups hold what only those members can open.
type Secret struct {
	Name   string               `cbor:"1,keyasint"`
	Sealed []byte               `cbor:"2,keyasint"`
	For    []forgeyard.RunnerID `cbor:"3,keyasint"`
	At     forgeyard.Wall       `cbor:"4,keyasint"`
	By     string               `cbor:"5,keyasint,omitempty"`
}

// SecretSet seals a new value under a name, for the members that are named and no other.
type SecretSet struct {
	Name   string               `cbor:"1,keyasint"`
	Sealed []byte               `cbor:"2,keyasint"`
	For    []forgeyard.RunnerID `cbor:"3,keyasint"`
}

// SecretRemove ends a secret.
type SecretRemove struct {
	Name string `cbor:"1,keyasint"`
}

func (c *change) secretSet(b SecretSet) error {
	no := func(kind forgeyard.Kind, format string, args ...any) error {
		return forgeyard.Errorf("secret", kind, format, args...)
	}
	if err := job.CheckSecretName(b.Name); err != nil {
		return no(forgeyard.Invalid, "name %v", err)
	}
	if n := len(b.Sealed); n == 0 || n > MaxSealed {
		return no(forgeyard.Invalid, "%d sealed bytes are not in [1, %d]", n, MaxSealed)
	}
	if n := len(b.For); n == 0 || n > maxMembers {
		return no(forgeyard.Invalid, "it is for %d members, not for 1 to %d", n, maxMembers)
	}
	for i, r := range b.For {
		if m, ok := c.Members.Get(r); !ok || m.Removed || slices.Contains(b.For[:i], r) {
			return no(forgeyard.Invalid, "it is for %s, which is no member, or is named twice", r)
		}
	}
	if !c.Secrets.Has(b.Name) && c.Secrets.Len() >= maxSecrets {
		return forgeyard.Errorf("secret", forgeyard.Limit, "the site has %d secrets, the bound", maxSecrets).WithHint("end some with: forgeyard-node secret remove NAME")
	}
	total := len(b.Sealed)
	for _, s := range c.Secrets.All() {
		if s.Name != b.Name {
			total += len(s.Sealed)
		}
	}
	if total > maxSealedTotal {
		return no(forgeyard.Limit, "all secrets would have %d sealed bytes, the bound is %d", total, maxSealedTotal)
	}
	c.Secrets = c.Secrets.Put(b.Name, Secret{Name: b.Name, Sealed: b.Sealed, For: b.For, At: c.at, By: c.by})
	c.note("secret", "%s set by %s for %d members", b.Name, c.by, len(b.For))
	return nil
}

func (c *change) secretRemove(b SecretRemove) error {
	if !c.Secrets.Has(b.Name) {
		return forgeyard.Errorf("secret", forgeyard.NotFound, "no secret %q", forgeyard.Clip(b.Name, 80)).WithHint("forgeyard-node secret list shows them")
	}
	c.Secrets = c.Secrets.Delete(b.Name)
	c.note("secret", "%s removed by %s", b.Name, c.by)
	return nil
}
