package carry

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// reader reads messages off a stream. After an error the stream is of no more use.
type reader struct {
	*bufio.Reader
	name  [32]byte // of the field being read
	hello []byte   // that stood beside a message, until it is taken
}

func newReader(r io.Reader) *reader { return &reader{Reader: bufio.NewReaderSize(r, readBuffer)} }

func corrupt(format string, args ...any) error {
	return forgeyard.Errorf("raft message", forgeyard.Corrupt, format, args...)
}

// message reads into a message, which must be empty; one that is nil leaves it so.
func (r *reader) message(into any) error {
	n, err := r.count(msgFixMap, msgMap16, msgMap32)
	if err != nil || n < 0 {
		return err
	}
	var room [maxFields]field
	all := fields(room[:0], into)
	for i := range n {
		name, err := r.fieldName()
		if err != nil {
			return err
		}
		at := find(all, i, name)
		if at == nil && string(name) == helloField {
			at = &r.hello
		}
		if err := r.value(at); err != nil {
			return err
		}
	}
	return nil
}

// met takes the hello that came, if one did.
func (r *reader) met(d Desk) Caller {
	h := r.hello
	if r.hello = nil; h == nil || d == nil {
		return nil
	}
	return d.Meet(h)
}

// find looks for a field where it is if all are there, then elsewhere; nil: it is not known.
func find(all []field, i int, name []byte) any {
	if i < len(all) && all[i].name == string(name) {
		return all[i].at
	}
	for _, f := range all {
		if f.name == string(name) {
			return f.at
		}
	}
	return nil
}

func (r *reader) fieldName() ([]byte, error) {
	n, err := r.rawLen()
	if err != nil {
		return nil, err
	}
	if n < 0 || n > len(r.name) {
		return nil, corrupt("a field's name of %d bytes, at most %d are read", n, len(r.name))
	}
	_, err = io.ReadFull(r, r.name[:n])
	return r.name[:n], err
}

func (r *reader) value(at any) (err error) {
	var n int64
	switch v := at.(type) {
	case nil:
		return r.skip(maxDepth)
	case *uint64:
		*v, err = r.uint()
	case *[]byte:
		*v, err = r.raw()
	case *bool:
		*v, err = r.bool()
	case *int64:
		*v, err = r.int()
	case *raft.ProtocolVersion:
		n, err = r.int()
		*v = raft.ProtocolVersion(n)
	case *raft.SnapshotVersion:
		n, err = r.int()
		*v = raft.SnapshotVersion(n)
	case *raft.LogType:
		n, err = r.int()
		if n < 0 || n > math.MaxUint8 {
			return corrupt("%d is no type of a log entry", n)
		}
		*v = raft.LogType(n)
	case *time.Time:
		*v, err = r.time()
	case *[]*raft.Log:
		*v, err = r.logs()
	}
	return err
}

func (r *reader) logs() ([]*raft.Log, error) {
	n, err := r.count(msgFixArray, msgArray16, msgArray32)
	if err != nil || n < 0 {
		return nil, err
	}
	if n > maxEntries {
		return nil, corrupt("%d entries in one message, at most %d are read", n, maxEntries)
	}
	logs := make([]*raft.Log, 0, min(n, 256)) // no more room than was sent
	for range n {
		l := new(raft.Log)
		if err := r.message(l); err != nil {
			return nil, err
		}
		logs = append(logs, l)
	}
	return logs, nil
}

func (r *reader) time() (t time.Time, err error) {
	b, err := r.raw()
	if err == nil && b != nil {
		if err = t.UnmarshalBinary(b); err != nil {
			err = corrupt("%v", err)
		}
	}
	return t, err
}

func (r *reader) bool() (bool, error) {
	switch b, err := r.ReadByte(); {
	case err != nil:
		return false, err
	case b == msgTrue:
		return true, nil
	case b == msgFalse, b == msgNil:
		return false, nil
	default:
		return false, corrupt("%#x is neither true nor false", b)
	}
}

