package peer

import (
	"crypto/ed25519"
	"path/filepath"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// meshSite makes members of one site, each with a mesh of its own in this process.
type meshSite struct {
	id  forgeyard.SiteID
	key mesh.Secret
	pub ed25519.PublicKey
	n   byte
}

func (s *meshSite) member(t *testing.T, store cas.Store) (*mesh.Mesh, *Exchange) {
	t.Helper()
	id, err := mesh.NewIdentity()
	must(t, err)
	now := time.Now()
	s.n++
	cred, err := mesh.IssueCredential(s.key, mesh.Claims{
		Site: s.id, Runner: forgeyard.RunnerID(forgeyard.NewULID(now, [10]byte{s.n})), Peer: id.PeerID(), Roles: []string{mesh.RoleRunner},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
	})
	must(t, err)
	m, err := mesh.New(mesh.Config{Identity: id, SiteID: s.id, SiteName: "plant", SitePublicKey: s.pub, Credential: cred, Listen: "127.0.0.1:0"})
	must(t, err)
	t.Cleanup(func() { _ = m.Close() })
	x, err := New(Config{Host: m.HostFor(mesh.ClassMember), Store: store, Dial: m.Dial, Listen: m.ListenFor(mesh.ClassMember)})
	must(t, err)
	t.Cleanup(func() { _ = x.Close() })
	return m, x
}

// TestConformance holds the exchange over meshes, with its bulk connections and over
// bitswap, against the contract.
func TestConformance(t *testing.T) {
	key, pub, err := mesh.NewSiteKey()
	must(t, err)
	castest.RunExchange(t, func(t *testing.T) cas.Store {
		s, err := disk.Open(disk.Config{Dir: filepath.Join(t.TempDir(), "cas"), NoSync: true, Reserve: -1, ReserveInodes: -1})
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}, func(t *testing.T, local cas.Store, peers ...cas.Store) castest.Site {
		members := meshSite{id: forgeyard.SiteID(forgeyard.NewULID(time.Now(), [10]byte{1})), key: key, pub: pub}
		me, x := members.member(t, local)
		s := castest.Site{Exchange: x}
		for _, p := range peers {
			m, px := members.member(t, p)
			must(t, me.AddAddrs(m.PeerID(), m.Addrs()))
			must(t, me.Connect(t.Context(), m.PeerID()))
			s.Peers = append(s.Peers, castest.Peer{Name: m.PeerID().String(), Gone: func() {
				must(t, px.Close())
				must(t, m.Close())
			}})
		}
		return s
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
