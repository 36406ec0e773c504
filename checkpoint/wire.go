package checkpoint

import (
	"fmt"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// StopKind is why the runner asks for something. It travels: append only.
type StopKind string

// Stop kinds (FYCP/1 §6). Each is another command with another end; none stands in
// for another (69§1).
const (
	StopNone       StopKind = "none"
	StopCheckpoint StopKind = "checkpoint"
	StopSuspend    StopKind = "suspend"
	StopPreempt    StopKind = "preempt"
	StopDrain      StopKind = "drain"
	StopCancel     StopKind = "cancel"
	StopTimeout    StopKind = "timeout"
	StopSuperseded StopKind = "superseded"
	StopSecurity   StopKind = "security"
	StopAuthority  StopKind = "authority" // the central daemon's authority ends; the job waits for it
)

var stopKinds = []StopKind{StopNone, StopCheckpoint, StopSuspend, StopPreempt, StopDrain, StopCancel, StopTimeout, StopSuperseded, StopSecurity, StopAuthority}

// Request is `request.json`: what is wanted of the program now. The runner replaces it
// as a whole; Seq grows with each change.
type Request struct {
	V                int       `json:"v"`
	Seq              int       `json:"seq"`
	Kind             StopKind  `json:"kind"`
	Reason           string    `json:"reason"`
	WantCheckpoint   bool      `json:"want_checkpoint"`
	WantExit         bool      `json:"want_exit"`
	Deadline         time.Time `json:"deadline,omitzero"` // for people; zero: none
	DeadlineReliable bool      `json:"deadline_reliable"` // always false: a notice is not a promise (69§101)
}

// Encode gives the file's bytes.
func (r Request) Encode() []byte {
	r.V, r.DeadlineReliable, r.Reason = ProtocolVersion, false, forgeyard.Clip(r.Reason, MaxText)
	if r.Kind == "" {
		r.Kind = StopNone
	}
	return formatJSON(r)
}

// ParseRequest reads it.
func ParseRequest(b []byte) (Request, error) {
	var r Request
	if err := parseJSON("request", b, MaxControlBytes, &r); err != nil {
		return Request{}, err
	}
	if r.V != ProtocolVersion || r.Seq < 0 || !slices.Contains(stopKinds, r.Kind) {
		return Request{}, forgeyard.Errorf("parse request", forgeyard.Invalid, "v %d, seq %d, kind %q: not a request of protocol %d", r.V, r.Seq, forgeyard.Clip(string(r.Kind), 40), ProtocolVersion)
	}
	return r, nil
}

// MessageKind is what a program tells its runner. Append only.
type MessageKind string

// Message kinds.
const (
	MessageCommit        MessageKind = "commit" // slot Seq is sealed; waits for an answer
	MessageRestoreOK     MessageKind = "restore-ok"
	MessageRestoreReject MessageKind = "restore-reject"
	MessageMark          MessageKind = "mark" // Reason is the new mark; waits for an answer
)

// Message is `outbox/NNNNNN.json`.
type Message struct {
	V       int                 `json:"v"`
	N       int                 `json:"n"` // the file's number
	Kind    MessageKind         `json:"kind"`
	Attempt forgeyard.AttemptID `json:"attempt"`
	Epoch   uint64              `json:"epoch"`
	Seq     int                 `json:"seq,omitempty"` // slot, for commit
	Reason  string              `json:"reason,omitempty"`
	Effect  *EffectNote         `json:"effect,omitempty"` // of the kinds about effects
}

// Encode gives the file's bytes.
func (m Message) Encode() []byte {
	m.V, m.Reason = ProtocolVersion, forgeyard.Clip(m.Reason, MaxText)
	return formatJSON(m)
}

// ParseMessage reads it.
func ParseMessage(b []byte) (Message, error) {
	var m Message
	if err := parseJSON("message", b, MaxControlBytes, &m); err != nil {
		return Message{}, err
	}
	slot := m.Kind == MessageCommit
	known := slot || m.Kind.Effect() || m.Kind == MessageRestoreOK || m.Kind == MessageRestoreReject || m.Kind == MessageMark
	if m.V != ProtocolVersion || m.N < 1 || m.N > MaxSeq || !known || slot != (m.Seq > 0) || m.Seq > MaxSeq || m.Seq < 0 {
		return Message{}, forgeyard.Errorf("parse message", forgeyard.Invalid, "v %d, n %d, kind %q, seq %d: not a message of protocol %d", m.V, m.N, forgeyard.Clip(string(m.Kind), 40), m.Seq, ProtocolVersion)
	}
	if err := m.checkEffect(); err != nil {
		return Message{}, err
	}
	if m.Kind == MessageMark {
		if why := BadMark(m.Reason); why != "" {
			return Message{}, forgeyard.Errorf("parse message", forgeyard.Invalid, "the mark %s", why)
		}
	}
	m.Reason = forgeyard.Clip(m.Reason, MaxText)
	return m, nil
}

// BadMark says why s cannot be a mark, or "": it is a value in an environment.
func BadMark(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > MaxMark:
		return fmt.Sprintf("has %d bytes, the bound is %d", len(s), MaxMark)
	}
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return fmt.Sprintf("%q is not one line of printable text", forgeyard.Clip(s, 80))
		}
	}
	return ""
}

