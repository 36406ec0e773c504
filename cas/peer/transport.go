package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multistream"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// transport carries bulk connections. Their Close ends reads and writes under way.
type transport interface {
	// dial opens a connection of the first of bulk.Protocols that the peer speaks. When
	// it speaks none the error has the kind NotFound.
	dial(ctx context.Context, p libpeer.ID) (io.ReadWriteCloser, error)
	// serve hands each connection that a peer opens to handle, in a goroutine of its
	// own, until close.
	serve(handle func(p libpeer.ID, c io.ReadWriteCloser))
	// close ends serve; connections that were handed over go on.
	close()
}

func newTransport(c Config) (transport, error) {
	if c.Dial == nil {
		return streams{c.Host}, nil
	}
	return listenAll(c.Dial, c.Listen)
}

// bulkProtocols are what a transport serves, best first.
func bulkProtocols() (out []protocol.ID) {
	for _, p := range bulk.Protocols {
		out = append(out, protocol.ID(p))
	}
	return out
}

// notSpoken types the two ways in which a peer says that it lacks a protocol.
func notSpoken(err error) error {
	if errors.Is(err, multistream.ErrNotSupported[protocol.ID]{}) {
		return forgeyard.E("cas bulk", forgeyard.NotFound, err)
	}
	return err
}

// streams carries them as streams of a host.
type streams struct{ host host.Host }

var _ transport = streams{}

// abrupt is a stream whose Close resets it.
type abrupt struct{ network.Stream }

func (s abrupt) Close() error { return s.Reset() }

func (t streams) dial(ctx context.Context, p libpeer.ID) (io.ReadWriteCloser, error) {
	st, err := t.host.NewStream(ctx, p, bulkProtocols()...)
	if err != nil {
		return nil, notSpoken(err)
	}
	return abrupt{st}, nil
}

func (t streams) serve(handle func(p libpeer.ID, c io.ReadWriteCloser)) {
	for _, id := range bulkProtocols() {
		t.host.SetStreamHandler(id, func(st network.Stream) { handle(st.Conn().RemotePeer(), abrupt{st}) })
	}
}

func (t streams) close() {
	for _, id := range bulkProtocols() {
		t.host.RemoveStreamHandler(id)
	}
}

// conns carries them as connections of their own, which is cheaper than a
// stream among others on a connection, and no other stream waits behind them.
type conns struct {
	open   func(ctx context.Context, p libpeer.ID, proto protocol.ID) (net.Conn, error)
	listen []net.Listener
	wg     sync.WaitGroup
}

var _ transport = (*conns)(nil)

// listenAll listens for each of bulkProtocols, and dials them in their order
// until one is spoken: dial then fails with NotFound. The text of an accepted
// connection's remote address is the peer's id.
func listenAll(
	dial func(ctx context.Context, p libpeer.ID, proto protocol.ID) (net.Conn, error), listen func(protocol.ID) (net.Listener, error),
) (*conns, error) {
	t := &conns{open: dial}
	for _, id := range bulkProtocols() {
		l, err := listen(id)
		if err != nil {
			t.close()
			return nil, err
		}
		t.listen = append(t.listen, l)
	}
	return t, nil
}

func (t *conns) dial(ctx context.Context, p libpeer.ID) (io.ReadWriteCloser, error) {
	var err error
	for _, id := range bulkProtocols() {
		var c net.Conn
		if c, err = t.open(ctx, p, id); err == nil {
			if st, ok := c.(network.Stream); ok {
				return abrupt{st}, nil
			}
			return c, nil
		}
		if err = notSpoken(err); forgeyard.KindOf(err) != forgeyard.NotFound {
			return nil, err
		}
	}
	return nil, err
}

func (t *conns) serve(handle func(p libpeer.ID, c io.ReadWriteCloser)) {
	for _, l := range t.listen {
		t.wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return // closed
				}
				go func() {
					p, err := libpeer.Decode(c.RemoteAddr().String())
					if err != nil {
						_ = c.Close() // whoever it is, it is nobody that could be named
						return
					}
					if st, ok := c.(network.Stream); ok {
						handle(p, abrupt{st})
						return
					}
					handle(p, c)
				}()
			}
		})
	}
}

func (t *conns) close() {
	for _, l := range t.listen {
		_ = l.Close() // it fails only when it is closed
	}
	t.wg.Wait()
}
