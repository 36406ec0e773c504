package node

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"os"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// credentialLife is how long a member credential is good; it is renewed when a
// third of it is left, so a site may be cut off from its voters for months.
const (
	credentialLife  = 365 * 24 * time.Hour
	credentialRenew = credentialLife / 3
)

// NewID draws an identifier.
func NewID(c clock.Clock) string {
	var e [10]byte
	rand.Read(e[:]) // never fails (crypto/rand since Go 1.24)
	return forgeyard.NewULID(c.Wall(), e)
}

// InitRequest makes a new site.
type InitRequest struct {
	DataDir  string
	SiteName string
	NodeName string
	Site     sitecfg.Site
	Clock    clock.Clock
}

// Enrolled says what a node is now.
type Enrolled struct {
	Site     forgeyard.SiteID
	SiteName string
	Runner   forgeyard.RunnerID
	Name     string
	Already  bool // it was before
}

// Init creates a site with this node as its founder. The first `up` starts its log.
func Init(r InitRequest) (Enrolled, error) {
	d, err := openDataDir(r.DataDir)
	if err != nil {
		return Enrolled{}, err
	}
	defer d.close()
	if e, err := mesh.LoadEnrolment(d.path); err == nil {
		return Enrolled{}, forgeyard.Errorf("init", forgeyard.Conflict, "%s belongs to site %s (%s) already, as %s", d.path, e.SiteName, e.SiteID, e.Name).WithHint("another site needs another --data-dir")
	} else if forgeyard.KindOf(err) != forgeyard.NotFound {
		return Enrolled{}, err
	}
	if err := checkName("site name", r.SiteName); err != nil {
		return Enrolled{}, err
	}
	if err := checkName("node name", r.NodeName); err != nil {
		return Enrolled{}, err
	}
	id, err := mesh.LoadOrCreateIdentity(d.path)
	if err != nil {
		return Enrolled{}, err
	}
	return found(d, id, r)
}

func found(d *dataDir, id mesh.Identity, r InitRequest) (Enrolled, error) {
	key, pub, err := mesh.NewSiteKey()
	if err != nil {
		return Enrolled{}, err
	}
	gossip := make([]byte, mesh.GossipKeySize)
	rand.Read(gossip)
	e := mesh.Enrolment{
		SiteID: forgeyard.SiteID(NewID(r.Clock)), SiteName: r.SiteName, SitePublicKey: pub, RunnerID: forgeyard.RunnerID(NewID(r.Clock)),
		Name: r.NodeName, Roles: []string{mesh.RoleRunner, mesh.RoleVoter}, GossipKey: mesh.NewSecret(gossip), SiteKey: key,
	}
	e.Credential, err = mesh.IssueCredential(key, claims(e, id, r.Clock.Wall()))
	if err != nil {
		return Enrolled{}, err
	}
	founding := site.Init{Site: e.SiteID, Name: r.SiteName, PublicKey: pub, Config: r.Site, Runner: e.RunnerID, Node: r.NodeName, Peer: id.PeerID().String()}
	// The founding record goes first: a node with an enrolment and neither a log nor a
	// founding record has lost its log, and must not start an empty one.
	if err := writeFile(d.join(fileFounding), cborx.Marshal(founding), 0o600); err != nil {
		return Enrolled{}, err
	}
	if err := mesh.SaveEnrolment(d.path, e); err != nil {
		return Enrolled{}, err
	}
	return Enrolled{Site: e.SiteID, SiteName: e.SiteName, Runner: e.RunnerID, Name: e.Name}, nil
}

func claims(e mesh.Enrolment, id mesh.Identity, now time.Time) mesh.Claims {
	return mesh.Claims{
		Site: e.SiteID, Runner: e.RunnerID, Peer: id.PeerID(), Roles: e.Roles,
		NotBefore: now.Add(-time.Minute).Truncate(time.Second), NotAfter: now.Add(credentialLife).Truncate(time.Second),
	}
}

func checkName(what, s string) error {
	if s == "" || len(s) > 63 {
		return forgeyard.Errorf("init", forgeyard.Invalid, "%s %q has %d letters, 1 to 63 are allowed", what, forgeyard.Clip(s, 80), len(s))
	}
	for _, r := range s {
		ok := r == '-' || r == '_' || r == '.' || ('0' <= r && r <= '9') || ('a' <= r && r <= 'z') || ('A' <= r && r <= 'Z')
		if !ok {
			return forgeyard.Errorf("init", forgeyard.Invalid, "%s %q has %q in it, letters, digits, '-', '_' and '.' are allowed", what, s, r)
		}
	}
	return nil
}

