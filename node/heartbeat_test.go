package node

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// RA-012, RA-113, RA-437, RA-500: a machine that changed registers what it is now, under the session that it
// has; one that did not writes nothing.
func TestRefreshRegistersAChange(t *testing.T) {
	p := makeSite(t, 1)[0]
	n := p.node
	member := func() (m struct {
		cpu     int64
		digest  forgeyard.Digest
		session forgeyard.SessionID
	}) {
		k, _ := n.replica.State().Members.Get(n.enrolment.RunnerID)
		m.cpu, m.digest, m.session = k.Caps.MilliCPU, k.Digest, k.Session.ID
		return m
	}
	p.wait("the registration, with what a new site's first log may not have", func() bool {
		return member().session == n.session && n.allows(site.FormatNow) && !n.capsUntold()
	})
	before := member()
	n.refresh(t.Context())
	if now := member(); now != before {
		t.Fatalf("nothing changed, and the log has %+v after %+v", now, before)
	}
	bound := sitecfg.MilliCPU(before.cpu / 2)
	n.cfg.Settings.Limits.CPU = bound
	n.refresh(t.Context())
	p.wait("the change", func() bool { return member().cpu == int64(bound) })
	if now := member(); now.digest == before.digest || now.session != before.session {
		t.Errorf("%+v after %+v", now, before)
	}
	// RA-483: which ability it was, the site's events say.
	history := n.replica.State().History
	if last := history[len(history)-1]; last.Kind != "capability" || !strings.Contains(last.Text, fmt.Sprintf("cpu %dm, was %dm", bound, before.cpu)) {
		t.Errorf("the site's last event is %+v", last)
	}
}

// RA-143, RA-313: what a heartbeat says comes over the wire whole, how far the log of each
// attempt is among it (RA-250); one of an older program says less, and attempts that do not fit its leases are refused.
func TestHeartbeatTravels(t *testing.T) {
	n := makeSite(t, 1)[0].node
	a := []forgeyard.Authority{{Job: "j1", Attempt: "a1", Lease: "l1", Fence: forgeyard.Fence{Epoch: 3}}, {Job: "j2", Attempt: "a2", Lease: "l2"}}
	s := controllers.Sign{
		Session: "S", Pressure: "disk", Refusing: []string{"pressure"}, State: "online", Caps: forgeyard.Digest{1}, Sent: 5,
		Taken:    controllers.Taken{Jobs: 2, MilliCPU: 3, Memory: 4, Disk: 5, DiskFree: 6, Withheld: 7},
		Attempts: []controllers.Attempt{{Authority: a[0], Phase: job.PhaseRunning, LastLog: 17}, {Authority: a[1], Phase: job.PhaseAccepted}},
	}
	batch := []controllers.Renewal{{Authority: a[0]}, {Authority: a[1]}}
	req := n.renewRequest(s, a)
	got, err := n.signFromWire(req, batch)
	got.Facts = s.Facts // they have their own test
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%+v %v, sent was %+v", got, err, s)
	}
	v := heartbeatToWire(got, time.Second)
	if len(v.ActiveAttempts) != 2 || v.ActiveAttempts[0].Phase != "running" || v.ActiveAttempts[0].LastLogSeq != 17 || v.ActiveAttempts[0].Epoch != 3 || v.ActiveAttempts[1].LeaseId != "l2" {
		t.Errorf("%v", v)
	}
	old, err := n.signFromWire(&forgeyardv1.RenewRequest{SessionId: "S", Pressure: "normal"}, batch)
	if err != nil || old.Session != "S" || len(old.Attempts) != 0 || !old.Caps.IsZero() || old.Facts.Told {
		t.Errorf("of an older program: %+v %v", old, err)
	}
	req.Attempts = req.Attempts[:1]
	if _, err := n.signFromWire(req, batch); forgeyard.KindOf(err) != forgeyard.Invalid || !strings.Contains(err.Error(), "1 attempts of 2 leases") {
		t.Errorf("one attempt of two: %v", err)
	}
}
