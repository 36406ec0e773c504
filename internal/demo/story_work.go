package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
)

// delegate gives the site its work, and waits until it runs.
func (d *demo) delegate(ctx context.Context) error {
	select {
	case d.facts.copied = <-d.input:
	case <-ctx.Done():
		return forgeyard.E("demo", forgeyard.Interrupted, ctx.Err())
	}
	c := d.facts.copied
	if c.err != nil {
		return c.err
	}
	d.say("the input is the standard library of %s: %d files, %d MB", d.root, c.files, c.bytes>>20)
	file, err := writeJob(d.dir, "verify.yaml", verifyJob(d.source(), d.root, cores()))
	if err != nil {
		return err
	}
	grant, err := d.runCentral(ctx, "delegate", "bench", file)
	if err != nil {
		return err
	}
	d.facts.verifyGrant = strings.TrimSpace(grant)
	d.say("delegated; the site brings the input in, onto two nodes, before it takes the job")
	j, err := d.awaitRunning(ctx, d.facts.verifyGrant)
	if err != nil {
		return err
	}
	d.facts.verify = j.JobId
	d.say("the job runs on %s, epoch %d, in a sandbox without a network", j.Runner, j.Epoch)
	if d.facts.runner, err = d.site.Node(j.Runner); err != nil {
		return err
	}
	return d.findSuccessor(ctx)
}

func (d *demo) awaitRunning(ctx context.Context, grant string) (j *forgeyardv1.Job, err error) {
	said := ""
	err = d.await(ctx, "the delegated job running", work, func(ctx context.Context) (bool, error) {
		j, err = d.site.Nodes[0].JobOfGrant(ctx, grant)
		if err != nil {
			return false, err
		}
		if s := j.Phase + " " + j.Runner; j.Phase != "" && s != said {
			said = s
			d.say("job %s: %s on %s", short(j.JobId), j.Phase, j.Runner)
		}
		return j.Status == "running", d.alive(ctx, j)
	})
	return j, err
}

func short(id string) string { return id[max(0, len(id)-8):] }

// findSuccessor notes who will go on, and whether it has the input already.
func (d *demo) findSuccessor(ctx context.Context) (err error) {
	for _, n := range d.site.Nodes[1:] {
		if n != d.facts.runner {
			d.facts.successor = n
		}
	}
	st, err := d.facts.successor.Status(ctx)
	if err == nil {
		d.facts.holderBefore = st.Cas.GetObjects() > int64(d.facts.copied.files)/2
	}
	return err
}

// kill kills the runner's daemon in the middle of a package.
func (d *demo) kill(ctx context.Context) error {
	n1, victim := d.site.Nodes[0], d.facts.runner
	st, err := victim.Status(ctx)
	if err != nil {
		return err
	}
	for _, a := range st.ActiveAttempts {
		if a.JobId == d.facts.verify {
			d.facts.treePID = int(a.Pid)
		}
	}
	alive := localsite.Alive(d.facts.treePID)
	pid := victim.Daemon.PID
	fmt.Fprintf(d.cfg.Out, "         %s$ kill -9 %d\n", victim.Name, pid)
	if err := victim.Kill(); err != nil {
		return err
	}
	err = d.await(ctx, "the end of the sandboxed tree", soon, func(context.Context) (bool, error) {
		return !localsite.Alive(d.facts.treePID), nil
	})
	if err != nil {
		return err
	}
	d.say("%s is gone, and its sandbox with it (process %d)", victim.Name, d.facts.treePID)
	d.table.add(alive, "a runner dies, and its sandboxed tree with it", "kill -9 of %s (%d); process %d of the job is gone", victim.Name, pid, d.facts.treePID)
	j, err := n1.Job(ctx, d.facts.verify)
	if err != nil {
		return err
	}
	d.say("the last committed checkpoint is %d: %s", newest(j).GetSeq(), newest(j).GetProgress())
	return d.resumed(ctx)
}

// resumed waits until another node goes on.
func (d *demo) resumed(ctx context.Context) error {
	var j *forgeyardv1.Job
	said := ""
	err := d.await(ctx, "epoch 2", work, func(ctx context.Context) (ok bool, err error) {
		j, err = d.site.Nodes[0].Job(ctx, d.facts.verify)
		if err != nil {
			return false, err
		}
		if s := j.Status + j.Reason; s != said && j.Reason != "" {
			said = s
			d.say("job %s is %s: %s", short(j.JobId), j.Status, j.Reason)
		}
		return j.Epoch == 2 && j.Runner != "" && j.Runner != d.facts.runner.Name, d.alive(ctx, j)
	})
	if err != nil {
		return err
	}
	d.say("epoch 2 goes to %s, from checkpoint %s", j.Runner, j.Epochs[len(j.Epochs)-1].ResumedFrom[:11])
	last, committed := j.Epochs[len(j.Epochs)-1], ""
	for _, c := range j.Checkpoints {
		if c.Epoch == 1 {
			committed = c.CheckpointId // they stand in their order
		}
	}
	d.table.add(last.ResumedFrom == committed && committed != "" && j.Runner == d.facts.successor.Name,
		"another node resumes at epoch 2 from the last committed checkpoint", "%s, fence %s, resumed from %s…", j.Runner, j.Fence, last.ResumedFrom[:11])
	return nil
}

