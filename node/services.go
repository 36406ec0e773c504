package node

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/control"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// peerService answers the other members, over the mesh only. Who asks is proved by the
// connection; what a member may ask is decided by site.Admits.
type peerService struct{ n *Node }

var _ forgeyardv1connect.PeerServiceHandler = peerService{}

func authorityToWire(a forgeyard.Authority) *forgeyardv1.Authority {
	return &forgeyardv1.Authority{
		JobId: string(a.Job), AttemptId: string(a.Attempt), LeaseId: string(a.Lease), SpecId: a.Spec.String(), RunnerId: string(a.Runner),
		SessionId: string(a.Session), Fence: a.Fence.String(),
	}
}

func authorityFromWire(w *forgeyardv1.Authority) (forgeyard.Authority, error) {
	spec, err := forgeyard.ParseDigest(w.SpecId)
	if err != nil {
		return forgeyard.Authority{}, err
	}
	f, err := forgeyard.ParseFence(w.Fence)
	return forgeyard.Authority{
		Job: forgeyard.JobID(w.JobId), Attempt: forgeyard.AttemptID(w.AttemptId), Lease: forgeyard.LeaseID(w.LeaseId), Spec: spec,
		Runner: forgeyard.RunnerID(w.RunnerId), Session: forgeyard.SessionID(w.SessionId), Fence: f,
	}, err
}

func caller(ctx context.Context) (mesh.Peer, error) {
	p, ok := mesh.PeerFrom(ctx)
	if !ok || p.Class != mesh.ClassMember {
		return p, forgeyard.Errorf("peer", forgeyard.Denied, "only members of the site may ask this")
	}
	return p, nil
}

// Propose implements the service. A node that does not lead passes a command on once.
func (s peerService) Propose(ctx context.Context, r *connect.Request[forgeyardv1.ProposeRequest]) (*connect.Response[forgeyardv1.ProposeResponse], error) {
	p, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	cmd, err := site.Decode(r.Msg.Command)
	if err != nil {
		return nil, err
	}
	if err := s.n.current(ctx); err != nil {
		return nil, err
	}
	if err := s.n.replica.State().Admits(p.Runner, cmd.Body); err != nil {
		return nil, err
	}
	if err := s.n.mayWrite(ctx, cmd.Body); err != nil {
		return nil, err
	}
	ctx = withHops(ctx, r.Header())
	if b, ok := cmd.Body.(site.Register); ok {
		if l := s.n.leading.Load(); l != nil {
			if err := l.Contest(ctx, b); err != nil {
				return nil, err
			}
		}
	}
	index, reply, err := s.propose(ctx, r.Msg.Command)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.ProposeResponse{Index: index, Reply: reply}), nil
}

func (s peerService) propose(ctx context.Context, command []byte) (uint64, []byte, error) {
	if s.n.group.IsLeader() {
		return s.n.proposer.Here(ctx, command)
	}
	_, addr, _ := s.n.group.Leader()
	if addr == "" || addr == s.n.mesh.PeerID().String() || hopsOf(ctx) > 1 {
		return 0, nil, notLeading(s.n)
	}
	return s.n.peers.forward(ctx, addr, command)
}

func notLeading(n *Node) error {
	return forgeyard.Errorf("leader", forgeyard.Unavailable, "%s does not lead and knows nobody who does", n.enrolment.Name)
}

// Renew implements the service.
func (s peerService) Renew(ctx context.Context, r *connect.Request[forgeyardv1.RenewRequest]) (*connect.Response[forgeyardv1.RenewResponse], error) {
	p, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	ctx = withHops(ctx, r.Header())
	who := forgeyard.RunnerID(r.Msg.RunnerId)
	if who != p.Runner && !s.mayVote(p.Runner) {
		return nil, forgeyard.Errorf("renew", forgeyard.Denied, "%s may not renew for %s", p.Runner, who)
	}
	l := s.n.leading.Load()
	if l == nil {
		return s.passOn(ctx, r)
	}
	batch := make([]controllers.Renewal, 0, len(r.Msg.Leases))
	for _, w := range r.Msg.Leases {
		a, err := authorityFromWire(w)
		if err != nil {
			return nil, err
		}
		batch = append(batch, controllers.Renewal{Authority: a})
	}
	sign, err := s.n.signFromWire(r.Msg, batch)
	if err != nil {
		return nil, err
	}
	answers, err := l.Renew(ctx, who, sign, batch)
	if err != nil {
		return nil, err
	}
	out := &forgeyardv1.RenewResponse{Contest: l.Contested(who)}
	for _, a := range answers {
		out.Answers = append(out.Answers, answerToWire(a))
	}
	return connect.NewResponse(out), nil
}

// mayVote reports whether a member may lead: only such a one passes on what others ask.
func (s peerService) mayVote(r forgeyard.RunnerID) bool {
	m, ok := s.n.replica.State().Members.Get(r)
	return ok && m.MayLead()
}

