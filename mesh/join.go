package mesh

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"

	"github.com/forgeyard/forgeyard-node"
)

// JoinRequest is what a node says about itself. All of it is its own claim: the
// log decides name, pool and trusted labels (decision 12).
type JoinRequest struct {
	Name        string              `cbor:"1,keyasint"`
	Labels      map[string]string   `cbor:"2,keyasint,omitempty"`
	ListenAddrs []string            `cbor:"3,keyasint,omitempty"` // multiaddrs
	GossipAddr  string              `cbor:"4,keyasint,omitempty"` // host:port
	Version     string              `cbor:"5,keyasint,omitempty"` // of the program
	SessionID   forgeyard.SessionID `cbor:"6,keyasint,omitempty"`
	OldestLog   uint16              `cbor:"7,keyasint,omitempty"` // formats of the site's log that its program reads: from here
	NewestLog   uint16              `cbor:"8,keyasint,omitempty"` // to here; 0: it does not say
}

func (r JoinRequest) check() error {
	if r.Name == "" || len(r.Name) > maxName || r.Name != printable(r.Name) {
		return forgeyard.Errorf("join", forgeyard.Invalid, "the name has %d letters, 1 to %d printable ones are expected", len(r.Name), maxName)
	}
	if len(r.Labels) > maxLabels {
		return forgeyard.Errorf("join", forgeyard.Limit, "%d labels, the limit is %d", len(r.Labels), maxLabels)
	}
	for k, v := range r.Labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel {
			return forgeyard.Errorf("join", forgeyard.Limit, "label %q is empty or over %d letters", forgeyard.Clip(k, 40), maxLabel)
		}
	}
	if len(r.ListenAddrs) > maxAddrs || len(r.GossipAddr) > maxAddrText || len(r.Version) > maxLabel || len(r.SessionID) > maxName {
		return forgeyard.Errorf("join", forgeyard.Limit, "an address list, version or session id is too long")
	}
	if _, err := parseAddrs(r.ListenAddrs); err != nil {
		return forgeyard.E("join", forgeyard.Invalid, err)
	}
	return nil
}

// joinMessage carries the secret; it is only ever written to an encrypted stream to a pinned peer.
type joinMessage struct {
	Versions versions          `cbor:"1,keyasint"`
	Site     forgeyard.SiteID  `cbor:"2,keyasint"`
	TokenID  forgeyard.TokenID `cbor:"3,keyasint"`
	Secret   Secret            `cbor:"4,keyasint"`
	Request  JoinRequest       `cbor:"5,keyasint"`
}

type joinReply struct {
	Err       *wireError `cbor:"1,keyasint,omitempty"`
	Enrolment *Enrolment `cbor:"2,keyasint,omitempty"`
}

// AdmitFunc asks the log. It must answer a repeat (same peer, same token) with
// the same enrolment, since the first answer may have been lost on the wire. Its
// errors reach the joining node as they are: Denied for expired, spent, revoked
// and forged tokens, Unavailable without a quorum.
type AdmitFunc func(ctx context.Context, remote peer.ID, token forgeyard.TokenID, secretHash forgeyard.Digest, r JoinRequest) (Enrolment, error)

// ServeJoin opens the join protocol, the only one that strangers have besides hello.
func (m *Mesh) ServeJoin(admit AdmitFunc) {
	m.host.SetStreamHandler(ProtoJoin, func(s network.Stream) {
		defer s.Close()
		p := s.Conn().RemotePeer()
		_ = s.SetDeadline(time.Now().Add(joinTimeout))
		e, err := m.answerJoin(s, p, admit)
		r := joinReply{Err: toWire(err)}
		if err == nil {
			r.Enrolment = &e
		} else {
			m.log.Warn("join refused", "peer", p, "reason", err)
			m.strike(p)
		}
		if err := writeFrame(s, r, maxJoinFrame); err != nil {
			_ = s.Reset()
		}
	})
}

