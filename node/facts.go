package node

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// factsEvery is how old facts may be: to look at a store takes time, and heartbeats wait.
const factsEvery = 10 * time.Second

type factsAt struct {
	lease.Facts
	at forgeyard.Instant
}

// facts are what the last look found, or a new one.
func (n *Node) facts(ctx context.Context) lease.Facts {
	now := n.clock.Now()
	if f := n.lastFacts.Load(); f != nil && now.Sub(f.at) < factsEvery {
		return f.Facts
	}
	f := n.lookAtFacts(ctx)
	n.lastFacts.Store(&factsAt{f, now})
	return f
}

// lookAtFacts are what this node says of itself that bears on whether the site could go on
// without its uplink; the leader judges them (lease.Readiness). What cannot be read counts
// as what is worst.
func (n *Node) lookAtFacts(ctx context.Context) lease.Facts {
	set := n.settings()
	f := lease.Facts{Told: true, ClockSet: uplink.HasTimeSource(), StoreLimit: int64(set.CAS.Limit), SpoolLimit: int64(set.Spool.Limit)}
	if c, err := mesh.ParseCredential(n.credential.Load()); err == nil {
		f.Credential = c.NotAfter.Sub(n.clock.Wall())
	}
	free, err := n.platform().Free(n.dir.path)
	if err != nil {
		return f
	}
	// What was put aside for people holds no writer back; free counts it all the same.
	f.SpoolFree = min(free, max(0, f.SpoolLimit-(n.spoolBytes()-n.runner.UnsavedBytes())))
	f.StoreFree = free
	if u, err := n.store.Usage(ctx); err == nil {
		evictable := max(0, u.Bytes-u.Pinned)
		f.StoreFree += evictable
		if u.Limit > 0 {
			f.StoreFree = min(f.StoreFree, u.Limit-u.Pinned)
		}
	}
	return f
}

func (n *Node) factsToWire(f lease.Facts) *forgeyardv1.RenewRequest_Facts {
	return &forgeyardv1.RenewRequest_Facts{
		Credential: durationpb.New(f.Credential), ClockSet: f.ClockSet, WallMs: n.clock.Wall().UnixMilli(), StoreFree: f.StoreFree, SpoolFree: f.SpoolFree,
		StoreLimit: f.StoreLimit, SpoolLimit: f.SpoolLimit,
	}
}

// factsFromWire reads what another member says; its wall clock is compared with ours here,
// where it was just read.
func (n *Node) factsFromWire(w *forgeyardv1.RenewRequest_Facts) lease.Facts {
	if w == nil {
		return lease.Facts{}
	}
	return lease.Facts{
		Told: true, Credential: w.Credential.AsDuration(), ClockSet: w.ClockSet, ClockOff: time.UnixMilli(w.WallMs).Sub(n.clock.Wall()),
		StoreFree: w.StoreFree, SpoolFree: w.SpoolFree, StoreLimit: w.StoreLimit, SpoolLimit: w.SpoolLimit,
	}
}
