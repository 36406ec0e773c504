package central

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/uplink"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// delegation serves sites: Enrol to visitors, Sync to members of enrolled sites.
// Each goes over a protocol of its own, and the mesh says who may open which.
type delegation struct {
	store  *Store
	access *access
	self   string // own peer id
	name   string
	ended  func(Job)                           // an outcome was accepted; must not block
	heard  func(Site)                          // a site spoke; must not block
	lacks  func(context.Context, Job) []string // digests of what a result names and is not here
	enrols chan struct{}
}

var _ forgeyardv1connect.DelegationServiceHandler = (*delegation)(nil)

// handlers gives the HTTP handlers of the two protocols.
func (d *delegation) handlers() (enrol, sync http.Handler) {
	path, small := forgeyardv1connect.NewDelegationServiceHandler(d, connect.WithInterceptors(wire.Interceptor{}), connect.WithReadMaxBytes(maxEnrolBytes))
	_, large := forgeyardv1connect.NewDelegationServiceHandler(d, connect.WithInterceptors(wire.Interceptor{}), connect.WithReadMaxBytes(uplink.MaxMessage))
	e, s := http.NewServeMux(), http.NewServeMux()
	e.Handle(forgeyardv1connect.DelegationServiceEnrolProcedure, small)
	s.Handle(path, large)
	return e, s
}

// Enrol implements forgeyardv1connect.DelegationServiceHandler.
func (d *delegation) Enrol(ctx context.Context, r *connect.Request[v1.EnrolRequest]) (*connect.Response[v1.EnrolResponse], error) {
	p, ok := mesh.PeerFrom(ctx)
	if !ok {
		return nil, forgeyard.Errorf("enrol", forgeyard.Denied, "the caller is not known")
	}
	select {
	case d.enrols <- struct{}{}:
		defer func() { <-d.enrols }()
	default:
		return nil, forgeyard.Errorf("enrol", forgeyard.Limit, "%d enrolments are under way, which is the bound", maxEnrols)
	}
	e, err := d.checkEnrol(p, r.Msg)
	if err != nil {
		return nil, err
	}
	row, err := d.store.Enrol(e)
	if err != nil {
		return nil, err
	}
	d.access.enrolled(row, p.ID)
	return connect.NewResponse(&v1.EnrolResponse{CentralName: d.name, Terms: uplink.TermsTo(row.Terms)}), nil
}

// checkEnrol checks all but the ticket: the site's key has signed this request, and
// the caller's credential.
func (d *delegation) checkEnrol(p mesh.Peer, m *v1.EnrolRequest) (enrolment, error) {
	e := enrolment{
		site: forgeyard.SiteID(m.SiteId), name: m.SiteName, public: ed25519.PublicKey(m.SitePublicKey),
		ticket: forgeyard.TokenID(m.TicketId), secret: m.Secret, first: m.First, cursor: m.Cursor,
	}
	if err := forgeyard.CheckULID("site", m.SiteId); err != nil {
		return e, err
	}
	if e.name == "" || len(e.name) > uplink.MaxName || strings.ContainsFunc(e.name, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }) {
		return e, forgeyard.Errorf("enrol", forgeyard.Invalid, "the site's name must be 1 to %d printable bytes", uplink.MaxName)
	}
	if len(e.ticket) > uplink.MaxName {
		return e, forgeyard.Errorf("enrol", forgeyard.Invalid, "a ticket id of %d bytes", len(e.ticket))
	}
	if !uplink.VerifyProof(e.public, m.Proof, d.self, e.ticket, e.site, p.ID.String()) {
		return e, forgeyard.Errorf("enrol", forgeyard.Denied, "the request is not signed by the key of site %s", e.site)
	}
	if p.Class == mesh.ClassSite {
		if p.Site != e.site {
			return e, forgeyard.Errorf("enrol", forgeyard.Denied, "a member of site %s cannot enrol site %s", p.Site, e.site)
		}
		return e, nil
	}
	c := d.access.credential(p.ID)
	if c == nil || c.Site != e.site {
		return e, forgeyard.Errorf("enrol", forgeyard.Denied, "the caller shows no credential of site %s", e.site)
	}
	return e, c.Verify(e.public, p.ID, d.access.clk.Wall())
}