func (m *Mesh) answerJoin(s network.Stream, p peer.ID, admit AdmitFunc) (Enrolment, error) {
	select {
	case m.joinSlots <- struct{}{}:
		defer func() { <-m.joinSlots }()
	default:
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Limit, "%d joins are running, the limit is %d", maxJoins, maxJoins).WithHint("try again in a few seconds")
	}
	again := false
	m.table.with(p, func(e *entry) { again = e.joins > 0; e.joins++ })
	defer m.table.with(p, func(e *entry) { e.joins-- })
	if again {
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Limit, "a join of this peer is running already, the limit is 1")
	}
	var msg joinMessage
	if err := readFrame(s, &msg, maxJoinFrame); err != nil {
		return Enrolment{}, forgeyard.E("join", kindOr(err, forgeyard.Invalid), err)
	}
	if _, err := negotiate(m.versions, msg.Versions); err != nil {
		return Enrolment{}, err
	}
	if msg.Site != m.cfg.SiteID {
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Denied, "the token is for site %s, this member belongs to site %s (%s)", printable(string(msg.Site)), m.cfg.SiteName, m.cfg.SiteID)
	}
	if len(msg.Secret.Reveal()) != tokenSecretSize || len(msg.TokenID) > maxName {
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Invalid, "the token's secret or id has a wrong length")
	}
	if err := msg.Request.check(); err != nil {
		return Enrolment{}, err
	}
	if m.isRevoked(p, "") {
		return Enrolment{}, errRevoked(p, "")
	}
	ctx, cancel := context.WithTimeout(m.ctx, joinTimeout-helloTimeout)
	defer cancel()
	return admit(ctx, p, msg.TokenID, SecretHash(msg.Secret), msg.Request)
}

// Join enrols a node: it dials the token's peers one by one, each pinned by its
// peer id, and shows the secret inside the encrypted stream. The first answer
// that is not about reachability is final. Kinds: Invalid for the request or token, Denied
// for a token that is expired, spent, revoked or forged or of another site,
// Unavailable if no peer could be reached or the site has no quorum, Unknown if the connection was lost
// after the secret was sent (repeat it: the same node and token get the same enrolment).
func Join(ctx context.Context, id Identity, t Token, r JoinRequest) (Enrolment, error) {
	if err := errors.Join(t.check(), r.check()); err != nil {
		return Enrolment{}, forgeyard.E("", forgeyard.Invalid, err)
	}
	opts, err := hostOptions(id)
	if err != nil {
		return Enrolment{}, err
	}
	h, err := libp2p.New(append(opts, libp2p.NoListenAddrs, libp2p.Transport(tcp.NewTCPTransport, tcp.DisableReuseport()))...)
	if err != nil {
		return Enrolment{}, forgeyard.E("join", forgeyard.Other, err)
	}
	defer h.Close()
	var errs []error
	worst := forgeyard.Unavailable
	for _, p := range t.Peers {
		e, err := joinAt(ctx, h, id, t, r, p)
		if err == nil {
			return e, nil
		}
		switch forgeyard.KindOf(err) {
		case forgeyard.Unavailable, forgeyard.Limit:
		case forgeyard.Unknown:
			worst = forgeyard.Unknown
		default:
			return Enrolment{}, err
		}
		errs = append(errs, err)
	}
	return Enrolment{}, forgeyard.E("join", worst, errors.Join(errs...)).WithHint("check that a member named in the token is up and in reach, then run the same command again")
}

func joinAt(ctx context.Context, h host.Host, id Identity, t Token, r JoinRequest, p PeerAddr) (Enrolment, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	addrs, err := parseAddrs(p.Addrs)
	if err != nil {
		return Enrolment{}, forgeyard.E("join", forgeyard.Invalid, err)
	}
	dctx, dcancel := context.WithTimeout(ctx, dialTimeout)
	defer dcancel()
	if err := h.Connect(dctx, peer.AddrInfo{ID: p.PeerID, Addrs: addrs}); err != nil {
		return Enrolment{}, forgeyard.E("join", forgeyard.Unavailable, fmt.Errorf("peer %s: %w", p.PeerID, err))
	}
	s, err := h.NewStream(dctx, p.PeerID, ProtoJoin)
	if err != nil {
		return Enrolment{}, forgeyard.E("join", forgeyard.Unavailable, fmt.Errorf("peer %s: %w", p.PeerID, err))
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { _ = s.Reset() })
	defer stop()
	msg := joinMessage{Versions: versions{versionMin, versionMax}, Site: t.SiteID, TokenID: t.TokenID, Secret: t.Secret, Request: r}
	var reply joinReply
	if err := writeFrame(s, msg, maxJoinFrame); err != nil {
		return Enrolment{}, forgeyard.E("join", kindOr(err, forgeyard.Unknown), err)
	}
	if err := readFrame(s, &reply, maxJoinFrame); err != nil {
		return Enrolment{}, forgeyard.E("join", kindOr(err, forgeyard.Unknown), fmt.Errorf("peer %s did not answer: %w", p.PeerID, err))
	}
	if reply.Err != nil {
		return Enrolment{}, reply.Err.err("join")
	}
	if reply.Enrolment == nil || reply.Enrolment.SiteID != t.SiteID {
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Invalid, "peer %s answered with an enrolment of another site", p.PeerID)
	}
	return *reply.Enrolment, reply.Enrolment.Check(id.PeerID())
}
