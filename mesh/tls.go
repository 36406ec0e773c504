package mesh

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"

	"github.com/forgeyard/forgeyard-node"
)

// timeless makes the certificate of a connection one that is good at any time. libp2p's
// own begins an hour before the process does, by the process's clock: a node that boots
// with a clock that is ahead is refused in the handshake, where nobody can say why, and
// also when its clock has been set, until it is restarted (E10). The certificate proves
// a key and nothing else; whether the key is a member's, and until when, is its
// credential's to say.
func timeless() (libp2ptls.IdentityOption, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 62))
	if err != nil {
		return nil, forgeyard.E("mesh", forgeyard.Other, err)
	}
	return libp2ptls.WithCertTemplate(&x509.Certificate{
		SerialNumber: serial,
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // X.509's word for no end
		Subject:      pkix.Name{SerialNumber: serial.String()},
	}), nil
}

// tlsIdentity is a node's key as TLS shows it.
func tlsIdentity(key crypto.PrivKey) (*libp2ptls.Identity, error) {
	opt, err := timeless()
	if err != nil {
		return nil, err
	}
	id, err := libp2ptls.NewIdentity(key, opt)
	if err != nil {
		return nil, forgeyard.E("mesh", forgeyard.Other, err)
	}
	return id, nil
}

// tlsTransport is libp2p's TLS security, byte for byte on the wire, with a certificate
// that is good at any time.
type tlsTransport struct {
	id     *libp2ptls.Identity
	local  peer.ID
	proto  protocol.ID
	muxers []string
}

var _ sec.SecureTransport = (*tlsTransport)(nil)

func newTLS(proto protocol.ID, key crypto.PrivKey, muxers []upgrader.StreamMuxer) (*tlsTransport, error) {
	local, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, err
	}
	id, err := tlsIdentity(key)
	if err != nil {
		return nil, err
	}
	t := &tlsTransport{id: id, local: local, proto: proto}
	for _, m := range muxers {
		t.muxers = append(t.muxers, string(m.ID))
	}
	return t, nil
}

// ID implements sec.SecureTransport.
func (t *tlsTransport) ID() protocol.ID { return t.proto }

// SecureInbound implements sec.SecureTransport: the server's side. An empty peer is
// anybody.
func (t *tlsTransport) SecureInbound(ctx context.Context, raw net.Conn, p peer.ID) (sec.SecureConn, error) {
	return t.secure(ctx, raw, p, tls.Server)
}

// SecureOutbound implements sec.SecureTransport: the client's side.
func (t *tlsTransport) SecureOutbound(ctx context.Context, raw net.Conn, p peer.ID) (sec.SecureConn, error) {
	return t.secure(ctx, raw, p, tls.Client)
}

// secure owns raw from here on: an error closes it.
func (t *tlsTransport) secure(ctx context.Context, raw net.Conn, p peer.ID, side func(net.Conn, *tls.Config) *tls.Conn) (sec.SecureConn, error) {
	cfg, keys := t.id.ConfigForPeer(p)
	plain := cfg.NextProtos // what peers say that agree on a multiplexer later
	cfg.NextProtos = append(append([]string(nil), t.muxers...), plain...)
	c := side(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error is the one that matters
		return nil, err
	}
	key := <-keys // a handshake that succeeded has verified one
	remote, err := peer.IDFromPublicKey(key)
	if err != nil {
		_ = c.Close() // as above
		return nil, err
	}
	s := &secured{Conn: c, local: t.local, remote: remote, key: key}
	for _, m := range t.muxers {
		if c.ConnectionState().NegotiatedProtocol == m {
			s.state = network.ConnectionState{StreamMultiplexer: protocol.ID(m), UsedEarlyMuxerNegotiation: true}
		}
	}
	return s, nil
}

// secured is a connection whose other end has proved its key.
type secured struct {
	*tls.Conn
	local, remote peer.ID
	key           crypto.PubKey
	state         network.ConnectionState
}

// LocalPeer and the next three implement sec.SecureConn.
func (s *secured) LocalPeer() peer.ID                 { return s.local }
func (s *secured) RemotePeer() peer.ID                { return s.remote }
func (s *secured) RemotePublicKey() crypto.PubKey     { return s.key }
func (s *secured) ConnState() network.ConnectionState { return s.state }
