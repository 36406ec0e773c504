package central

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// control serves the command line on the unix socket. Whoever can open the socket
// may do everything: its mode is 0600.
type control struct {
	store *Store
	cas   cas.Store
	cfg   Config
	self  string
	addrs func() []string
}

var _ forgeyardv1connect.CentralServiceHandler = (*control)(nil)

// newID draws a ULID.
func (c *control) newID() (string, error) {
	var e [10]byte
	if _, err := rand.Read(e[:]); err != nil {
		return "", forgeyard.E("id", forgeyard.Other, err)
	}
	return forgeyard.NewULID(c.cfg.Clock.Wall(), e), nil
}

// Status implements forgeyardv1connect.CentralServiceHandler.
func (c *control) Status(context.Context, *connect.Request[v1.CentralStatusRequest]) (*connect.Response[v1.CentralStatus], error) {
	return connect.NewResponse(&v1.CentralStatus{
		PeerId: c.self, Addrs: c.addrs(), DataDir: c.cfg.DataDir, Version: c.cfg.Version, Name: c.cfg.Name, Pid: int64(os.Getpid()),
	}), nil
}

// CreateTicket implements forgeyardv1connect.CentralServiceHandler. Terms that are
// not given are the defaults.
func (c *control) CreateTicket(_ context.Context, r *connect.Request[v1.CreateTicketRequest]) (*connect.Response[v1.Ticket], error) {
	terms := lease.DefaultUplinkTerms()
	if t := r.Msg.Terms; t != nil {
		if t.SilentAfter != nil {
			terms.SilentAfter = t.SilentAfter.AsDuration()
		}
		if t.Grace != nil {
			terms.Grace = t.Grace.AsDuration()
		}
		if t.Allowance != nil {
			terms.Allowance = t.Allowance.AsDuration()
		}
	}
	ttl := DefaultTicketTTL
	if r.Msg.Ttl != nil {
		ttl = r.Msg.Ttl.AsDuration()
	}
	id, err := c.newID()
	if err != nil {
		return nil, err
	}
	secret, err := uplink.NewSecret()
	if err != nil {
		return nil, err
	}
	addrs := c.addrs()
	t := uplink.Ticket{ID: forgeyard.TokenID(id), Central: c.self, Addrs: addrs[:min(len(addrs), maxTicketAddrs)], Name: c.cfg.Name, Secret: secret}
	if t.Expires, err = c.store.NewTicket(t.ID, uplink.SecretHash(secret.Reveal()), ttl, terms); err != nil {
		return nil, err
	}
	text, err := t.Text()
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.Ticket{TicketId: id, Ticket: text, Expires: stamp(t.Expires), Terms: uplink.TermsTo(terms)}), nil
}

// ListSites implements forgeyardv1connect.CentralServiceHandler.
func (c *control) ListSites(context.Context, *connect.Request[v1.ListSitesRequest]) (*connect.Response[v1.ListSitesResponse], error) {
	sites, err := c.store.Sites()
	if err != nil {
		return nil, err
	}
	out := &v1.ListSitesResponse{}
	for _, s := range sites {
		m, err := c.siteMessage(s)
		if err != nil {
			return nil, err
		}
		out.Sites = append(out.Sites, m)
	}
	return connect.NewResponse(out), nil
}

func (c *control) siteMessage(s Site) (*v1.CentralSite, error) {
	open, pending, err := c.store.Counts(s.ID)
	if err != nil {
		return nil, err
	}
	m := &v1.CentralSite{
		SiteId: string(s.ID), Name: s.Name, Enrolled: stamp(s.Enrolled), LastContact: stamp(s.Contact.At), AsOf: stamp(s.Contact.At),
		Records: s.Records, Delegated: s.Delegated, Cursor: s.Cursor, Terms: uplink.TermsTo(s.Terms), Holders: s.Contact.Holders, PeerId: s.Contact.Peer,
		JobsOpen: open, ObjectsPending: pending,
	}
	if len(s.Contact.Connectivity) > 0 {
		m.Connectivity = &v1.Connectivity{}
		if err := proto.Unmarshal(s.Contact.Connectivity, m.Connectivity); err != nil {
			return nil, forgeyard.E("site", forgeyard.Corrupt, err)
		}
	}
	return m, nil
}

