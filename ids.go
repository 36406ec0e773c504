package forgeyard

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
)

// The identifiers are distinct string types that hold a ULID in its canonical
// 26-letter form. They compare, sort by time of birth, print as themselves and
// are safe in a path, a URL and a file name (RS-008).
type (
	// SiteID names a site for ever; it is drawn once by `init`.
	SiteID string
	// RunnerID names one enrolled node (07§6). It survives restarts and renames.
	RunnerID string
	// SessionID names one process of a runner (07§7). New process, new session.
	SessionID string
	// RunID names one record of the run ledger (RSE).
	RunID string
	// JobID names one planned job of a run.
	JobID string
	// AttemptID names one try of a job. A resume keeps the attempt and raises
	// the epoch; a restart from nothing is a new attempt (E16).
	AttemptID string
	// LeaseID names one lease of one attempt to one session.
	LeaseID string
	// DeviceID is the name under which a node declares a device.
	DeviceID string
	// DeviceLeaseID names one lease of one device.
	DeviceLeaseID string
	// TokenID names a join token; it is not the secret.
	TokenID string
	// GrantID names one delegation of a job by the central daemon.
	GrantID string
	// MessageID makes a message idempotent: the same id is the same message.
	MessageID string
	// RunSuspensionID names one suspension of a whole run (69§200).
	RunSuspensionID string
)

// NewULID makes an identifier's text from a wall time and 10 bytes of entropy
// that the caller drew: this package draws none.
func NewULID(at time.Time, entropy [10]byte) string {
	var id ulid.ULID
	// A time outside ULID's 48 bits can only come from a broken caller.
	if err := id.SetTime(ulid.Timestamp(at)); err != nil {
		id = ulid.ULID{}
	}
	copy(id[6:], entropy[:])
	return id.String()
}

// DeriveULID makes the nth identifier that belongs to a log index. All voters
// derive the same one, so Apply can name what it creates.
func DeriveULID(at time.Time, index uint64, n uint16) string {
	var e [10]byte
	binary.BigEndian.PutUint64(e[:8], index)
	binary.BigEndian.PutUint16(e[8:], n)
	return NewULID(at, e)
}

// CheckULID says why s cannot be an identifier of the named kind, or nil.
func CheckULID(kind, s string) error {
	if _, err := ulid.ParseStrict(s); err != nil {
		return E("parse", Invalid, fmt.Errorf("%s %q is not an id: 26 letters and digits of Crockford base 32 are expected", kind, Clip(s, 64)))
	}
	return nil
}

// Short returns the last eight letters, enough to tell ids apart on a screen.
func Short[T ~string](id T) string {
	if len(id) <= 8 {
		return string(id)
	}
	return string(id[len(id)-8:])
}

// Clip bounds a value that is about to be quoted in an error, or kept as the reason of one. It
// cuts between letters, and gives a text in any case: what is none is written by no decoder's
// leave, and a state that holds it could not be read back.
func Clip(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
