package mesh

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/forgeyard/forgeyard-node"
)

// HTTPTransport carries HTTP/2 to peers: the host of a URL is the peer id, as in
// http://12D3Koo…/forgeyard.v1.Site/Renew. Idle connections are pinged, so that a
// call over a dead link ends after 5 + 3 s even without a deadline.
func (m *Mesh) HTTPTransport(proto protocol.ID) *http.Transport {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true) // the connection underneath is encrypted
	return &http.Transport{
		Protocols: &p,
		HTTP2:     &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 3 * time.Second},
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			h, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, forgeyard.E("dial", forgeyard.Invalid, err)
			}
			id, err := peer.Decode(h)
			if err != nil {
				return nil, forgeyard.Errorf("dial", forgeyard.Invalid, "%q is not a peer id: %w", forgeyard.Clip(h, 80), err)
			}
			return m.Dial(ctx, id, proto)
		},
		IdleConnTimeout: time.Minute,
	}
}

// HTTPServer serves h over a Listener; handlers find the caller with PeerFrom.
func HTTPServer(h http.Handler) *http.Server {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: h, Protocols: &p, ConnContext: ConnContext, ReadHeaderTimeout: 10 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
}
