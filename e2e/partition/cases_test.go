package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/lab"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// submit submits a job to a node, which must take it.
func (w *world) submit(t *testing.T, at *localsite.Node, key string, j m) string {
	t.Helper()
	spec, err := specOf(j, key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := at.API.Job.Submit(t.Context(), connect.NewRequest(&forgeyardv1.SubmitRequest{Kind: "build", Spec: spec, Title: key, IdempotencyKey: key}))
	if err != nil {
		t.Fatal(err)
	}
	return r.Msg.JobIds[0]
}

// delegate lets the central daemon give the site a job.
func (w *world) delegate(t *testing.T, key string, j m) string {
	t.Helper()
	spec, err := specOf(j, key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.site.Central.API.Delegate(t.Context(), connect.NewRequest(&forgeyardv1.DelegateRequest{Site: "lab", Spec: spec, Title: key}))
	if err != nil {
		t.Fatal(err)
	}
	return r.Msg.GrantId
}

func (w *world) grant(ctx context.Context, id string) (*forgeyardv1.CentralJob, error) {
	r, err := w.site.Central.API.ShowJob(ctx, connect.NewRequest(&forgeyardv1.ShowCentralJobRequest{GrantId: id}))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

// job awaits a job of which something is true, as a node has it.
func (w *world) job(t *testing.T, at *localsite.Node, id, what string, is func(*forgeyardv1.Job) bool) *forgeyardv1.Job {
	t.Helper()
	var last *forgeyardv1.Job
	must(t, w, w.site.Await(t.Context(), "the job is "+what, later, func(ctx context.Context) (bool, error) {
		j, err := at.Job(ctx, id)
		if err != nil {
			return false, err
		}
		if last = j; is(j) {
			return true, nil
		}
		return false, fmt.Errorf("it is %s in epoch %d: %s", j.Status, j.Epoch, j.Reason)
	}))
	return last
}

func status(s string) func(*forgeyardv1.Job) bool {
	return func(j *forgeyardv1.Job) bool { return j.Status == s }
}

// granted awaits a grant of which something is true, as the daemon has it.
func (w *world) granted(t *testing.T, id, what string, is func(*forgeyardv1.CentralJob) bool) *forgeyardv1.CentralJob {
	t.Helper()
	var last *forgeyardv1.CentralJob
	must(t, w, w.site.Await(t.Context(), "the grant is "+what, later, func(ctx context.Context) (bool, error) {
		j, err := w.grant(ctx, id)
		if err != nil {
			return false, err
		}
		if last = j; is(j) {
			return true, nil
		}
		return false, fmt.Errorf("it is %s with %d outcomes", j.Status, j.Outcomes)
	}))
	return last
}

func must(t *testing.T, w *world, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v\n%s", err, w.site.Tails(25))
	}
}

// all are the machines of the nodes; the daemon's is the one after them.
func (w *world) all() []int {
	var out []int
	for i := range w.site.Nodes {
		out = append(out, i)
	}
	return out
}

// uplinkCut cuts every node off from the daemon, or mends it.
func (w *world) uplinkCut(t *testing.T, cut bool) {
	t.Helper()
	hqs := []int{len(w.site.Nodes)}
	must(t, w, w.hears(w.all(), hqs, !cut))
	must(t, w, w.hears(hqs, w.all(), !cut))
}

// index is a node's number, by its name.
func (w *world) index(name string) int {
	for i, n := range w.site.Nodes {
		if n.Name == name {
			return i
		}
	}
	return -1
}

// others are all nodes' machines but one.
func (w *world) others(i int) (out []int) {
	for _, k := range w.all() {
		if k != i {
			out = append(out, k)
		}
	}
	return out
}

var forHours = m{"policy": "offline_authorized", "for": "1h"}

// waits works until the file is there, and says each step in the side log.
func waits(class, effects, pipe, gate string, policy m) m {
	j := base(fmt.Sprintf("i=0\nwhile [ ! -e %s ]; do echo \"%s $KEY $FORGEYARD_EPOCH $i\" > %s; sleep 0.2; i=$((i+1)); done\n", gate, class, pipe), policy)
	j["sandbox"], j["effects"] = "process", effects
	return j
}

func (w *world) gate() string { return w.dir + "/gate" }

func (w *world) openGate(t *testing.T) {
	t.Helper()
	must(t, w, os.WriteFile(w.gate(), nil, 0o644))
}

// beatsOf counts what one epoch of a job has done outside.
func (w *world) beatsOf(key string, epoch uint64) (n int) {
	for _, b := range w.side.log(time.Time{}) {
		if b.Key == key && b.Epoch == fmt.Sprint(epoch) {
			n++
		}
	}
	return n
}

// TestE01CutsLeaveNoGap: the uplink is cut at random moments while results go up; the
// cable between the leader and the daemon loses whatever is on it. What was sent and not
// acknowledged is sent again, and nothing is taken twice.
func TestE01CutsLeaveNoGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{seed: 101, central: true})
	r := rand.New(rand.NewPCG(101, 0))
	cuts := int(60 * *minutesFlag)
	const jobs = 12
	var grants []string
	hqm := w.machines[len(w.site.Nodes)]
	for i := range cuts {
		if i%(cuts/jobs) == 0 && len(grants) < jobs {
			grants = append(grants, w.delegate(t, fmt.Sprint("g", i), plain(1, forHours)))
		}
		for _, k := range w.all() {
			must(t, w, hqm.Breaks(w.machines[k], true))
		}
		pause(t.Context(), time.Duration(r.IntN(120))*time.Millisecond)
		for _, k := range w.all() {
			must(t, w, hqm.Breaks(w.machines[k], false))
		}
		pause(t.Context(), time.Duration(r.IntN(400))*time.Millisecond)
	}
	for _, g := range grants {
		w.granted(t, g, "done at the daemon", func(j *forgeyardv1.CentralJob) bool { return j.Outcomes > 0 && j.ObjectsComplete })
	}
	must(t, w, w.site.Await(t.Context(), "the outbox is empty", later, func(ctx context.Context) (bool, error) {
		st, err := w.site.Nodes[0].SiteStatus(ctx)
		return err == nil && st.Outbox.GetPending() == 0, err
	}))
	rec := &recorder{began: time.Now()}
	rec.e.Uplink.Granted = grants
	must(t, w, w.collectUplink(t.Context(), rec))
	for _, wrong := range exactlyOnceUpstream(rec.e) {
		t.Error(wrong)
	}
	t.Logf("%d cuts, %d records", cuts, rec.e.Uplink.Records)
}

