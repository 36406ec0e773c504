package site

import (
	"errors"
	"fmt"
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// Format numbers what may stand in the site's log. It is a ratchet (decision 19, 07§206):
// it only rises, by one at a time, and only when every voter runs a program that reads
// the next. A program writes what the current format allows, however much more it knows,
// so programs N and N-1 serve one site together while it is upgraded.
//
//	1   kinds of commands up to 31, one command an entry
//	2   whatever a program of this format writes besides: later kinds, entries that hold
//	    many commands, packed snapshots, and where a session runs
type Format uint16

// The formats that this program reads, and the newest that it can write. FormatNow may
// move by one a release; FormatOldest follows it at a distance of one, N-1.
const (
	FormatOldest Format = 1
	FormatNow    Format = 2

	// FormatBatches is the first in which one entry may hold many commands.
	FormatBatches Format = 2
	// FormatLeases is the first in which the state tells what became of leases, a disabled
	// runner is asked for what it holds, and work begins only if it can finish in time: what
	// a command of format 1 does stays as it was until every voter does the same.
	FormatLeases Format = 2
	// FormatRuns is the first in which runs of every kind run, and their executions tell
	// what happens in them.
	FormatRuns Format = 2
	// FormatPacked is the first in which a snapshot is packed.
	FormatPacked Format = 2
	// FormatPlaces is the first in which a session says where it runs, and only one of the
	// same place is the certain end of the session before.
	FormatPlaces Format = 2
	// FormatGPUs is the first in which a runner says which graphics processors it has.
	FormatGPUs Format = 2
	// FormatToolchains is the first in which a toolchain is a tree of the store.
	FormatToolchains Format = 2
	// FormatAssigned is the first in which the site puts runners into pools and gives them
	// trust, and jobs ask for that.
	FormatAssigned Format = 2
	// FormatLogParts is the first whose programs read packed parts of logs.
	FormatLogParts Format = 2
	// FormatPieces is the first whose programs read checkpoints with files in pieces.
	FormatPieces Format = 2
	// FormatCheckpoints is the first in which checkpoints are revoked and let go, and a manifest
	// says on what kind of machine it was taken.
	FormatCheckpoints Format = 2
)

// FormatRange is what one program reads; zero is a program that knew only the first.
type FormatRange struct {
	Min Format `cbor:"1,keyasint,omitempty"`
	Max Format `cbor:"2,keyasint,omitempty"`
}

// Formats is the range of this program.
var Formats = FormatRange{FormatOldest, FormatNow}

// Reads reports whether a program of that range reads a log of the format.
func (r FormatRange) Reads(f Format) bool { return max(r.Min, 1) <= f && f <= max(r.Max, 1) }

// LogFormat is the format that the site's log is in now.
func (s *State) LogFormat() Format { return max(s.Format, 1) }

// Allows reports whether what came with a format may be written into the log now. It
// stays true once it was: the ratchet never falls.
func (s *State) Allows(f Format) bool { return f <= s.LogFormat() }

// FormatOf is the first format in which the command may stand.
func FormatOf(b Body) Format {
	if k := b.kind(); k > kindFormatRaise || says(b) {
		return 2
	}
	return 1
}

// says reports whether a command of format 1 holds what only format 2 has: the daemon's
// clock, a hard end of a grant, `replace: false`, a run that is no build, what happened in
// an execution, where a process runs, who may vote, who waits for approval, when a drain ends, which lease is asked back, how long a lost log was, which graphics processors a machine has,
// that work took more than it asked for, what is kept of work that failed, pools and trust, toolchains of the store,
// on what machine a checkpoint was taken, and what a job says of that, and from which one it is to
// go on.
func says(b Body) bool {
	later := func(spec []byte) bool {
		s, err := job.DecodeSpec(spec)
		return err == nil && s.SaysLater()
	}
	switch b := b.(type) {
	case UplinkObserve:
		return b.Daemon != 0
	case Register:
		return !b.Place.IsZero() || b.Caps.SaysLater()
	case TokenCreate:
		return b.Approve
	case MemberSet:
		return b.Spare != nil || b.Deadline != 0 || b.Approved || b.Assign != nil || b.Move
	case Submit:
		return b.Via != "" || b.Group != "" || b.Order != 0 || later(b.Spec)
	case Stop:
		return b.Lease != ""
	case Cancel:
		return b.Reason != "" || b.Note != "" || b.After || b.Within != 0 || b.Run != ""
	case Resume:
		return !b.From.IsZero() || b.Reason != ""
	case Expire:
		return b.LogSeq != 0
	case Checkpoint:
		return !b.Told.IsZero() || b.Commit.Where != nil || b.Commit.Origin != (checkpoint.Origin{}) || b.Commit.By != "" || b.Commit.Dropped || b.Commit.Took != 0 || len(b.Commit.For) > 0 || b.Commit.Same
	case Release:
		return !b.Told.IsZero() || b.Clean
	case Complete:
		return !b.Result.Told.IsZero() || b.Result.Overran || len(b.Result.Diagnostics) > 0
	case Delegate:
		return slices.ContainsFunc(b.Grants, func(d Delegation) bool { return d.Grant.End != 0 || d.Grant.Policy.NoReplace || later(d.Spec) })
	}
	return false
}

// MayWrite says why the command may not be proposed yet, or nil.
func (s *State) MayWrite(b Body) error {
	if s.Allows(FormatNow) {
		return nil
	}
	if f := FormatOf(b); !s.Allows(f) {
		return forgeyard.Errorf("propose", forgeyard.Unavailable, "%T needs log format %d and the site's log is at %d", b, f, s.LogFormat()).
			WithHint("it moves by itself once every voter runs a newer program: forgeyard-node site members shows their versions")
	}
	return nil
}

// ErrUnreadable is in the chain of the error that a program gets which the site's log has
// left behind, or not reached yet.
var ErrUnreadable = errors.New("the program reads log formats")

func unreadable(op string, r FormatRange, f Format) error {
	hint := "upgrade this node's program, then start it again"
	if max(r.Min, 1) > f {
		hint = "this program is too new for the site: upgrade the voters first, one version at a time"
	}
	why := fmt.Errorf("%w %d to %d, the site's log is at %d", ErrUnreadable, max(r.Min, 1), max(r.Max, 1), f)
	return forgeyard.E(op, forgeyard.Conflict, why).WithHint("%s", hint)
}

// MayJoin says why a program cannot enter the site, or nil.
func (s *State) MayJoin(r FormatRange) error {
	if r.Reads(s.LogFormat()) {
		return nil
	}
	return unreadable("join", r, s.LogFormat())
}

// Readable says why this program cannot go on with the state, or nil.
func (s *State) Readable() error {
	if Formats.Reads(s.LogFormat()) {
		return nil
	}
	return unreadable("site log", Formats, s.LogFormat())
}

// FormatRaise moves the log's format up by one. The leader proposes it when every voter
// reads the next.
type FormatRaise struct {
	To     Format               `cbor:"1,keyasint"`
	Voters []forgeyard.RunnerID `cbor:"2,keyasint"` // of the group, as the leader saw it
}

func (c *change) formatRaise(b FormatRaise) error {
	switch {
	case b.To <= c.LogFormat():
		return forgeyard.Errorf("format", forgeyard.Stale, "the log is at format %d, %d is asked for", c.LogFormat(), b.To)
	case b.To != c.LogFormat()+1:
		return forgeyard.Errorf("format", forgeyard.Invalid, "format %d does not follow %d: it moves by one", b.To, c.LogFormat())
	case len(b.Voters) == 0:
		return forgeyard.Errorf("format", forgeyard.Invalid, "no voter is named")
	}
	for _, v := range b.Voters {
		m, ok := c.Members.Get(v)
		if !ok || !m.Session.Formats.Reads(b.To) {
			return forgeyard.Errorf("format", forgeyard.Conflict, "%s reads log formats up to %d, not %d", c.memberName(v), max(m.Session.Formats.Max, 1), b.To)
		}
	}
	c.Format = b.To
	c.note("format", "log format %d: all %d voters read it", b.To, len(b.Voters))
	return nil
}

// ReadByAll is the newest format that the sessions of all these members read: how far the
// ratchet can go with them. Those who read less than limit are named.
func (s *State) ReadByAll(ids []forgeyard.RunnerID, limit Format) (newest Format, less []string) {
	for i, id := range ids {
		m, _ := s.Members.Get(id)
		reads := max(m.Session.Formats.Max, 1)
		if i == 0 || reads < newest {
			newest = reads
		}
		if reads < limit {
			less = append(less, s.memberName(id))
		}
	}
	slices.Sort(less)
	return max(newest, s.LogFormat()), less
}

// BehindFormat lists the members whose program does not read the log's format, by name.
func (s *State) BehindFormat() []string {
	var out []string
	for _, m := range s.Members.All() {
		if !m.Removed && m.Session.ID != "" && !m.Session.Formats.Reads(s.LogFormat()) {
			out = append(out, m.Name)
		}
	}
	slices.Sort(out)
	return out
}