// Delegate implements forgeyardv1connect.CentralServiceHandler.
func (c *control) Delegate(ctx context.Context, r *connect.Request[v1.DelegateRequest]) (*connect.Response[v1.CentralJob], error) {
	if err := checkUpload(r.Msg.Upload); err != nil {
		return nil, err
	}
	to, err := c.store.FindSite(r.Msg.Site)
	if err != nil {
		return nil, err
	}
	spec, err := job.DecodeSpec(r.Msg.Spec)
	if err != nil {
		return nil, err
	}
	id, err := c.newID()
	if err != nil {
		return nil, err
	}
	title := r.Msg.Title
	if title == "" {
		title = spec.Title
	}
	title = forgeyard.Clip(title, job.MaxTitle)
	d := site.Delegation{Title: title, Spec: r.Msg.Spec, SpecID: cas.Sum(r.Msg.Spec)}
	d.Grant = lease.Grant{ID: forgeyard.GrantID(id), Term: 1, Policy: spec.Connectivity}
	if d.Grant.End, err = c.hardEnd(r.Msg, spec); err != nil {
		return nil, err
	}
	if err := c.pinInputs(ctx, d.Grant.ID, spec); err != nil {
		return nil, err
	}
	j, err := c.store.Delegate(to.ID, Job{Grant: d.Grant.ID, Title: title, Spec: d.SpecID, Durability: spec.Durability, Term: d.Grant.Term, End: d.Grant.End}, d)
	if err != nil {
		return nil, errors.Join(err, c.cas.Unpin(ctx, delegationOwner(d.Grant.ID)))
	}
	if r.Msg.Upload != "" {
		if err := c.cas.Unpin(ctx, uploadPrefix+r.Msg.Upload); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(jobMessage(j, to)), nil
}

// hardEnd is when the authority ends for good, by this daemon's clock. Work that may take
// longer would never begin.
func (c *control) hardEnd(r *v1.DelegateRequest, spec job.Spec) (forgeyard.Wall, error) {
	if r.Within == nil {
		return 0, nil
	}
	switch d := r.Within.AsDuration(); {
	case d <= 0 || d > reckon.MaxAllowance:
		return 0, forgeyard.Errorf("delegate", forgeyard.Invalid, "within %s is not in (0s, %s]", d, reckon.MaxAllowance)
	case d <= spec.Timeouts.Run:
		return 0, forgeyard.Errorf("delegate", forgeyard.Invalid, "within %s: the job may run for %s, so it would never begin", d, spec.Timeouts.Run).WithHint("lower job.timeouts.run, or give it more time")
	default:
		return forgeyard.WallOf(c.cfg.Clock.Wall().Add(d)), nil
	}
}

// pinInputs keeps the inputs before anybody is told of the job. One that is named by
// its digest need not be here: the site may have it.
func (c *control) pinInputs(ctx context.Context, g forgeyard.GrantID, spec job.Spec) error {
	var all []object
	for _, in := range spec.Inputs {
		all = append(all, object{digest: in.Digest, tree: in.Tree})
	}
	if len(all) == 0 {
		return nil
	}
	return c.cas.Pin(ctx, pinOf(delegationOwner(g), all))
}

// ListJobs implements forgeyardv1connect.CentralServiceHandler.
func (c *control) ListJobs(_ context.Context, r *connect.Request[v1.ListCentralJobsRequest]) (*connect.Response[v1.ListCentralJobsResponse], error) {
	sites, err := c.sites()
	if err != nil {
		return nil, err
	}
	var of forgeyard.SiteID
	if r.Msg.Site != "" {
		s, err := c.store.FindSite(r.Msg.Site)
		if err != nil {
			return nil, err
		}
		of = s.ID
	}
	jobs, err := c.store.Jobs(of)
	if err != nil {
		return nil, err
	}
	out := &v1.ListCentralJobsResponse{}
	for _, j := range jobs {
		out.Jobs = append(out.Jobs, jobMessage(j, sites[j.Site]))
	}
	return connect.NewResponse(out), nil
}

func (c *control) sites() (map[forgeyard.SiteID]Site, error) {
	all, err := c.store.Sites()
	byID := map[forgeyard.SiteID]Site{}
	for _, s := range all {
		byID[s.ID] = s
	}
	return byID, err
}

// ShowJob implements forgeyardv1connect.CentralServiceHandler.
func (c *control) ShowJob(_ context.Context, r *connect.Request[v1.ShowCentralJobRequest]) (*connect.Response[v1.CentralJob], error) {
	j, err := c.store.Job(forgeyard.GrantID(r.Msg.GrantId))
	if err != nil {
		return nil, err
	}
	sites, err := c.sites()
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(jobMessage(j, sites[j.Site])), nil
}

// CancelJob implements forgeyardv1connect.CentralServiceHandler.
func (c *control) CancelJob(_ context.Context, r *connect.Request[v1.CancelCentralJobRequest]) (*connect.Response[v1.CancelResponse], error) {
	j, changed, err := c.store.Cancel(forgeyard.GrantID(r.Msg.GrantId))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CancelResponse{Changed: changed, Status: string(j.Status)}), nil
}