// alive is an error once a job has ended other than done: nothing more is to be awaited
// of it. Its log tells why.
func (d *demo) alive(ctx context.Context, j *forgeyardv1.Job) error {
	if j.GetEnded() == nil || j.Status == "done" {
		return nil
	}
	var text string
	for _, stream := range []string{"stdout", "stderr"} {
		if logs, err := d.site.Nodes[0].Log(ctx, j.JobId, stream); err == nil {
			text += "\n--- its " + stream + " in epoch " + fmt.Sprint(j.Epoch) + "\n" + logs[j.Epoch]
		}
	}
	return localsite.Final(forgeyard.Errorf("job "+short(j.JobId), forgeyard.Other, "it is %s: %s%s", j.Status, j.Reason, text))
}

// finish waits for the end of the work, and compares what was done in which epoch.
func (d *demo) finish(ctx context.Context) error {
	n1 := d.site.Nodes[0]
	var j *forgeyardv1.Job
	err := d.await(ctx, "the end of the delegated job", work, func(ctx context.Context) (ok bool, err error) {
		if j, err = n1.Job(ctx, d.facts.verify); err != nil {
			return false, err
		}
		return j.Ended != nil, d.alive(ctx, j)
	})
	if err != nil {
		return err
	}
	logs, err := n1.Log(ctx, d.facts.verify, "stdout")
	if err != nil {
		return err
	}
	if len(j.Outputs) != 1 {
		return forgeyard.Errorf("the job", forgeyard.Other, "it has %d outputs", len(j.Outputs))
	}
	report, err := n1.Content(ctx, j.Outputs[0])
	if err != nil {
		return err
	}
	return d.judgeReport(ctx, j, string(report), logs)
}

func (d *demo) judgeReport(ctx context.Context, j *forgeyardv1.Job, report string, logs map[uint64]string) error {
	all, err := parseReport(report)
	if err != nil {
		return err
	}
	first := 0
	for _, x := range all {
		if x.epoch == 1 {
			first++
		}
	}
	wrong := checkReport(all, packages, first)
	twice := repeated(started(logs[2]), all[:first])
	d.say("%d packages in epoch 1 on %s, %d in epoch 2 on %s; the result is on %s", first, d.facts.runner.Name, len(all)-first, j.Runner, strings.Join(j.Replicas, " and "))
	evidence := fmt.Sprintf("%d packages: %d in epoch 1, %d in epoch 2; the log of epoch 2 begins none of the first", len(all), first, len(all)-first)
	if wrong != "" || len(twice) > 0 {
		evidence = fmt.Sprintf("%s; begun again: %s", wrong, strings.Join(twice, " "))
	}
	d.table.add(wrong == "" && len(twice) == 0 && first > 0 && len(started(logs[2])) == len(all)-first, "no finished package was run twice", "%s", evidence)
	st, err := d.facts.successor.Status(ctx)
	if err != nil {
		return err
	}
	now := st.Cas.GetObjects() > int64(d.facts.copied.files)/2
	how := "while the uplink was cut"
	if d.facts.holderBefore {
		how = "as its second copy"
	}
	d.table.add(now && d.facts.copied.files > 1000, "the input, the standard library's source, came from node to node",
		"%d files, %d MB; %s got them from its peers %s", d.facts.copied.files, d.facts.copied.bytes>>20, j.Runner, how)
	return nil
}

// comeBack starts the killed node again: it is a new session and inherits nothing.
func (d *demo) comeBack(ctx context.Context) error {
	n1, back := d.site.Nodes[0], d.facts.runner
	if err := d.up(ctx, back); err != nil {
		return err
	}
	st, err := back.Status(ctx)
	if err != nil {
		return err
	}
	j, err := n1.Job(ctx, d.facts.verify)
	if err != nil {
		return err
	}
	old := j.Epochs[0]
	d.say("%s is back as session …%s; epoch 1 was session …%s and ended: %s", back.Name, short(st.SessionId), short(old.SessionId), old.Reason)
	var mine []string
	for _, a := range st.ActiveAttempts {
		if a.JobId == d.facts.verify {
			mine = append(mine, a.AttemptId)
		}
	}
	d.table.add(len(mine) == 0 && st.SessionId != old.SessionId && j.Epoch == 2 && old.Reason != "", "the killed node returns and holds nothing of what it had",
		"a new session, no attempt of the job; epoch 1 %s, epoch 2 is %s's", old.Reason, j.Runner)
	return nil
}

