package central

import (
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
)

func (ts *testStore) ticket(id string, secret []byte) {
	ts.t.Helper()
	_, err := ts.NewTicket(forgeyard.TokenID(id), uplink.SecretHash(secret), time.Hour, testTerms)
	must(ts.t, err)
}

func TestTicketEnrolsOnce(t *testing.T) {
	st := newTestStore(t)
	secret, wrong := make([]byte, 32), make([]byte, 32)
	wrong[0] = 1
	const id = "01JD00000000000000000000T1"
	st.ticket(id, secret)
	key := []byte("0123456789abcdef0123456789abcdef")
	e := enrolment{site: testSiteID, name: "plant", public: key, ticket: id, secret: wrong, first: 1}
	_, err := st.Enrol(e)
	wantKind(t, err, forgeyard.Denied)
	e.secret = secret
	row, err := st.Enrol(e)
	must(t, err)
	if row.Terms != testTerms {
		t.Errorf("%+v", row.Terms)
	}
	st.kill()
	if _, err = st.Enrol(e); err != nil {
		t.Errorf("an answer that was lost costs nothing: %v", err)
	}
	other := e
	other.site = "01JD0000000000000000000088"
	_, err = st.Enrol(other)
	wantKind(t, err, forgeyard.Denied)

	const late = "01JD00000000000000000000T2"
	st.ticket(late, secret)
	if open, err := st.OpenTickets(); err != nil || !open {
		t.Errorf("%v %v", open, err)
	}
	st.clk.Advance(time.Hour)
	if open, err := st.OpenTickets(); err != nil || open {
		t.Errorf("%v %v", open, err)
	}
	other.ticket = late
	_, err = st.Enrol(other)
	wantKind(t, err, forgeyard.Denied)

	const third = "01JD00000000000000000000T3"
	st.ticket(third, secret)
	e.ticket, e.public = third, make([]byte, 32)
	_, err = st.Enrol(e)
	wantKind(t, err, forgeyard.Denied) // the site's id with another key
}

func TestTicketBounds(t *testing.T) {
	st := newTestStore(t)
	for _, ttl := range []time.Duration{0, -time.Hour, maxTicketTTL + 1} {
		_, err := st.NewTicket("t", [32]byte{}, ttl, testTerms)
		wantKind(t, err, forgeyard.Invalid)
	}
	_, err := st.NewTicket("t", [32]byte{}, time.Hour, lease.UplinkTerms{})
	wantKind(t, err, forgeyard.Invalid)
}

// TestSiteThatReportedElsewhere: a site that comes from another daemon goes on with
// its own numbers, in both directions, and what it never took in is given again.
func TestSiteThatReportedElsewhere(t *testing.T) {
	st := newTestStore(t)
	st.enrol()
	st.delegate("g1")
	st.delegate("g2")
	_, err := st.Exchange(sent{site: testSiteID, incarnation: 1, first: 1, cursor: 1, records: raws(accepted(1, "g1"))})
	must(t, err)
	secret := make([]byte, 32)
	st.ticket("01JD00000000000000000000T9", secret)
	row, err := st.Enrol(enrolment{site: testSiteID, name: "plant", public: make([]byte, 32), ticket: "01JD00000000000000000000T9", secret: secret, first: 40, cursor: 57})
	must(t, err)
	if row.Records != 39 || row.Delegated != 58 {
		t.Fatalf("%+v", row)
	}
	a, err := st.Exchange(sent{site: testSiteID, incarnation: 1, first: 40, cursor: 57, records: raws(ended(40, "g1", job.Done))})
	must(t, err)
	if got := verdicts(a); got != "40:accepted" || len(a.delegations) != 1 {
		t.Fatalf("%s, %d delegations", got, len(a.delegations))
	}
	d, err := uplink.DecodeDelegation(a.delegations[0])
	must(t, err)
	if d.Grant.ID != "g2" || d.Seq != 58 {
		t.Errorf("%+v", d)
	}
	ts := newTestSite(t, st.clk)
	ts.must(site.UplinkConnect{Central: site.Central{Peer: "p", Name: "hq"}, Terms: testTerms})
	ts.must(site.Delegate{To: 57})
	ts.must(site.Delegate{From: 57, To: 58, Grants: []site.Delegation{d}})
	if ts.s.Jobs.Len() != 1 {
		t.Error("the site does not look at it")
	}
}
