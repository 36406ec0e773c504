package checkpoint

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
)

// StepBinding is all that a committed step's result follows from. A step is not run again
// only where its binding is the same to the last byte; nothing merely looks done (69§123).
type StepBinding struct {
	Version int              `cbor:"1,keyasint"` // StepVersion
	Spec    forgeyard.Digest `cbor:"2,keyasint"` // environment, limits and network are in the spec
	Index   int              `cbor:"3,keyasint"`
	Step    job.Step         `cbor:"4,keyasint"`
	Inputs  []job.Input      `cbor:"5,keyasint,omitempty"` // with the node's own toolchains
	Before  []job.Output     `cbor:"6,keyasint,omitempty"` // what the committed steps before it made, in order
	OS      string           `cbor:"7,keyasint"`
	Arch    string           `cbor:"8,keyasint"`
}

// StepVersion is the only version of StepBinding.
const StepVersion = 1

// Evidence names the binding.
func (b StepBinding) Evidence() forgeyard.Digest {
	b.Version = StepVersion
	return cas.Sum(cborx.Marshal(b))
}
