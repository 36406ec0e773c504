package control

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/site/backup"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

type nodeService struct{ n Node }

func (s nodeService) Status(ctx context.Context, _ *connect.Request[forgeyardv1.NodeStatusRequest]) (*connect.Response[forgeyardv1.NodeStatus], error) {
	return connect.NewResponse(s.n.Status(ctx)), nil
}

func (s nodeService) Doctor(ctx context.Context, _ *connect.Request[forgeyardv1.DoctorRequest]) (*connect.Response[forgeyardv1.DoctorResponse], error) {
	return connect.NewResponse(s.n.Doctor(ctx)), nil
}

func (s nodeService) Drain(ctx context.Context, r *connect.Request[forgeyardv1.DrainRequest]) (*connect.Response[forgeyardv1.DrainResponse], error) {
	out, err := s.n.Drain(ctx, r.Msg)
	return respond(out, err)
}

func (s nodeService) Resume(ctx context.Context, _ *connect.Request[forgeyardv1.ResumeRequest]) (*connect.Response[forgeyardv1.ResumeResponse], error) {
	out, err := s.n.Undrain(ctx)
	return respond(out, err)
}

func (s nodeService) Cleanup(ctx context.Context, r *connect.Request[forgeyardv1.CleanupRequest]) (*connect.Response[forgeyardv1.CleanupResponse], error) {
	out, err := s.n.Cleanup(ctx, r.Msg.DryRun, r.Msg.Kept)
	return respond(out, err)
}

func respond[T any](m *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(m), nil
}

type siteService struct{ n Node }

func (s siteService) Status(ctx context.Context, _ *connect.Request[forgeyardv1.SiteStatusRequest]) (*connect.Response[forgeyardv1.SiteStatus], error) {
	quorum := s.n.Quorum(ctx)
	used, _, _ := s.n.UplinkUsed(ctx)
	st := s.n.Site()
	now := s.n.Wall()
	v := &forgeyardv1.SiteStatus{
		Site:         &forgeyardv1.SiteStatus_SiteRef{Id: string(st.Site), Name: st.Name, Incarnation: st.Incarnation},
		Leader:       &forgeyardv1.SiteStatus_LeaderRef{},
		Quorum:       quorum,
		Members:      s.n.Members(),
		Connectivity: Connectivity(st, used, now),
		Outbox:       Outbox(st),
		Jobs:         countJobs(st),
		Devices:      countDevices(st),
		AsOf:         timestamppb.New(now),
		AppliedIndex: st.Index,
		LogFormat:    uint32(st.LogFormat()),
	}
	for _, m := range v.Members {
		if m.Voter {
			v.Voters = append(v.Voters, m.RunnerId)
		}
		if m.Leader {
			v.Leader = &forgeyardv1.SiteStatus_LeaderRef{RunnerId: m.RunnerId, Name: m.Name}
		}
	}
	v.Advice = Advice(v.Members, st.Config.Voters)
	return connect.NewResponse(v), nil
}

func countJobs(s *site.State) *forgeyardv1.SiteStatus_JobCounts {
	c := &forgeyardv1.SiteStatus_JobCounts{Ended: int64(s.Ended.Len())}
	for id := range s.Open.All() {
		j, _ := s.Jobs.Get(id)
		switch j.Status {
		case job.Queued:
			c.Queued++
		case job.Leased, job.Running:
			c.Running++
		case job.Suspended:
			c.Suspended++
		case job.Unknown:
			c.Unknown++
		}
	}
	return c
}

func countDevices(s *site.State) *forgeyardv1.SiteStatus_DeviceCounts {
	c := &forgeyardv1.SiteStatus_DeviceCounts{}
	for _, d := range s.Devices.All() {
		switch {
		case d.Use == devices.Leased || d.Use == devices.Preparing:
			c.Leased++
		case d.Quarantine != nil:
			c.Quarantined++
		case d.Grantable() == "":
			c.Available++
		default:
			c.Other++
		}
	}
	return c
}

