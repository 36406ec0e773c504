package central

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

const (
	testSiteID = forgeyard.SiteID("01JD0000000000000000000001")
	testRunner = forgeyard.RunnerID("01JD0000000000000000000002")
)

var (
	epoch     = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	testTerms = lease.UplinkTerms{SilentAfter: 10 * time.Second, Grace: 20 * time.Second, Allowance: time.Hour}
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err error, k forgeyard.Kind) {
	t.Helper()
	if err == nil || forgeyard.KindOf(err) != k {
		t.Fatalf("got %v (%v), want kind %v", err, forgeyard.KindOf(err), k)
	}
}

// testStore is a store in a folder that can be killed and opened again.
type testStore struct {
	*Store
	t    testing.TB
	path string
	clk  *clock.Manual
}

func newTestStore(t testing.TB) *testStore {
	ts := &testStore{t: t, path: filepath.Join(t.TempDir(), "central.db"), clk: clock.NewManual(epoch)}
	ts.reopen()
	t.Cleanup(func() { must(t, ts.Store.Close()) })
	return ts
}

// reopen opens the file as a new process would, after kill.
func (ts *testStore) reopen() {
	ts.t.Helper()
	s, err := openStore(ts.path, ts.clk, true)
	must(ts.t, err)
	ts.Store = s
}

// kill lets go of the file without a goodbye: what only memory had is gone.
func (ts *testStore) kill() {
	ts.t.Helper()
	must(ts.t, ts.Store.db.Close())
	ts.reopen()
}

// enrol makes a site known without the mesh.
func (ts *testStore) enrol() {
	ts.t.Helper()
	secret := make([]byte, 32)
	ts.ticket("01JD00000000000000000000T1", secret)
	_, err := ts.Enrol(enrolment{site: testSiteID, name: "plant", public: make([]byte, 32), ticket: "01JD00000000000000000000T1", secret: secret, first: 1})
	must(ts.t, err)
}

// testSite is a site's log with one voter.
type testSite struct {
	t   testing.TB
	clk clock.Clock
	s   *site.State
	ids int
}

func newTestSite(t testing.TB, clk clock.Clock) *testSite {
	ts := &testSite{t: t, clk: clk, s: &site.State{}}
	ts.must(site.Init{Site: testSiteID, Name: "plant", PublicKey: make([]byte, 32), Config: sitecfg.DefaultSite(), Runner: testRunner, Node: "n1", Peer: "p1"})
	return ts
}

func (ts *testSite) propose(_ context.Context, b site.Body) (site.Reply, error) {
	ts.ids++
	c := site.Command{ID: forgeyard.MessageID(fmt.Sprintf("m%d", ts.ids)), At: forgeyard.WallOf(ts.clk.Wall()), By: "test", Body: b}
	next, r := ts.s.Apply(ts.s.Index+1, c.Encode())
	ts.s = next
	return r, nil
}

func (ts *testSite) must(b site.Body) {
	ts.t.Helper()
	r, err := ts.propose(context.Background(), b)
	must(ts.t, err)
	must(ts.t, r.Err())
}

func testSpec(t testing.TB, extra string) job.Spec {
	t.Helper()
	f, err := job.ParseFile("job.yaml", []byte("version: 1\nkind: build\njob:\n  steps: [{name: a, run: [\"true\"]}]\n"+extra), nil)
	must(t, err)
	spec, err := f.Spec(nil)
	must(t, err)
	return spec
}

// delegate writes one job for the test site.
func (ts *testStore) delegate(grant string) Job {
	ts.t.Helper()
	spec := testSpec(ts.t, "")
	raw := spec.Canonical()
	d := site.Delegation{Title: grant, Spec: raw, SpecID: cas.Sum(raw), Grant: lease.Grant{ID: forgeyard.GrantID(grant), Term: 1, Policy: spec.Connectivity}}
	j, err := ts.Delegate(testSiteID, Job{Grant: d.Grant.ID, Title: grant, Spec: d.SpecID, Durability: spec.Durability, Term: 1}, d)
	must(ts.t, err)
	return j
}
