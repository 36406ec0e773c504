package spool

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"

	"github.com/forgeyard/forgeyard-node"
)

// Stream says where a frame's bytes come from (07§72). Append only.
type Stream uint8

// Streams.
const (
	Stdout     Stream = 1
	Stderr     Stream = 2
	Agent      Stream = 3 // what the runner has to say, text
	Structured Stream = 4 // events, one JSON object a frame
)

var streamNames = [...]string{"", "stdout", "stderr", "agent", "structured"}

func (s Stream) String() string {
	if int(s) < len(streamNames) && s != 0 {
		return streamNames[s]
	}
	return fmt.Sprintf("stream(%d)", uint8(s))
}

// Frame is one piece of a log.
type Frame struct {
	Seq    uint64
	At     forgeyard.Wall // for people
	Stream Stream
	Epoch  uint64
	Step   uint16 // 0: no step; n: the nth
	Bytes  []byte // at most MaxFrameBytes
}

// A segment file and a flushed chunk have one form; a chunk may be packed (pack.go):
//
//	0   8 bytes  "FYLOG", 0, version, 0
//	8   frames
//
//	frame
//	0   u32 LE   n: length of what follows the checksum
//	4   u32 LE   CRC-32C of these n bytes
//	8   u64 LE   seq
//	16  i64 LE   wall time, Unix ms
//	24  u64 LE   epoch
//	32  u16 LE   step
//	34  u8       stream
//	35  n-27 bytes
const (
	version    = 1
	headerSize = 8
	prefixSize = 8
	fixedSize  = 27
)

var (
	header     = []byte{'F', 'Y', 'L', 'O', 'G', 0, version, 0}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func (f *Frame) size() int64 { return int64(prefixSize + fixedSize + len(f.Bytes)) }

// appendFrame encodes f to b.
func appendFrame(b []byte, f *Frame) []byte {
	n := fixedSize + len(f.Bytes)
	at := len(b)
	b = append(b, make([]byte, prefixSize)...)
	b = binary.LittleEndian.AppendUint64(b, f.Seq)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.At))
	b = binary.LittleEndian.AppendUint64(b, f.Epoch)
	b = binary.LittleEndian.AppendUint16(b, f.Step)
	b = append(b, byte(f.Stream))
	b = append(b, f.Bytes...)
	binary.LittleEndian.PutUint32(b[at:], uint32(n))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(b[at+prefixSize:], castagnoli))
	return b
}

var errTorn = errors.New("the last frame is torn")

// readFrame reads the next frame; io.EOF at a clean end, errTorn when the input
// ends within a frame, Corrupt when the bytes are not what was written.
func readFrame(r *bufio.Reader) (Frame, error) {
	var pre [prefixSize]byte
	if _, err := io.ReadFull(r, pre[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return Frame{}, errTorn
		}
		return Frame{}, err
	}
	n := binary.LittleEndian.Uint32(pre[:])
	if n < fixedSize || n > fixedSize+MaxFrameBytes {
		return Frame{}, corrupt("frame length %d is not in [%d, %d]", n, fixedSize, fixedSize+MaxFrameBytes)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return Frame{}, errTorn
		}
		return Frame{}, err
	}
	if got, want := crc32.Checksum(b, castagnoli), binary.LittleEndian.Uint32(pre[4:]); got != want {
		return Frame{}, corrupt("frame checksum is %08x, its bytes give %08x", want, got)
	}
	f := Frame{
		Seq: binary.LittleEndian.Uint64(b), At: forgeyard.Wall(binary.LittleEndian.Uint64(b[8:])),
		Epoch: binary.LittleEndian.Uint64(b[16:]), Step: binary.LittleEndian.Uint16(b[24:]), Stream: Stream(b[26]), Bytes: b[fixedSize:],
	}
	if f.Seq == 0 || f.Stream < Stdout || f.Stream > Structured {
		return Frame{}, corrupt("frame %d of %s cannot be", f.Seq, f.Stream)
	}
	return f, nil
}

// readHeader reads the header of a segment or a chunk. Only a chunk is ever packed.
func readHeader(r io.Reader) (packed bool, err error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return false, corrupt("there is no log header: %v", err)
	}
	switch string(h[:]) {
	case string(header):
		return false, nil
	case string(packedHeader):
		return true, nil
	}
	return false, corrupt("%q is not the header of a log of version %d or %d", h[:], version, packedVersion)
}

// DecodeFrames reads a flushed chunk. Sequence numbers follow each other without a
// gap; anything else ends the iteration with Corrupt.
func DecodeFrames(r io.Reader) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		packed, err := readHeader(r)
		if err != nil {
			yield(Frame{}, err)
			return
		}
		br, done, err := unpacked(r, packed)
		if err != nil {
			yield(Frame{}, err)
			return
		}
		var last uint64
		for {
			f, err := readFrame(br)
			switch {
			case errors.Is(err, io.EOF):
				if err := done(); err != nil {
					yield(Frame{}, err)
				}
				return
			case errors.Is(err, errTorn):
				err = corrupt("the chunk ends within a frame after %d", last)
			case err == nil && last != 0 && f.Seq != last+1:
				err = corrupt("frame %d follows %d", f.Seq, last)
			}
			if err != nil {
				if over := done(); over != nil {
					err = over
				}
				yield(Frame{}, err)
				return
			}
			last = f.Seq
			if !yield(f, nil) {
				_ = done() // who looks no further is told nothing more
				return
			}
		}
	}
}

func corrupt(format string, args ...any) error {
	return forgeyard.Errorf("read log", forgeyard.Corrupt, format, args...)
}