func (s siteService) Members(ctx context.Context, r *connect.Request[forgeyardv1.MembersRequest]) (*connect.Response[forgeyardv1.MembersResponse], error) {
	all := s.n.Members()
	for _, m := range all {
		if of := r.Msg.HeartbeatOf; of != "" && (m.RunnerId == of || m.Name == of) {
			if h, err := s.n.Heard(ctx, forgeyard.RunnerID(m.RunnerId)); err == nil {
				m.Heartbeat = h // else what the log and the membership know is shown all the same
			}
		}
	}
	return connect.NewResponse(&forgeyardv1.MembersResponse{Members: all}), nil
}

func (s siteService) Events(ctx context.Context, r *connect.Request[forgeyardv1.SiteEventsRequest], out *connect.ServerStream[forgeyardv1.SiteEvent]) error {
	after := r.Msg.After
	if err := out.Send(nil); err != nil { // the watch stands, though there may be nothing to tell yet
		return err
	}
	for {
		changed := s.n.Changed()
		st := s.n.Site()
		if lost := st.EventsLost(after, r.Msg.Kind); lost > 0 {
			text := fmt.Sprintf("events up to %d are no longer all kept; after %d none is missing", lost, lost)
			if err := out.Send(&forgeyardv1.SiteEvent{Index: lost, At: timestamppb.New(s.n.Wall()), Kind: "gap", Text: text}); err != nil {
				return err
			}
		}
		for _, e := range st.SiteEvents(after) {
			if r.Msg.Kind != "" && e.Kind != r.Msg.Kind {
				continue
			}
			if err := out.Send(&forgeyardv1.SiteEvent{Index: e.Index, At: stamp(e.At), Kind: e.Kind, Text: e.Text}); err != nil {
				return err
			}
		}
		after = max(after, st.Step)
		if !r.Msg.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Bounds of a join token's life.
const (
	defaultTokenTTL = time.Hour
	maxTokenTTL     = 30 * 24 * time.Hour
)

func (s siteService) CreateToken(ctx context.Context, r *connect.Request[forgeyardv1.CreateTokenRequest]) (*connect.Response[forgeyardv1.Token], error) {
	ttl := r.Msg.Ttl.AsDuration()
	if ttl == 0 {
		ttl = defaultTokenTTL
	}
	if ttl <= 0 || ttl > maxTokenTTL {
		return nil, forgeyard.Errorf("token create", forgeyard.Invalid, "ttl %s is not in (0, %s]", ttl, maxTokenTTL)
	}
	role := r.Msg.Role
	if role != "" && role != "voter" && role != "runner" {
		return nil, forgeyard.Errorf("token create", forgeyard.Invalid, "role %q is not voter or runner", forgeyard.Clip(role, 40))
	}
	t, err := s.n.NewToken(ctx, ttl, max(1, int(r.Msg.Uses)), role != "runner", r.Msg.Approve)
	return respond(t, err)
}

func (s siteService) ListTokens(context.Context, *connect.Request[forgeyardv1.ListTokensRequest]) (*connect.Response[forgeyardv1.ListTokensResponse], error) {
	out := &forgeyardv1.ListTokensResponse{}
	for _, t := range s.n.Site().Tokens.All() {
		out.Tokens = append(out.Tokens, Token(t))
	}
	return connect.NewResponse(out), nil
}

// Token shows a token without its secret, which nobody has any more.
func Token(t site.Token) *forgeyardv1.Token {
	role := "runner"
	if t.MayVote {
		role = "voter"
	}
	return &forgeyardv1.Token{TokenId: string(t.ID), Expires: stamp(t.Expires), UsesLeft: int32(t.Uses), Role: role, By: t.By, Revoked: t.Revoked, Approve: t.Approve}
}

func (s siteService) RevokeToken(ctx context.Context, r *connect.Request[forgeyardv1.RevokeTokenRequest]) (*connect.Response[forgeyardv1.RevokeTokenResponse], error) {
	_, err := propose(ctx, s.n, site.TokenRevoke{Token: forgeyard.TokenID(r.Msg.TokenId)})
	return respond(&forgeyardv1.RevokeTokenResponse{}, err)
}

func (s siteService) GetConfig(context.Context, *connect.Request[forgeyardv1.GetConfigRequest]) (*connect.Response[forgeyardv1.GetConfigResponse], error) {
	out := &forgeyardv1.GetConfigResponse{}
	cfg := s.n.Site().Config
	for _, k := range sitecfg.SiteKeys() {
		v, err := cfg.Get(k)
		if err != nil {
			return nil, err
		}
		out.Settings = append(out.Settings, &forgeyardv1.Setting{Key: k, Value: v, Source: "site"})
	}
	return connect.NewResponse(out), nil
}

func (s siteService) SetConfig(ctx context.Context, r *connect.Request[forgeyardv1.SetConfigRequest]) (*connect.Response[forgeyardv1.SetConfigResponse], error) {
	_, err := propose(ctx, s.n, site.ConfigSet{Key: r.Msg.Key, Value: r.Msg.Value})
	return respond(&forgeyardv1.SetConfigResponse{}, err)
}

func (s siteService) SetMember(ctx context.Context, r *connect.Request[forgeyardv1.SetMemberRequest]) (*connect.Response[forgeyardv1.SetMemberResponse], error) {
	m, err := findMember(s.n.Site(), r.Msg.Member)
	if err != nil {
		return nil, err
	}
	if r.Msg.Action == "attest-off" {
		return s.attestOff(ctx, m, r.Msg.Reason)
	}
	if r.Msg.Action == "preempt" || r.Msg.Action == "unpreempt" {
		return s.preempt(ctx, m, r.Msg)
	}
	yes, no := true, false
	b := site.MemberSet{Runner: m.Runner}
	switch r.Msg.Action {
	case "drain":
		b.Draining = &yes
	case "move":
		b.Draining, b.Move = &yes, true
	case "resume":
		b.Draining = &no
	case "disable":
		b.Disabled = &yes
	case "enable":
		b.Disabled = &no
	case "approve":
		b.Approved = true
	case "assign":
		b.Assign = assign(r.Msg.Assign)
	case "promote":
		if err := mayPromote(s.n.Members(), string(m.Runner), s.n.Site().Config.Voters); err != nil {
			return nil, err
		}
		b.Spare = &no
	case "demote":
		if err := mayRemove("demote", s.n.Members(), string(m.Runner)); err != nil {
			return nil, err
		}
		b.Spare = &yes
	case "remove":
		if err := mayRemove("remove", s.n.Members(), string(m.Runner)); err != nil {
			return nil, err
		}
		b.Removed = &yes
	default:
		return nil, forgeyard.Errorf("member", forgeyard.Invalid, "action %q is not drain, resume, disable, enable, approve, assign, move, promote, demote, remove, attest-off, preempt or unpreempt", forgeyard.Clip(r.Msg.Action, 40))
	}
	before := memberOf(s.n.Members(), string(m.Runner))
	if _, err := propose(ctx, s.n, b); err != nil {
		return nil, err
	}
	if r.Msg.Action == "remove" { // who hears that it is done switches the machine off
		if err := s.n.Outvoted(ctx, m.Runner); err != nil {
			return nil, err
		}
	}
	if now := memberOf(s.n.Members(), string(m.Runner)); now != nil {
		return connect.NewResponse(&forgeyardv1.SetMemberResponse{Member: now}), nil
	}
	if before != nil { // removed: as it was last seen, without its vote
		before.State, before.Voter, before.Leader = "removed", false, false
	}
	return connect.NewResponse(&forgeyardv1.SetMemberResponse{Member: before}), nil
}

// assign is what a person asks the site to say of a runner; the log judges it.
func assign(a *forgeyardv1.SetMemberRequest_Assign) *job.Assign {
	b := &job.Assign{Pool: a.GetPool(), NoPool: a.GetNoPool(), NoTrust: a.GetNoTrust(), Labels: a.GetLabels(), NoLabels: a.GetNoLabels(), Class: job.InterruptionClass(a.GetClass())}
	for _, t := range a.GetTrust() {
		b.Trust = append(b.Trust, job.Trust(t))
	}
	return b
}

// preempt takes a person's word that a machine will be taken away, or no longer will be.
func (s siteService) preempt(ctx context.Context, m site.Member, r *forgeyardv1.SetMemberRequest) (*connect.Response[forgeyardv1.SetMemberResponse], error) {
	b := site.Preempt{Runner: m.Runner, Left: int64(r.Left.AsDuration()), Source: forgeyard.Clip(r.Reason, 100), Off: r.Action == "unpreempt"}
	if _, err := propose(ctx, s.n, b); err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.SetMemberResponse{Member: memberOf(s.n.Members(), string(m.Runner))}), nil
}

// attestOff takes a person's word that a machine is off, unless the leader has heard it within
// the length of a lease, or does not lead for so long: then the word is surely wrong, or
// nobody can say yet that it is not.
func (s siteService) attestOff(ctx context.Context, m site.Member, reason string) (*connect.Response[forgeyardv1.SetMemberResponse], error) {
	if strings.TrimSpace(reason) == "" {
		return nil, forgeyard.Errorf("attest", forgeyard.Invalid, "the reason is empty").WithHint("say how you know: it stands in the site's events")
	}
	ttl := s.n.Site().Config.Lease.TTL
	h, err := s.n.Heard(ctx, m.Runner)
	switch kind := forgeyard.KindOf(err); {
	case err == nil && h.Ago.AsDuration() <= ttl:
		return nil, forgeyard.Errorf("attest", forgeyard.Conflict, "%s was heard %s ago, so it is not off", m.Name, h.Ago.AsDuration().Round(100*time.Millisecond)).
			WithHint("switch it off, and wait until it has been silent for %s", ttl)
	case err != nil && kind != forgeyard.NotFound:
		return nil, err
	}
	r, err := propose(ctx, s.n, site.AttestOff{Runner: m.Runner, Session: m.Session.ID, Reason: forgeyard.Clip(reason, 200)})
	if err != nil {
		return nil, err
	}
	v, err := site.Value[site.AttestedOff](r)
	if err != nil {
		return nil, err
	}
	out := &forgeyardv1.SetMemberResponse{Member: memberOf(s.n.Members(), string(m.Runner))}
	for _, id := range v.Released {
		out.Released = append(out.Released, string(id))
	}
	return connect.NewResponse(out), nil
}

func memberOf(all []*forgeyardv1.Member, id string) *forgeyardv1.Member {
	for _, m := range all {
		if m.RunnerId == id {
			return m
		}
	}
	return nil
}

// mayRemove refuses a removal after which the site could not decide anything: without a
// voter, or without a majority of those that remain alive. Nothing would bring it back.
func mayRemove(op string, all []*forgeyardv1.Member, id string) error {
	voters, alive, votes := 0, 0, false
	for _, m := range all {
		switch {
		case m.RunnerId == id:
			votes = m.Voter
		case m.Voter:
			voters++
			if m.State == "alive" {
				alive++
			}
		}
	}
	switch {
	case !votes:
		return nil
	case voters == 0:
		return forgeyard.Errorf(op, forgeyard.Conflict, "it is the only voter: the site would end with it").WithHint("let two more nodes join first")
	case 2*alive <= voters:
		return forgeyard.Errorf(op, forgeyard.Conflict, "only %d of the %d voters that would remain are alive, which is no majority", alive, voters).WithHint("bring the missing ones back, or remove those first")
	}
	return nil
}

// backupChunk is the size of one message of a backup.
const backupChunk = 1 << 20

// Backup sends the state as of a read that is current: a copy that is behind could leave
// out what was acknowledged.
func (s siteService) Backup(ctx context.Context, _ *connect.Request[forgeyardv1.BackupRequest], out *connect.ServerStream[forgeyardv1.BackupChunk]) error {
	term, err := s.n.Current(ctx)
	if err != nil {
		return err
	}
	by, version := s.n.Identity()
	b := backup.Encode(s.n.Site(), backup.Header{Term: term, At: forgeyard.WallOf(s.n.Wall()), Program: version, By: by})
	total := int64(len(b))
	for len(b) > 0 {
		n := min(len(b), backupChunk)
		if err := out.Send(&forgeyardv1.BackupChunk{Total: total, Data: b[:n]}); err != nil {
			return err
		}
		b, total = b[n:], 0
	}
	return nil
}

func (s siteService) Recover(ctx context.Context, r *connect.Request[forgeyardv1.RecoverRequest]) (*connect.Response[forgeyardv1.RecoverResponse], error) {
	out, err := s.n.Recover(ctx, person, r.Msg.Force)
	return respond(out, err)
}

// mayPromote refuses a vote that the site has no place for, or that the node cannot carry.
func mayPromote(all []*forgeyardv1.Member, id string, bound int) error {
	voters := 0
	for _, m := range all {
		switch {
		case m.Voter && m.RunnerId == id:
			return nil // it has one
		case m.Voter:
			voters++
		case m.RunnerId == id && m.State != "alive":
			return forgeyard.Errorf("promote", forgeyard.Conflict, "%s is %s, a voter must be alive", m.Name, m.State).WithHint("start it first")
		}
	}
	if voters >= bound {
		return forgeyard.Errorf("promote", forgeyard.Conflict, "the site has %d voters, its bound is %d", voters, bound).WithHint("demote another first, or raise it: forgeyard-node site config set voters %d", bound+2)
	}
	return nil
}

// Advice says what the site cannot survive as it is, and what to do.
func Advice(members []*forgeyardv1.Member, bound int) []string {
	var out []string
	n, voters := 0, 0
	for _, m := range members {
		n++
		if m.Voter {
			voters++
		}
	}
	switch {
	case n == 1:
		out = append(out, "one node: the site stops when it does; add two")
	case n == 2:
		out = append(out, "two nodes: a second vote would only be a second way to stop, so one of them votes and the site stops when that one does; add a third")
	case voters%2 == 0:
		out = append(out, fmt.Sprintf("%d voters survive the loss of as many as %d would: add one, or demote one", voters, voters-1))
	case voters < bound:
		out = append(out, fmt.Sprintf("%d voters of %d: the others are not ready, or may not vote; forgeyard-node site members shows them", voters, bound))
	}
	return out
}

type uplinkService struct{ n Node }

func (s uplinkService) view(ctx context.Context) *forgeyardv1.UplinkStatus {
	used, lastError, lastContact := s.n.UplinkUsed(ctx)
	st, now := s.n.Site(), s.n.Wall()
	v := &forgeyardv1.UplinkStatus{
		Connectivity: Connectivity(st, used, now), Outbox: Outbox(st), CentralPeer: st.Central.Peer, Cursor: st.Cursor, LastError: lastError, AsOf: timestamppb.New(now),
	}
	if !lastContact.IsZero() {
		v.LastContact = timestamppb.New(lastContact)
	}
	return v
}

func (s uplinkService) Status(ctx context.Context, _ *connect.Request[forgeyardv1.UplinkStatusRequest]) (*connect.Response[forgeyardv1.UplinkStatus], error) {
	return connect.NewResponse(s.view(ctx)), nil
}

func (s uplinkService) Connect(ctx context.Context, r *connect.Request[forgeyardv1.UplinkConnectRequest]) (*connect.Response[forgeyardv1.UplinkStatus], error) {
	if err := s.n.ConnectUplink(ctx, r.Msg.Ticket); err != nil {
		return nil, err
	}
	return connect.NewResponse(s.view(ctx)), nil
}

func (s uplinkService) Disconnect(ctx context.Context, _ *connect.Request[forgeyardv1.UplinkDisconnectRequest]) (*connect.Response[forgeyardv1.UplinkStatus], error) {
	if _, err := propose(ctx, s.n, site.UplinkConnect{Off: true}); err != nil {
		return nil, err
	}
	return connect.NewResponse(s.view(ctx)), nil
}

func (s uplinkService) Drill(ctx context.Context, r *connect.Request[forgeyardv1.UplinkDrillRequest]) (*connect.Response[forgeyardv1.UplinkStatus], error) {
	if _, err := propose(ctx, s.n, site.Drill{Cut: r.Msg.Cut}); err != nil {
		return nil, err
	}
	return connect.NewResponse(s.view(ctx)), nil
}

type deviceService struct{ n Node }

func (s deviceService) List(context.Context, *connect.Request[forgeyardv1.ListDevicesRequest]) (*connect.Response[forgeyardv1.ListDevicesResponse], error) {
	st := s.n.Site()
	out := &forgeyardv1.ListDevicesResponse{}
	for _, d := range st.Devices.All() {
		out.Devices = append(out.Devices, Device(st, d, s.n.Wall()))
	}
	return connect.NewResponse(out), nil
}

// defaultDeviceTTL is how long a person's lease lasts that asks for no length.
const defaultDeviceTTL = 30 * time.Minute

func (s deviceService) Lease(ctx context.Context, r *connect.Request[forgeyardv1.LeaseDeviceRequest]) (*connect.Response[forgeyardv1.LeaseDeviceResponse], error) {
	ttl := r.Msg.Ttl.AsDuration()
	if ttl == 0 {
		ttl = defaultDeviceTTL
	}
	key := r.Msg.RequestId
	if key == "" {
		key = s.n.NewID()
	}
	holder := r.Msg.Holder
	if holder == "" {
		holder = person
	}
	reply, err := propose(ctx, s.n, site.DeviceLease{
		Device: forgeyard.DeviceID(r.Msg.DeviceId), Kind: r.Msg.Kind, Labels: r.Msg.Labels, Holder: holder, TTL: int64(ttl), Key: forgeyard.MessageID(key),
	})
	if err != nil {
		return nil, err
	}
	l, err := site.Value[site.DeviceLeased](reply)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.LeaseDeviceResponse{LeaseId: string(l.Lease), Token: l.Token, DeviceId: string(l.Device), Host: memberName(s.n.Site(), l.Host)}), nil
}