// late shows a completion that is refused: a runner finishes alone, its result is
// written down and told to nobody, it dies; the rest of the site gives the job to
// another, whose result stands; then the first one comes back with its own.
func (d *demo) late(ctx context.Context) error {
	n1 := d.site.Nodes[0]
	gate := filepath.Join(d.dir, gateDir, "open")
	file, err := writeJob(d.dir, "late.yaml", lateJob(gate))
	if err != nil {
		return err
	}
	out, err := d.run(ctx, n1, "", "submit", file)
	if err != nil {
		return err
	}
	id := wordAfter(out, "job")
	j, err := d.awaitLog(ctx, id, "waiting")
	if err != nil {
		return err
	}
	holder, err := d.site.Node(j.Runner)
	if err != nil {
		return err
	}
	others := d.except(holder)
	for _, n := range others {
		fmt.Fprintf(d.cfg.Out, "         %s$ kill -9 %d\n", n.Name, n.Daemon.PID)
		if err := n.Kill(); err != nil {
			return err
		}
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		return forgeyard.E("demo", forgeyard.Other, err)
	}
	err = d.await(ctx, "the result in "+holder.Name+"'s spool", later, func(context.Context) (bool, error) { return holder.SpooledCompletion(j.AttemptId) })
	if err != nil {
		return err
	}
	d.say("%s is alone and finishes: its result is written down, there is no quorum to take it", holder.Name)
	fmt.Fprintf(d.cfg.Out, "         %s$ kill -9 %d\n", holder.Name, holder.Daemon.PID)
	if err := holder.Kill(); err != nil {
		return err
	}
	if err := d.up(ctx, others...); err != nil {
		return err
	}
	d.say("%s are a site again, with everything that was committed", names(others))
	return d.judgeLate(ctx, id, holder)
}

func (d *demo) judgeLate(ctx context.Context, id string, holder *localsite.Node) error {
	n1 := d.site.Nodes[0]
	var j *forgeyardv1.Job
	look := func(ok func() bool) func(context.Context) (bool, error) {
		return func(ctx context.Context) (_ bool, err error) {
			if j, err = n1.Job(ctx, id); err != nil {
				return false, err
			}
			return ok(), d.alive(ctx, j)
		}
	}
	if err := d.await(ctx, "the result of epoch 2", later, look(func() bool { return j.Ended != nil })); err != nil {
		return err
	}
	d.say("epoch %d on %s: %s", j.Epoch, j.Runner, j.Status)
	if err := d.up(ctx, holder); err != nil {
		return err
	}
	if err := d.await(ctx, "the late result", soon, look(func() bool { return len(j.Late) > 0 })); err != nil {
		return err
	}
	l := j.Late[0]
	d.say("%s offers its result of epoch %d and is refused: %s", l.Runner, l.Epoch, l.Why)
	verdict, err := n1.Content(ctx, j.Outputs[0])
	if err != nil {
		return err
	}
	d.table.add(l.Epoch == 1 && l.Runner == holder.Name && l.Outcome == "done" && j.Status == "done" && j.Epoch == 2 && strings.TrimSpace(string(verdict)) == "finished in epoch 2",
		"a killed node's late completion is refused", "job show: late: epoch %d from %s, %s; the job stays %s with %q", l.Epoch, l.Runner, l.Why, j.Status, strings.TrimSpace(string(verdict)))
	return nil
}

// awaitLog waits until a job has written a line.
func (d *demo) awaitLog(ctx context.Context, id, line string) (j *forgeyardv1.Job, err error) {
	n1 := d.site.Nodes[0]
	err = d.await(ctx, "the job's line "+line, later, func(ctx context.Context) (bool, error) {
		j, err = n1.Job(ctx, id)
		if err != nil || j.Status != "running" {
			return false, err
		}
		logs, err := n1.Log(ctx, id, "stdout")
		return strings.Contains(logs[j.Epoch], line), err
	})
	return j, err
}

func (d *demo) except(x *localsite.Node) (out []*localsite.Node) {
	for _, n := range d.site.Nodes {
		if n != x {
			out = append(out, n)
		}
	}
	return out
}

func names(all []*localsite.Node) string {
	var out []string
	for _, n := range all {
		out = append(out, n.Name)
	}
	return strings.Join(out, " and ")
}

// wordAfter finds the word that follows another at the beginning of a line.
func wordAfter(text, first string) string {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == first {
			return f[1]
		}
	}
	return ""
}