// TestE02ColdBootWithNoUplink: all nodes lose their power while the uplink is cut. They
// come back from their disks alone, form a quorum, and finish what was delegated within
// the allowance that was counted before.
func TestE02ColdBootWithNoUplink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{seed: 102, central: true})
	n1 := w.site.Nodes[0]
	night := waits("free", "none", w.side.pipe.Name(), w.gate(), forHours)
	night["timeouts"] = m{"run": "20m"} // what may not end within the hour is not begun again
	g := w.delegate(t, "night", night)
	var id string
	must(t, w, w.site.Await(t.Context(), "the job runs", later, func(ctx context.Context) (bool, error) {
		j, err := n1.JobOfGrant(ctx, g)
		if err != nil {
			return false, err
		}
		id = j.JobId
		return w.beatsOf("night", j.Epoch) > 0, nil
	}))
	w.uplinkCut(t, true)
	must(t, w, w.awaitUplink(t.Context(), n1, later, "offline_authorized"))
	for i, n := range w.site.Nodes {
		must(t, w, n.Kill())
		must(t, w, w.machines[i].PowerCut())
	}
	for _, n := range w.site.Nodes {
		must(t, w, n.Up())
	}
	must(t, w, w.site.AwaitOnline(t.Context(), later, w.site.Nodes...))
	must(t, w, w.awaitUplink(t.Context(), n1, later, "offline_authorized"))
	j := w.job(t, n1, id, "running again", func(j *forgeyardv1.Job) bool { return j.Status == "running" && j.Epoch > 1 })
	must(t, w, w.site.Await(t.Context(), "the new epoch acts", later, func(context.Context) (bool, error) { return w.beatsOf("night", j.Epoch) > 0, nil }))
	own := w.submit(t, n1, "own", plain(1, forHours))
	w.job(t, n1, own, "done", status("done"))
	w.openGate(t)
	w.job(t, n1, id, "done", status("done"))
	w.uplinkCut(t, false)
	w.granted(t, g, "done at the daemon", func(j *forgeyardv1.CentralJob) bool { return j.Status == "done" && j.Outcomes == 1 })
}