func (s deviceService) Release(ctx context.Context, r *connect.Request[forgeyardv1.ReleaseDeviceRequest]) (*connect.Response[forgeyardv1.ReleaseDeviceResponse], error) {
	_, err := propose(ctx, s.n, site.DeviceRelease{Lease: forgeyard.DeviceLeaseID(r.Msg.LeaseId), Force: r.Msg.Force})
	return respond(&forgeyardv1.ReleaseDeviceResponse{}, err)
}

func (s deviceService) SetHealth(ctx context.Context, r *connect.Request[forgeyardv1.SetDeviceHealthRequest]) (*connect.Response[forgeyardv1.SetDeviceHealthResponse], error) {
	if r.Msg.Action != "quarantine" && r.Msg.Action != "clear" {
		return nil, forgeyard.Errorf("device", forgeyard.Invalid, "action %q is not quarantine or clear", forgeyard.Clip(r.Msg.Action, 40))
	}
	_, err := propose(ctx, s.n, site.DeviceHealth{Device: forgeyard.DeviceID(r.Msg.DeviceId), Action: r.Msg.Action, Reason: r.Msg.Reason})
	return respond(&forgeyardv1.SetDeviceHealthResponse{}, err)
}

func (s deviceService) Console(ctx context.Context, st *connect.BidiStream[forgeyardv1.ConsoleData, forgeyardv1.ConsoleData]) error {
	first, err := st.Receive()
	if err != nil {
		return err
	}
	for _, d := range s.n.Site().Devices.All() {
		if d.Lease != nil && string(d.Lease.ID) == first.LeaseId {
			return s.n.Console(ctx, d.ID, d.Lease.Token, consoleStream{st})
		}
	}
	return forgeyard.Errorf("device connect", forgeyard.NotFound, "no live device lease %q", forgeyard.Clip(first.LeaseId, 40)).WithHint("forgeyard-node device list")
}

type consoleStream struct {
	s *connect.BidiStream[forgeyardv1.ConsoleData, forgeyardv1.ConsoleData]
}

func (c consoleStream) Send(b []byte) error { return c.s.Send(&forgeyardv1.ConsoleData{Data: b}) }

func (c consoleStream) Receive() ([]byte, error) {
	m, err := c.s.Receive()
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}