// JoinSiteRequest enrols this node with a token.
type JoinSiteRequest struct {
	DataDir string
	Token   string
	Name    string
	Labels  map[string]string
	Version string
	Clock   clock.Clock
}

// JoinSite redeems a token. It is safe to repeat with the same token.
func JoinSite(ctx context.Context, r JoinSiteRequest) (Enrolled, error) {
	t, err := mesh.ParseToken(r.Token)
	if err != nil {
		return Enrolled{}, err
	}
	if err := checkName("node name", r.Name); err != nil {
		return Enrolled{}, err
	}
	d, err := openDataDir(r.DataDir)
	if err != nil {
		return Enrolled{}, err
	}
	defer d.close()
	if e, err := mesh.LoadEnrolment(d.path); err == nil {
		if err := mesh.CheckRejoin(e, t); err != nil {
			return Enrolled{}, err
		}
		return Enrolled{Site: e.SiteID, SiteName: e.SiteName, Runner: e.RunnerID, Name: e.Name, Already: true}, nil
	} else if forgeyard.KindOf(err) != forgeyard.NotFound {
		return Enrolled{}, err
	}
	id, err := mesh.LoadOrCreateIdentity(d.path)
	if err != nil {
		return Enrolled{}, err
	}
	e, err := mesh.Join(ctx, id, t, mesh.JoinRequest{Name: r.Name, Labels: r.Labels, Version: r.Version, OldestLog: uint16(site.FormatOldest), NewestLog: uint16(site.FormatNow)})
	if err != nil {
		return Enrolled{}, err
	}
	if err := mesh.SaveEnrolment(d.path, e); err != nil {
		return Enrolled{}, err
	}
	return Enrolled{Site: e.SiteID, SiteName: e.SiteName, Runner: e.RunnerID, Name: e.Name}, nil
}

// admit answers a join that reached this node: the log decides, and this node's
// site key signs.
func (n *Node) admit(ctx context.Context, remote peerID, token forgeyard.TokenID, hash forgeyard.Digest, r mesh.JoinRequest) (mesh.Enrolment, error) {
	if n.siteKey().IsZero() {
		return mesh.Enrolment{}, forgeyard.Errorf("join", forgeyard.Unavailable, "%s holds no site key: only nodes that may vote enrol others", n.enrolment.Name).WithHint("make the token on a voter")
	}
	if err := n.replica.State().MayJoin(site.FormatRange{Min: site.Format(r.OldestLog), Max: site.Format(r.NewestLog)}); err != nil {
		return mesh.Enrolment{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	reply, err := n.proposer.ProposeAs(ctx, "join", site.Join{
		Token: token, Hash: hash, Peer: remote.String(), Name: r.Name, Labels: r.Labels, Addrs: r.ListenAddrs, Gossip: r.GossipAddr, Version: r.Version,
	})
	if err != nil {
		return mesh.Enrolment{}, err
	}
	j, err := site.Value[site.Joined](reply)
	if err != nil {
		return mesh.Enrolment{}, err
	}
	e := mesh.Enrolment{
		SiteID: n.enrolment.SiteID, SiteName: n.enrolment.SiteName, SitePublicKey: n.enrolment.SitePublicKey, RunnerID: j.Runner,
		Name: j.Name, Roles: []string{mesh.RoleRunner}, GossipKey: n.enrolment.GossipKey, Peers: n.fewAddrs(n.ownAddr()),
	}
	if j.MayVote {
		e.Roles, e.SiteKey = append(e.Roles, mesh.RoleVoter), n.siteKey()
	}
	return n.sign(e, remote)
}

func (n *Node) sign(e mesh.Enrolment, p peerID) (mesh.Enrolment, error) {
	now := n.clock.Wall()
	var err error
	e.Credential, err = mesh.IssueCredential(n.siteKey(), mesh.Claims{
		Site: e.SiteID, Runner: e.RunnerID, Peer: p, Roles: e.Roles,
		NotBefore: now.Add(-time.Minute).Truncate(time.Second), NotAfter: now.Add(credentialLife).Truncate(time.Second),
	})
	return e, err
}

// loadFounding returns the founding record while the site's log is not started.
func loadFounding(d *dataDir) (*site.Init, error) {
	b, err := os.ReadFile(d.join(fileFounding))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, forgeyard.E("founding", kindOfIO(err), err)
	}
	var f site.Init
	if err := cborx.Unmarshal(b, &f); err != nil {
		return nil, forgeyard.E("founding", forgeyard.Corrupt, err)
	}
	if len(f.PublicKey) != ed25519.PublicKeySize {
		return nil, forgeyard.Errorf("founding", forgeyard.Corrupt, "%s has no site key", d.join(fileFounding))
	}
	return &f, nil
}
