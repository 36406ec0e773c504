package uplink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

const opSync = "uplink"

// Sync makes one exchange now, without waiting for the interval (`uplink
// reconcile`). Unavailable: the daemon did not answer, or the link is cut by a
// drill. Conflict: the site has no daemon, or the daemon's record of this site does not
// match; its text says how.
func (l *Link) Sync(ctx context.Context) error {
	_, err := l.sync(ctx)
	return err
}

// sync makes one exchange; more says that records wait which did not fit.
func (l *Link) sync(ctx context.Context) (more bool, err error) {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	defer func() { l.note(ctx, err) }()
	s := l.cfg.State()
	if err := reckon.MayCall(s); err != nil {
		return false, err
	}
	req, more, err := l.request(s)
	if err != nil {
		return false, err
	}
	sent := l.cfg.Clock.Now() // before the call: the holder counts from its send
	resp, err := l.call(ctx, s, req)
	if err != nil {
		return false, err
	}
	// A drill that began meanwhile cut this answer off too.
	if s = l.cfg.State(); s.Central.Peer != l.central {
		return false, forgeyard.Errorf(opSync, forgeyard.Conflict, "the site's daemon changed during the exchange")
	}
	if err := reckon.MayCall(s); err != nil {
		return false, err
	}
	return more && resp.Acked >= req.First, l.take(ctx, s, resp, sent)
}

// request collects what goes with the next exchange: the outbox from its oldest
// record on, as much as fits.
func (l *Link) request(s *site.State) (*v1.SyncRequest, bool, error) {
	l.mu.Lock()
	limit := l.batch
	l.mu.Unlock()
	req := &v1.SyncRequest{SiteId: string(s.Site), Cursor: s.Cursor, First: s.Acked + 1, Incarnation: s.Incarnation, Connectivity: l.connectivity(s)}
	if l.cfg.Holders != nil {
		req.Holders = l.cfg.Holders()
		req.Holders = req.Holders[:min(len(req.Holders), MaxHolders)]
	}
	for _, j := range reckon.StandStill(s) {
		req.States = append(req.States, &v1.SyncRequest_JobState{GrantId: string(j.Grant), Status: string(j.Status), Reason: j.Reason})
	}
	out, err := reckon.Collect(s, limit)
	if err != nil {
		return nil, false, err
	}
	req.Records = out.Bytes
	return req, out.More, nil
}

// connectivity is how the site stands, for the people at the daemon.
func (l *Link) connectivity(s *site.State) *v1.Connectivity {
	used, known := l.Used()
	if !known {
		used = s.Uplink.Used
	}
	v := &v1.Connectivity{
		State: string(s.Uplink.State), Since: timestamppb.New(s.Uplink.Since.Time()), Used: durationpb.New(used),
		Allowance: durationpb.New(s.Uplink.Terms.Allowance), Left: durationpb.New(max(0, s.Uplink.Terms.Allowance-used)),
		Central: s.Central.Name, Doubt: s.Uplink.Doubt,
	}
	if s.Ready.Asked {
		v.Readiness, v.ReadinessSince = "ready", timestamppb.New(s.Ready.Since.Time())
	}
	for _, f := range s.Ready.Lacks {
		v.Readiness = "not_ready"
		v.Shortfalls = append(v.Shortfalls, &v1.Shortfall{Node: f.Node, What: string(f.What), Detail: f.Detail})
	}
	return v
}

// call makes the call under a deadline that grows while calls time out, with
// batches that shrink meanwhile.
func (l *Link) call(ctx context.Context, s *site.State, req *v1.SyncRequest) (*v1.SyncResponse, error) {
	client, timeout := l.clientFor(s)
	cctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l.mu.Lock()
	l.cut = cancel
	l.mu.Unlock()
	resp, err := client.Sync(cctx, connect.NewRequest(req))
	late := errors.Is(cctx.Err(), context.DeadlineExceeded)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = nil
	switch {
	case err == nil:
		l.timeouts, l.batch = 0, reckon.BatchAfter(l.batch, false)
		return resp.Msg, nil
	case late:
		l.timeouts, l.batch = l.timeouts+1, reckon.BatchAfter(l.batch, true)
		return nil, forgeyard.E(opSync, forgeyard.Unavailable, fmt.Errorf("no answer within %s", timeout))
	}
	if forgeyard.KindOf(err) == forgeyard.Other {
		return nil, forgeyard.E(opSync, forgeyard.Unavailable, err)
	}
	return nil, forgeyard.E(opSync, forgeyard.Other, err)
}

