package bulk

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Protocols are the versions that are spoken here, best first. Who dials offers
// them all and the other chooses, so a version is the name of the protocol.
var Protocols = []string{"/forgeyard/bulk/1"}

// kind of a frame. It travels: append only.
type kind uint8

const (
	kindWant   kind = 1 // →
	kindCancel kind = 2 // →
	kindBlock  kind = 3 // ←
	kindRefuse kind = 4 // ←
	kindAlive  kind = 5 // ←
)

// Reason why a block is not sent. It travels: append only.
type Reason uint8

const (
	// Absent is not here and not on its way.
	Absent Reason = 1
	// Late was waited for in vain until the want's deadline.
	Late Reason = 2
	// Busy wants were more than MaxOpen.
	Busy Reason = 3
	// Wrong is a range that the manifest does not have.
	Wrong Reason = 4
)

func (r Reason) String() string {
	switch r {
	case Absent:
		return "absent"
	case Late:
		return "late"
	case Busy:
		return "busy"
	case Wrong:
		return "wrong range"
	}
	return "unknown reason"
}

// Priority orders what is sent to one peer: higher first. Any byte is valid.
type Priority uint8

const (
	// Content is the bulk of it.
	Content Priority = 0
	// Structure is what more depends on: manifests and directories.
	Structure Priority = 64
	// Urgent overtakes all content: checkpoints, and what holds up a decision.
	Urgent Priority = 128
)

// Want asks for one object by its own digest (Count 0), or for Count blocks of the
// manifest Name from block First on.
type Want struct {
	ID       uint32 // never used twice on a connection, growing
	Name     forgeyard.Digest
	First    uint32
	Count    uint32
	Priority Priority
	Park     time.Duration // how long to wait for what is not here yet; in milliseconds on the wire
	Check    bool          // read it again with care: what came before did not match
}

func (w Want) blocks() int { return int(max(1, w.Count)) }

const (
	headSize   = 13
	wantSize   = 42
	cancelSize = 4
	refuseSize = 5
	aliveSize  = 8

	flagCheck = 1
)

// head is what each frame begins with.
type head struct {
	kind  kind
	id    uint32
	index uint32
	size  uint32 // of the body
}

func (h head) append(b []byte) []byte {
	b = append(b, byte(h.kind))
	b = binary.BigEndian.AppendUint32(b, h.id)
	b = binary.BigEndian.AppendUint32(b, h.index)
	return binary.BigEndian.AppendUint32(b, h.size)
}

// parseHead reads a head and checks what its kind allows.
func parseHead(b *[headSize]byte) (head, error) {
	h := head{kind: kind(b[0]), id: binary.BigEndian.Uint32(b[1:]), index: binary.BigEndian.Uint32(b[5:]), size: binary.BigEndian.Uint32(b[9:])}
	bad := func(lo, hi uint32) error {
		if h.size < lo || h.size > hi {
			return forgeyard.Errorf(op, forgeyard.Invalid, "a frame of kind %d with %d bytes, not in [%d, %d]", h.kind, h.size, lo, hi)
		}
		return nil
	}
	switch h.kind {
	case kindWant:
		return h, bad(wantSize, wantSize)
	case kindCancel:
		return h, bad(cancelSize, cancelSize)
	case kindBlock:
		return h, bad(1, maxBody)
	case kindRefuse:
		return h, bad(refuseSize, refuseSize)
	case kindAlive:
		return h, bad(aliveSize, aliveSize)
	}
	return h, forgeyard.Errorf(op, forgeyard.Invalid, "a frame of the unknown kind %d", h.kind)
}

// append writes the want as a frame.
func (w Want) append(b []byte) []byte {
	b = head{kindWant, w.ID, w.First, wantSize}.append(b)
	b = binary.BigEndian.AppendUint32(b, w.Count)
	flags := byte(0)
	if w.Check {
		flags = flagCheck
	}
	b = append(b, byte(w.Priority), flags)
	b = binary.BigEndian.AppendUint32(b, uint32(w.Park.Milliseconds()))
	return append(b, w.Name[:]...)
}

// parseWant reads a want's body. Times above the bound are cut to it.
func parseWant(h head, b *[wantSize]byte) (Want, error) {
	w := Want{
		ID: h.id, First: h.index, Count: binary.BigEndian.Uint32(b[:]), Priority: Priority(b[4]), Check: b[5] == flagCheck,
		Park: min(maxPark, time.Duration(binary.BigEndian.Uint32(b[6:]))*time.Millisecond), Name: forgeyard.Digest(b[10:]),
	}
	switch {
	case b[5] > flagCheck:
		return w, forgeyard.Errorf(op, forgeyard.Invalid, "flags %d of want %d are unknown", b[5], w.ID)
	case w.Name.IsZero():
		return w, forgeyard.Errorf(op, forgeyard.Invalid, "want %d names nothing", w.ID)
	case w.Count == 0 && w.First != 0:
		return w, forgeyard.Errorf(op, forgeyard.Invalid, "want %d is of one object and begins at block %d", w.ID, w.First)
	case w.Count > cas.MaxBlocks || w.First > cas.MaxBlocks:
		return w, forgeyard.Errorf(op, forgeyard.Limit, "want %d is of %d blocks from %d, a manifest has %d at most", w.ID, w.Count, w.First, cas.MaxBlocks)
	}
	return w, nil
}

func appendCancel(b []byte, id, index, count uint32) []byte {
	b = head{kindCancel, id, index, cancelSize}.append(b)
	return binary.BigEndian.AppendUint32(b, count)
}

func appendRefuse(b []byte, id, index, count uint32, r Reason) []byte {
	b = head{kindRefuse, id, index, refuseSize}.append(b)
	b = binary.BigEndian.AppendUint32(b, count)
	return append(b, byte(r))
}

func parseRefuse(b *[refuseSize]byte) (count uint32, r Reason) {
	return binary.BigEndian.Uint32(b[:]), Reason(b[4])
}

func appendAlive(b []byte, progress int64) []byte {
	b = head{kindAlive, 0, 0, aliveSize}.append(b)
	return binary.BigEndian.AppendUint64(b, uint64(progress))
}

// readHead reads the next frame's head.
func readHead(r io.Reader) (head, error) {
	var b [headSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return head{}, err
	}
	return parseHead(&b)
}