// Sync implements forgeyardv1connect.DelegationServiceHandler.
func (d *delegation) Sync(ctx context.Context, r *connect.Request[v1.SyncRequest]) (*connect.Response[v1.SyncResponse], error) {
	p, ok := mesh.PeerFrom(ctx)
	if !ok || p.Class != mesh.ClassSite || string(p.Site) != r.Msg.SiteId {
		return nil, forgeyard.Errorf("sync", forgeyard.Denied, "the caller is no member of site %s", forgeyard.Clip(r.Msg.SiteId, 64))
	}
	resp, err := d.sync(ctx, p.ID.String(), r.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(resp), nil
}

// sync is one exchange with a site whose member was let in as speaker.
func (d *delegation) sync(ctx context.Context, speaker string, m *v1.SyncRequest) (*v1.SyncResponse, error) {
	in, err := readSync(speaker, m)
	if err != nil {
		return nil, err
	}
	in.contact.At = d.store.now()
	out, err := d.store.Exchange(in)
	if err != nil {
		return nil, err
	}
	resp := &v1.SyncResponse{
		Terms: uplink.TermsTo(out.site.Terms), Acked: out.site.Records,
		Delegations: out.delegations, Cursor: out.last, Cancelled: out.gone,
		DaemonMs: int64(d.store.now()),
	}
	for _, v := range out.verdicts {
		resp.Verdicts = append(resp.Verdicts, &v1.SyncResponse_Verdict{Seq: v.seq, Verdict: string(v.verdict), Reason: v.reason})
	}
	for _, j := range out.ended {
		if len(resp.Want) < maxWant {
			resp.Want = append(resp.Want, d.lacks(ctx, j)...)
		}
		d.ended(j)
	}
	resp.Want = resp.Want[:min(len(resp.Want), maxWant)]
	d.heard(out.site)
	return resp, nil
}

func readSync(speaker string, m *v1.SyncRequest) (sent, error) {
	in := sent{
		site: forgeyard.SiteID(m.SiteId), incarnation: m.Incarnation, cursor: m.Cursor, first: m.First, records: m.Records,
		contact: Contact{Peer: speaker, Still: uplink.StillOf(m.States)},
	}
	if n := len(m.Records); n > reckon.MaxBatchRecords {
		return in, forgeyard.Errorf("sync", forgeyard.Limit, "%d records at once, the bound is %d", n, reckon.MaxBatchRecords)
	}
	for _, h := range m.Holders[:min(len(m.Holders), uplink.MaxHolders)] {
		if _, err := holder(h); err == nil {
			in.contact.Holders = append(in.contact.Holders, h)
		}
	}
	if m.Connectivity != nil {
		c := proto.CloneOf(m.Connectivity)
		c.State, c.Central, c.Doubt = forgeyard.Clip(c.State, 32), "", forgeyard.Clip(c.Doubt, maxAuditText)
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
		if err != nil {
			return in, forgeyard.E("sync", forgeyard.Invalid, err)
		}
		in.contact.Connectivity = b
	}
	return in, nil
}

// holder reads where objects are: a peer id, or a multiaddr that ends in one.
func holder(text string) (peer.AddrInfo, error) {
	if len(text) > uplink.MaxHolderText {
		return peer.AddrInfo{}, forgeyard.Errorf("holder", forgeyard.Limit, "%d bytes, the bound is %d", len(text), uplink.MaxHolderText)
	}
	if strings.HasPrefix(text, "/") {
		info, err := peer.AddrInfoFromString(text)
		if err != nil {
			return peer.AddrInfo{}, forgeyard.E("holder", forgeyard.Invalid, err)
		}
		return *info, nil
	}
	id, err := peer.Decode(text)
	if err != nil {
		return peer.AddrInfo{}, forgeyard.E("holder", forgeyard.Invalid, err)
	}
	return peer.AddrInfo{ID: id}, nil
}