// leaseBoard takes the board for a person, and delegates a job that needs it.
func (d *demo) leaseBoard(ctx context.Context) error {
	n1 := d.site.Nodes[0]
	err := d.await(ctx, "the board fit for use", soon, func(ctx context.Context) (bool, error) {
		b, err := d.device(ctx)
		return err == nil && b.Health == "good" && b.Use == "free", err
	})
	if err != nil {
		return err
	}
	out, err := d.run(ctx, n1, "", "device", "lease", boardID, "--ttl", "1h")
	if err != nil {
		return err
	}
	d.facts.deviceLease = wordAfter(out, "lease")
	answer, err := d.askBoard(ctx, d.facts.deviceLease, "MEASURE")
	if err != nil {
		return err
	}
	d.say("over the console, the board says to its person: %s", answer)
	file, err := writeJob(d.dir, "board.yaml", boardJob())
	if err != nil {
		return err
	}
	grant, err := d.runCentral(ctx, "delegate", "bench", file)
	if err != nil {
		return err
	}
	d.facts.boardGrant = strings.TrimSpace(grant)
	var j *forgeyardv1.Job
	err = d.await(ctx, "the board's job waiting", soon, func(ctx context.Context) (bool, error) {
		j, err = n1.JobOfGrant(ctx, d.facts.boardGrant)
		return err == nil && j.Status == "queued" && j.HeldBack != "", err
	})
	if err != nil {
		return err
	}
	d.say("job %s waits: %s", short(j.JobId), j.HeldBack)
	return nil
}

// askBoard speaks with the board as the holder of a lease does, through the node.
func (d *demo) askBoard(ctx context.Context, leaseID, ask string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	s := d.site.Nodes[0].API.Device.Console(ctx)
	defer func() { _ = s.CloseResponse() }() // the answer was read, or the error says why not
	for _, m := range []*forgeyardv1.ConsoleData{{LeaseId: leaseID}, {Data: []byte(ask + "\n")}} {
		if err := s.Send(m); err != nil && !errors.Is(err, io.EOF) { // the cause is in Receive
			return "", err
		}
	}
	var heard string
	for !strings.Contains(heard, "\n") {
		m, err := s.Receive()
		if err != nil {
			return "", fmt.Errorf("the console of %s: %w", boardID, err)
		}
		heard += string(m.Data)
	}
	return strings.TrimSpace(heard), s.CloseRequest()
}

func (d *demo) device(ctx context.Context) (*forgeyardv1.Device, error) {
	l, err := d.site.Nodes[0].API.Device.List(ctx, connect.NewRequest(&forgeyardv1.ListDevicesRequest{}))
	if err != nil {
		return nil, err
	}
	for _, x := range l.Msg.Devices {
		if x.DeviceId == boardID {
			return x, nil
		}
	}
	return nil, forgeyard.Errorf("device", forgeyard.NotFound, "%s is not declared yet", boardID)
}

// useBoard gives the board back: it is reset, and its job gets it, while offline.
func (d *demo) useBoard(ctx context.Context) error {
	n1 := d.site.Nodes[0]
	before := d.board.resets.Load()
	if _, err := d.run(ctx, n1, "", "device", "release", d.facts.deviceLease); err != nil {
		return err
	}
	var j *forgeyardv1.Job
	var held *forgeyardv1.Job_HeldDevice
	err := d.await(ctx, "the end of the board's job", later, func(ctx context.Context) (ok bool, err error) {
		j, err = n1.JobOfGrant(ctx, d.facts.boardGrant)
		if err == nil && len(j.Devices) > 0 {
			held = j.Devices[0]
		}
		if err != nil {
			return false, err
		}
		return j.Ended != nil, d.alive(ctx, j)
	})
	if err != nil {
		return err
	}
	logs, err := n1.Log(ctx, j.JobId, "stdout")
	if err != nil {
		return err
	}
	for line := range strings.Lines(logs[j.Epoch]) {
		d.say("on %s, %s", j.Runner, strings.TrimSpace(line))
	}
	return d.judgeBoard(ctx, held, logs[j.Epoch], before)
}

func (d *demo) judgeBoard(ctx context.Context, held *forgeyardv1.Job_HeldDevice, log string, before int64) error {
	var b *forgeyardv1.Device
	err := d.await(ctx, "the board free again", soon, func(ctx context.Context) (ok bool, err error) {
		b, err = d.device(ctx)
		return err == nil && b.Use == "free" && b.Health == "good", err
	})
	if err != nil {
		return err
	}
	resets := d.board.resets.Load() - before
	d.say("the board counted %d resets: after the person, and after the job", resets)
	answers := strings.Count(log, boardMark)
	d.table.add(resets == 2 && answers == 2 && strings.Contains(log, "1: 3.30 V"),
		"a device is leased, used, and reset after each holder", "lease token %d; the job's first measurement is number 1, as the person's was; %d resets counted by the board; now %s and %s", held.GetToken(), resets, b.Use, b.Health)
	return nil
}
