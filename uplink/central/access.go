package central

import (
	"crypto/ed25519"
	"log/slog"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// classVisitor may open the enrolment protocol and nothing else: a member of a site
// that is not enrolled here, while a ticket is open. It is a class of this daemon's
// own; the mesh only compares it.
const classVisitor mesh.Class = 16

// access decides who a peer is. A member of an enrolled site shows a credential that
// the site's key has signed. Anyone else is refused, except a few visitors, for a few
// seconds, while a person has left a ticket open.
//
//	unknown ── ticket open, room ──▶ visitor ── enrolled, or time over ──▶ dropped
//	                                              └──▶ comes back as a member of its site
type access struct {
	clk  clock.Clock
	log  *slog.Logger
	open func() (bool, error) // whether any ticket can be redeemed

	mu       sync.Mutex // guards what follows
	keys     map[forgeyard.SiteID]ed25519.PublicKey
	visitors map[peer.ID]visitor
}

type visitor struct {
	until      forgeyard.Instant
	credential *mesh.Credential
}

func newAccess(clk clock.Clock, log *slog.Logger, open func() (bool, error), sites []Site) *access {
	a := &access{clk: clk, log: log, open: open, keys: map[forgeyard.SiteID]ed25519.PublicKey{}, visitors: map[peer.ID]visitor{}}
	for _, s := range sites {
		a.keys[s.ID] = s.PublicKey
	}
	return a
}

// authorize is mesh.Config.Authorize.
func (a *access) authorize(p peer.ID, c *mesh.Credential) (mesh.Class, error) {
	if c == nil {
		return mesh.ClassStranger, forgeyard.Errorf("hello", forgeyard.Denied, "peer %s shows no credential of a site", p)
	}
	a.mu.Lock()
	key, enrolled := a.keys[c.Site]
	a.mu.Unlock()
	if !enrolled {
		return a.visit(p, c)
	}
	if err := c.Verify(key, p, a.clk.Wall()); err != nil {
		return mesh.ClassStranger, err
	}
	a.mu.Lock()
	delete(a.visitors, p)
	a.mu.Unlock()
	return mesh.ClassSite, nil
}

// visit admits a visitor if a ticket is open and there is room.
func (a *access) visit(p peer.ID, c *mesh.Credential) (mesh.Class, error) {
	refuse := forgeyard.Errorf("hello", forgeyard.Denied, "site %s is not enrolled at this daemon", forgeyard.Clip(string(c.Site), 64)).
		WithHint("forgeyard-central ticket create, then forgeyard-node uplink connect TICKET")
	open, err := a.open()
	if err != nil || !open {
		return mesh.ClassStranger, refuse
	}
	now := a.clk.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, v := range a.visitors {
		if now.Sub(v.until) > visitorStay {
			delete(a.visitors, id) // long gone; until then Revoked keeps it out
		}
	}
	v, known := a.visitors[p]
	switch {
	case known && now < v.until:
		v.credential = c
		a.visitors[p] = v
		return classVisitor, nil
	case !known && len(a.visitors) >= maxVisitors:
		a.log.Warn("visitor turned away", "peer", p, "visitors", len(a.visitors), "limit", maxVisitors)
		return mesh.ClassStranger, refuse
	}
	a.visitors[p] = visitor{until: now.Add(visitorStay), credential: c}
	return classVisitor, nil
}

// revoked is mesh.Config.Revoked: it ends a visit. The mesh asks every second.
func (a *access) revoked(p peer.ID, _ forgeyard.RunnerID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, visiting := a.visitors[p]
	return visiting && a.clk.Now() >= v.until
}

// credential is what the visitor showed, not verified.
func (a *access) credential(p peer.ID) *mesh.Credential {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.visitors[p].credential
}

// enrolled makes the site's members welcome. The visitor that enrolled it is dropped
// once it has had time to read the answer, and comes back as a member.
func (a *access) enrolled(s Site, by peer.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys[s.ID] = s.PublicKey
	if v, ok := a.visitors[by]; ok {
		v.until = a.clk.Now().Add(afterEnrol)
		a.visitors[by] = v
	}
}
