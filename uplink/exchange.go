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
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
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
	if err := mayCall(s); err != nil {
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
	if err := mayCall(s); err != nil {
		return false, err
	}
	return more && resp.Acked >= req.First, l.take(ctx, s, resp, sent)
}

func mayCall(s *site.State) error {
	switch {
	case s.Central.Peer == "":
		return forgeyard.Errorf(opSync, forgeyard.Conflict, "the site has no central daemon").WithHint("forgeyard-node uplink connect TICKET")
	case s.Central.Drill:
		return forgeyard.Errorf(opSync, forgeyard.Unavailable, "a drill cuts the uplink").WithHint("forgeyard-node uplink drill restore")
	}
	return nil
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
	size := 0
	for n := s.Acked + 1; n <= s.Sent; n++ {
		r, ok := s.Outbox.Get(site.SeqKey(n))
		if !ok || r.Seq != n {
			return nil, false, forgeyard.Errorf(opSync, forgeyard.Corrupt, "record %d is missing from the outbox of %d to %d", n, s.Acked+1, s.Sent)
		}
		b := cborx.Marshal(r)
		if len(req.Records) == MaxBatchRecords || len(req.Records) > 0 && size+len(b) > limit {
			return req, true, nil
		}
		req.Records = append(req.Records, b)
		size += len(b)
	}
	return req, false, nil
}

// connectivity is how the site stands, for the people at the daemon.
func (l *Link) connectivity(s *site.State) *v1.Connectivity {
	used, known := l.Used()
	if !known {
		used = s.Uplink.Used
	}
	return &v1.Connectivity{
		State: string(s.Uplink.State), Since: timestamppb.New(s.Uplink.Since.Time()), Used: durationpb.New(used),
		Allowance: durationpb.New(s.Uplink.Terms.Allowance), Left: durationpb.New(max(0, s.Uplink.Terms.Allowance-used)),
		Central: s.Central.Name, Doubt: s.Uplink.Doubt,
	}
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
		l.timeouts, l.batch = 0, min(l.batch*2, MaxBatchBytes)
		return resp.Msg, nil
	case late:
		l.timeouts, l.batch = l.timeouts+1, max(l.batch/2, minBatchBytes)
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
	base := min(max(s.Uplink.Terms.SilentAfter/2, minCall), maxCall)
	return l.client, min(base<<min(l.timeouts, 6), maxCall)
}

// take brings an answer into the log, in the order that the package comment gives.
func (l *Link) take(ctx context.Context, s *site.State, r *v1.SyncResponse, sent forgeyard.Instant) error {
	terms := TermsOf(r.Terms)
	if err := CheckTerms(terms); err != nil {
		return forgeyard.E("uplink: the daemon's terms", forgeyard.Invalid, err)
	}
	if r.Acked > s.Sent {
		return forgeyard.Errorf(opSync, forgeyard.Invalid, "the daemon acknowledged record %d, only %d were sent", r.Acked, s.Sent)
	}
	for _, v := range r.Verdicts {
		if v.Verdict == string(site.StaleRejected) || v.Verdict == string(site.InvalidRejected) {
			l.cfg.Log.Warn("the central daemon refused a record", "record", v.Seq, "verdict", v.Verdict, "reason", v.Reason)
		}
	}
	if err := l.cancelFirst(ctx, s, r.Cancelled); err != nil {
		return err
	}
	l.heard(sent, terms)
	if st := s.Uplink.State; st != lease.Online && st != lease.Reconciling {
		// The contact enters the log before what follows from it, so that a site with records
		// to deliver is seen to reconcile.
		if err := l.propose(ctx, site.UplinkObserve{Used: int64(l.cfg.Clock.Now().Sub(sent)), Contact: true, Terms: &terms}); err != nil {
			return err
		}
	}
	if r.Acked > s.Acked {
		if err := l.propose(ctx, site.OutboxAck{Upto: r.Acked}); err != nil {
			return err
		}
		poke(l.wakeup)
	}
	return l.hand(s, r)
}

// cancelFirst cancels what the daemon took back before anything else follows from
// the contact (E15). The record itself comes later, in its order, and changes nothing then.
func (l *Link) cancelFirst(ctx context.Context, s *site.State, grants []string) error {
	if len(grants) == 0 {
		return nil
	}
	if len(grants) > MaxCancelled {
		return forgeyard.Errorf(opSync, forgeyard.Limit, "the daemon takes back %d grants at once, the bound is %d", len(grants), MaxCancelled)
	}
	gone := map[forgeyard.GrantID]bool{}
	for _, g := range grants {
		gone[forgeyard.GrantID(g)] = true
	}
	for id := range s.Open.All() {
		j, ok := s.Jobs.Get(id)
		if !ok || j.Grant == nil || !gone[j.Grant.ID] || j.CancelAt != 0 || j.Status.Terminal() {
			continue
		}
		if err := l.propose(ctx, site.Cancel{Job: id}); err != nil {
			return err
		}
		l.cfg.Log.Info("the central daemon took a job back", "job_id", id, "grant_id", j.Grant.ID)
	}
	l.stopCancelled(gone)
	return nil
}

// heard counts from the send of an exchange that succeeded.
func (l *Link) heard(sent forgeyard.Instant, terms lease.UplinkTerms) {
	l.mu.Lock()
	l.count = count{known: true, from: sent}
	l.contact = &contact{sent: sent, terms: terms}
	l.status.LastContact = l.cfg.Clock.Wall()
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

// TermsOf reads terms from the wire; the zero value of a field is zero.
func TermsOf(t *v1.UplinkTerms) lease.UplinkTerms {
	return lease.UplinkTerms{SilentAfter: t.GetSilentAfter().AsDuration(), Grace: t.GetGrace().AsDuration(), Allowance: t.GetAllowance().AsDuration()}
}

// TermsTo writes them.
func TermsTo(t lease.UplinkTerms) *v1.UplinkTerms {
	return &v1.UplinkTerms{SilentAfter: durationpb.New(t.SilentAfter), Grace: durationpb.New(t.Grace), Allowance: durationpb.New(t.Allowance)}
}

func typeName(b site.Body) string { return fmt.Sprintf("%T", b) }