// TestE08TwoRunnersOneJob: a runner that is cut off goes on with the authority that it
// has, while the site gives the job to another. One result counts, on both sides of
// the cut: what the first has made is refused by its fence (RA-477).
func TestE08TwoRunnersOneJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{seed: 108})
	n1 := w.site.Nodes[0]
	id := w.submit(t, n1, "twice", waits("free", "none", w.side.pipe.Name(), w.gate(), m{"policy": "offline_authorized", "for": "10m"}))
	j := w.job(t, n1, id, "running", status("running"))
	must(t, w, w.site.Await(t.Context(), "the first acts", later, func(context.Context) (bool, error) { return w.beatsOf("twice", 1) > 0, nil }))
	first := w.index(j.Runner)
	must(t, w, w.apart([]int{first}, w.others(first)))
	second := w.site.Nodes[w.others(first)[0]]
	j = w.job(t, second, id, "running elsewhere", func(j *forgeyardv1.Job) bool { return j.Status == "running" && j.Epoch == 2 })
	if j.Runner == w.site.Nodes[first].Name {
		t.Fatalf("epoch 2 is at %s again, which nobody can reach", j.Runner)
	}
	before := w.beatsOf("twice", 1)
	must(t, w, w.site.Await(t.Context(), "both act", later, func(context.Context) (bool, error) {
		return w.beatsOf("twice", 1) > before && w.beatsOf("twice", 2) > 0, nil
	}))
	w.openGate(t)
	w.job(t, second, id, "done", status("done"))
	must(t, w, w.lab.Heal())
	must(t, w, w.site.Await(t.Context(), "the first has given up", later, func(ctx context.Context) (bool, error) {
		st, err := w.site.Nodes[first].Status(ctx)
		return err == nil && st.State == "online" && len(st.ActiveAttempts) == 0, err
	}))
	j = w.job(t, w.site.Nodes[first], id, "done, as the first sees it", status("done"))
	if j.Epoch != 2 || len(j.Outputs) != 1 {
		t.Fatalf("epoch %d counts, with %d outputs", j.Epoch, len(j.Outputs))
	}
	text, err := second.Content(t.Context(), j.Outputs[0])
	must(t, w, err)
	if got := strings.TrimSpace(string(text)); got != "twice 2" {
		t.Errorf("the output is %q, that of another epoch", got)
	}
	for _, l := range j.Late {
		if l.Epoch != 1 {
			t.Errorf("a late result of epoch %d: %s", l.Epoch, l.Why)
		}
	}
}

