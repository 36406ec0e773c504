package peer

import (
	"crypto/ed25519"
	"fmt"
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

// A digest of the wrong kind brings a typed error and nothing else, over bulk connections and
// over bitswap: a blob's own name where a block is meant, a blob where a manifest is, the
// manifest of another blob, a manifest where the blob is. Nobody is blamed, since the peer
// gave what was asked for by its name.
func TestDigestOfTheWrongKind(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("bitswap %v", plain), func(t *testing.T) {
			a, b := newNode(t), newNode(t)
			if plain {
				a.plain()
			}
			b.meet(a.host)
			large, other := a.store.put(t, noise(1, 3*cas.BlockSize)), a.store.put(t, noise(2, 3*cas.BlockSize))
			small := a.store.put(t, noise(3, 1000))
			for what, c := range map[string]struct {
				ref  cas.Ref
				kind forgeyard.Kind
			}{
				"a large blob as a block":     {cas.Ref{Digest: large.Digest, Size: 1000}, forgeyard.NotFound},
				"a blob as a manifest":        {cas.Ref{Digest: large.Digest, Size: large.Size, Manifest: small.Digest}, forgeyard.Invalid},
				"a large blob as a manifest":  {cas.Ref{Digest: large.Digest, Size: large.Size, Manifest: other.Digest}, forgeyard.NotFound},
				"the manifest of another":     {cas.Ref{Digest: large.Digest, Size: large.Size, Manifest: other.Manifest}, forgeyard.Invalid},
				"a small blob that has parts": {cas.Ref{Digest: small.Digest, Size: large.Size, Manifest: large.Manifest}, forgeyard.Invalid},
			} {
				err := b.Fetch(t.Context(), c.ref, []string{a.name()})
				if err == nil || forgeyard.KindOf(err) != c.kind {
					t.Errorf("%s: %v (%v), want %v", what, err, forgeyard.KindOf(err), c.kind)
				}
				if b.store.Has(t.Context(), c.ref.Digest) {
					t.Errorf("%s: something has that name now", what)
				}
			}
			if bad := b.bad(); len(bad) != 0 {
				t.Errorf("blamed: %+v", bad)
			}
			if err := b.Fetch(t.Context(), large, []string{a.name()}); err != nil {
				t.Fatal(err)
			}
			b.holds(t, large, noise(1, 3*cas.BlockSize))
		})
	}
}
