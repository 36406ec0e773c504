package job

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
)

// RunSpec is the durable work request of a queued run (RS-020, RS-021). What a
// build runs is in the specs of its jobs; AutoCommit, Model and Guidance are
// repeated there, since a runner sees only those (decision 21).
type RunSpec struct {
	Version    int        `cbor:"1,keyasint"` // SpecVersion
	Kind       RunKind    `cbor:"2,keyasint"`
	Title      string     `cbor:"3,keyasint,omitempty"`
	Guidance   string     `cbor:"4,keyasint,omitempty"`
	Harness    string     `cbor:"5,keyasint,omitempty"` // sandbox | process; empty leaves it to the job
	Model      string     `cbor:"6,keyasint,omitempty"`
	AutoCommit bool       `cbor:"7,keyasint"`
	Inputs     []RunInput `cbor:"8,keyasint,omitempty"` // ingest only
}

// RunInput is outside data that an ingest brings into the store under a name.
// Exactly one of From and Digest is set.
type RunInput struct {
	Name   string           `cbor:"1,keyasint" yaml:"name" strict:"required"`
	From   string           `cbor:"2,keyasint,omitempty" yaml:"from"` // a path on the node that runs the ingest
	Digest forgeyard.Digest `cbor:"3,keyasint,omitzero" yaml:"digest"`
	Tree   bool             `cbor:"4,keyasint,omitempty" yaml:"tree"`   // the digest names a directory; for a path it is found out
	Bundle bool             `cbor:"5,keyasint,omitempty" yaml:"bundle"` // the path is a bundle: its one root gets the name
}

// Validate says everything that is wrong with the run, or nil (RS-015). The kind
// of the error is Invalid.
func (r RunSpec) Validate() error { return explain("run spec", r.faults()) }

func (r RunSpec) faults() []fault {
	var c check
	if r.Version != SpecVersion {
		c.add("version", "%d is not a version of the job file; allowed: %d", r.Version, SpecVersion)
	}
	switch r.Kind {
	case Build, Garden:
		if len(r.Inputs) > 0 {
			hint := ""
			if r.Kind == Build {
				hint = "; a job's inputs stand in job.inputs"
			}
			c.add("inputs", "a %s has no run inputs, %d are given%s", r.Kind, len(r.Inputs), hint)
		}
	case Ingest:
		if len(r.Inputs) == 0 {
			c.add("inputs", "an ingest needs at least one input")
		}
	default:
		c.add("kind", "%q is not a run kind; allowed: build, ingest, garden", forgeyard.Clip(string(r.Kind), MaxName))
	}
	if r.Harness != "" && r.Kind != Build {
		c.add("harness", "%q; only a build chooses an executor", forgeyard.Clip(r.Harness, MaxName))
	}
	c.oneOf("harness", r.Harness, "", HarnessSandbox, HarnessProcess)
	c.text("title", r.Title, MaxTitle)
	c.text("guidance", r.Guidance, MaxGuidance)
	c.text("model", r.Model, MaxValue)
	c.runInputs(r.Inputs)
	return c.faults
}

// The harnesses: names of executors (decision 21).
const (
	HarnessSandbox = "sandbox"
	HarnessProcess = "process"
)

func (c *check) runInputs(ins []RunInput) {
	c.count("inputs", len(ins), MaxRunInputs)
	seen := map[string]bool{}
	for i, in := range ins {
		at := fmt.Sprintf("inputs[%d]", i)
		c.name(at+".name", in.Name)
		c.unique(at+".name", in.Name, seen)
		if (in.From == "") == in.Digest.IsZero() {
			c.add(at, "exactly one of from and digest is needed")
		}
		if in.Tree && in.Digest.IsZero() {
			c.add(at+".tree", "is for a digest; for a path it is found out")
		}
		if in.Bundle && in.From == "" {
			c.add(at+".bundle", "is for a path")
		}
		c.text(at+".from", in.From, MaxPath)
	}
}