// Audit implements forgeyardv1connect.CentralServiceHandler.
func (c *control) Audit(_ context.Context, r *connect.Request[v1.AuditRequest]) (*connect.Response[v1.AuditResponse], error) {
	n := int(r.Msg.Limit)
	switch {
	case n == 0:
		n = defaultAudit
	case n < 0 || n > maxAuditList:
		return nil, forgeyard.Errorf("audit", forgeyard.Invalid, "limit %d is not in [1, %d]", n, maxAuditList)
	}
	rows, err := c.store.Audit(n)
	if err != nil {
		return nil, err
	}
	out := &v1.AuditResponse{}
	for _, a := range rows {
		out.Entries = append(out.Entries, &v1.AuditEntry{Seq: a.seq, At: stamp(a.At), Kind: a.Kind, SiteId: string(a.Site), GrantId: string(a.Grant), Text: a.Text})
	}
	return connect.NewResponse(out), nil
}

// PutObject implements forgeyardv1connect.CentralServiceHandler.
func (c *control) PutObject(ctx context.Context, s *connect.ClientStream[v1.PutObjectRequest]) (*connect.Response[v1.PutObjectResponse], error) {
	if !s.Receive() {
		if err := s.Err(); err != nil {
			return nil, err
		}
		return nil, forgeyard.Errorf("put", forgeyard.Invalid, "the upload has no head")
	}
	o := cas.PutOptions{Class: cas.Durable}
	if u := s.Msg().Upload; u != "" {
		if err := checkUpload(u); err != nil {
			return nil, err
		}
		o.Owner = uploadPrefix + u
	}
	ref, err := c.cas.Put(ctx, &uploadReader{s: s, rest: s.Msg().Data}, o)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.PutObjectResponse{Digest: ref.Digest.String(), Size: ref.Size, Manifest: ref.Manifest.String()}), nil
}

func checkUpload(u string) error {
	if len(u) > maxUploadName || strings.ContainsFunc(u, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return forgeyard.Errorf("put", forgeyard.Invalid, "the upload's name must be at most %d printable letters", maxUploadName)
	}
	return nil
}

// uploadReader reads the pieces of an upload.
type uploadReader struct {
	s    *connect.ClientStream[v1.PutObjectRequest]
	rest []byte
}

func (r *uploadReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.s.Receive() {
			if err := r.s.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.rest = r.s.Msg().Data
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func jobMessage(j Job, of Site) *v1.CentralJob {
	m := &v1.CentralJob{
		GrantId: string(j.Grant), SiteId: string(j.Site), Site: of.Name, Title: j.Title, Status: string(j.Status), Term: j.Term, JobId: string(j.Job),
		DelegatedAt: stamp(j.Delegated), Ended: stamp(j.Ended), Received: stamp(j.Received), Outcomes: int32(j.Outcomes), ObjectsComplete: j.Objects,
		CancelRequested: stamp(j.CancelAt), CancelTaken: stamp(j.CancelSeen), Record: j.Record, SpecId: j.Spec.String(), ObjectsError: j.ObjectsErr,
		Durability: string(j.Durability), HardEnd: stamp(j.End),
	}
	if !j.Fence.IsZero() {
		m.Fence = j.Fence.String()
	}
	if !j.Status.terminal() {
		m.SiteAsOf = stamp(of.Contact.At)
		m.SiteStatus, m.SiteReason = reckon.Standing(of.Contact.Still, j.Grant)
	}
	if r := j.Result; r != nil {
		m.ExitCode, m.Message, m.Category = int32(r.ExitCode), r.Message, string(r.Category)
		for _, o := range r.Outputs {
			m.Outputs = append(m.Outputs, &v1.Output{Path: o.Path, Digest: o.Digest.String(), Size: o.Size, Tree: o.Tree, Manifest: o.Manifest.String()})
		}
	}
	return m
}

// stamp is nil for the zero time: a key that is not there says "not yet".
func stamp(w forgeyard.Wall) *timestamppb.Timestamp {
	if w == 0 {
		return nil
	}
	return timestamppb.New(w.Time())
}
