package job

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// Capabilities is what a machine is and can enforce: facts that were probed,
// never usage (decision 18). Its canonical bytes have a digest that travels in
// the gossip; the whole travels only when it changed (07§21).
type Capabilities struct {
	OS         string              `cbor:"1,keyasint"`
	Arch       string              `cbor:"2,keyasint"`
	MilliCPU   int64               `cbor:"3,keyasint"` // what jobs may use: physical less the node's and the admin's reserve
	Memory     int64               `cbor:"4,keyasint"` // bytes, likewise
	Disk       int64               `cbor:"5,keyasint"` // bytes, likewise
	MaxJobs    int                 `cbor:"6,keyasint"` // hard local guard (07§224)
	Sandboxes  []SandboxCapability `cbor:"7,keyasint,omitempty"`
	Toolchains []Toolchain         `cbor:"8,keyasint,omitempty"`
	Labels     map[string]string   `cbor:"9,keyasint,omitempty"` // hints of node.yaml, never trust (decision 12)
	Devices    []DeviceFact        `cbor:"10,keyasint,omitempty"`
	Networks   []Network           `cbor:"11,keyasint,omitempty"` // what local policy allows
	GPUs       []GPU               `cbor:"12,keyasint,omitempty"` // what can compute, by what kernel and vendor show
	// WarmToolchains are trees that jobs named as toolchains and that are ready here, MaxWarm at
	// most. Any other can be fetched and made.
	WarmToolchains []forgeyard.Digest `cbor:"13,keyasint,omitempty"`
	// Machine is what the state of a program may depend on; nil of a program that does not say.
	Machine *machine.Facts `cbor:"45,keyasint,omitempty"`
}

// LimitSiteNetwork is the word of a sandbox that can keep a job to the site's networks.
const LimitSiteNetwork = "site_network"

// GPU is a graphics processor. It is shown so that people can see where one is, and give that
// machine a label; no sandbox hands it out.
type GPU struct {
	Bus    string `cbor:"1,keyasint"` // where it is: of several of one kind, which
	Vendor string `cbor:"2,keyasint,omitempty"`
	Model  string `cbor:"3,keyasint,omitempty"`
	Driver string `cbor:"4,keyasint,omitempty"`
	Memory int64  `cbor:"5,keyasint,omitempty"` // bytes of its own; 0: not known, or none
}

// Early is what a program of log format 1 reads of them.
func (c Capabilities) Early() Capabilities {
	c.GPUs, c.WarmToolchains, c.Machine = nil, nil, nil
	c.Toolchains = slices.DeleteFunc(slices.Clone(c.Toolchains), func(t Toolchain) bool { return t.Source != ToolchainHost })
	return c
}

// SaysLater reports facts that such a program does not read.
func (c Capabilities) SaysLater() bool {
	return len(c.GPUs) > 0 || c.Machine != nil || len(c.WarmToolchains) > 0 || slices.ContainsFunc(c.Toolchains, func(t Toolchain) bool { return t.Source != ToolchainHost })
}

// SandboxCapability is a sandbox that was started once and held.
type SandboxCapability struct {
	Kind    Sandbox  `cbor:"1,keyasint"`
	Version string   `cbor:"2,keyasint,omitempty"`
	Limits  []string `cbor:"3,keyasint,omitempty"` // which of cpu, memory, pids, network, site_network it enforces here
}

// Toolchain is a tool that jobs can ask for by name.
type Toolchain struct {
	Name     string `cbor:"1,keyasint"`
	Version  string `cbor:"2,keyasint,omitempty"`
	Source   string `cbor:"3,keyasint"`           // ToolchainHost | ToolchainStore
	Verified bool   `cbor:"4,keyasint,omitempty"` // its bytes are held against its name before they are used
	// Digest is the tree of one of the store, which is shown to jobs that require its name. Warm:
	// it is ready here; else it is fetched and made when a job wants it.
	Digest forgeyard.Digest `cbor:"5,keyasint,omitzero"`
	Warm   bool             `cbor:"6,keyasint,omitempty"`
}

// DeviceFact is a device that the node hosts, as node.yaml declares it.
type DeviceFact struct {
	ID     forgeyard.DeviceID `cbor:"1,keyasint"`
	Kind   string             `cbor:"2,keyasint"`
	Labels map[string]string  `cbor:"3,keyasint,omitempty"`
	Serial string             `cbor:"4,keyasint,omitempty"` // identity that survives replugging
}

// RejectReason says why a runner refused a lease before any work (07§33). Append only.
type RejectReason string

// Reject reasons.
const (
	RejectDraining          RejectReason = "draining"
	RejectPressure          RejectReason = "resource_pressure"
	RejectCapabilityChanged RejectReason = "capability_changed"
	RejectDisk              RejectReason = "disk_insufficient"
	RejectUnsupportedSpec   RejectReason = "unsupported_spec"
	RejectLocalPolicy       RejectReason = "local_policy"
	RejectPreparation       RejectReason = "internal_preparation_failure"
	// No agent gives these two: it answers only offers that the log calls live and that name
	// its own runner and session, and the log takes no other's answer (stale_authority). They
	// stay reserved, so that no other meaning gets their names.
	RejectExpired      RejectReason = "lease_expired"
	RejectWrongSession RejectReason = "wrong_session"
)
