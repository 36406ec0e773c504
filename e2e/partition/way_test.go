package partition

import (
	"context"
	"fmt"
	"testing"
	"time"
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
