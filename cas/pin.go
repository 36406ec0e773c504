package cas

import (
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node"
)

// Validate checks the owner's name and the bounds.
func (p Pin) Validate() error {
	if err := ValidateOwner(p.Owner); err != nil {
		return err
	}
	if n := len(p.Roots) + len(p.Trees); n > MaxPinRoots {
		return forgeyard.Errorf("cas pin", forgeyard.Limit, "%d roots are more than the bound of %d", n, MaxPinRoots).WithHint("put them into a tree and pin that")
	}
	for _, list := range [][]forgeyard.Digest{p.Roots, p.Trees} {
		for _, d := range list {
			if d.IsZero() {
				return forgeyard.Errorf("cas pin", forgeyard.Invalid, "a root of %q is the zero digest", p.Owner)
			}
		}
	}
	return nil
}

// Expired reports whether the pin no longer keeps anything.
func (p Pin) Expired(wall time.Time) bool { return !p.Expires.IsZero() && !wall.Before(p.Expires) }

// ValidateOwner checks the name of who keeps something.
func ValidateOwner(owner string) error {
	if owner == "" || len(owner) > MaxOwnerBytes || !utf8.ValidString(owner) {
		return forgeyard.Errorf("cas pin", forgeyard.Invalid, "owner %q must be 1 to %d bytes of text", forgeyard.Clip(owner, 80), MaxOwnerBytes)
	}
	for _, r := range owner {
		if !unicode.IsPrint(r) {
			return forgeyard.Errorf("cas pin", forgeyard.Invalid, "owner %q holds an unprintable character", owner)
		}
	}
	return nil
}
