package peer

import (
	"context"

	"github.com/ipfs/boxo/bitswap/message"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// receiver takes what bitswap's network brings: wants go to boxo's server, blocks
// and refusals to the link of the peer they come from.
type receiver Exchange

func (r *receiver) ReceiveMessage(ctx context.Context, p libpeer.ID, m message.BitSwapMessage) {
	x := (*Exchange)(r)
	if l := x.linkTo(p); l != nil {
		l.receive(m)
	}
	x.server.ReceiveMessage(ctx, p, m)
}

func (r *receiver) ReceiveError(err error) {
	r.cfg.Log.Debug("a bitswap message could not be read", "err", err)
}

func (r *receiver) PeerConnected(p libpeer.ID) { r.server.PeerConnected(p) }

// PeerDisconnected also comes, with the connection up, when boxo could not send;
// the sender was told that by an error already.
func (r *receiver) PeerDisconnected(p libpeer.ID) {
	x := (*Exchange)(r)
	x.server.PeerDisconnected(p)
	if x.cfg.Host.Network().Connectedness(p) == network.Connected {
		return
	}
	x.mu.Lock()
	l := x.links[p]
	delete(x.links, p)
	delete(x.inbound, p)
	x.mu.Unlock()
	if l != nil {
		l.fail()
	}
}

// countingHost counts the bytes of bitswap's streams, and tells each link when
// bytes come: a block on a thin line takes long, and is no silence.
type countingHost struct {
	host.Host
	x *Exchange
}

func (h countingHost) SetStreamHandler(p protocol.ID, f network.StreamHandler) {
	h.Host.SetStreamHandler(p, func(s network.Stream) {
		counted := &countedStream{Stream: s, x: h.x, inbound: true}
		f(&inboundStream{countedStream: counted, room: h.x.inboundRoom(s.Conn().RemotePeer())})
	})
}

func (h countingHost) NewStream(ctx context.Context, p libpeer.ID, ps ...protocol.ID) (network.Stream, error) {
	s, err := h.Host.NewStream(ctx, p, ps...)
	if err != nil {
		return nil, err
	}
	return &countedStream{Stream: s, x: h.x}, nil
}

type countedStream struct {
	network.Stream
	x       *Exchange
	inbound bool
	link    *link // of an inbound stream, once something is wanted from its peer
}

func (s *countedStream) Read(b []byte) (int, error) {
	n, err := s.Stream.Read(b)
	if n > 0 {
		s.x.stats.bytesIn.Add(int64(n))
		if s.inbound && s.link == nil {
			s.link = s.x.linkTo(s.Conn().RemotePeer())
		}
		if s.link != nil {
			s.link.touch()
		}
	}
	return n, err
}

func (s *countedStream) Write(b []byte) (int, error) {
	n, err := s.Stream.Write(b)
	s.x.stats.bytesOut.Add(int64(n))
	return n, err
}