// TestE15CancelDuringTheOutage: a cancellation that the daemon is told while the uplink
// is cut is shown as pending, lands first when the link is back, and the work goes on
// until then by no other clock than its own.
func TestE15CancelDuringTheOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{seed: 115, central: true})
	n1 := w.site.Nodes[0]
	g := w.delegate(t, "stopme", waits("free", "none", w.side.pipe.Name(), w.gate(), forHours))
	must(t, w, w.site.Await(t.Context(), "the job acts", later, func(context.Context) (bool, error) { return w.beatsOf("stopme", 1) > 0, nil }))
	w.uplinkCut(t, true)
	must(t, w, w.awaitUplink(t.Context(), n1, later, "offline_authorized"))
	allowance := func() time.Duration {
		st, err := n1.SiteStatus(t.Context())
		must(t, w, err)
		return st.Connectivity.GetAllowance().AsDuration()
	}
	had := allowance()
	_, err := w.site.Central.API.CancelJob(t.Context(), connect.NewRequest(&forgeyardv1.CancelCentralJobRequest{GrantId: g}))
	must(t, w, err)
	c, err := w.grant(t.Context(), g)
	must(t, w, err)
	if c.CancelRequested == nil || c.CancelTaken != nil {
		t.Fatalf("the cancellation is not pending: requested %v, taken %v", c.CancelRequested, c.CancelTaken)
	}
	before := w.beatsOf("stopme", 1)
	must(t, w, w.site.Await(t.Context(), "the work goes on", later, func(context.Context) (bool, error) { return w.beatsOf("stopme", 1) > before, nil }))
	if now := allowance(); now != had {
		t.Errorf("the allowance went from %s to %s", had, now)
	}
	w.uplinkCut(t, false)
	w.granted(t, g, "cancelled", func(j *forgeyardv1.CentralJob) bool {
		return j.Status == "cancelled" && j.Outcomes == 1 && j.CancelTaken != nil
	})
}

// TestE22CentralReturnsAfterALongOutage: a daemon that was away for longer than it lets
// a site be silent comes back, and everybody is still enrolled; the work that runs was
// not touched.
func TestE22CentralReturnsAfterALongOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{seed: 122, central: true})
	n1 := w.site.Nodes[0]
	g := w.delegate(t, "long", waits("free", "none", w.side.pipe.Name(), w.gate(), forHours))
	must(t, w, w.site.Await(t.Context(), "the job acts", later, func(context.Context) (bool, error) { return w.beatsOf("long", 1) > 0, nil }))
	must(t, w, w.site.Central.Daemon.Kill())
	must(t, w, w.awaitUplink(t.Context(), n1, later, "offline_authorized"))
	must(t, w, w.upCentral(t.Context()))
	must(t, w, w.awaitUplink(t.Context(), n1, later, "online"))
	l, err := w.site.Central.API.ListSites(t.Context(), connect.NewRequest(&forgeyardv1.ListSitesRequest{}))
	must(t, w, err)
	if len(l.Msg.Sites) != 1 || l.Msg.Sites[0].JobsOpen != 1 {
		t.Fatalf("the daemon has %v", l.Msg.Sites)
	}
	j, err := n1.JobOfGrant(t.Context(), g)
	must(t, w, err)
	if j.Status != "running" || j.Epoch != 1 {
		t.Fatalf("the job is %s in epoch %d: %s", j.Status, j.Epoch, j.Reason)
	}
	w.openGate(t)
	w.granted(t, g, "done", func(j *forgeyardv1.CentralJob) bool { return j.Status == "done" && j.Outcomes == 1 })
}

// TestE24PowerCutsAndPauses: three voters lose their power and sleep, one after the
// other and two at a time, while clients call; what they were told has an order.
func TestE24PowerCutsAndPauses(t *testing.T) {
	t.Parallel()
	s := int64(time.Second)
	at := func(from, long int64, kind what, on int) act {
		return act{At: time.Duration(from * s), For: time.Duration(long * s), What: kind, On: []int{on}}
	}
	plan := []act{
		at(2, 2, powerCut, 0), at(6, 4, pauseMachine, 1), at(7, 2, powerCut, 2), at(12, 3, pauseProcess, 0),
		at(13, 1, powerCut, 1), at(17, 2, powerCut, 2), at(18, 2, powerCut, 0), at(22, 3, pauseMachine, 2),
	}
	w := newWorld(t, options{seed: 124, devices: map[string][]string{"n1": {jobsDevice}, "n2": {peoplesDevice}}})
	rec := &recorder{began: time.Now()}
	rec.e.Shape = shape{Seed: 124, Voters: 3, Length: 26 * time.Second, Acts: plan}
	err := w.weatherAndDrain(t.Context(), rec, func(int, int) lab.Weather { return lab.Weather{} })
	wrong := verdict(rec.e)
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	t.Log(count(rec.e))
	if len(wrong) > 0 {
		t.Errorf("%s\n%s", strings.Join(wrong, "\n"), w.keep(rec.e))
	}
}

