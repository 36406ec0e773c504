package job

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// ToolSource is what used a tool for a run. Append only.
type ToolSource string

// Sources of tool events (RS-051).
const (
	ToolExecutor   ToolSource = "executor"   // a step of the program that the run executes
	ToolCheckpoint ToolSource = "checkpoint" // the checkpoint helper
	ToolDevice     ToolSource = "device"     // a leased device
	ToolIngest     ToolSource = "ingest"     // an input of an ingest
	ToolGarden     ToolSource = "garden"     // a step of maintenance
)

// Tool is a normalised tool event: what was done, and what came of it. A tool of any
// kind tells the same few facts, so that a reader needs to know none of them.
type Tool struct {
	Source ToolSource    `cbor:"1,keyasint"`
	Name   string        `cbor:"2,keyasint"`           // of the step, device, input or action
	State  ToolState     `cbor:"3,keyasint"`           // started | ended | failed
	Count  int64         `cbor:"4,keyasint,omitempty"` // things that it dealt with
	Bytes  int64         `cbor:"5,keyasint,omitempty"` // of them
	Took   time.Duration `cbor:"6,keyasint,omitempty"`
	Code   int           `cbor:"7,keyasint,omitempty"` // exit code, where there is one
}

// ToolState is how far the use of a tool has come. Append only.
type ToolState string

// States of a tool.
const (
	ToolStarted ToolState = "started"
	ToolEnded   ToolState = "ended"
	ToolFailed  ToolState = "failed"
)

// Printed says where output is, and how much: the bytes stand in the attempt's log and
// never pass through the site's (decision 24).
type Printed struct {
	FirstSeq uint64 `cbor:"1,keyasint"` // numbers of the attempt's log, as `job log --after` takes them
	LastSeq  uint64 `cbor:"2,keyasint"`
	Stdout   int64  `cbor:"3,keyasint,omitempty"` // bytes
	Stderr   int64  `cbor:"4,keyasint,omitempty"`
}

// Happening is what a runner tells of a run, in its own order. Apply gives it its number
// and its time.
type Happening struct {
	Kind    EventKind `cbor:"1,keyasint"` // message | tool | output | error: a status is never told
	Message string    `cbor:"2,keyasint,omitempty"`
	Tool    *Tool     `cbor:"3,keyasint,omitempty"`
	Output  *Printed  `cbor:"4,keyasint,omitempty"`
}

// Told are happenings of one epoch, numbered from First without a gap: what was told
// before is told once, however often it is sent.
type Told struct {
	First  uint64      `cbor:"1,keyasint,omitempty"`
	Events []Happening `cbor:"2,keyasint,omitempty"`
}

// IsZero reports that nothing is told.
func (t Told) IsZero() bool { return len(t.Events) == 0 }

// Last is the number of the last one.
func (t Told) Last() uint64 { return t.First + uint64(len(t.Events)) - 1 }

// Check says why a happening is none, or nil. Its kind is Invalid.
func (h Happening) Check() error {
	bad := func(format string, args ...any) error {
		return forgeyard.Errorf("event", forgeyard.Invalid, format, args...)
	}
	switch h.Kind {
	case EventMessage, EventError:
		if h.Tool != nil || h.Output != nil || h.Message == "" {
			return bad("a %s has a text and nothing else", h.Kind)
		}
	case EventTool:
		if h.Tool == nil || h.Output != nil {
			return bad("a tool event tells of one tool")
		}
		return h.Tool.check()
	case EventOutput:
		if h.Output == nil || h.Tool != nil {
			return bad("an output event says where the output is")
		}
		if o := h.Output; o.FirstSeq == 0 || o.LastSeq < o.FirstSeq || o.Stdout < 0 || o.Stderr < 0 {
			return bad("output %d to %d of the log with %d and %d bytes cannot be", o.FirstSeq, o.LastSeq, o.Stdout, o.Stderr)
		}
	default:
		return bad("kind %q is not told by a runner; allowed: message, tool, output, error", forgeyard.Clip(string(h.Kind), 20))
	}
	return nil
}

func (t *Tool) check() error {
	switch t.State {
	case ToolStarted, ToolEnded, ToolFailed:
	default:
		return forgeyard.Errorf("event", forgeyard.Invalid, "state %q of a tool is not started, ended or failed", forgeyard.Clip(string(t.State), 20))
	}
	if len(t.Source) == 0 || len(t.Source) > MaxName || len(t.Name) == 0 || len(t.Name) > MaxName || t.Count < 0 || t.Bytes < 0 || t.Took < 0 {
		return forgeyard.Errorf("event", forgeyard.Invalid, "tool %q of %q with count %d, %d bytes and %v cannot be", forgeyard.Clip(t.Name, 40), forgeyard.Clip(string(t.Source), 20), t.Count, t.Bytes, t.Took)
	}
	return nil
}

// String is the happening in one line, for a reader who has nothing else.
func (h Happening) String() string {
	switch {
	case h.Tool != nil:
		return h.Tool.line(h.Message)
	case h.Output != nil:
		return fmt.Sprintf("%d bytes on stdout, %d on stderr: log %d to %d", h.Output.Stdout, h.Output.Stderr, h.Output.FirstSeq, h.Output.LastSeq)
	}
	return h.Message
}

func (t *Tool) line(more string) string {
	s := fmt.Sprintf("%s %s %s", t.Source, t.Name, t.State)
	if t.Took > 0 {
		s += fmt.Sprintf(" after %v", t.Took.Round(time.Millisecond))
	}
	if t.Code != 0 {
		s += fmt.Sprintf(" with %d", t.Code)
	}
	if more != "" {
		s += ": " + more
	}
	return s
}
