package uplink

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

const (
	testSiteID = forgeyard.SiteID("01JD0000000000000000000001")
	testRunner = forgeyard.RunnerID("01JD0000000000000000000002")
	centralID  = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
)

var testTerms = lease.UplinkTerms{SilentAfter: 10 * time.Second, Grace: 20 * time.Second, Allowance: time.Minute}

// testSite is a site's log with one voter: every proposal is applied at once.
type testSite struct {
	t   *testing.T
	clk clock.Clock

	mu       sync.Mutex
	s        *site.State
	ids      int
	proposed []site.Body
	changed  chan struct{} // closed and replaced with each entry
	refuse   func(site.Body) error
	onApply  func(*site.State)
}

func newTestSite(t *testing.T, clk clock.Clock) *testSite {
	ts := &testSite{t: t, clk: clk, s: &site.State{}, changed: make(chan struct{})}
	ts.must(site.Init{Site: testSiteID, Name: "plant", PublicKey: make([]byte, 32), Config: sitecfg.DefaultSite(), Runner: testRunner, Node: "n1", Peer: "p1"})
	return ts
}

func (ts *testSite) state() *site.State {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.s
}

func (ts *testSite) propose(_ context.Context, b site.Body) (site.Reply, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.refuse != nil {
		if err := ts.refuse(b); err != nil {
			return site.Reply{}, err
		}
	}
	ts.ids++
	c := site.Command{ID: forgeyard.MessageID(fmt.Sprintf("m%d", ts.ids)), At: forgeyard.WallOf(ts.clk.Wall()), By: "test", Body: b}
	next, r := ts.s.Apply(ts.s.Index+1, c.Encode())
	ts.s = next
	ts.proposed = append(ts.proposed, b)
	if ts.onApply != nil {
		ts.onApply(next)
	}
	close(ts.changed)
	ts.changed = make(chan struct{})
	return r, nil
}

func (ts *testSite) must(b site.Body) site.Reply {
	ts.t.Helper()
	r, err := ts.propose(context.Background(), b)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		ts.t.Fatal(err)
	}
	return r
}

func (ts *testSite) connect() {
	ts.must(site.UplinkConnect{Central: site.Central{Peer: centralID, Name: "hq"}, Terms: testTerms})
}

// await waits until the state says so.
func (ts *testSite) await(what string, ok func(*site.State) bool) {
	ts.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		ts.mu.Lock()
		s, changed := ts.s, ts.changed
		ts.mu.Unlock()
		if ok(s) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			ts.t.Fatalf("not seen in 20 s: %s; uplink %+v", what, s.Uplink)
		}
	}
}

func (ts *testSite) bodies() []site.Body {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return append([]site.Body(nil), ts.proposed...)
}

// drive advances a manual clock in small steps until the state says so.
func (ts *testSite) drive(m *clock.Manual, step time.Duration, what string, ok func(*site.State) bool) {
	ts.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(ts.state()); {
		if time.Now().After(end) {
			ts.t.Fatalf("not seen: %s; uplink %+v", what, ts.state().Uplink)
		}
		m.Advance(step)
		for range 50 {
			runtime.Gosched()
		}
		<-time.After(200 * time.Microsecond)
	}
}

// fakeCentral is a daemon in memory.
type fakeCentral struct {
	forgeyardv1connect.DelegationServiceClient
	mu          sync.Mutex
	down        bool
	block       chan struct{} // when set, calls wait for it or their end
	terms       lease.UplinkTerms
	delegations []site.Delegation
	cancelled   []string
	acked       uint64
	calls       int
	lastReq     *v1.SyncRequest
	before      func() // within the call, before the answer
}

func (f *fakeCentral) Sync(ctx context.Context, r *connect.Request[v1.SyncRequest]) (*connect.Response[v1.SyncResponse], error) {
	f.mu.Lock()
	f.calls++
	block, before := f.block, f.before
	f.mu.Unlock()
	if before != nil {
		before()
	}
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, forgeyard.E("call", forgeyard.Unavailable, ctx.Err())
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, forgeyard.Errorf("call", forgeyard.Unavailable, "no route")
	}
	f.lastReq = r.Msg
	f.acked = max(f.acked, r.Msg.First+uint64(len(r.Msg.Records))-1)
	resp := &v1.SyncResponse{Terms: TermsTo(f.terms), Acked: f.acked, Cancelled: f.cancelled}
	for _, d := range f.delegations {
		if d.Seq > r.Msg.Cursor {
			resp.Delegations = append(resp.Delegations, cborx.Marshal(d))
		}
	}
	return connect.NewResponse(resp), nil
}

func (f *fakeCentral) set(change func(*fakeCentral)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeCentral) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// testSpec is a small job; with an input it needs a prefetch.
func testSpec(t *testing.T, inputs int) job.Spec {
	t.Helper()
	text := "version: 1\nkind: build\njob:\n  steps: [{name: a, run: [\"true\"]}]\n  connectivity: {policy: offline_authorized, for: 1h}\n"
	for i := range inputs {
		if i == 0 {
			text += "  inputs:\n"
		}
		text += fmt.Sprintf("    - {path: source/%d, digest: %s}\n", i, cas.Sum([]byte{byte(i)}))
	}
	f, err := job.ParseFile("job.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := f.Spec(nil)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func delegation(t *testing.T, seq uint64, grant string, inputs int) site.Delegation {
	spec := testSpec(t, inputs)
	raw := spec.Canonical()
	return site.Delegation{Seq: seq, Grant: lease.Grant{ID: forgeyard.GrantID(grant), Term: 1, Policy: spec.Connectivity}, Title: grant, Spec: raw, SpecID: cas.Sum(raw)}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
