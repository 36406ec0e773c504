package uplink

import (
	"context"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// intakeBatch is what one answer delegated.
type intakeBatch struct {
	list []site.Delegation
	gone map[forgeyard.GrantID]bool // taken back already: their inputs are not needed
}

// hand gives an answer's delegations to intake. An answer repeats what the site has
// not taken in, so the newest one replaces what waits.
func (l *Link) hand(s *site.State, r *v1.SyncResponse) error {
	if len(r.Delegations) == 0 {
		return nil
	}
	if len(r.Delegations) > reckon.MaxDelegations {
		return forgeyard.Errorf(opSync, forgeyard.Limit, "the daemon sent %d delegations at once, the bound is %d", len(r.Delegations), reckon.MaxDelegations)
	}
	b := &intakeBatch{}
	for _, raw := range r.Delegations {
		d, err := DecodeDelegation(raw)
		if err != nil {
			return forgeyard.E("uplink: a delegation", forgeyard.Other, err).WithHint("the daemon may be of a newer version than this node")
		}
		b.list = append(b.list, d)
	}
	if err := reckon.CheckDelegations(s.Cursor, b.list); err != nil {
		return err
	}
	cancelled := make([]forgeyard.GrantID, len(r.Cancelled))
	for i, g := range r.Cancelled {
		cancelled[i] = forgeyard.GrantID(g)
	}
	b.gone = reckon.Gone(cancelled, b.list)
	l.mu.Lock()
	l.todo = b
	l.mu.Unlock()
	poke(l.fresh)
	return nil
}

// DecodeDelegation reads one delegation record.
func DecodeDelegation(raw []byte) (site.Delegation, error) {
	var d site.Delegation
	if err := cborx.UnmarshalCanonical(raw, &d); err != nil {
		return site.Delegation{}, err
	}
	if d.Seq == 0 || d.Grant.ID == "" || len(d.Grant.ID) > MaxName || len(d.Spec) > job.MaxSpecBytes || len(d.Title) > 4*job.MaxTitle {
		return site.Delegation{}, forgeyard.Errorf("delegation", forgeyard.Invalid, "number %d, grant %q, a spec of %d bytes", d.Seq, forgeyard.Clip(string(d.Grant.ID), MaxName), len(d.Spec))
	}
	return d, nil
}

// stopCancelled ends the prefetch of what was taken back.
func (l *Link) stopCancelled(gone map[forgeyard.GrantID]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopFetch != nil && gone[l.prefetch] {
		l.stopFetch()
	}
}

// intake takes in delegations as their inputs arrive, in order.
func (l *Link) intake(ctx context.Context) {
	for {
		select {
		case <-l.fresh:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		b := l.todo
		l.todo = nil
		l.mu.Unlock()
		if b == nil {
			continue
		}
		if err := l.takeIn(ctx, b); err != nil && ctx.Err() == nil {
			l.mu.Lock()
			l.status.LastError = err.Error()
			l.mu.Unlock()
			l.cfg.Log.Warn("delegations wait", "error", err)
		}
	}
}

// takeIn carries out the steps of a batch, in their order.
func (l *Link) takeIn(ctx context.Context, b *intakeBatch) error {
	for _, st := range reckon.Intake(l.cfg.State().Cursor, b.list, b.gone) {
		var err error
		switch {
		case st.Bring == nil:
			to := st.Propose[len(st.Propose)-1].Seq
			err = l.propose(ctx, site.Delegate{From: st.From, To: to, Grants: st.Propose})
			if at := l.cfg.State().Cursor; err == nil && at < to {
				err = forgeyard.Errorf("uplink", forgeyard.Limit, "the site has no room for more jobs now: what follows delegation %d waits", at)
			}
		case l.cfg.Prefetch != nil:
			err = l.bring(ctx, *st.Bring)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bring fetches the inputs of one delegation. Nil: they are here, or will never be
// and the job is to fail with that reason.
func (l *Link) bring(ctx context.Context, d site.Delegation) error {
	if reckon.MayCall(l.cfg.State()) != nil {
		return forgeyard.Errorf(opSync, forgeyard.Unavailable, "the link is cut; the inputs of %s wait", forgeyard.Short(d.Grant.ID))
	}
	fctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	l.prefetch, l.stopFetch = d.Grant.ID, cancel
	l.mu.Unlock()
	err := l.cfg.Prefetch(fctx, d)
	l.mu.Lock()
	l.prefetch, l.stopFetch = "", nil
	l.mu.Unlock()
	switch forgeyard.KindOf(err) {
	case forgeyard.NotFound, forgeyard.Corrupt, forgeyard.Invalid:
		l.cfg.Log.Warn("the inputs of a delegated job cannot be had; it is taken in without", "grant_id", d.Grant.ID, "error", err)
		return nil
	}
	if err != nil {
		return forgeyard.E("uplink: the inputs of "+forgeyard.Short(d.Grant.ID), forgeyard.Unavailable, err)
	}
	return nil
}