// Ack tells up to which record of the cursor the site has it, and of what list: a test whose
// end is not after it runs no more, whatever becomes of this node.
type Ack struct {
	V      int    `json:"v"`
	Record int    `json:"record"` // Seq of the last record
	Slot   int    `json:"slot"`
	Done   int64  `json:"done"`
	Reason string `json:"reason,omitempty"` // why an older cursor is not carried on
}

// Encode gives the file's bytes.
func (a Ack) Encode() []byte { a.V = ProtocolVersion; return formatJSON(a) }

// ParseAck reads it.
func ParseAck(b []byte) (Ack, error) {
	var a Ack
	if err := parseJSON("ack", b, MaxControlBytes, &a); err != nil {
		return Ack{}, err
	}
	if a.V != ProtocolVersion || a.Record < 0 || a.Slot < 0 || a.Done < 0 {
		return Ack{}, forgeyard.Errorf("parse ack", forgeyard.Invalid, "v %d, record %d, slot %d: not an ack of protocol %d", a.V, a.Record, a.Slot, ProtocolVersion)
	}
	return a, nil
}

// Status is how a message ended. Append only.
type Status string

// Statuses.
const (
	StatusCommitted Status = "committed" // in the site's log; for messages without a slot: taken note of
	StatusStaged    Status = "staged"    // stored here, not in the log yet
	StatusRejected  Status = "rejected"
	StatusStale     Status = "stale" // another epoch is current: stop now
	StatusLimit     Status = "limit"
)

// Answer is `inbox/NNNNNN.json`.
type Answer struct {
	V      int    `json:"v"`
	Seq    int    `json:"seq"` // the slot
	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"`

	Evidence []byte `json:"evidence,omitempty"` // of StatusAlready
}

// Encode gives the file's bytes.
func (a Answer) Encode() []byte {
	a.V, a.Reason = ProtocolVersion, forgeyard.Clip(a.Reason, MaxText)
	return formatJSON(a)
}

// ParseAnswer reads it.
func ParseAnswer(b []byte) (Answer, error) {
	var a Answer
	if err := parseJSON("answer", b, MaxControlBytes, &a); err != nil {
		return Answer{}, err
	}
	switch a.Status {
	case StatusCommitted, StatusStaged, StatusRejected, StatusStale, StatusLimit, StatusAlready, StatusOpen:
	default:
		return Answer{}, forgeyard.Errorf("parse answer", forgeyard.Invalid, "status %q is unknown", forgeyard.Clip(string(a.Status), 40))
	}
	if a.V != ProtocolVersion || a.Seq < 0 || a.Seq > MaxSeq || len(a.Evidence) > job.MaxEvidence {
		return Answer{}, forgeyard.Errorf("parse answer", forgeyard.Invalid, "v %d, seq %d: not an answer of protocol %d", a.V, a.Seq, ProtocolVersion)
	}
	return a, nil
}

// AnswerOf tells a workload what was found.
func AnswerOf(seq int, f Finding) Answer {
	a := Answer{V: ProtocolVersion, Seq: seq, Status: f.Status()}
	if !f.OK() {
		a.Reason = f.Reason()
	}
	return a
}

// CriticalSection is the file `critical`: a stop may be held back while it is there, for
// at most MaxMillis from when the runner saw it, whatever Until says.
type CriticalSection struct {
	V         int       `json:"v"`
	PID       int       `json:"pid"` // as the workload's namespace counts
	MaxMillis int64     `json:"max_ms"`
	Until     time.Time `json:"until,omitzero"` // for people
}

// Encode gives the file's bytes.
func (c CriticalSection) Encode() []byte { c.V = ProtocolVersion; return formatJSON(c) }

// ParseCritical reads it.
func ParseCritical(b []byte) (CriticalSection, error) {
	var c CriticalSection
	if err := parseJSON("critical", b, MaxControlBytes, &c); err != nil {
		return CriticalSection{}, err
	}
	if c.V != ProtocolVersion || c.PID < 0 || c.MaxMillis <= 0 || c.MaxMillis > MaxCritical.Milliseconds() {
		return CriticalSection{}, forgeyard.Errorf("parse critical", forgeyard.Invalid, "v %d, pid %d, max_ms %d: not in (0, %d]", c.V, c.PID, c.MaxMillis, MaxCritical.Milliseconds())
	}
	return c, nil
}

// Heartbeat is `progress.json`. It is replaced at each beat, so that a fast loop fills
// no outbox; Beat grows so that equal progress is still a sign of life.
type Heartbeat struct {
	V        int      `json:"v"`
	Beat     int64    `json:"beat"`
	Progress Progress `json:"progress"`
}

// Encode gives the file's bytes.
func (h Heartbeat) Encode() []byte { h.V = ProtocolVersion; return formatJSON(h) }

// ParseHeartbeat reads it.
func ParseHeartbeat(b []byte) (Heartbeat, error) {
	var h Heartbeat
	if err := parseJSON("progress", b, MaxControlBytes, &h); err != nil {
		return Heartbeat{}, err
	}
	if h.V != ProtocolVersion || h.Beat < 0 || h.Progress.Done < 0 || h.Progress.Total < 0 || len(h.Progress.Unit) > MaxText {
		return Heartbeat{}, forgeyard.Errorf("parse progress", forgeyard.Invalid, "v %d, beat %d, %d/%d: not progress of protocol %d", h.V, h.Beat, h.Progress.Done, h.Progress.Total, ProtocolVersion)
	}
	return h, nil
}
