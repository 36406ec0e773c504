package node

import (
	"bytes"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// narrow is a machine whose disk has so much room and no more.
type narrow struct {
	Platform
	free int64
	err  error
}

func (d *narrow) Free(string) (int64, error) { return d.free, d.err }

// What a node says of itself is what it measures: until when its credential is good, whether
// anything has set its clock, and what its store and its spool can still take.
func TestFactsAreMeasured(t *testing.T) {
	disk := &narrow{Platform: native{}, free: 1 << 40}
	p := makeSite(t, 1, func(c *Config) {
		c.Platform = disk
		c.Settings.CAS.Limit, c.Settings.Spool.Limit = 64<<20, 32<<20
	})[0]
	n, ctx := p.node, t.Context()
	f := n.lookAtFacts(ctx)
	c, err := mesh.ParseCredential(n.credential.Load())
	if err != nil {
		t.Fatal(err)
	}
	if off := (f.Credential - c.NotAfter.Sub(n.clock.Wall())).Abs(); off > time.Minute || f.Credential < credentialRenew {
		t.Errorf("the credential is good for %s, by the facts for %s", c.NotAfter.Sub(n.clock.Wall()), f.Credential)
	}
	if f.ClockSet != uplink.HasTimeSource() || !f.Told || f.StoreLimit != 64<<20 || f.SpoolLimit != 32<<20 {
		t.Errorf("%+v", f)
	}
	if f.StoreFree != 64<<20 || f.SpoolFree <= 0 || f.SpoolFree > 32<<20 {
		t.Errorf("with a wide disk: %+v", f)
	}

	// What could be evicted is room; what is pinned is none.
	const size = 8 << 20
	ref, err := n.store.Put(ctx, bytes.NewReader(make([]byte, size)), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if f = n.lookAtFacts(ctx); f.StoreFree != 64<<20 {
		t.Errorf("with something to evict: %d", f.StoreFree)
	}
	disk.free = 1 << 20
	if u, err := n.store.Usage(ctx); err != nil || u.Bytes-u.Pinned < size || n.lookAtFacts(ctx).StoreFree != disk.free+u.Bytes-u.Pinned {
		t.Errorf("with something to evict on a narrow disk: %d; %+v, %v", n.lookAtFacts(ctx).StoreFree, u, err)
	}
	disk.free = 1 << 40
	if err := n.store.Pin(ctx, cas.Pin{Owner: "person/ana", Roots: []forgeyard.Digest{ref.Digest}}); err != nil {
		t.Fatal(err)
	}
	u, err := n.store.Usage(ctx)
	if err != nil || u.Pinned <= 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	if f = n.lookAtFacts(ctx); f.StoreFree != 64<<20-u.Pinned {
		t.Errorf("with %d pinned: %d", u.Pinned, f.StoreFree)
	}

	// A disk that has less than the limits allow, and one that cannot be asked.
	disk.free = 1 << 20
	if f = n.lookAtFacts(ctx); f.StoreFree != disk.free+max(0, u.Bytes-u.Pinned) || f.SpoolFree != disk.free {
		t.Errorf("with a narrow disk: %+v", f)
	}
	disk.err = forgeyard.Errorf("free", forgeyard.NoSpace, "made")
	if f = n.lookAtFacts(ctx); f.StoreFree != 0 || f.SpoolFree != 0 {
		t.Errorf("with a disk that says nothing: %+v", f)
	}

	// A credential that cannot be read counts as over.
	was := n.credential.Load()
	n.credential.Store([]byte("noise"))
	if f = n.lookAtFacts(ctx); f.Credential != 0 {
		t.Errorf("no credential is good for %s", f.Credential)
	}
	n.credential.Store(was)
}

// The leader judges what a member said, and nothing is lost on the way.
func TestFactsTravel(t *testing.T) {
	n := makeSite(t, 1)[0].node
	said := lease.Facts{Told: true, Credential: time.Hour, ClockSet: true, StoreFree: 1, SpoolFree: 2, StoreLimit: 3, SpoolLimit: 4}
	got := n.factsFromWire(n.factsToWire(said))
	if got.ClockOff.Abs() > time.Minute {
		t.Errorf("the clock is %s off itself", got.ClockOff)
	}
	got.ClockOff = 0
	if got != said {
		t.Errorf("%+v, said was %+v", got, said)
	}
	late := n.factsToWire(said)
	late.WallMs -= time.Hour.Milliseconds()
	if off := n.factsFromWire(late).ClockOff; (off + time.Hour).Abs() > time.Minute {
		t.Errorf("a clock that is an hour behind is %s off", off)
	}
	if got := n.factsFromWire(nil); got != (lease.Facts{}) {
		t.Errorf("who says nothing: %+v", got)
	}
}