// TestE31QuorumLost: one voter of three is left. Nothing new is leased, what runs ends
// by its deadline, and the site goes on when the others are back.
func TestE31QuorumLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{seed: 131})
	n1 := w.site.Nodes[0]
	id := w.submit(t, n1, "alone", waits(protectedWork, "protected", w.side.pipe.Name(), w.gate(), m{"policy": "grace", "for": "2s"}))
	must(t, w, w.site.Await(t.Context(), "the job acts", later, func(context.Context) (bool, error) { return w.beatsOf("alone", 1) > 0, nil }))
	j := w.job(t, n1, id, "running", status("running"))
	last := w.index(j.Runner)
	survivor := w.site.Nodes[last]
	for _, i := range w.others(last) {
		must(t, w, w.site.Nodes[i].Kill())
	}
	must(t, w, w.site.Await(t.Context(), "the holder has stopped", later, func(ctx context.Context) (bool, error) {
		st, err := survivor.Status(ctx)
		return err == nil && !st.Quorum && len(st.ActiveAttempts) == 0, err
	}))
	stopped := w.beatsOf("alone", 1)
	spec, err := specOf(plain(1, forHours), "refused")
	must(t, w, err)
	_, err = survivor.API.Job.Submit(t.Context(), connect.NewRequest(&forgeyardv1.SubmitRequest{Kind: "build", Spec: spec, IdempotencyKey: "refused"}))
	if k := forgeyard.KindOf(err); k != forgeyard.Unavailable && k != forgeyard.Unknown {
		t.Errorf("a submission without a quorum: %v", err)
	}
	if n := w.beatsOf("alone", 1); n != stopped {
		t.Errorf("%d acts after the holder said that it has stopped", n-stopped)
	}
	if n := w.beatsOf("alone", 2); n != 0 {
		t.Errorf("a second epoch acts without a quorum")
	}
	for _, i := range w.others(last) {
		must(t, w, w.site.Nodes[i].Up())
	}
	must(t, w, w.site.AwaitOnline(t.Context(), later, w.site.Nodes...))
	w.openGate(t)
	w.job(t, n1, id, "done", status("done"))
	for _, wrong := range holderStopsFirst(evidence{Beats: w.side.log(time.Time{})}) {
		t.Error(wrong)
	}
}

// TestE10ClockWrongAtBoot: a node boots with a clock that is a year ahead, by which every
// credential has expired. It keeps trying, says how far its clock is off, and joins by
// itself when the clock is set.
func TestE10ClockWrongAtBoot(t *testing.T) {
	t.Parallel()
	if err := lab.WallRefused(); err != nil {
		needs.Lacking(t, "no wall clock of one's own: %v", err)
	}
	w := newWorld(t, options{seed: 110})
	n3 := w.site.Nodes[2]
	must(t, w, n3.Kill())
	must(t, w, w.machines[2].SetWall(400*24*time.Hour))
	must(t, w, n3.Up())
	must(t, w, w.site.Await(t.Context(), "n3 says how far its clock is off", later, func(ctx context.Context) (bool, error) {
		r, err := n3.API.Node.Doctor(ctx, connect.NewRequest(&forgeyardv1.DoctorRequest{}))
		if err != nil {
			return false, err
		}
		var all []string
		for _, c := range r.Msg.Health.Checks {
			if all = append(all, c.Name+" "+c.Status+": "+c.Detail); c.Name == "clock" && c.Status != "ok" && strings.Contains(c.Detail, "9600h") {
				return true, nil
			}
		}
		return false, errors.New(strings.Join(all, "; "))
	}))
	if st, err := n3.Status(t.Context()); err != nil || st.State == "online" {
		t.Errorf("n3 is let in although everybody's credential has expired for it: %v, %v", st.GetState(), err)
	}
	must(t, w, w.machines[2].SetWall(0))
	must(t, w, w.site.AwaitOnline(t.Context(), later, n3))
}
