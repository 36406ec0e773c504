package peer

import (
	"bytes"
	"encoding/binary"
	"io"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

const opReceive = "bitswap message"

// inboundStream hands bitswap one whole message at a time, after a look at what reading it
// would cost. Bitswap by itself makes room for what a message says it has, before it came,
// on each stream that the peer opens; and an entry of a few bytes becomes some hundred.
//
// It is read by one goroutine; Reset may come from another.
type inboundStream struct {
	*countedStream
	room    *inboundRoom // of the peer, over all its streams
	bytes   atomic.Int64 // of it, by the message that is being worked on
	entries atomic.Int64
	next    bytes.Reader // that message, as far as it was not read yet
}

// inboundRoom is what messages of one peer may have at once. Bytes are taken before
// entries, and who has its entries waits for nothing.
type inboundRoom struct{ bytes, entries *semaphore.Weighted }

func (x *Exchange) inboundRoom(p libpeer.ID) *inboundRoom {
	x.mu.Lock()
	defer x.mu.Unlock()
	room := x.inbound[p]
	if room == nil {
		room = &inboundRoom{bytes: semaphore.NewWeighted(inboundBytes), entries: semaphore.NewWeighted(maxEntries)}
		x.inbound[p] = room
	}
	return room
}

// Read gives bytes of the current message. Bitswap reads no message before it is through
// with the one before, so what that one cost is free again.
func (s *inboundStream) Read(b []byte) (int, error) {
	if s.next.Len() == 0 {
		s.free()
		if err := s.message(); err != nil {
			s.free()
			if forgeyard.KindOf(err) == forgeyard.Invalid || forgeyard.KindOf(err) == forgeyard.Limit {
				s.x.stats.badPeers.Add(1)
			}
			return 0, err
		}
	}
	return s.next.Read(b)
}

// message reads the next message whole.
func (s *inboundStream) message() error {
	size, err := s.size()
	if err != nil {
		return err
	}
	if size > network.MessageSizeMax {
		return forgeyard.Errorf(opReceive, forgeyard.Limit, "%d bytes exceed %d", size, network.MessageSizeMax)
	}
	if err := s.take(s.room.bytes, &s.bytes, int64(size)); err != nil {
		return err
	}
	frame := binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen32+size), size)
	head := len(frame)
	frame = frame[:head+int(size)]
	if _, err := io.ReadFull(s.countedStream, frame[head:]); err != nil {
		return err
	}
	entries, err := entriesOf(frame[head:])
	if err != nil {
		return err
	}
	if err := s.take(s.room.entries, &s.entries, int64(entries)); err != nil {
		return err
	}
	s.next.Reset(frame)
	return nil
}

// size reads the length before a message; EOF stands between messages only.
func (s *inboundStream) size() (uint64, error) {
	var b [1]byte
	var head []byte
	for {
		if _, err := io.ReadFull(s.countedStream, b[:]); err != nil {
			if len(head) > 0 && err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		head = append(head, b[0])
		if b[0] < 0x80 {
			break
		}
		if len(head) == binary.MaxVarintLen32 {
			return 0, forgeyard.Errorf(opReceive, forgeyard.Limit, "its length has more than %d bytes", binary.MaxVarintLen32)
		}
	}
	size, _ := binary.Uvarint(head)
	return size, nil
}

// take waits until the peer's other messages leave room for so much.
func (s *inboundStream) take(room *semaphore.Weighted, held *atomic.Int64, n int64) error {
	if err := room.Acquire(s.x.ctx, n); err != nil {
		return forgeyard.Errorf(opReceive, forgeyard.Unavailable, "the exchange is closed")
	}
	held.Add(n)
	return nil
}

func (s *inboundStream) free() {
	s.room.entries.Release(s.entries.Swap(0))
	s.room.bytes.Release(s.bytes.Swap(0))
}

// Reset frees what the last message cost: it was read, and was none.
func (s *inboundStream) Reset() error {
	s.free()
	return s.countedStream.Reset()
}

// Fields of bitswap's message that are entries, or hold them.
const (
	fieldWantlist = 1
	fieldEntries  = 1 // in a wantlist
)

// entriesOf counts what a message lists: wants, blocks and presences.
func entriesOf(m []byte) (n int, err error) {
	err = fieldsOf(m, func(num protowire.Number, v []byte) error {
		if n++; num != fieldWantlist || v == nil {
			return nil
		}
		return fieldsOf(v, func(num protowire.Number, _ []byte) error {
			if num == fieldEntries {
				n++
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return 0, err
	case n > maxEntries:
		return 0, forgeyard.Errorf(opReceive, forgeyard.Limit, "%d entries exceed %d", n, maxEntries)
	}
	return n, nil
}

// fieldsOf gives f each field, and its bytes where it has some.
func fieldsOf(m []byte, f func(num protowire.Number, v []byte) error) error {
	for len(m) > 0 {
		num, typ, n := protowire.ConsumeTag(m)
		if n < 0 {
			return forgeyard.Errorf(opReceive, forgeyard.Invalid, "it is none: %v", protowire.ParseError(n))
		}
		m = m[n:]
		var v []byte
		if n = protowire.ConsumeFieldValue(num, typ, m); n < 0 {
			return forgeyard.Errorf(opReceive, forgeyard.Invalid, "it is none: %v", protowire.ParseError(n))
		}
		if typ == protowire.BytesType {
			v, _ = protowire.ConsumeBytes(m)
		}
		if err := f(num, v); err != nil {
			return err
		}
		m = m[n:]
	}
	return nil
}
