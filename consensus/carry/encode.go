package carry

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// MessagePack's first bytes.
const (
	msgFixMap   = 0x80
	msgFixArray = 0x90
	msgFixRaw   = 0xa0
	msgNil      = 0xc0
	msgFalse    = 0xc2
	msgTrue     = 0xc3
	msgBin8     = 0xc4
	msgBin32    = 0xc6
	msgExt8     = 0xc7
	msgExt32    = 0xc9
	msgFloat32  = 0xca
	msgFloat64  = 0xcb
	msgUint8    = 0xcc
	msgUint16   = 0xcd
	msgUint32   = 0xce
	msgUint64   = 0xcf
	msgInt8     = 0xd0
	msgInt16    = 0xd1
	msgInt32    = 0xd2
	msgInt64    = 0xd3
	msgFixExt   = 0xd4
	msgStr8     = 0xd9
	msgRaw16    = 0xda
	msgRaw32    = 0xdb
	msgArray16  = 0xdc
	msgArray32  = 0xdd
	msgMap16    = 0xde
	msgMap32    = 0xdf
	msgNegative = 0xe0
)

// appendMessage writes a message; nil is a message too.
func appendMessage(b []byte, message any) ([]byte, error) { return appendGreeting(b, message, nil) }

// appendGreeting writes a message and, where there is one, a hello beside its fields.
func appendGreeting(b []byte, message any, hello []byte) (_ []byte, err error) {
	if message == nil && hello == nil {
		return append(b, msgNil), nil
	}
	var room [maxFields + 1]field
	all := room[:0]
	if message != nil {
		if all = fields(all, message); all == nil {
			return b, forgeyard.Errorf("raft message", forgeyard.Invalid, "%T is no message", message)
		}
	}
	if hello != nil {
		all = append(all, field{helloField, &hello})
	}
	b = append(b, msgFixMap|byte(len(all)))
	for _, f := range all {
		b = appendString(b, f.name)
		if b, err = appendValue(b, f.at); err != nil {
			return b, err
		}
	}
	return b, nil
}

func appendValue(b []byte, at any) ([]byte, error) {
	switch v := at.(type) {
	case *uint64:
		return appendUint(b, *v), nil
	case *[]byte:
		return appendRaw(b, *v), nil
	case *bool:
		if *v {
			return append(b, msgTrue), nil
		}
		return append(b, msgFalse), nil
	case *int64:
		return appendInt(b, *v), nil
	case *raft.ProtocolVersion:
		return appendInt(b, int64(*v)), nil
	case *raft.SnapshotVersion:
		return appendInt(b, int64(*v)), nil
	case *raft.LogType:
		return appendUint(b, uint64(*v)), nil
	case *time.Time:
		return appendTime(b, *v)
	case *[]*raft.Log:
		return appendLogs(b, *v)
	}
	return b, forgeyard.Errorf("raft message", forgeyard.Invalid, "%T is no field", at)
}

func appendLogs(b []byte, logs []*raft.Log) ([]byte, error) {
	switch n := len(logs); {
	case logs == nil:
		return append(b, msgNil), nil
	case n < 16:
		b = append(b, msgFixArray|byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, msgArray16), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, msgArray32), uint32(n))
	}
	var err error
	for _, l := range logs {
		if b, err = appendMessage(b, l); err != nil {
			return b, err
		}
	}
	return b, nil
}

func appendTime(b []byte, t time.Time) ([]byte, error) {
	at := len(b)
	b, err := t.AppendBinary(append(b, msgFixRaw))
	if err == nil {
		b[at] |= byte(len(b) - at - 1) // 15 or 16
	}
	return b, err
}

func appendUint(b []byte, v uint64) []byte {
	switch {
	case v <= math.MaxInt8:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, msgUint8, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, msgUint16), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, msgUint32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, msgUint64), v)
}

func appendInt(b []byte, v int64) []byte {
	switch {
	case v >= -32 && v <= math.MaxInt8:
		return append(b, byte(v))
	case v >= math.MinInt8 && v < 0:
		return append(b, msgInt8, byte(v))
	case v >= math.MinInt16 && v <= math.MaxInt16:
		return binary.BigEndian.AppendUint16(append(b, msgInt16), uint16(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		return binary.BigEndian.AppendUint32(append(b, msgInt32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, msgInt64), uint64(v))
}

func appendRaw(b, v []byte) []byte {
	if v == nil {
		return append(b, msgNil)
	}
	return append(appendRawHead(b, len(v)), v...)
}

func appendString(b []byte, s string) []byte { return append(appendRawHead(b, len(s)), s...) }

func appendRawHead(b []byte, n int) []byte {
	switch {
	case n < 32:
		return append(b, msgFixRaw|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, msgRaw16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, msgRaw32), uint32(n))
}
