package cas_test

import (
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

func TestPinValidate(t *testing.T) {
	d := cas.Sum([]byte("x"))
	for name, c := range map[string]struct {
		pin  cas.Pin
		want forgeyard.Kind
	}{
		"good":        {cas.Pin{Owner: "attempt/1", Roots: []forgeyard.Digest{d}, Trees: []forgeyard.Digest{d}}, forgeyard.Other},
		"no owner":    {cas.Pin{Roots: []forgeyard.Digest{d}}, forgeyard.Invalid},
		"long owner":  {cas.Pin{Owner: strings.Repeat("o", cas.MaxOwnerBytes+1)}, forgeyard.Invalid},
		"control":     {cas.Pin{Owner: "a\nb"}, forgeyard.Invalid},
		"zero root":   {cas.Pin{Owner: "a", Roots: make([]forgeyard.Digest, 1)}, forgeyard.Invalid},
		"zero tree":   {cas.Pin{Owner: "a", Trees: make([]forgeyard.Digest, 1)}, forgeyard.Invalid},
		"many":        {cas.Pin{Owner: "a", Roots: make([]forgeyard.Digest, cas.MaxPinRoots+1)}, forgeyard.Limit},
		"only a name": {cas.Pin{Owner: "a"}, forgeyard.Other},
	} {
		if err := c.pin.Validate(); forgeyard.KindOf(err) != c.want || (err == nil) != (c.want == forgeyard.Other) {
			t.Errorf("%s: %v", name, err)
		}
	}
	now := time.Unix(100, 0)
	if (cas.Pin{}).Expired(now) || (cas.Pin{Expires: now.Add(1)}).Expired(now) || !(cas.Pin{Expires: now}).Expired(now) {
		t.Error("a pin ends exactly at its expiry, and never without one")
	}
}
