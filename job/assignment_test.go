package job

import (
	"reflect"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// What is not named stays, and what cannot be given is refused: signing above all, by nobody
// and to nobody (RA-117, RA-034, RA-569, decision 8).
func TestAssign(t *testing.T) {
	before := Assignment{Pool: "slow", Trust: []Trust{TrustNetwork}, Labels: map[string]string{"bench": "a"}}
	for name, c := range map[string]struct {
		b    Assign
		want Assignment
		err  string
	}{
		"a pool":           {b: Assign{Pool: "release"}, want: Assignment{Pool: "release", Trust: before.Trust, Labels: before.Labels}},
		"no pool":          {b: Assign{NoPool: true}, want: Assignment{Trust: before.Trust, Labels: before.Labels}},
		"trust, sorted":    {b: Assign{Trust: []Trust{TrustNetwork, TrustConfidential, TrustNetwork}}, want: Assignment{Pool: "slow", Trust: []Trust{TrustConfidential, TrustNetwork}, Labels: before.Labels}},
		"no trust":         {b: Assign{NoTrust: true}, want: Assignment{Pool: "slow", Labels: before.Labels}},
		"other labels":     {b: Assign{Labels: map[string]string{"x": "y"}}, want: Assignment{Pool: "slow", Trust: before.Trust, Labels: map[string]string{"x": "y"}}},
		"nothing left":     {b: Assign{NoPool: true, NoTrust: true, NoLabels: true}},
		"nothing named":    {err: "nothing is assigned"},
		"given and taken":  {b: Assign{Pool: "a", NoPool: true}, err: "given and taken"},
		"no name":          {b: Assign{Pool: "a/b"}, err: `pool: "a/b"`},
		"no such trust":    {b: Assign{Trust: []Trust{"root"}}, err: `trust[0]: "root" is unknown; allowed: confidential, trusted-network`},
		"signing":          {b: Assign{Trust: []Trust{"signing"}}, err: `"signing" is never given to a general node`},
		"signing, besides": {b: Assign{Trust: []Trust{TrustConfidential, "signing"}}, err: `"signing" is never given to a general node`},
		"no label":         {b: Assign{Labels: map[string]string{"a b": "c"}}, err: "labels.a b"},
	} {
		got, err := c.b.Changed(before)
		if c.err != "" {
			if forgeyard.KindOf(err) != forgeyard.Invalid || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", name, err, c.err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v %v, want %+v", name, got, err, c.want)
		}
	}
	if got := before.String(); got != "pool slow, trust trusted-network, label bench=a" {
		t.Error(got)
	}
	if !(Assignment{}).IsZero() || (Assignment{}).String() != "nothing" {
		t.Error("nothing is something")
	}
}
