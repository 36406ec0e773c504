package checkpoint

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// ManifestVersion is the newest format that this version writes and reads; the one before is
// read too. Another one is Incompatible: nothing is converted silently (69§194–198).
//
//	1   up to key 19: of the machine, the platform
//	2   what the state may depend on of the machine
const (
	ManifestVersion = 2
	oldestManifest  = 1
)

// Sensitivity says who may see a payload (69§150).
type Sensitivity string

// Sensitivities. The payload of a restricted one is kept sealed, for those alone who may go on
// from it; its manifest can be read.
const (
	Public       Sensitivity = "public"
	Internal     Sensitivity = "internal"
	Confidential Sensitivity = "confidential"
	Restricted   Sensitivity = "restricted"
)

// Manifest binds a payload to exactly what wrote it (69§27). Its canonical bytes are an
// object in the store, and their digest is the checkpoint's identity.
type Manifest struct {
	Version     uint16              `cbor:"1,keyasint"`
	Job         forgeyard.JobID     `cbor:"2,keyasint"`
	Attempt     forgeyard.AttemptID `cbor:"3,keyasint"`
	Epoch       uint64              `cbor:"4,keyasint"`
	Seq         int                 `cbor:"5,keyasint"`
	Spec        forgeyard.Digest    `cbor:"6,keyasint"`  // source, toolchains and inputs are in the spec
	Contract    forgeyard.Digest    `cbor:"7,keyasint"`  // Contract.ID
	OS          string              `cbor:"8,keyasint"`  // runner baseline at creation
	Arch        string              `cbor:"9,keyasint"`  //
	Payload     forgeyard.Digest    `cbor:"10,keyasint"` // tree
	Bytes       int64               `cbor:"11,keyasint"`
	Files       int                 `cbor:"12,keyasint"`
	Marker      forgeyard.Digest    `cbor:"13,keyasint"`          // blob of Marker.Encode
	Parent      forgeyard.Digest    `cbor:"14,keyasint,omitzero"` // manifest it builds on; zero: a full one
	Consistency Consistency         `cbor:"15,keyasint"`
	Format      Format              `cbor:"16,keyasint"`
	Sensitivity Sensitivity         `cbor:"17,keyasint"`
	Progress    Progress            `cbor:"18,keyasint"`
	Runner      forgeyard.RunnerID  `cbor:"19,keyasint"`           // who took it: a compromised runner's checkpoints can be found (69§60)
	Machine     *machine.Facts      `cbor:"20,keyasint,omitempty"` // of version 2
	Pieces      bool                `cbor:"30,keyasint,omitempty"` // files above a block are trees of pieces in the payload, which only the marker tells from folders
	Sealed      bool                `cbor:"85,keyasint,omitempty"` // payload and marker are ciphertext, and Marker is the digest of that
}

// Stored bounds the bytes of the payload as it lies in the store: those of a sealed one are more
// than its files have.
func (m Manifest) Stored() int64 {
	if !m.Sealed {
		return m.Bytes
	}
	const aFile, aKey = 1 << 10, 64 << 10
	return m.Bytes + m.Bytes/4096 + int64(m.Files)*aFile + aKey
}

// Binding is what the site knows of the execution that took a checkpoint.
type Binding struct {
	Authority   forgeyard.Authority
	Contract    forgeyard.Digest
	OS, Arch    string
	Machine     *machine.Facts   // nil: a manifest of version 1 is written, for a site that has programs which read no other
	Sensitivity Sensitivity      // "": Internal
	Pieces      bool             // see Manifest
	Sealed      forgeyard.Digest // of the sealed marker; zero: it is not
}

// NewManifest binds a checked marker and its stored payload.
func NewManifest(m Marker, payload forgeyard.Digest, b Binding) (Manifest, error) {
	if b.Sensitivity == "" {
		b.Sensitivity = Internal
	}
	a := b.Authority
	if m.Attempt != a.Attempt || m.Epoch != a.Fence.Epoch {
		return Manifest{}, forgeyard.Errorf("manifest", forgeyard.Stale, "the marker is of attempt %s epoch %d, the authority of %s epoch %d", forgeyard.Short(m.Attempt), m.Epoch, forgeyard.Short(a.Attempt), a.Fence.Epoch)
	}
	man := Manifest{
		Version: oldestManifest, Job: a.Job, Attempt: a.Attempt, Epoch: a.Fence.Epoch, Seq: m.Seq, Runner: a.Runner,
		Spec: a.Spec, Contract: b.Contract, OS: b.OS, Arch: b.Arch,
		Payload: payload, Bytes: m.Bytes(), Files: len(m.Files), Marker: m.Digest(),
		Consistency: m.Consistency, Format: m.Format, Sensitivity: b.Sensitivity, Progress: m.Progress, Pieces: b.Pieces,
	}
	if !b.Sealed.IsZero() {
		man.Sealed, man.Marker = true, b.Sealed
	}
	if b.Machine != nil {
		man.Version, man.Machine = ManifestVersion, b.Machine
	}
	if err := man.Validate(); err != nil {
		return Manifest{}, err
	}
	return man, nil
}

// Encode gives the canonical bytes, whose digest is ID.
func (m Manifest) Encode() []byte { return cborx.Marshal(m) }

// ID is the CheckpointManifestId.
func (m Manifest) ID() forgeyard.Digest { return cas.Sum(m.Encode()) }

