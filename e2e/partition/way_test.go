package partition

import (
	"context"
	"fmt"
	"testing"
	"time"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

// TestLeaderByWayOfAnother: a runner that the leader does not hear keeps its lease, many
// times its length, by way of a voter that both of them hear; it keeps to that one, and
// brings its result in by it (RA-325, RA-326, RA-304). When nobody hears it any more it
// stops by itself, in its deadline (RA-310), and comes back by itself (RA-320).
func TestLeaderByWayOfAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{seed: 127, nodes: 4})
	n1, runner := w.site.Nodes[0], w.site.Nodes[3]
	for _, i := range w.others(3) {
		_, err := n1.Command(t.Context(), "", "runner", "drain", nameOf(i))
		must(t, w, err)
	}
	id := w.submit(t, n1, "farther", waits("free", "none", w.side.pipe.Name(), w.gate(), m{"policy": "continuous"}))
	j := w.job(t, n1, id, "running", status("running"))
	if j.Runner != nameOf(3) {
		t.Fatalf("it runs on %s", j.Runner)
	}
	st, err := n1.SiteStatus(t.Context())
	must(t, w, err)
	leader := w.index(st.Leader.Name)
	must(t, w, w.machines[leader].Hears(w.machines[3], false))
	ttl := 3 * time.Second
	way := ""
	var since time.Time
	must(t, w, w.site.Await(t.Context(), "its lease lives by another", later, func(ctx context.Context) (bool, error) {
		st, err := runner.Status(ctx)
		if err != nil {
			return false, err
		}
		l := st.Link
		if l.State != "online" || l.Direct || l.Member == "" || l.Member == nameOf(leader) {
			since = time.Time{}
			return false, fmt.Errorf("link %v", l)
		}
		if way != l.Member || since.IsZero() {
			way, since = l.Member, time.Now()
		}
		if time.Since(since) > 3*ttl {
			return true, nil
		}
		return false, fmt.Errorf("by way of %s for %s", way, time.Since(since))
	}))
	if j = w.job(t, n1, id, "running", status("running")); j.Epoch != 1 {
		t.Fatalf("epoch %d runs: the lease was lost on the way", j.Epoch)
	}
	w.openGate(t)
	if j = w.job(t, n1, id, "done", status("done")); j.Epoch != 1 || len(j.Late) != 0 {
		t.Errorf("epoch %d is done, with %d late results", j.Epoch, len(j.Late))
	}
	for _, i := range w.others(3) {
		must(t, w, w.machines[i].Hears(w.machines[3], false))
	}
	must(t, w, w.site.Await(t.Context(), "nobody hears it", later, func(ctx context.Context) (bool, error) {
		st, err := runner.Status(ctx)
		return err == nil && st.State == "reconnecting" && st.Link.State == "reconnecting" && st.Link.Failed >= 3, err
	}))
	must(t, w, w.lab.Heal())
	must(t, w, w.site.Await(t.Context(), "it is back", later, func(ctx context.Context) (bool, error) {
		st, err := runner.Status(ctx)
		return err == nil && st.State == "online" && st.Link.Returns > 0, err
	}))
}

// RA-445: the runner of a job is cut off from all others for less than the policy of the job
// lets it work on alone. It says so, works on, and comes back with the session that it had;
// the job is the same execution all along, and ends as that.
func TestCutShorterThanGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{seed: 128, nodes: 4})
	n1, runner := w.site.Nodes[0], w.site.Nodes[3]
	for _, i := range w.others(3) {
		_, err := n1.Command(t.Context(), "", "runner", "drain", nameOf(i))
		must(t, w, err)
	}
	policy := m{"policy": "grace", "for": "1m"}
	id := w.submit(t, n1, "away", waits("free", "none", w.side.pipe.Name(), w.gate(), policy))
	must(t, w, w.site.Await(t.Context(), "the job acts", later, func(context.Context) (bool, error) { return w.beatsOf("away", 1) > 0, nil }))
	before := w.job(t, n1, id, "running", status("running"))
	was, err := runner.Status(t.Context())
	must(t, w, err)
	must(t, w, w.apart([]int{3}, w.others(3)))
	must(t, w, w.site.Await(t.Context(), "it is cut off", later, func(ctx context.Context) (bool, error) {
		st, err := runner.Status(ctx)
		if err != nil {
			return false, err
		}
		silent := st.Link.GetSinceAnswer().AsDuration()
		if st.State == "reconnecting" && len(st.ActiveAttempts) == 1 && silent > 9*time.Second { // three leases
			return true, nil
		}
		return false, fmt.Errorf("%s with %d attempts, no answer for %s", st.State, len(st.ActiveAttempts), silent)
	}))
	acted := w.beatsOf("away", 1)
	must(t, w, w.site.Await(t.Context(), "it works on alone", later, func(context.Context) (bool, error) { return w.beatsOf("away", 1) > acted, nil }))
	must(t, w, w.lab.Heal())
	must(t, w, w.site.Await(t.Context(), "it is back", later, func(ctx context.Context) (bool, error) {
		st, err := runner.Status(ctx)
		return err == nil && st.State == "online" && st.Link.Returns > was.Link.Returns, err
	}))
	now, err := runner.Status(t.Context())
	must(t, w, err)
	if now.SessionId != was.SessionId || was.SessionId == "" {
		t.Errorf("session %q came back as %q", was.SessionId, now.SessionId)
	}
	w.job(t, n1, id, "held again", func(j *forgeyardv1.Job) bool { return j.Status == "running" && j.LeaseState == before.LeaseState })
	w.openGate(t)
	j := w.job(t, n1, id, "done", status("done"))
	if j.Epoch != 1 || j.AttemptId != before.AttemptId || j.LeaseId != before.LeaseId || j.Interruptions != 0 || len(j.Late) != 0 {
		t.Errorf("epoch %d of %s under %s with %d interruptions and %d late results; it was %s under %s", j.Epoch, j.AttemptId, j.LeaseId, j.Interruptions, len(j.Late), before.AttemptId, before.LeaseId)
	}
}
