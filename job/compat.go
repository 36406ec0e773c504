package job

import (
	"slices"

	"github.com/forgeyard/forgeyard-node/job/machine"
)

// MachineFor is the machine as the job sees it. Nil: its runner does not say.
func (c Capabilities) MachineFor(s Spec) *machine.Facts {
	if c.Machine == nil {
		return nil
	}
	m := *c.Machine
	m.GPUs, m.Tools, m.Devices = nil, nil, nil
	for _, g := range c.GPUs {
		m.GPUs = append(m.GPUs, words([]string{g.Vendor, g.Model, g.Driver}))
	}
	for _, t := range c.Toolchains {
		if t.Source == ToolchainHost && slices.Contains(s.Requires.Toolchains, t.Name) {
			m.Tools = append(m.Tools, words([]string{t.Name, t.Version}))
		}
	}
	slices.Sort(m.GPUs)
	slices.Sort(m.Tools)
	return &m
}

// Sensitivity says who may see what a job writes into its checkpoints (69§150).
type Sensitivity string

// Sensitivities. Empty: internal.
const (
	SensPublic       Sensitivity = "public"
	SensInternal     Sensitivity = "internal"
	SensConfidential Sensitivity = "confidential"
	SensRestricted   Sensitivity = "restricted"
)

// saysLater reports what a program of log format 1 does not read.
func (r Resume) saysLater() bool {
	return !r.Compatibility.IsZero() || r.Sensitivity != "" || r.Checkpoint.MaxAge != 0 || r.Checkpoint.KeepOnFailure != 0
}
