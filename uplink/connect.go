package uplink

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// Applicant is the site as it presents itself to a daemon.
type Applicant struct {
	Site      forgeyard.SiteID
	Name      string
	PublicKey ed25519.PublicKey
	Key       mesh.Secret // of the site; only the leader and its voters have it
	First     uint64      // number of the next outbox record: state.Acked + 1
	Cursor    uint64      // state.Cursor
}

// ApplicantOf takes what the state knows.
func ApplicantOf(s *site.State, key mesh.Secret) Applicant {
	return Applicant{Site: s.Site, Name: s.Name, PublicKey: s.PublicKey, Key: key, First: s.Acked + 1, Cursor: s.Cursor}
}

// Connect redeems a ticket: it pins the daemon's peer id, dials it, and proves the
// secret and the site key inside the encrypted stream. The caller then proposes
// what it returns. Repeating it with the same ticket is safe: an answer that was lost
// costs nothing. Kinds: Invalid for the ticket, Denied for one that is spent, expired or
// forged, Unavailable if the daemon cannot be reached.
func Connect(ctx context.Context, m *mesh.Mesh, who Applicant, ticket string) (site.UplinkConnect, error) {
	t, err := ParseTicket(ticket)
	if err != nil {
		return site.UplinkConnect{}, err
	}
	id, err := peer.Decode(t.Central)
	if err != nil {
		return site.UplinkConnect{}, forgeyard.E("uplink connect", forgeyard.Invalid, err)
	}
	sig, err := Prove(who.Key, t.Central, t.ID, who.Site, m.PeerID().String())
	if err != nil {
		return site.UplinkConnect{}, err
	}
	if err := m.AddAddrs(id, t.Addrs); err != nil {
		return site.UplinkConnect{}, err
	}
	m.Pin(id, mesh.ClassUplink)
	ctx, cancel := context.WithTimeout(ctx, enrolTimeout)
	defer cancel()
	tr := m.HTTPTransport(ProtoEnrol)
	defer tr.CloseIdleConnections()
	resp, err := newClient(tr, t.Central).Enrol(ctx, connect.NewRequest(&v1.EnrolRequest{
		SiteId: string(who.Site), SiteName: who.Name, SitePublicKey: who.PublicKey, TicketId: string(t.ID), Secret: t.Secret.Reveal(), Proof: sig,
		First: who.First, Cursor: who.Cursor,
	}))
	if err != nil {
		return site.UplinkConnect{}, forgeyard.E("uplink connect", forgeyard.Other, err).WithHint("check that the daemon runs and that its clock and the ticket's age allow it; then run the same command again")
	}
	terms := TermsOf(resp.Msg.Terms)
	if err := reckon.CheckTerms(terms); err != nil {
		return site.UplinkConnect{}, forgeyard.E("uplink connect: the daemon's terms", forgeyard.Invalid, err)
	}
	return site.UplinkConnect{
		Central: site.Central{Peer: t.Central, Addrs: t.Addrs, Name: forgeyard.Clip(resp.Msg.CentralName, MaxName), Ticket: string(t.ID)},
		Terms:   terms,
	}, nil
}

// Attach makes the mesh of a member know the daemon that the state names: at
// start, and whenever the state's daemon changed. Only then can either dial the other.
func Attach(m *mesh.Mesh, c site.Central) error {
	id, err := peer.Decode(c.Peer)
	if err != nil {
		return forgeyard.E("uplink", forgeyard.Invalid, err)
	}
	m.Pin(id, mesh.ClassUplink)
	return m.AddAddrs(id, c.Addrs)
}

// Detach forgets it and closes what is open to it.
func Detach(m *mesh.Mesh, central string) error {
	id, err := peer.Decode(central)
	if err != nil {
		return forgeyard.E("uplink", forgeyard.Invalid, err)
	}
	m.Unpin(id)
	return nil
}

// NewClient speaks to the daemon over the mesh; it is what Config.Client returns.
func NewClient(m *mesh.Mesh, central string) forgeyardv1connect.DelegationServiceClient {
	return newClient(m.HTTPTransport(ProtoUplink), central)
}

func newClient(tr *http.Transport, central string) forgeyardv1connect.DelegationServiceClient {
	return forgeyardv1connect.NewDelegationServiceClient(&http.Client{Transport: tr}, "http://"+central,
		connect.WithInterceptors(wire.Interceptor{}, connect.UnaryInterceptorFunc(ownCause)), connect.WithReadMaxBytes(MaxMessage))
}

// ownCause keeps the kind of what went wrong before anything was sent: a peer that
// refuses us is Denied, where Connect sees only a dial that failed.
func ownCause(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		resp, err := next(ctx, r)
		var own *forgeyard.Error
		if errors.As(err, &own) {
			return resp, own
		}
		return resp, err
	}
}

// Holder writes where a member can be found, for Config.Holders: the daemon has no
// other way to learn the addresses of a member that has not dialled it.
func Holder(peerID string, addrs []string) []string {
	if len(addrs) == 0 {
		return []string{peerID}
	}
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a+"/p2p/"+peerID)
	}
	return out
}
