package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// Trust is a privileged ability. The site gives it to a runner; none ever comes from what a
// machine says or is probed for (07§22).
type Trust string

// What a site can give.
const (
	TrustConfidential Trust = "confidential"    // it may see what not every runner may
	TrustNetwork      Trust = "trusted-network" // it stands in a network that the site trusts
)

// trustSigning is of another program, the signing worker: no general node is ever given it,
// and no job of a general node may ask for it (decision 8).
const trustSigning Trust = "signing"

// Assignment is what the site says of a runner, and the runner never of itself (decision 12).
type Assignment struct {
	// Pool sets the runner apart: it serves the jobs that ask for this pool and no others.
	// Empty: it serves those that ask for none.
	Pool   string            `cbor:"1,keyasint,omitempty"`
	Trust  []Trust           `cbor:"2,keyasint,omitempty"` // sorted, each once
	Labels map[string]string `cbor:"3,keyasint,omitempty"` // they stand before the machine's own hints
	// Class is how likely it is that the runner is taken away; empty: Stable.
	Class InterruptionClass `cbor:"58,keyasint,omitempty"`
}

// IsZero reports that the site says nothing of the runner.
func (a Assignment) IsZero() bool {
	return a.Pool == "" && len(a.Trust) == 0 && len(a.Labels) == 0 && a.Class == ""
}

// Lacks says what keeps a runner from serving a spec by the word of the site alone: empty
// when nothing does.
func (a Assignment) Lacks(s Spec) []string {
	if s.Own() {
		return nil // it is of one node, whatever the site thinks of that
	}
	var why []string
	switch {
	case s.Requires.Pool == a.Pool:
	case s.Requires.Pool == "":
		why = append(why, fmt.Sprintf("it is set apart for jobs that ask for pool %q", a.Pool))
	case a.Pool == "":
		why = append(why, fmt.Sprintf("it is in no pool, the job requires pool %q", s.Requires.Pool))
	default:
		why = append(why, fmt.Sprintf("it is in pool %q, the job requires pool %q", a.Pool, s.Requires.Pool))
	}
	for _, t := range s.Requires.Trust {
		if !slices.Contains(a.Trust, t) {
			why = append(why, fmt.Sprintf("the site has not given it trust %q", t))
		}
	}
	if a.Class.MayVanish() && s.Interruption.Tolerance == ToleranceNone {
		why = append(why, fmt.Sprintf("it is %s capacity, the job tolerates no interruption", a.Class))
	}
	return why
}

// Check says why this cannot be said of a runner, or nil. The error's kind is Invalid.
func (a Assignment) Check() error {
	var c check
	if a.Pool != "" {
		c.name("pool", a.Pool)
	}
	c.trust("trust", a.Trust)
	c.labels("labels", a.Labels)
	if a.Class != "" {
		c.oneOf("class", string(a.Class), string(Stable), string(Preemptible), string(Spot), string(BestEffort))
	}
	return explain("assign", c.faults)
}

// Assign changes an assignment. What it does not name stays as it is.
type Assign struct {
	Pool     string            `cbor:"1,keyasint,omitempty"`
	NoPool   bool              `cbor:"2,keyasint,omitempty"`
	Trust    []Trust           `cbor:"3,keyasint,omitempty"` // all that it has from now on
	NoTrust  bool              `cbor:"4,keyasint,omitempty"`
	Labels   map[string]string `cbor:"5,keyasint,omitempty"` // likewise
	NoLabels bool              `cbor:"6,keyasint,omitempty"`
	Class    InterruptionClass `cbor:"58,keyasint,omitempty"` // Stable takes the class away
}

// Changed is what an assignment becomes. The error's kind is Invalid.
func (b Assign) Changed(a Assignment) (Assignment, error) {
	switch {
	case b.Pool != "" && b.NoPool, len(b.Trust) > 0 && b.NoTrust, len(b.Labels) > 0 && b.NoLabels:
		return a, forgeyard.Errorf("assign", forgeyard.Invalid, "the same thing is given and taken")
	case b.Pool == "" && len(b.Trust) == 0 && len(b.Labels) == 0 && !b.NoPool && !b.NoTrust && !b.NoLabels && b.Class == "":
		return a, forgeyard.Errorf("assign", forgeyard.Invalid, "nothing is assigned").WithHint("name a pool, a trust, a label or a class, or take one away")
	}
	if b.Pool != "" || b.NoPool {
		a.Pool = b.Pool
	}
	if len(b.Trust) > 0 || b.NoTrust {
		a.Trust = slices.Compact(slices.Sorted(slices.Values(b.Trust)))
	}
	if len(b.Labels) > 0 || b.NoLabels {
		a.Labels = maps.Clone(b.Labels)
	}
	switch b.Class {
	case "":
	case Stable:
		a.Class = ""
	default:
		a.Class = b.Class
	}
	return a, a.Check()
}

// String is for people. Its bytes are part of the log's format.
func (a Assignment) String() string {
	var words []string
	if a.Pool != "" {
		words = append(words, "pool "+a.Pool)
	}
	for _, t := range a.Trust {
		words = append(words, "trust "+string(t))
	}
	for _, k := range slices.Sorted(maps.Keys(a.Labels)) {
		words = append(words, "label "+k+"="+a.Labels[k])
	}
	if a.Class != "" {
		words = append(words, "class "+string(a.Class))
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

func (c *check) trust(at string, all []Trust) {
	c.count(at, len(all), MaxLabels)
	seen := map[string]bool{}
	for i, t := range all {
		at := fmt.Sprintf("%s[%d]", at, i)
		if t == trustSigning {
			c.add(at, "%q is never given to a general node: signing is another program's", t)
			continue
		}
		c.oneOf(at, string(t), string(TrustConfidential), string(TrustNetwork))
		c.unique(at, string(t), seen)
	}
}
