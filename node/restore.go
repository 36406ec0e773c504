package node

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/site/backup"
)

// fileSeed holds the state of a backup until the next start takes it in.
const fileSeed = "seed"

// RestoreRequest makes a site of one node from a backup.
type RestoreRequest struct {
	DataDir     string
	NodeName    string // of the node, where the data dir is enrolled nowhere
	File        []byte // of the backup
	Incarnation uint64 // at least this one; zero: one more than the backup and the data dir know
	Replace     bool   // set a log that is there aside
	By          string
	Clock       clock.Clock
}

// Restored says what the next start will do.
type Restored struct {
	Backup      backup.Header
	Incarnation uint64
	Fenced      site.Recovered
	NewKey      bool // the site has a new key: everybody else must join again
	Enrolled    Enrolled
	Aside       string // where an old log is now
}

// Restore prepares a data dir that no daemon has open: the next `up` begins a new
// incarnation of the site there, with this node as its only voter. One that was
// interrupted is repeated.
func Restore(r RestoreRequest) (Restored, error) {
	var out Restored
	h, st, err := backup.Decode(r.File)
	if err != nil {
		return out, err
	}
	out.Backup = h
	d, err := openDataDir(r.DataDir)
	if err != nil {
		return out, err
	}
	defer d.close()
	e, err := restoreAs(d, st, r, &out)
	if err != nil {
		return out, err
	}
	if err := r.pickIncarnation(d, h, &out); err != nil {
		return out, err
	}
	raw, err := r.command(d, st, e, &out)
	if err != nil {
		return out, err
	}
	if err := d.clearLog(r.Replace, r.Clock, &out.Aside); err != nil {
		return out, err
	}
	return out, d.plan(r.File, h, raw, e, &out)
}

// restoreAs is who the node is in the restored site: itself, if it is enrolled there and
// holds the site's key, else the first member under a new key.
func restoreAs(d *dataDir, st *site.State, r RestoreRequest, out *Restored) (mesh.Enrolment, error) {
	e, err := mesh.LoadEnrolment(d.path)
	switch {
	case forgeyard.KindOf(err) == forgeyard.NotFound:
		if err := checkName("node name", r.NodeName); err != nil {
			return e, err
		}
		out.NewKey = true
		return newFounder(d, st, r)
	case err != nil:
		return e, err
	case e.SiteID != st.Site:
		return e, forgeyard.Errorf("restore", forgeyard.Conflict, "%s belongs to site %s (%s), the backup is of %s (%s)", d.path, e.SiteName, e.SiteID, st.Name, st.Site).WithHint("choose another --data-dir")
	case e.SiteKey.IsZero():
		return e, forgeyard.Errorf("restore", forgeyard.Denied, "%s holds no site key", e.Name).WithHint("restore on a node that may vote, or into an empty --data-dir")
	case !slices.Equal([]byte(e.SitePublicKey), st.PublicKey):
		return e, forgeyard.Errorf("restore", forgeyard.Conflict, "the backup was made under another key of the site than %s holds", e.Name).WithHint("restore into an empty --data-dir")
	}
	m, ok := st.Members.Get(e.RunnerID)
	if !ok || m.Removed {
		return e, forgeyard.Errorf("restore", forgeyard.Conflict, "%s was no member when the backup was made", e.Name).WithHint("restore on a node that was, or into an empty --data-dir")
	}
	out.Enrolled = Enrolled{Site: e.SiteID, SiteName: e.SiteName, Runner: e.RunnerID, Name: e.Name, Already: true}
	return e, nil
}

func newFounder(d *dataDir, st *site.State, r RestoreRequest) (mesh.Enrolment, error) {
	id, err := mesh.LoadOrCreateIdentity(d.path)
	if err != nil {
		return mesh.Enrolment{}, err
	}
	key, pub, err := mesh.NewSiteKey()
	if err != nil {
		return mesh.Enrolment{}, err
	}
	gossip := make([]byte, mesh.GossipKeySize)
	rand.Read(gossip)
	e := mesh.Enrolment{
		SiteID: st.Site, SiteName: st.Name, SitePublicKey: pub, RunnerID: forgeyard.RunnerID(NewID(r.Clock)), Name: r.NodeName,
		Roles: []string{mesh.RoleRunner, mesh.RoleVoter}, GossipKey: mesh.NewSecret(gossip), SiteKey: key,
	}
	e.Credential, err = mesh.IssueCredential(key, claims(e, id, r.Clock.Wall()))
	return e, err
}

func (r RestoreRequest) pickIncarnation(d *dataDir, h backup.Header, out *Restored) error {
	own, err := consensus.ReadLineage(d.join(dirRaft))
	if err != nil {
		return forgeyard.E("restore", kindOfIO(err), err)
	}
	known := max(h.Incarnation, incarnationOf(own))
	out.Incarnation = max(known+1, r.Incarnation)
	if r.Incarnation != 0 && r.Incarnation <= known {
		return forgeyard.Errorf("restore", forgeyard.Invalid, "incarnation %d is not above %d, the highest that is known", r.Incarnation, known)
	}
	return nil
}

