package mesh

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
)

func tlsKey(t *testing.T) (crypto.PrivKey, peer.ID) {
	t.Helper()
	k, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return k, id
}

var muxers = []upgrader.StreamMuxer{{ID: yamux.ID, Muxer: yamux.DefaultTransport}}

// E10: whatever the clock said when the process began, its certificate is good.
func TestE10CertificateIsGoodAtAnyTime(t *testing.T) {
	key, _ := tlsKey(t)
	tr, err := newTLS(libp2ptls.ID, key, muxers)
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		_, err := tr.SecureInbound(context.Background(), far, "")
		_ = err // the client looks at the certificate and goes
	}()
	other, _ := tlsKey(t)
	id, err := tlsIdentity(other)
	if err != nil {
		t.Fatal(err)
	}
	cfg, _ := id.ConfigForPeer("")
	c := tls.Client(near, cfg)
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	leaf := c.ConnectionState().PeerCertificates[0]
	for _, at := range []time.Time{time.Unix(1, 0), time.Now(), time.Now().AddDate(400, 0, 0)} {
		if at.Before(leaf.NotBefore) || at.After(leaf.NotAfter) {
			t.Errorf("at %s it is not good: %s to %s", at, leaf.NotBefore, leaf.NotAfter)
		}
	}
}

// The handshake is libp2p's: a member of an earlier version understands it, both ways,
// agrees on the multiplexer, and neither side is taken for another.
func TestTLSSpeaksWithLibp2p(t *testing.T) {
	ourKey, ourID := tlsKey(t)
	theirKey, theirID := tlsKey(t)
	ours, err := newTLS(libp2ptls.ID, ourKey, muxers)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := libp2ptls.New(libp2ptls.ID, theirKey, muxers)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		client, server     sec.SecureTransport
		clientID, serverID peer.ID
	}{
		"we dial":   {ours, theirs, ourID, theirID},
		"they dial": {theirs, ours, theirID, ourID},
	} {
		a, b, cerr, serr := shake(t, c.client, c.server, c.serverID)
		if cerr != nil || serr != nil {
			t.Fatalf("%s: %v, %v", what, cerr, serr)
		}
		if a.RemotePeer() != c.serverID || b.RemotePeer() != c.clientID || a.LocalPeer() != c.clientID {
			t.Errorf("%s: %s has met %s, and %s has met %s", what, c.clientID, a.RemotePeer(), c.serverID, b.RemotePeer())
		}
		if a.ConnState() != b.ConnState() || a.ConnState().StreamMultiplexer != yamux.ID || !a.RemotePublicKey().Equals(keyOf(t, c.serverID)) {
			t.Errorf("%s: %+v and %+v", what, a.ConnState(), b.ConnState())
		}
	}
	if _, _, err, _ := shake(t, ours, theirs, ourID); err == nil {
		t.Error("somebody else's key was taken for the one that was dialled")
	}
}

func keyOf(t *testing.T, id peer.ID) crypto.PubKey {
	t.Helper()
	k, err := id.ExtractPublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// shake runs both sides of a handshake over a socket.
func shake(t *testing.T, client, server sec.SecureTransport, want peer.ID) (a, b sec.SecureConn, cerr, serr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		if err != nil {
			serr = err
			return
		}
		b, serr = server.SecureInbound(t.Context(), raw, "")
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, cerr = client.SecureOutbound(t.Context(), raw, want)
	<-done
	return a, b, cerr, serr
}
