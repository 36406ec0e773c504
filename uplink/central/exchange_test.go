package central

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

var errCut = forgeyard.Errorf("transport", forgeyard.Unavailable, "the link was cut")

// killed is what a test throws where a kill would strike.
type killed struct{ step string }

// wireTo carries calls to a daemon, and loses them: on the way, on the way back, or
// together with the daemon.
type wireTo struct {
	forgeyardv1connect.DelegationServiceClient
	store *testStore
	rng   *rand.Rand
	cuts  int
	steps map[string]int // where the daemon was killed
	old   []*v1.SyncRequest
	kills bool
}

func (w *wireTo) Sync(ctx context.Context, r *connect.Request[v1.SyncRequest]) (*connect.Response[v1.SyncResponse], error) {
	// What travels is bytes: neither side sees the other's memory.
	req := proto.CloneOf(r.Msg)
	w.old = append(w.old, req)
	if w.rng.IntN(4) == 0 {
		w.cuts++
		return nil, errCut // lost on the way
	}
	if w.rng.IntN(6) == 0 { // an old request that was stuck somewhere arrives first
		_, _ = w.deliver(ctx, w.old[w.rng.IntN(len(w.old))])
	}
	resp, err := w.deliver(ctx, req)
	if w.rng.IntN(4) == 0 {
		w.cuts++
		return nil, errCut // lost on the way back
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(proto.CloneOf(resp)), nil
}

// deliver gives a request to the daemon, which may be killed at any step of it.
func (w *wireTo) deliver(ctx context.Context, r *v1.SyncRequest) (resp *v1.SyncResponse, err error) {
	defer func() {
		w.store.step = nil
		k := recover()
		if k == nil {
			return
		}
		strike, ok := k.(killed)
		if !ok {
			panic(k)
		}
		w.steps[strike.step]++
		w.cuts++
		w.store.kill()
		resp, err = nil, errCut
	}()
	if w.kills && w.rng.IntN(3) == 0 {
		left := 1 + w.rng.IntN(8)
		w.store.step = func(step string) {
			if left--; left == 0 {
				panic(killed{step})
			}
		}
	}
	return w.daemon().sync(ctx, "speaker", r)
}

func (w *wireTo) daemon() *delegation {
	return &delegation{
		store: w.store.Store, ended: func(Job) {}, heard: func(Site) {},
		lacks: func(context.Context, Job) []string { return nil },
	}
}

// TestExactlyOnceUpstream: E01, E13. Through more than 1000 cuts, with requests that
// arrive late and twice and a daemon that is killed at every step, the daemon ends with
// every record once, in order and without a gap, and with every outcome once.
func TestExactlyOnceUpstream(t *testing.T) {
	cuts, steps := 0, map[string]int{}
	for seed := uint64(0); cuts < 1200; seed++ {
		if seed > 200 {
			t.Fatalf("only %d cuts in %d runs", cuts, seed)
		}
		w := exactlyOnce(t, seed)
		cuts += w.cuts
		for s, n := range w.steps {
			steps[s] += n
		}
	}
	for _, s := range []string{"before", "record", "before commit", "after commit"} {
		if steps[s] == 0 {
			t.Errorf("the daemon was never killed at step %q: %v", s, steps)
		}
	}
	t.Logf("%d cuts, kills by step: %v", cuts, steps)
}

func exactlyOnce(t *testing.T, seed uint64) *wireTo {
	rng := rand.New(rand.NewPCG(seed, 7))
	store := newTestStore(t)
	store.enrol()
	ts := newTestSite(t, store.clk)
	ts.must(site.UplinkConnect{Central: site.Central{Peer: "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp", Name: "hq"}, Terms: testTerms})
	w := &wireTo{store: store, rng: rng, steps: map[string]int{}, kills: true}
	link := newLink(t, ts, w, store)
	records := map[uint64]site.Record{} // every record that the site ever made
	const jobs = 12
	given := 0
	for round := 0; ; round++ {
		if round > 2000 {
			t.Fatalf("seed %d: no progress: outbox %d, open %d", seed, ts.s.Outbox.Len(), ts.s.Open.Len())
		}
		store.clk.Advance(time.Second)
		if given < jobs && rng.IntN(3) == 0 {
			given++
			store.delegate(fmt.Sprintf("g%02d", given))
		}
		if rng.IntN(4) == 0 { // some job ends at the site
			for id := range ts.s.Open.All() {
				if rng.IntN(3) == 0 {
					ts.must(site.Cancel{Job: id})
				}
				break
			}
		}
		for _, r := range ts.s.Outbox.All() {
			records[r.Seq] = r
		}
		if rng.IntN(8) == 0 { // another leader: it knows what the log knows
			link = newLink(t, ts, w, store)
		}
		err := link.Sync(context.Background())
		if err != nil && !errors.Is(err, errCut) {
			t.Fatalf("seed %d round %d: %v", seed, round, err)
		}
		takeIn(ts, store)
		if given == jobs && ts.s.Open.Len() == 0 && ts.s.Outbox.Len() == 0 && ts.s.Cursor == jobs {
			break
		}
	}
	checkOnce(t, seed, store, ts, records, jobs)
	return w
}

// takeIn does what the site's intake does, without its goroutine.
func takeIn(ts *testSite, store *testStore) {
	out, err := store.Exchange(sent{site: testSiteID, incarnation: ts.s.Incarnation, cursor: ts.s.Cursor, first: ts.s.Acked + 1})
	if err != nil {
		return // the daemon has taken more than the site has heard of; the next round tells it
	}
	var ds []site.Delegation
	for _, raw := range out.delegations {
		d, err := uplink.DecodeDelegation(raw)
		must(ts.t, err)
		ds = append(ds, d)
	}
	if len(ds) > 0 {
		ts.must(site.Delegate{From: ts.s.Cursor, To: ds[len(ds)-1].Seq, Grants: ds})
	}
}

func newLink(t *testing.T, ts *testSite, w *wireTo, store *testStore) *uplink.Link {
	t.Helper()
	l, err := uplink.New(uplink.Config{
		State: func() *site.State { return ts.s }, Propose: ts.propose, Clock: store.clk,
		Vouch:  func(context.Context, uint64) []uplink.Vouch { return nil },
		Client: func(string) forgeyardv1connect.DelegationServiceClient { return w },
	})
	must(t, err)
	return l
}

func checkOnce(t *testing.T, seed uint64, store *testStore, ts *testSite, records map[uint64]site.Record, jobs int) {
	t.Helper()
	row, err := store.FindSite(string(testSiteID))
	must(t, err)
	if row.Records != ts.s.Sent || uint64(len(records)) != ts.s.Sent {
		t.Errorf("seed %d: the daemon has %d records, the site made %d", seed, row.Records, ts.s.Sent)
	}
	all, err := store.Jobs("")
	must(t, err)
	if len(all) != jobs {
		t.Errorf("seed %d: %d jobs", seed, len(all))
	}
	for _, j := range all {
		if j.Outcomes != 1 || !j.Status.terminal() || records[j.Record].Grant != j.Grant {
			t.Errorf("seed %d: %s has %d outcomes, status %s, by record %d of %s", seed, j.Grant, j.Outcomes, j.Status, j.Record, records[j.Record].Grant)
		}
	}
	// The audit is the order in which things were accepted.
	rows, err := store.Audit(maxAuditList)
	must(t, err)
	next := uint64(1)
	for _, a := range rows {
		if a.Kind != "record" {
			continue
		}
		if !strings.HasPrefix(a.Text, fmt.Sprintf("record %d,", next)) || !strings.HasSuffix(a.Text, ": accepted") {
			t.Errorf("seed %d: audit %d is %q, record %d is next", seed, a.seq, a.Text, next)
		}
		next++
	}
	if next != ts.s.Sent+1 {
		t.Errorf("seed %d: the audit ends before record %d of %d", seed, next, ts.s.Sent)
	}
}

func raws(rs ...site.Record) (out [][]byte) {
	for _, r := range rs {
		out = append(out, cborx.Marshal(r))
	}
	return out
}

func accepted(seq uint64, g string) site.Record {
	return site.Record{Seq: seq, Kind: site.RecordAccepted, Grant: forgeyard.GrantID(g), Job: "j", Status: job.Queued, Fence: forgeyard.Fence{Incarnation: 1, Term: 1}}
}

func ended(seq uint64, g string, st job.Status) site.Record {
	return site.Record{Seq: seq, Kind: site.RecordOutcome, Grant: forgeyard.GrantID(g), Job: "j", Status: st, Fence: forgeyard.Fence{Incarnation: 1, Term: 1, Epoch: 1}, Result: &job.Result{}}
}

func verdicts(a answer) (out string) {
	for _, v := range a.verdicts {
		out += fmt.Sprintf("%d:%s ", v.seq, v.verdict)
	}
	return strings.TrimSpace(out)
}

// TestExchangeStory walks through the cases one by one.
func TestExchangeStory(t *testing.T) {
	st := newTestStore(t)
	st.enrol()
	st.delegate("g1")
	in := sent{site: testSiteID, incarnation: 1, first: 1, records: raws(accepted(1, "g1"), ended(2, "g1", job.Done))}
	say := func(what, want string, in sent) answer {
		t.Helper()
		a, err := st.Exchange(in)
		must(t, err)
		if got := verdicts(a); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
		return a
	}
	say("first", "1:accepted 2:accepted", in)
	say("again", "1:duplicate_accepted 2:duplicate_accepted", in)
	changed := in
	changed.records = raws(accepted(1, "g1"), ended(2, "g1", job.Failed))
	say("other content under a number that was taken", "1:duplicate_accepted 2:invalid_rejected", changed)
	say("unknown grant takes its number all the same", "3:invalid_rejected", sent{site: testSiteID, incarnation: 1, first: 3, records: raws(accepted(3, "nobody's"))})
	say("and is refused again", "3:invalid_rejected", sent{site: testSiteID, incarnation: 1, first: 3, records: raws(accepted(3, "nobody's"))})
	_, err := st.Exchange(sent{site: testSiteID, incarnation: 1, first: 5, records: raws(accepted(5, "g1"))})
	wantKind(t, err, forgeyard.Conflict)
	if !strings.Contains(err.Error(), "record 4 is expected") {
		t.Errorf("a gap names what is expected: %v", err)
	}
	_, err = st.Exchange(sent{site: testSiteID, incarnation: 1, first: 9})
	wantKind(t, err, forgeyard.Conflict)
	_, err = st.Exchange(sent{site: testSiteID, incarnation: 1, first: 4, records: [][]byte{[]byte("junk")}})
	wantKind(t, err, forgeyard.Invalid)
	say("what is readable before it is taken", "4:duplicate_accepted", sent{site: testSiteID, incarnation: 1, first: 4, records: append(raws(ended(4, "g1", job.Done)), []byte("junk"))})
	_, err = st.Exchange(sent{site: testSiteID, incarnation: 1, first: 5, cursor: 7})
	wantKind(t, err, forgeyard.Conflict)
	_, err = st.Exchange(sent{site: testSiteID, incarnation: 0, first: 5})
	wantKind(t, err, forgeyard.Stale)
	_, err = st.Exchange(sent{site: "01JD0000000000000000000077", first: 1})
	wantKind(t, err, forgeyard.NotFound)
	a := say("a recovered site goes on lower", "3:accepted", sent{site: testSiteID, incarnation: 2, first: 3, records: raws(func() site.Record {
		st.delegate("g2")
		r := accepted(3, "g2")
		r.Fence.Incarnation = 2
		return r
	}())})
	if a.site.Records != 3 {
		t.Errorf("records %d", a.site.Records)
	}
	_, err = st.Exchange(sent{site: testSiteID, incarnation: 2, first: 4, records: raws(accepted(5, "g2"))})
	wantKind(t, err, forgeyard.Invalid) // its own number is another
	must(t, st.update("test", func(tx *bolt.Tx) error {
		return putJob(tx, Job{Grant: "g9", Site: "01JD0000000000000000000077", Term: 1, Status: Delegated})
	}))
	say("a grant of another site", "4:invalid_rejected", sent{site: testSiteID, incarnation: 2, first: 4, records: raws(accepted(4, "g9"))})
	if j, err := st.Job("g1"); err != nil || j.Outcomes != 1 || j.Status != Done {
		t.Errorf("its outcomes stay: %+v %v", j, err)
	}
}

// TestCancelIsPendingUntilTaken: E15.
func TestCancelIsPendingUntilTaken(t *testing.T) {
	st := newTestStore(t)
	st.enrol()
	for i := range reckon.MaxDelegations + 5 {
		st.delegate(fmt.Sprintf("g%03d", i))
	}
	j, changed, err := st.Cancel("g000")
	must(t, err)
	if !changed || j.CancelAt == 0 || j.CancelSeen != 0 {
		t.Fatalf("%v %+v", changed, j)
	}
	if _, changed, err = st.Cancel("g000"); err != nil || changed {
		t.Errorf("asking twice changes nothing: %v %v", changed, err)
	}
	a, err := st.Exchange(sent{site: testSiteID, incarnation: 1, first: 1})
	must(t, err)
	if len(a.delegations) != reckon.MaxDelegations || len(a.gone) != 1 || a.gone[0] != "g000" {
		t.Errorf("%d delegations, taken back first: %v", len(a.delegations), a.gone)
	}
	st.kill()
	if j, err = st.Job("g000"); err != nil || j.CancelAt == 0 || j.CancelSeen != 0 {
		t.Fatalf("after a kill it is still pending: %+v %v", j, err)
	}
	_, err = st.Exchange(sent{site: testSiteID, incarnation: 1, first: 1, cursor: j.CancelSeq})
	must(t, err)
	if j, err = st.Job("g000"); err != nil || j.CancelSeen == 0 {
		t.Errorf("%+v %v", j, err)
	}
}

// More cancellations than one answer holds stand behind a delegation that waits at the site.
// Those of work that it has come first, the rest as the first ones end; each is pending until
// then, and says so, and asking again changes nothing (E15).
func TestCancelsBeyondOneAnswer(t *testing.T) {
	const running, waiting = reckon.MaxCancelled + 476, reckon.MaxCancelled + 1
	st := newTestStore(t)
	st.enrol()
	name := func(i int) string { return fmt.Sprintf("g%04d", i) }
	for i := range running + 1 + waiting { // the site has taken in the running ones, and waits with the next
		st.delegate(name(i))
	}
	for i := running + waiting; i >= 0; i-- { // those that it has not heard of first
		if i == running {
			continue
		}
		if _, changed, err := st.Cancel(forgeyard.GrantID(name(i))); err != nil || !changed {
			t.Fatalf("%s: %v %v", name(i), changed, err)
		}
	}
	st.kill()
	records, told := uint64(0), map[string]bool{}
	for round := 1; len(told) < running; round++ {
		a, err := st.Exchange(sent{site: testSiteID, incarnation: 1, cursor: running, first: records + 1})
		must(t, err)
		if len(a.gone) != reckon.MaxCancelled {
			t.Fatalf("answer %d takes back %d grants", round, len(a.gone))
		}
		var over []site.Record
		for _, g := range a.gone {
			if g < name(running) && !told[g] {
				told[g] = true
				over = append(over, ended(records+uint64(len(over))+1, g, job.Cancelled))
			}
		}
		if len(over) == 0 {
			t.Fatalf("answer %d takes back nothing that runs: %d of %d were", round, len(told), running)
		}
		a, err = st.Exchange(sent{site: testSiteID, incarnation: 1, cursor: running, first: records + 1, records: raws(over...)})
		must(t, err)
		records = a.site.Records
	}
	for _, i := range []int{running - 1, running + waiting} {
		j, changed, err := st.Cancel(forgeyard.GrantID(name(i)))
		must(t, err)
		if changed || j.CancelAt == 0 || j.CancelSeen != 0 || j.Status.terminal() != (i < running) {
			t.Errorf("%s: %v %+v", name(i), changed, j)
		}
	}
	_, err := st.Exchange(sent{site: testSiteID, incarnation: 1, first: records + 1, cursor: 2*(running+waiting) + 1})
	must(t, err)
	for i := range running + 1 + waiting {
		if j, err := st.Job(forgeyard.GrantID(name(i))); err != nil || (j.CancelSeen != 0) != (i != running) {
			t.Fatalf("%s when all is taken in: %+v %v", name(i), j, err)
		}
	}
}

// TestDaemonBackAfterLongOutage: E22. Nothing is un-enrolled, cancelled or delegated
// anew because a site was not heard for a year, and its terms are whole.
func TestDaemonBackAfterLongOutage(t *testing.T) {
	st := newTestStore(t)
	st.enrol()
	st.delegate("g1")
	first, err := st.Exchange(sent{site: testSiteID, incarnation: 1, first: 1})
	must(t, err)
	st.clk.Advance(365 * 24 * time.Hour)
	st.kill()
	again, err := st.Exchange(sent{site: testSiteID, incarnation: 1, first: 1, cursor: 1})
	must(t, err)
	if again.site.Terms != first.site.Terms || len(again.delegations) != 0 || len(again.gone) != 0 || again.site.Delegated != 1 {
		t.Errorf("%+v", again)
	}
}

func FuzzSync(f *testing.F) {
	f.Add(cborx.Marshal(accepted(1, "g1")), uint64(1), uint64(0))
	f.Add([]byte{0xa0}, uint64(0), uint64(9))
	st := newTestStore(f)
	st.enrol()
	st.delegate("g1")
	f.Fuzz(func(t *testing.T, raw []byte, first, cursor uint64) {
		d := (&wireTo{store: st}).daemon()
		before, err := st.FindSite(string(testSiteID))
		must(t, err)
		r, err := d.sync(context.Background(), "p", &v1.SyncRequest{SiteId: string(testSiteID), Incarnation: 1, First: first, Cursor: cursor, Records: [][]byte{raw}})
		after, ferr := st.FindSite(string(testSiteID))
		must(t, ferr)
		if err != nil && after.Records != before.Records {
			t.Fatalf("refused, and records went from %d to %d", before.Records, after.Records)
		}
		if err == nil && (r.Acked != after.Records || after.Records > before.Records+1) {
			t.Fatalf("acked %d, records %d after %d", r.Acked, after.Records, before.Records)
		}
	})
}