// passTo is the leader, for who does not lead and was asked by one that cannot reach it;
// empty where nothing is to be passed on. Once is enough: whoever was asked by another
// member than the one that wants to know leads, or nobody does.
func (s peerService) passTo(ctx context.Context) string {
	_, addr, _ := s.n.group.Leader()
	if s.n.group.IsLeader() || addr == s.n.mesh.PeerID().String() || hopsOf(ctx) > 0 {
		return ""
	}
	return addr
}

// passOn hands a heartbeat of a node that cannot reach the leader, or is not in the group
// yet, to it.
func (s peerService) passOn(ctx context.Context, r *connect.Request[forgeyardv1.RenewRequest]) (*connect.Response[forgeyardv1.RenewResponse], error) {
	addr := s.passTo(ctx)
	if addr == "" {
		return nil, notLeading(s.n)
	}
	req := connect.NewRequest(r.Msg)
	setHops(req.Header(), 1)
	return s.n.peers.to(addr).Renew(ctx, req)
}

// Term implements the service.
func (s peerService) Term(_ context.Context, r *connect.Request[forgeyardv1.TermRequest]) (*connect.Response[forgeyardv1.TermResponse], error) {
	// A vote of confidence from here must not help a leader of an incarnation that was given up.
	if own := s.n.group.Lineage(); r.Msg.Lineage != own {
		return nil, forgeyard.Errorf("term", forgeyard.Stale, "%s belongs to incarnation %d of the site, the caller to %d", s.n.enrolment.Name, incarnationOf(own), incarnationOf(r.Msg.Lineage))
	}
	promised, err := s.n.group.Promised()
	if err != nil {
		return nil, err
	}
	term, index, _ := s.n.group.LastEntry() // zero is not known, and passes for no old end: see lastWord
	return connect.NewResponse(&forgeyardv1.TermResponse{Term: promised, LastTerm: term, LastIndex: index}), nil
}

// Leading implements the service: a node that hears it renews at once, so that a new
// leader knows soon who is there.
func (s peerService) Leading(ctx context.Context, r *connect.Request[forgeyardv1.LeadingRequest]) (*connect.Response[forgeyardv1.LeadingResponse], error) {
	p, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if !s.mayVote(p.Runner) {
		return nil, forgeyard.Errorf("leading", forgeyard.Denied, "%s may not vote", p.Runner)
	}
	s.n.hinted(leaderHint{addr: p.ID.String(), term: r.Msg.Term, lineage: s.n.lineage()})
	s.n.local.askRenewal()
	return connect.NewResponse(&forgeyardv1.LeadingResponse{}), nil
}

// Hash implements the service.
func (s peerService) Hash(ctx context.Context, r *connect.Request[forgeyardv1.HashRequest]) (*connect.Response[forgeyardv1.HashResponse], error) {
	h, err := s.n.group.HashAt(ctx, r.Msg.Index)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.HashResponse{Hash: h[:]}), nil
}

// Vouch implements the service.
func (s peerService) Vouch(_ context.Context, r *connect.Request[forgeyardv1.VouchRequest]) (*connect.Response[forgeyardv1.VouchResponse], error) {
	v := s.n.witness.Elapsed(r.Msg.Marked, forgeyard.Wall(r.Msg.AtMs))
	return connect.NewResponse(&forgeyardv1.VouchResponse{Known: v.Known, Elapsed: durationpb.New(v.Elapsed), How: string(v.How), Why: v.Why}), nil
}

// Explain implements the service.
func (s peerService) Explain(_ context.Context, r *connect.Request[forgeyardv1.ExplainRequest]) (*connect.Response[forgeyardv1.ExplainResponse], error) {
	l := s.n.leading.Load()
	if l == nil {
		return nil, notLeading(s.n)
	}
	held, all, err := l.Explain(forgeyard.JobID(r.Msg.JobId))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.ExplainResponse{HeldBack: held, Candidates: candidates(all)}), nil
}

func candidates(all []controllers.Candidate) []*forgeyardv1.Job_Candidate {
	var out []*forgeyardv1.Job_Candidate
	for _, c := range all {
		out = append(out, &forgeyardv1.Job_Candidate{Runner: c.Name, RunnerId: string(c.Runner), Reasons: c.Reasons})
	}
	return out
}

// Barrier implements the service.
func (s peerService) Barrier(ctx context.Context, r *connect.Request[forgeyardv1.BarrierRequest]) (*connect.Response[forgeyardv1.BarrierResponse], error) {
	ctx = withHops(ctx, r.Header())
	if addr := s.passTo(ctx); addr != "" {
		req := connect.NewRequest(r.Msg)
		setHops(req.Header(), hopsOf(ctx)+1)
		return s.n.peers.to(addr).Barrier(ctx, req)
	}
	i, err := s.n.group.Confirm(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.n.group.WaitApplied(ctx, i); err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.BarrierResponse{Index: i, LogFormat: uint32(s.n.replica.State().LogFormat())}), nil
}