// text reads a string.
func (r *reader) text() (string, error) {
	b, err := r.raw()
	return string(b), err
}

// raw reads bytes; nil stays nil.
func (r *reader) raw() ([]byte, error) {
	n, err := r.rawLen()
	if err != nil || n < 0 {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return b, err
}

// rawLen reads the head of bytes or a string; less than zero: nil.
func (r *reader) rawLen() (n int, err error) {
	b, err := r.ReadByte()
	if err != nil {
		return 0, err
	}
	switch {
	case b == msgNil:
		return -1, nil
	case b&0xe0 == msgFixRaw:
		return int(b & 0x1f), nil
	case b >= msgBin8 && b <= msgBin32:
		n, err = r.length(1 << (b - msgBin8))
	case b >= msgStr8 && b <= msgRaw32:
		n, err = r.length(1 << (b - msgStr8))
	default:
		return 0, corrupt("%#x begins no bytes", b)
	}
	if err == nil && n > maxRaw {
		err = corrupt("%d bytes in one field, at most %d are read", n, maxRaw)
	}
	return n, err
}

// count reads the head of a map or an array; less than zero: nil.
func (r *reader) count(fix, c16, c32 byte) (int, error) {
	switch b, err := r.ReadByte(); {
	case err != nil:
		return 0, err
	case b == msgNil:
		return -1, nil
	case b&0xf0 == fix:
		return int(b & 0x0f), nil
	case b == c16:
		return r.length(2)
	case b == c32:
		return r.length(4)
	default:
		return 0, corrupt("%#x where %#x, %#x or %#x may stand", b, fix, c16, c32)
	}
}

// length reads a number of so many bytes.
func (r *reader) length(size int) (int, error) {
	v, err := r.fixed(size)
	return int(min(v, math.MaxInt32)), err
}

func (r *reader) fixed(size int) (uint64, error) {
	b, err := r.Peek(size)
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, err
	}
	var v uint64
	switch size {
	case 1:
		v = uint64(b[0])
	case 2:
		v = uint64(binary.BigEndian.Uint16(b))
	case 4:
		v = uint64(binary.BigEndian.Uint32(b))
	default:
		v = binary.BigEndian.Uint64(b)
	}
	_, err = r.Discard(size)
	return v, err
}

// uint reads a number that is not negative; nil is zero.
func (r *reader) uint() (uint64, error) {
	b, err := r.ReadByte()
	switch {
	case err != nil:
		return 0, err
	case b < msgFixMap:
		return uint64(b), nil
	case b == msgNil:
		return 0, nil
	case b >= msgUint8 && b <= msgUint64:
		return r.fixed(1 << (b - msgUint8))
	}
	n, err := r.signed(b)
	if err == nil && n < 0 {
		err = corrupt("%d where no negative number may stand", n)
	}
	return uint64(n), err
}

func (r *reader) int() (int64, error) {
	b, err := r.ReadByte()
	switch {
	case err != nil:
		return 0, err
	case b < msgFixMap:
		return int64(b), nil
	case b == msgNil:
		return 0, nil
	case b >= msgUint8 && b <= msgUint64:
		v, err := r.fixed(1 << (b - msgUint8))
		if err == nil && v > math.MaxInt64 {
			err = corrupt("%d is larger than %d", v, int64(math.MaxInt64))
		}
		return int64(v), err
	}
	return r.signed(b)
}

// signed reads a number in one of the forms that can be negative.
func (r *reader) signed(b byte) (int64, error) {
	if b >= msgNegative {
		return int64(int8(b)), nil
	}
	if b < msgInt8 || b > msgInt64 {
		return 0, corrupt("%#x begins no number", b)
	}
	v, err := r.fixed(1 << (b - msgInt8))
	switch b {
	case msgInt8:
		return int64(int8(v)), err
	case msgInt16:
		return int64(int16(v)), err
	case msgInt32:
		return int64(int32(v)), err
	}
	return int64(v), err
}
