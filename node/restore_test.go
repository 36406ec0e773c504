package node

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/site/backup"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// founded is a data dir in which a site was begun and never ran, and a backup of that site.
type founded struct {
	t     *testing.T
	dir   string
	clock clock.Clock
	e     mesh.Enrolment
	peer  string
	file  []byte
}

func newFounded(t *testing.T) *founded {
	t.Helper()
	f := &founded{t: t, dir: filepath.Join(t.TempDir(), "data"), clock: clock.NewManual(time.UnixMilli(1_800_000_000_000))}
	if _, err := Init(InitRequest{DataDir: f.dir, SiteName: "lab", NodeName: "n1", Site: sitecfg.DefaultSite(), Clock: f.clock}); err != nil {
		t.Fatal(err)
	}
	e, err := mesh.LoadEnrolment(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	id, err := mesh.LoadOrCreateIdentity(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	f.e, f.peer = e, id.PeerID().String()
	f.file = f.backup(func(*site.Init) {})
	return f
}

// backup is one of the site, begun a little differently.
func (f *founded) backup(change func(*site.Init)) []byte {
	f.t.Helper()
	b := site.Init{Site: f.e.SiteID, Name: "lab", PublicKey: f.e.SitePublicKey, Config: sitecfg.DefaultSite(), Runner: f.e.RunnerID, Node: "n1", Peer: f.peer}
	change(&b)
	s, r := (&site.State{}).ApplyEntry(1, 1, site.Command{ID: "init", At: 1_800_000_000_000, By: "ana", Body: b}.Encode())
	if r.Err() != nil {
		f.t.Fatal(r.Err())
	}
	return backup.Encode(s, backup.Header{Term: 1, At: 1_800_000_000_000, Program: "test", By: b.Runner})
}

func (f *founded) restore(change func(*RestoreRequest)) (Restored, error) {
	r := RestoreRequest{DataDir: f.dir, File: f.file, By: "ana", Clock: f.clock}
	change(&r)
	return Restore(r)
}

// log puts a file where the site's log is.
func (f *founded) log() {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, dirRaft, "raft.db"), []byte("a log"), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// A restore that is refused says why in one line, and leaves the data dir as it was.
func TestRestoreRefuses(t *testing.T) {
	damaged := func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 1; return b }
	for name, c := range map[string]struct {
		prepare func(*founded)
		change  func(*founded, *RestoreRequest)
		kind    forgeyard.Kind
		text    string
	}{
		"no backup":      {nil, func(_ *founded, r *RestoreRequest) { r.File = bytes.Repeat([]byte("x"), 400) }, forgeyard.Invalid, "it is not a backup of a site"},
		"an empty file":  {nil, func(_ *founded, r *RestoreRequest) { r.File = nil }, forgeyard.Invalid, "it is not a backup of a site"},
		"a damaged file": {nil, func(f *founded, r *RestoreRequest) { r.File = damaged(f.file) }, forgeyard.Corrupt, "backup: "},
		"a cut file":     {nil, func(f *founded, r *RestoreRequest) { r.File = f.file[:len(f.file)-9] }, forgeyard.Corrupt, "backup: "},
		"a log is there": {(*founded).log, func(*founded, *RestoreRequest) {}, forgeyard.Conflict, "holds the log of a site"},
		"another site": {nil, func(f *founded, r *RestoreRequest) {
			r.File = f.backup(func(b *site.Init) { b.Site = "01HF000000000000000000000X" })
		}, forgeyard.Conflict, "belongs to site lab"},
		"another key": {nil, func(f *founded, r *RestoreRequest) {
			r.File = f.backup(func(b *site.Init) { b.PublicKey = make([]byte, 32) })
		}, forgeyard.Conflict, "under another key of the site"},
		"no member then": {nil, func(f *founded, r *RestoreRequest) {
			r.File = f.backup(func(b *site.Init) { b.Runner = "01HF000000000000000000000X" })
		}, forgeyard.Conflict, "was no member when the backup was made"},
		"no site key here": {(*founded).loseKey, func(*founded, *RestoreRequest) {}, forgeyard.Denied, "holds no site key"},
		"incarnation 1":    {nil, func(_ *founded, r *RestoreRequest) { r.Incarnation = 1 }, forgeyard.Invalid, "incarnation 1 is not above 1"},
		"a bad name":       {(*founded).elsewhere, func(_ *founded, r *RestoreRequest) { r.NodeName = "" }, forgeyard.Invalid, "node name"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFounded(t)
			if c.prepare != nil {
				c.prepare(f)
			}
			_, err := f.restore(func(r *RestoreRequest) { c.change(f, r) })
			if forgeyard.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("%v", err)
			}
			if left := names(t, filepath.Join(f.dir, dirRaft)); strings.Contains(left, fileSeed) || strings.Contains(left, "reseed") {
				t.Errorf("the next start would carry it out: %s", left)
			}
		})
	}
}

