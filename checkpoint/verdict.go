package checkpoint

import (
	"errors"
	"fmt"

	"github.com/forgeyard/forgeyard-node"
)

// Verdict is what is known of a checkpoint (69§56). Only Valid may be used. The
// zero value is Unknown. It travels: append only.
type Verdict uint8

const (
	// Unknown: it could not be found out. Not usable (69§57).
	Unknown Verdict = iota
	// Valid: all that it claims was checked and holds.
	Valid
	// Incomplete: something that belongs to it is not there.
	Incomplete
	// Corrupt: bytes are not those that were promised.
	Corrupt
	// Incompatible: whole, and not for this job, epoch, platform or contract.
	Incompatible
	// Revoked: withdrawn by a person or after too many failed resumes.
	Revoked
)

var verdictNames = [...]string{"unknown", "valid", "incomplete", "corrupt", "incompatible", "revoked"}

func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Usable reports whether a resume may start from it.
func (v Verdict) Usable() bool { return v == Valid }

// Code is the reason of a verdict in one word, for programs. Append only.
type Code string

// Codes.
const (
	CodeOK          Code = ""
	CodeBadMarker   Code = "bad-marker"
	CodeNoMarker    Code = "no-marker"
	CodeAttempt     Code = "wrong-attempt"
	CodeStaleEpoch  Code = "stale-epoch"
	CodeSlot        Code = "slot-reused"
	CodeWrongSlot   Code = "wrong-slot"
	CodeMode        Code = "mode"
	CodeFormat      Code = "format"
	CodeConsistency Code = "consistency"
	CodeEffects     Code = "effects-open"
	CodeParent      Code = "parent"
	CodeBytes       Code = "max-bytes"
	CodeFiles       Code = "max-files"
	CodeSlots       Code = "max-checkpoints"
	CodeEmpty       Code = "empty"
	CodeExtra       Code = "extra-file"
	CodeMissing     Code = "missing-file"
	CodeIrregular   Code = "irregular-file"
	CodeSize        Code = "size"
	CodeDigest      Code = "digest"
	CodeChanged     Code = "changed"
	CodeUnhashed    Code = "unhashed"
	CodeSecret      Code = "secret-material"
	CodeVersion     Code = "version"
	CodeManifest    Code = "manifest"
	CodeJob         Code = "job"
	CodeSpec        Code = "spec"
	CodeContract    Code = "contract"
	CodeOS          Code = "os"
	CodeArch        Code = "arch"
	CodeBaseline    Code = "baseline"
	CodeCPU         Code = "cpu"
	CodeGPU         Code = "gpu"
	CodeDevice      Code = "device"
	CodeSensitivity Code = "sensitivity"
	CodeTarget      Code = "target"
	CodeQuarantined Code = "quarantined"
	CodeRevoked     Code = "revoked"
	CodeGone        Code = "gone"
)

// Finding is a verdict with its reason.
type Finding struct {
	Verdict Verdict
	Code    Code
	Detail  string // one line for a person; names the value and the bound
}

// OK reports whether the checkpoint is valid.
func (f Finding) OK() bool { return f.Verdict == Valid }

func (f Finding) String() string {
	s := f.Verdict.String()
	if f.Code != CodeOK {
		s += " " + string(f.Code)
	}
	if f.Detail != "" {
		s += ": " + f.Detail
	}
	return s
}

// Reason is what a workload is told: the code, then the detail.
func (f Finding) Reason() string {
	if f.Detail == "" {
		return string(f.Code)
	}
	return forgeyard.Clip(string(f.Code)+": "+f.Detail, MaxText)
}

// Status maps a finding to the answer that a workload gets.
func (f Finding) Status() Status {
	switch f.Code {
	case CodeOK:
		if f.OK() {
			return StatusCommitted
		}
	case CodeStaleEpoch, CodeAttempt:
		return StatusStale
	case CodeBytes, CodeFiles, CodeSlots:
		return StatusLimit
	}
	return StatusRejected
}

func found(v Verdict, c Code, format string, args ...any) Finding {
	return Finding{Verdict: v, Code: c, Detail: fmt.Sprintf(format, args...)}
}

// Refusal is a finding as an error.
type Refusal struct{ Finding Finding }

func (r *Refusal) Error() string { return r.Finding.String() }

// Err makes an error of a finding that isn't OK, nil otherwise. FindingOf gets it back.
func (f Finding) Err(op string) error {
	if f.OK() {
		return nil
	}
	kind := forgeyard.Invalid
	switch f.Status() {
	case StatusStale:
		kind = forgeyard.Stale
	case StatusLimit:
		kind = forgeyard.Limit
	default:
		if f.Verdict == Corrupt {
			kind = forgeyard.Corrupt
		}
	}
	return forgeyard.E(op, kind, &Refusal{Finding: f})
}

// FindingOf returns the finding inside an error. An error without one is Unknown:
// the trouble was ours, and says nothing of the checkpoint.
func FindingOf(err error) (Finding, bool) {
	if err == nil {
		return Finding{Verdict: Valid}, true
	}
	if r := (*Refusal)(nil); errors.As(err, &r) {
		return r.Finding, true
	}
	return Finding{Verdict: Unknown, Detail: err.Error()}, false
}
