package forgeyard

import (
	"errors"
	"fmt"
)

// Kind tells callers what to do about an error. Callers switch on the kind and
// never on the text; kinds cross the wire. Append only.
type Kind uint8

const (
	// Other is a failure that fits no other kind.
	Other Kind = iota
	// Invalid: the input itself is wrong; the same call will fail again.
	Invalid
	// NotFound: the named thing is not there.
	NotFound
	// Conflict: the thing is there and its state forbids the call.
	Conflict
	// Stale: the caller's fence, session or lease is no longer the current one.
	Stale
	// Unavailable: no daemon, no quorum, no peer; the same call may succeed later.
	Unavailable
	// Unknown: the outcome could not be learnt; repeat with the same message id.
	Unknown
	// Denied: the caller may not do this.
	Denied
	// Limit: a bound was hit; the error names it.
	Limit
	// NoSpace: the disk or its inodes are used up.
	NoSpace
	// Corrupt: bytes do not match their name or checksum.
	Corrupt
	// Interrupted: the caller stopped waiting.
	Interrupted
)

var kindNames = [...]string{"other", "invalid", "not_found", "conflict", "stale", "unavailable", "unknown", "denied", "limit", "no_space", "corrupt", "interrupted"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind is the inverse of String; an unknown word is Other.
func ParseKind(s string) Kind {
	for i, n := range kindNames {
		if n == s {
			return Kind(i)
		}
	}
	return Other
}

// ExitCode is the process exit code of the kind; the help prints this table.
//
//	0 done · 1 failed · 2 usage or invalid file · 3 not found · 4 conflict or stale ·
//	5 unavailable · 6 denied · 7 a limit was hit · 130 interrupted
func (k Kind) ExitCode() int {
	switch k {
	case Invalid:
		return 2
	case NotFound:
		return 3
	case Conflict, Stale:
		return 4
	case Unavailable, Unknown:
		return 5
	case Denied:
		return 6
	case Limit, NoSpace:
		return 7
	case Interrupted:
		return 130
	}
	return 1
}

// Error is the one shape of our errors: what was done, what kind of trouble it
// is, the cause, and what a person can do about it.
type Error struct {
	Op   string // what failed, in a word or two: "join", "cas put"
	Kind Kind
	Err  error  // the cause; its text names the value and the bound
	Hint string // the next step, where a person must act; may be empty
}

func (e *Error) Error() string {
	s := e.Op
	if e.Err != nil {
		if s != "" {
			s += ": "
		}
		s += e.Err.Error()
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// E makes an Error. With Kind Other the cause's own kind is kept.
func E(op string, kind Kind, err error) *Error {
	if kind == Other {
		kind = KindOf(err)
	}
	return &Error{Op: op, Kind: kind, Err: err}
}

// Errorf makes an Error from a format.
func Errorf(op string, kind Kind, format string, args ...any) *Error {
	return E(op, kind, fmt.Errorf(format, args...))
}

// WithHint adds the next step.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// KindOf returns the kind of the outermost Error in the chain that has one
// other than Other.
func KindOf(err error) Kind {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return Other
		}
		if e.Kind != Other {
			return e.Kind
		}
		err = e.Err
	}
	return Other
}
