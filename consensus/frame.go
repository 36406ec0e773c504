package consensus

import (
	"encoding/binary"

	"github.com/forgeyard/forgeyard-node"
)

// A log entry's bytes:
//
//	0        1      2
//	┌────────┬──────┬───────────────────────────────┐
//	│ version│ kind │ body                          │
//	└────────┴──────┴───────────────────────────────┘
//	command  the user's bytes, 0 to MaxCommand
//	begin    nonce 16                    also serves as the barrier
//	mark     nonce 16
//	check    nonce 16 · index 8 · hash 32
//	batch    one or more of: length 4 · the user's bytes
//
// Integers are big-endian. The log store and the transport have checksums of
// their own. nonce names the process that proposed. Kinds are append-only.
const frameVersion = 1

type frameKind uint8

const (
	frameCommand frameKind = 1 + iota
	frameBegin             // a leader's first entry in its term, and every barrier
	frameMark              // "remember the hash of the state here"
	frameCheck             // "at the mark at index, mine was hash"
	frameBatch             // several commands, in their order
)

const (
	frameHeader = 2
	nonceSize   = 16
	batchItem   = 4 // before each command of a batch
)

type nonce [nonceSize]byte

type frame struct {
	kind  frameKind
	data  []byte   // command
	batch [][]byte // batch
	from  nonce
	index uint64
	hash  [32]byte
}

func encodeCommand(data []byte) []byte {
	b := make([]byte, frameHeader+len(data))
	b[0], b[1] = frameVersion, byte(frameCommand)
	copy(b[frameHeader:], data)
	return b
}

func encodeBatch(batch []*proposal) []byte {
	size := frameHeader
	for _, p := range batch {
		size += batchItem + len(p.data)
	}
	b := append(make([]byte, 0, size), frameVersion, byte(frameBatch))
	for _, p := range batch {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p.data)))
		b = append(b, p.data...)
	}
	return b
}

func decodeBatch(body []byte) ([][]byte, error) {
	var out [][]byte
	for len(body) > 0 {
		if len(body) < batchItem {
			return nil, forgeyard.Errorf("log entry", forgeyard.Corrupt, "a batch ends within a length, after %d commands", len(out))
		}
		n := uint64(binary.BigEndian.Uint32(body))
		body = body[batchItem:]
		if n > uint64(len(body)) {
			return nil, forgeyard.Errorf("log entry", forgeyard.Corrupt, "command %d of a batch says %d bytes, %d are left", len(out), n, len(body))
		}
		out = append(out, body[:n:n])
		body = body[n:]
	}
	if len(out) == 0 {
		return nil, forgeyard.Errorf("log entry", forgeyard.Corrupt, "a batch holds no command")
	}
	return out, nil
}

func (f frame) encode() []byte {
	b := append([]byte{frameVersion, byte(f.kind)}, f.from[:]...)
	if f.kind == frameCheck {
		b = binary.BigEndian.AppendUint64(b, f.index)
		b = append(b, f.hash[:]...)
	}
	return b
}

func decodeFrame(b []byte) (frame, error) {
	if len(b) < frameHeader {
		return frame{}, forgeyard.Errorf("log entry", forgeyard.Corrupt, "%d bytes are less than the header of %d", len(b), frameHeader)
	}
	if b[0] != frameVersion {
		return frame{}, forgeyard.Errorf("log entry", forgeyard.Corrupt, "format %d is not %d, the one this program reads", b[0], frameVersion).
			WithHint("a newer program wrote this log: upgrade this node")
	}
	f, body := frame{kind: frameKind(b[1])}, b[frameHeader:]
	want := nonceSize
	switch f.kind {
	case frameCommand:
		f.data = body
		return f, nil
	case frameBatch:
		batch, err := decodeBatch(body)
		f.batch = batch
		return f, err
	case frameBegin, frameMark:
	case frameCheck:
		want += 8 + 32
	default:
		return frame{}, forgeyard.Errorf("log entry", forgeyard.Corrupt, "kind %d is not known to this program", b[1]).
			WithHint("a newer program wrote this log: upgrade this node")
	}
	if len(body) != want {
		return frame{}, forgeyard.Errorf("log entry", forgeyard.Corrupt, "kind %d has %d bytes, %d are expected", f.kind, len(body), want)
	}
	copy(f.from[:], body)
	if f.kind == frameCheck {
		f.index = binary.BigEndian.Uint64(body[nonceSize:])
		copy(f.hash[:], body[nonceSize+8:])
	}
	return f, nil
}

// A snapshot's bytes, inside the file store's own CRC-64:
//
//	┌────────────┬─────────┬──────────┬─────────┬────────────────────────┐
//	│ "FYSN" 4   │ ver. 1  │ index 8  │ hash 32 │ the state machine's    │
//	└────────────┴─────────┴──────────┴─────────┴────────────────────────┘
//
// index is the last command or configuration in it; hash is that of the state.
const (
	snapshotMagic   = "FYSN"
	snapshotVersion = 1
	snapshotHeader  = 4 + 1 + 8 + 32
)

type stateHeader struct {
	index uint64
	hash  [32]byte
}

func (h stateHeader) encode() []byte {
	b := append([]byte(snapshotMagic), snapshotVersion)
	b = binary.BigEndian.AppendUint64(b, h.index)
	return append(b, h.hash[:]...)
}

func decodeStateHeader(b []byte) (stateHeader, error) {
	if len(b) != snapshotHeader || string(b[:4]) != snapshotMagic {
		return stateHeader{}, forgeyard.Errorf("snapshot", forgeyard.Corrupt, "it does not begin with %s and %d bytes of header", snapshotMagic, snapshotHeader)
	}
	if b[4] != snapshotVersion {
		return stateHeader{}, forgeyard.Errorf("snapshot", forgeyard.Corrupt, "format %d is not %d, the one this program reads", b[4], snapshotVersion).
			WithHint("a newer program wrote this snapshot: upgrade this node")
	}
	h := stateHeader{index: binary.BigEndian.Uint64(b[5:])}
	copy(h.hash[:], b[13:])
	return h, nil
}