// Credential implements the service: a member gets a credential that lasts longer,
// with what the log says of it now. One that may vote and holds no site key, since it had to
// wait for approval, gets that too.
func (s peerService) Credential(ctx context.Context, r *connect.Request[forgeyardv1.CredentialRequest]) (*connect.Response[forgeyardv1.CredentialResponse], error) {
	p, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if s.n.siteKey().IsZero() {
		return nil, forgeyard.Errorf("credential", forgeyard.Unavailable, "%s holds no site key", s.n.enrolment.Name)
	}
	m, ok := s.n.replica.State().Members.Get(p.Runner)
	if !ok || m.Removed || m.Peer != p.ID.String() {
		return nil, forgeyard.Errorf("credential", forgeyard.Denied, "%s is not a member", p.Runner)
	}
	e := mesh.Enrolment{SiteID: s.n.enrolment.SiteID, RunnerID: p.Runner, Roles: []string{mesh.RoleRunner}}
	if m.MayLead() {
		e.Roles = append(e.Roles, mesh.RoleVoter)
	}
	e, err = s.n.sign(e, p.ID)
	if err != nil {
		return nil, err
	}
	out := &forgeyardv1.CredentialResponse{Credential: e.Credential}
	if r.Msg.WantsKey && m.MayLead() {
		out.SiteKey = s.n.siteKey().Reveal()
	}
	return connect.NewResponse(out), nil
}

// Log implements the service.
func (s peerService) Log(ctx context.Context, r *connect.Request[forgeyardv1.PeerLogRequest], out *connect.ServerStream[forgeyardv1.LogFrame]) error {
	if r.Msg.Epoch > 0 {
		j, ok := s.n.replica.State().Jobs.Get(forgeyard.JobID(r.Msg.JobId))
		if !ok || !slices.ContainsFunc(j.History, func(e site.EpochRecord) bool {
			return e.Epoch == r.Msg.Epoch && string(e.Attempt) == r.Msg.AttemptId
		}) {
			return forgeyard.Errorf("log", forgeyard.NotFound, "epoch %d of job %s is not known on %s", r.Msg.Epoch, r.Msg.JobId, s.n.enrolment.Name)
		}
		return s.n.unsavedHere(j, forgeyard.AttemptID(r.Msg.AttemptId), r.Msg.Epoch, func(f *forgeyardv1.LogFrame) error {
			if f.Seq <= r.Msg.After {
				return nil
			}
			return out.Send(f)
		})
	}
	return s.n.tailHere(ctx, forgeyard.AttemptID(r.Msg.AttemptId), r.Msg.After, r.Msg.Follow, out.Send)
}

// Console implements the service.
func (s peerService) Console(ctx context.Context, st *connect.BidiStream[forgeyardv1.PeerConsoleData, forgeyardv1.PeerConsoleData]) error {
	p, err := caller(ctx)
	if err != nil {
		return err
	}
	first, err := st.Receive()
	if err != nil {
		return err
	}
	if err := s.mayUse(p.Runner, forgeyard.DeviceID(first.DeviceId)); err != nil {
		return err
	}
	rw, err := s.n.openLocalConsole(ctx, forgeyard.DeviceID(first.DeviceId), first.Token)
	if err != nil {
		return err
	}
	return pump(ctx, rw, peerConsole{st})
}

// mayUse says why a member may not open a device's console, or nil: a device that a job
// holds is for the node that runs the job, one that a person holds for any, since the
// person may sit at any node.
func (s peerService) mayUse(r forgeyard.RunnerID, id forgeyard.DeviceID) error {
	st := s.n.replica.State()
	d, ok := st.Devices.Get(id)
	if !ok || d.Lease == nil || d.Lease.Holder.Job == "" {
		return nil // the token decides
	}
	j, _ := st.Jobs.Get(d.Lease.Holder.Job)
	if j.Lease.Authority.Runner != r {
		return forgeyard.Errorf("console", forgeyard.Denied, "%s is leased to a job that runs on %s, not on %s", id, s.n.memberName(j.Lease.Authority.Runner), s.n.memberName(r))
	}
	return nil
}

type peerConsole struct {
	s *connect.BidiStream[forgeyardv1.PeerConsoleData, forgeyardv1.PeerConsoleData]
}

func (c peerConsole) Send(b []byte) error { return c.s.Send(&forgeyardv1.PeerConsoleData{Data: b}) }

func (c peerConsole) Receive() ([]byte, error) {
	m, err := c.s.Receive()
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

var _ control.ConsoleStream = peerConsole{}

// closeTimeout bounds each step of an orderly end.
const closeTimeout = 5 * time.Second
