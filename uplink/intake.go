package uplink

import (
	"context"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
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
	if len(r.Delegations) > MaxDelegations {
		return forgeyard.Errorf(opSync, forgeyard.Limit, "the daemon sent %d delegations at once, the bound is %d", len(r.Delegations), MaxDelegations)
	}
	b := &intakeBatch{gone: map[forgeyard.GrantID]bool{}}
	last := s.Cursor
	for _, raw := range r.Delegations {
		d, err := DecodeDelegation(raw)
		if err != nil {
			return forgeyard.E("uplink: a delegation", forgeyard.Other, err).WithHint("the daemon may be of a newer version than this node")
		}
		if d.Seq <= last {
			return forgeyard.Errorf(opSync, forgeyard.Invalid, "delegation %d does not follow %d", d.Seq, last)
		}
		last = d.Seq
		b.list = append(b.list, d)
		if d.Cancel {
			b.gone[d.Grant.ID] = true
		}
	}
	for _, g := range r.Cancelled {
		b.gone[forgeyard.GrantID(g)] = true
	}
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

// takeIn proposes the delegations of a batch, each after its inputs are here. What
// needs none is proposed together.
func (l *Link) takeIn(ctx context.Context, b *intakeBatch) error {
	var ready []site.Delegation
	size := 0
	flush := func() error {
		if len(ready) == 0 {
			return nil
		}
		err := l.propose(ctx, site.Delegate{From: l.cfg.State().Cursor, To: ready[len(ready)-1].Seq, Grants: ready})
		ready, size = nil, 0
		return err
	}
	cursor := l.cfg.State().Cursor
	for _, d := range b.list {
		if d.Seq <= cursor {
			continue
		}
		if l.cfg.Prefetch != nil && !d.Cancel && !b.gone[d.Grant.ID] && hasInputs(d) {
			if err := flush(); err != nil {
				return err
			}
			if err := l.bring(ctx, d); err != nil {
				return err
			}
		}
		if size+len(d.Spec) > maxDelegateBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		ready = append(ready, d)
		size += len(d.Spec) + 512
	}
	return flush()
}

// hasInputs says whether anything must be brought. A spec that cannot be read
// needs nothing: the log refuses it, and the daemon is told why.
func hasInputs(d site.Delegation) bool {
	spec, err := job.DecodeSpec(d.Spec)
	return err == nil && len(spec.Inputs) > 0
}

// bring fetches the inputs of one delegation. Nil: they are here, or will never be
// and the job is to fail with that reason.
func (l *Link) bring(ctx context.Context, d site.Delegation) error {
	if mayCall(l.cfg.State()) != nil {
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
