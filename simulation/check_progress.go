package simulation

import (
	"fmt"
	"strings"

	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// progress says, after healing, that every runnable job ends, every queue drains, and
// every device is free, or quarantined with a reason. atRest says what the healed site
// still owes and why, or nothing.
func (s *sim) atRest() string {
	h := s.head()
	switch {
	case s.client.open > 0 || len(s.client.acked)+s.client.lost+len(s.up.jobs) < len(s.sc.Jobs):
		return "a submission has no answer"
	case h.Outbox.Len() > 0:
		return fmt.Sprintf("the outbox has %d records, of which the daemon has %d", h.Outbox.Len(), s.up.last-min(s.up.last, h.Acked))
	case h.Cursor < uint64(len(s.up.delegations)):
		return fmt.Sprintf("delegation %d of %d was not taken in", h.Cursor+1, len(s.up.delegations))
	}
	for id := range h.Open.All() {
		j, _ := h.Jobs.Get(id)
		return fmt.Sprintf("%s is %s at epoch %d (%s): %s", j.Spec.Title, j.Status, j.Epoch, j.Reason, s.explain(j))
	}
	for _, d := range h.Devices.All() {
		if why := s.unsettled(d); why != "" {
			return why
		}
	}
	for _, n := range s.nodes {
		switch {
		case n.gone:
		case len(n.spool) > 0:
			return n.name + " holds a completion without an answer"
		case n.world != s.world || n.applied < uint64(len(s.world.entries)):
			return n.name + " lags"
		}
	}
	for _, j := range s.up.jobs {
		if len(j.outcomes) == 0 {
			return j.plan.id() + " has no outcome at the daemon"
		}
	}
	return ""
}

// explain says what keeps a job from each runner, by what the leader knows.
func (s *sim) explain(j site.Job) string {
	n := s.leading()
	if n == nil {
		return "nobody leads"
	}
	held, all := controllers.Explain(n.clk.Now(), n.lead.input(), j)
	if held != "" {
		return held
	}
	var why []string
	for _, c := range all {
		if len(c.Reasons) > 0 {
			why = append(why, c.Name+": "+strings.Join(c.Reasons, ", "))
		}
	}
	if len(why) < len(all) {
		return "a runner could take it"
	}
	return strings.Join(why, "; ")
}

func (s *sim) unsettled(d devices.Device) string {
	host := s.byRunner(d.Host)
	switch {
	case host != nil && host.gone && d.Presence != devices.Absent:
		return fmt.Sprintf("device %s left with %s, and the site calls it %s", d.ID, host.name, d.Presence)
	case host != nil && host.gone:
		return ""
	case d.Use != devices.Free:
		return fmt.Sprintf("device %s is %s after %d resets", d.ID, d.Use, d.Resets)
	case d.Health != devices.Good && (d.Quarantine == nil || d.Quarantine.Reason == ""):
		return fmt.Sprintf("device %s is %s, and nobody says why: %s", d.ID, d.Health, d.Reason)
	}
	return ""
}