// ParseManifest reads canonical bytes. A version that it does not know is an error of
// kind Invalid too; Usable tells it apart for manifests built in memory.
func ParseManifest(b []byte) (Manifest, error) {
	var m Manifest
	if len(b) > MaxManifestBytes {
		return m, forgeyard.Errorf("parse manifest", forgeyard.Limit, "%d bytes are more than the bound of %d", len(b), MaxManifestBytes)
	}
	if err := cborx.UnmarshalCanonical(b, &m); err != nil {
		return Manifest{}, err
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// Validate checks all that a manifest says by itself.
func (m Manifest) Validate() error {
	bad := func(format string, args ...any) error {
		return forgeyard.Errorf("manifest", forgeyard.Invalid, format, args...)
	}
	switch {
	case m.Sealed != (m.Sensitivity == Restricted) || m.Sealed && m.Pieces:
		return bad("sensitivity %q, sealed %v, pieces %v: a restricted payload is sealed whole, and no other one is", forgeyard.Clip(string(m.Sensitivity), 40), m.Sealed, m.Pieces)
	case m.Version < oldestManifest || m.Version > ManifestVersion:
		return bad("version %d is not in [%d, %d]", m.Version, oldestManifest, ManifestVersion)
	case (m.Version == ManifestVersion) != (m.Machine != nil):
		return bad("version %d, and what machine it was taken on is said from version %d on", m.Version, ManifestVersion)
	case m.Job == "" || m.Attempt == "" || m.Epoch == 0:
		return bad("job %q, attempt %q, epoch %d: each is needed", m.Job, m.Attempt, m.Epoch)
	case m.Seq < 1 || m.Seq > MaxSeq:
		return bad("seq %d is not in [1, %d]", m.Seq, MaxSeq)
	case m.Spec.IsZero() || m.Contract.IsZero() || m.Payload.IsZero() || m.Marker.IsZero():
		return bad("spec, contract, payload and marker are each needed")
	case m.OS == "" || m.Arch == "":
		return bad("os %q, arch %q: both are needed", m.OS, m.Arch)
	case m.Bytes < 0 || m.Files < 1 || m.Files > MaxFiles:
		return bad("%d bytes in %d files is out of bounds", m.Bytes, m.Files)
	case m.Consistency.rank() == 0:
		return bad("consistency %q is unknown", forgeyard.Clip(string(m.Consistency), 40))
	}
	switch m.Sensitivity {
	case Public, Internal, Confidential, Restricted:
	default:
		return bad("sensitivity %q is unknown", forgeyard.Clip(string(m.Sensitivity), 40))
	}
	return nil
}

// Target is the execution that wants to resume.
type Target struct {
	Job      forgeyard.JobID
	Attempt  forgeyard.AttemptID // a checkpoint belongs to its attempt (69§43–45)
	Spec     forgeyard.Digest
	Contract Contract
	OS, Arch string
	Machine  *machine.Facts // nil: it does not say
}

// place is where it was taken.
func (m Manifest) place() machine.Place {
	return machine.Place{OS: m.OS, Arch: m.Arch, Machine: m.Machine}
}

// Usable says whether an execution may resume from a manifest whose bytes and payload
// were verified. What it was taken of is exact (69§28–32); of the machine, the contract says
// how much must be the same (69§33–37).
func Usable(m Manifest, t Target) Finding {
	switch {
	case t.Job == "" || t.Attempt == "" || t.Spec.IsZero() || t.Contract.ID.IsZero() || t.OS == "" || t.Arch == "":
		return found(Unknown, CodeTarget, "the resuming execution does not say what it is")
	case m.Version < oldestManifest || m.Version > ManifestVersion:
		return found(Incompatible, CodeVersion, "manifest version %d, this node reads %d to %d", m.Version, oldestManifest, ManifestVersion)
	}
	if err := m.Validate(); err != nil {
		return found(Unknown, CodeManifest, "%v", err)
	}
	switch {
	case !t.Contract.Resumable():
		return found(Incompatible, CodeMode, "the contract's mode is %s", t.Contract.Mode)
	case m.Job != t.Job:
		return found(Incompatible, CodeJob, "taken by job %s", forgeyard.Short(m.Job))
	case m.Attempt != t.Attempt:
		return found(Incompatible, CodeAttempt, "taken by attempt %s", forgeyard.Short(m.Attempt))
	case m.Spec != t.Spec:
		return found(Incompatible, CodeSpec, "taken under spec %s, this is %s", m.Spec.Short(), t.Spec.Short())
	case m.Contract != t.Contract.ID:
		return found(Incompatible, CodeContract, "taken under contract %s, this is %s", m.Contract.Short(), t.Contract.ID.Short())
	case !t.Contract.takes(m.Format):
		return found(Incompatible, CodeFormat, "format %q, the job declares %q", m.Format, t.Contract.Format)
	case !m.Consistency.Meets(t.Contract.Minimum):
		return found(Incompatible, CodeConsistency, "%s is weaker than %s", m.Consistency, t.Contract.Minimum)
	case m.Bytes > t.Contract.MaxBytes:
		return found(Incompatible, CodeBytes, "%d bytes, the bound is %d", m.Bytes, t.Contract.MaxBytes)
	case !m.Parent.IsZero():
		return found(Incompatible, CodeParent, "it builds on %s; only full checkpoints are resumed", m.Parent.Short())
	}
	misfits := t.Contract.Compatibility.Misfits(m.place(), machine.Place{OS: t.OS, Arch: t.Arch, Machine: t.Machine})
	if len(misfits) == 0 {
		return Finding{Verdict: Valid}
	}
	f := misfits[0]
	if f.Unknown {
		return found(Unknown, Code(f.What), "%s", f.Why)
	}
	return found(Incompatible, Code(f.What), "%s", f.Why)
}