// loseKey makes the node one that never votes.
func (f *founded) loseKey() {
	f.t.Helper()
	e := f.e
	e.SiteKey, e.Roles = mesh.Secret{}, []string{mesh.RoleRunner}
	if err := mesh.SaveEnrolment(f.dir, e); err != nil {
		f.t.Fatal(err)
	}
}

// elsewhere is an empty data dir.
func (f *founded) elsewhere() { f.dir = filepath.Join(f.t.TempDir(), "data") }

// Under the site's own key the node stays who it is. The next start finds the state and
// what begins the incarnation; a log that was there is kept aside.
func TestRestoreInPlace(t *testing.T) {
	f := newFounded(t)
	f.log()
	out, err := f.restore(func(r *RestoreRequest) { r.Replace = true })
	if err != nil {
		t.Fatal(err)
	}
	if out.NewKey || out.Incarnation != 2 || out.Enrolled.Runner != f.e.RunnerID || out.Backup.Name != "lab" {
		t.Fatalf("%+v", out)
	}
	if b, err := os.ReadFile(filepath.Join(out.Aside, "raft.db")); err != nil || string(b) != "a log" {
		t.Errorf("the old log: %q %v", b, err)
	}
	if left := names(t, filepath.Join(f.dir, dirRaft)); !strings.Contains(left, fileSeed) || !strings.Contains(left, "reseed") || strings.Contains(left, "raft.db") {
		t.Errorf("the next start finds %s", left)
	}
	if e, err := mesh.LoadEnrolment(f.dir); err != nil || !e.SiteKey.Equal(f.e.SiteKey) {
		t.Errorf("the enrolment changed: %v", err)
	}
	again, err := f.restore(func(r *RestoreRequest) { r.Incarnation = 7 }) // it was interrupted: no log is in the way
	if err != nil || again.Incarnation != 7 {
		t.Fatalf("repeated: %+v %v", again, err)
	}
	if own, err := consensus.ReadLineage(filepath.Join(f.dir, dirRaft)); err != nil || own != "" {
		t.Errorf("the group begins at the next start, not before: %q %v", own, err)
	}
}

// In an empty data dir the site gets a new key, and this node is its first member: a
// backup holds none, so whoever has the file alone cannot pass for the site.
func TestRestoreUnderANewKey(t *testing.T) {
	f := newFounded(t)
	f.elsewhere()
	out, err := f.restore(func(r *RestoreRequest) { r.NodeName = "n9" })
	if err != nil {
		t.Fatal(err)
	}
	e, err := mesh.LoadEnrolment(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	if !out.NewKey || e.SiteID != f.e.SiteID || e.Name != "n9" || e.RunnerID == f.e.RunnerID || e.SiteKey.IsZero() || e.SiteKey.Equal(f.e.SiteKey) || bytes.Equal(e.SitePublicKey, f.e.SitePublicKey) {
		t.Fatalf("%+v", out)
	}
	id, err := mesh.LoadOrCreateIdentity(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Check(id.PeerID()); err != nil {
		t.Errorf("its own credential: %v", err)
	}
}