func (l *Link) clientFor(s *site.State) (forgeyardv1connect.DelegationServiceClient, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil || l.central != s.Central.Peer {
		l.central, l.client = s.Central.Peer, l.cfg.Client(s.Central.Peer)
	}
	return l.client, reckon.CallTimeout(s.Uplink.Terms, l.timeouts)
}

// take brings an answer into the log, in the order that the package comment gives.
func (l *Link) take(ctx context.Context, s *site.State, r *v1.SyncResponse, sent forgeyard.Instant) error {
	a := reckon.Answer{Acked: r.Acked, Terms: TermsOf(r.Terms), Daemon: forgeyard.Wall(r.DaemonMs)}
	for _, g := range r.Cancelled {
		a.Cancelled = append(a.Cancelled, forgeyard.GrantID(g))
	}
	if err := a.Check(s); err != nil {
		return err
	}
	for _, v := range r.Verdicts {
		if v.Verdict == string(site.StaleRejected) || v.Verdict == string(site.InvalidRejected) {
			l.cfg.Log.Warn("the central daemon refused a record", "record", v.Seq, "verdict", v.Verdict, "reason", v.Reason)
		}
	}
	if err := l.cancelFirst(ctx, s, a); err != nil {
		return err
	}
	l.heard(sent, a)
	for _, b := range a.Follows(s, l.cfg.Clock.Now().Sub(sent)) {
		if err := l.propose(ctx, b); err != nil {
			return err
		}
	}
	poke(l.wakeup)
	return l.hand(s, r)
}

// cancelFirst cancels what the daemon took back before anything else follows from
// the contact, and ends the prefetch of it.
func (l *Link) cancelFirst(ctx context.Context, s *site.State, a reckon.Answer) error {
	for _, id := range a.Cancels(s) {
		if err := l.propose(ctx, site.Cancel{Job: id}); err != nil {
			return err
		}
		l.cfg.Log.Info("the central daemon took a job back", "job_id", id)
	}
	l.stopCancelled(reckon.Gone(a.Cancelled, nil))
	return nil
}

// heard counts from the send of an exchange that succeeded.
func (l *Link) heard(sent forgeyard.Instant, a reckon.Answer) {
	l.mu.Lock()
	l.count.Heard(sent, a.Terms, a.Daemon)
	l.status.LastContact = l.cfg.Clock.Wall()
	l.off = 0
	if a.Daemon != 0 {
		l.off = l.status.LastContact.Sub(a.Daemon.Time())
	}
	l.mu.Unlock()
	poke(l.wakeup)
}

// note keeps the outcome of an exchange for people; only changes are logged.
func (l *Link) note(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	l.mu.Lock()
	before := l.status.LastError
	if ctx.Err() == nil || err == nil {
		l.status.LastError = text
	}
	l.mu.Unlock()
	switch {
	case text == before || ctx.Err() != nil:
	case err != nil:
		l.cfg.Log.Warn("exchange with the central daemon failed", "error", err)
	default:
		l.cfg.Log.Info("exchange with the central daemon works again")
	}
}

// StillOf reads what stands still from the wire.
func StillOf(all []*v1.SyncRequest_JobState) []reckon.Still {
	var out []reckon.Still
	for _, j := range all[:min(len(all), reckon.MaxStill)] {
		out = append(out, reckon.Still{
			Grant: forgeyard.GrantID(forgeyard.Clip(j.GrantId, MaxName)), Status: job.Status(forgeyard.Clip(j.Status, 32)), Reason: forgeyard.Clip(j.Reason, reckon.MaxStillText),
		})
	}
	return out
}

// TermsOf reads terms from the wire; the zero value of a field is zero.
func TermsOf(t *v1.UplinkTerms) lease.UplinkTerms {
	return lease.UplinkTerms{SilentAfter: t.GetSilentAfter().AsDuration(), Grace: t.GetGrace().AsDuration(), Allowance: t.GetAllowance().AsDuration()}
}

// TermsTo writes them.
func TermsTo(t lease.UplinkTerms) *v1.UplinkTerms {
	return &v1.UplinkTerms{SilentAfter: durationpb.New(t.SilentAfter), Grace: durationpb.New(t.Grace), Allowance: durationpb.New(t.Allowance)}
}

func typeName(b site.Body) string { return fmt.Sprintf("%T", b) }