// command is what begins the incarnation, tried on the state.
func (r RestoreRequest) command(d *dataDir, st *site.State, e mesh.Enrolment, out *Restored) ([]byte, error) {
	id, err := mesh.LoadOrCreateIdentity(d.path)
	if err != nil {
		return nil, err
	}
	b := site.Recover{
		Incarnation: out.Incarnation, Lineage: newLineage(out.Incarnation, NewID(r.Clock)), Runner: e.RunnerID, Node: e.Name, Peer: id.PeerID().String(),
		From: st.Index, Backup: true, Formats: site.Formats,
	}
	if out.NewKey {
		b.PublicKey = e.SitePublicKey
		out.Enrolled = Enrolled{Site: e.SiteID, SiteName: e.SiteName, Runner: e.RunnerID, Name: e.Name}
	}
	raw := site.Command{ID: forgeyard.MessageID(NewID(r.Clock)), At: forgeyard.WallOf(r.Clock.Wall()), By: r.By + "@" + e.Name, Body: b}.Encode()
	_, reply := st.ApplyEntry(site.FirstIndex(b.Incarnation), 1, raw)
	out.Fenced, err = site.Value[site.Recovered](reply)
	return raw, err
}

// clearLog makes room for another log, and keeps the old one.
func (d *dataDir) clearLog(replace bool, c clock.Clock, aside *string) error {
	list, err := os.ReadDir(d.join(dirRaft))
	if err != nil {
		return forgeyard.E("restore", kindOfIO(err), err)
	}
	has := slices.ContainsFunc(list, func(f fs.DirEntry) bool { return f.Name() != fileSeed && f.Name() != "reseed" })
	if !has {
		return nil
	}
	if !replace {
		return forgeyard.Errorf("restore", forgeyard.Conflict, "%s holds the log of a site", d.join(dirRaft)).WithHint("--replace sets it aside; if the node still works, forgeyard-node site recover --force keeps more")
	}
	return d.setAside(c, aside)
}

// setAside renames the log's folder: nothing of it is lost, and nothing of it is read.
func (d *dataDir) setAside(c clock.Clock, aside *string) error {
	to := d.join(dirRaft + ".before-" + c.Wall().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(d.join(dirRaft), to); err != nil {
		return forgeyard.E("set aside", kindOfIO(err), err)
	}
	if err := makeDir(d.join(dirRaft), 0o700); err != nil {
		return forgeyard.E("set aside", kindOfIO(err), err)
	}
	*aside = to
	if err := durable.SyncDir(d.path); err != nil {
		return forgeyard.E("set aside", kindOfIO(err), err)
	}
	return nil
}

// plan writes down what the next start carries out. The enrolment comes last: without it
// the data dir belongs to no site, and the restore is simply repeated.
func (d *dataDir) plan(file []byte, h backup.Header, raw []byte, e mesh.Enrolment, out *Restored) error {
	_, state, err := backup.Split(file)
	if err != nil {
		return err
	}
	if err := writeFile(d.join(dirRaft, fileSeed), state, 0o600); err != nil {
		return err
	}
	plan := consensus.Reseed{Lineage: lineageIn(raw), Index: site.FirstIndex(out.Incarnation), Command: raw, State: fileSeed, StateIndex: h.Index}
	if err := consensus.PlanReseed(d.join(dirRaft), plan); err != nil {
		return err
	}
	for _, f := range []string{fileFounding, fileSuperseded} {
		if err := removeFile(d.join(f)); err != nil {
			return err
		}
	}
	if out.NewKey {
		return mesh.SaveEnrolment(d.path, e)
	}
	return nil
}

func lineageIn(raw []byte) string {
	cmd, err := site.Decode(raw)
	if b, ok := cmd.Body.(site.Recover); err == nil && ok {
		return b.Lineage
	}
	return ""
}

// Rejoin sets a log aside that belongs to an incarnation which was given up: the next
// start enters the site as it is now. The node keeps its name, its key and its content.
func Rejoin(dataDir string, force bool, c clock.Clock) (aside string, e Enrolled, err error) {
	d, err := openDataDir(dataDir)
	if err != nil {
		return "", e, err
	}
	defer d.close()
	en, err := mesh.LoadEnrolment(d.path)
	if err != nil {
		if forgeyard.KindOf(err) == forgeyard.NotFound {
			err = notEnrolled(d.path)
		}
		return "", e, err
	}
	e = Enrolled{Site: en.SiteID, SiteName: en.SiteName, Runner: en.RunnerID, Name: en.Name, Already: true}
	if _, err := os.Stat(d.join(fileSuperseded)); errors.Is(err, fs.ErrNotExist) && !force {
		return "", e, forgeyard.Errorf("rejoin", forgeyard.Conflict, "%s was not told that its incarnation of the site was given up", en.Name).
			WithHint("start it: it learns so by itself when it reaches the site; --force sets its log aside all the same")
	}
	if err := d.setAside(c, &aside); err != nil {
		return "", e, err
	}
	return aside, e, removeFile(d.join(fileSuperseded))
}

// checkSuperseded looks whether this node was told that its incarnation has ended. One
// that never may vote holds only a copy: it begins anew by itself.
func (n *Node) checkSuperseded() error {
	raw, err := os.ReadFile(n.dir.join(fileSuperseded))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return forgeyard.E("start", kindOfIO(err), err)
	}
	s, err := mesh.OpenStatement(raw, n.enrolment.SiteID, n.enrolment.SitePublicKey)
	if err != nil {
		return forgeyard.E("start", forgeyard.Corrupt, err)
	}
	own, err := consensus.ReadLineage(n.dir.join(dirRaft))
	if err != nil {
		return forgeyard.E("start", kindOfIO(err), err)
	}
	if own == s.Lineage {
		return removeFile(n.dir.join(fileSuperseded))
	}
	if !n.siteKey().IsZero() {
		return supersededBy(s, n.enrolment.Name, incarnationOf(own))
	}
	var aside string
	if err := n.dir.setAside(n.clock, &aside); err != nil {
		return err
	}
	n.log.Warn("the site goes on in a later incarnation: this node begins anew", "incarnation", s.Incarnation, "begun_on", s.Node, "old_log", aside)
	return removeFile(n.dir.join(fileSuperseded))
}
