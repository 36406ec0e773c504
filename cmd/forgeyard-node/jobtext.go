package main

import (
	"cmp"
	"fmt"
	"strconv"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/job"
)

func jobTable(p *cli.Page, all []*forgeyardv1.Job) {
	p.Row("JOB", "STATUS", "PHASE", "EPOCH", "RUNNER", "AGE", "TITLE", "REASON")
	for _, j := range all {
		p.Row(j.JobId, j.Status, j.Phase, strconv.FormatUint(j.Epoch, 10), j.Runner, cli.Since(now(), j.Submitted), j.Title, j.Reason)
	}
}

func outputTable(p *cli.Page, all []*forgeyardv1.Output) {
	p.Row("PATH", "KIND", "SIZE", "DIGEST")
	for _, o := range all {
		kind := "file"
		if o.Tree {
			kind = "dir"
		}
		p.Row(o.Path, kind, cli.Size(o.Size), o.Digest)
	}
}

// jobText is everything about a job, what it is first and what became of it after.
func jobText(p *cli.Page, j *forgeyardv1.Job) {
	p.Fact("job", "%s", j.JobId)
	p.Fact("run", "%s", j.RunId)
	p.Fact("title", "%s", j.Title)
	p.Fact("status", "%s", statusLine(j))
	p.Fact("reason", "%s", j.Reason)
	p.Fact("category", "%s", j.Category)
	if job.Status(j.Status).Terminal() && j.Status != string(job.Cancelled) {
		p.Fact("exit code", "%d", j.ExitCode)
	}
	if j.CancellationRequestedAt != nil {
		p.Fact("cancellation", "%s, requested %s", cancelText(j.Cancellation), cli.Since(now(), j.CancellationRequestedAt))
		p.Fact("cancel pending", "%s", j.CancelPending)
	}
	if h := j.Suspension; h != nil {
		p.Fact("suspension", "%s, asked for by %s %s", h.State, h.By, cli.Since(now(), h.At))
		p.Fact("not suspended", "%s", h.Why)
	}
	p.Fact("submitted", "%s", cli.At(j.Submitted))
	p.Fact("started", "%s", cli.At(j.Started))
	p.Fact("ended", "%s", cli.At(j.Ended))
	p.Fact("policy", "%s, durability %s", j.Connectivity, j.Durability)
	if j.GrantId != "" {
		p.Fact("grant", "%s of the central daemon, %s left", j.GrantId, orDash(cli.PDur(j.AuthorityLeft)))
		if j.HardEnd != nil {
			p.Fact("hard end", "%s by the central daemon's clock", cli.At(j.HardEnd))
		}
	}
	p.Fact("spec", "%s", j.SpecId)
	if j.LeaseId != "" {
		p.Fact("lease", "%s %s, fence %s, attempt %s", j.LeaseId, j.LeaseState, j.Fence, j.AttemptId)
	}
	if h := j.Holder; h != nil {
		p.Fact("its holder says", "%s, log up to %d (%s ago)", h.Phase, h.LastLogSeq, cli.PDur(h.Ago))
	}
	if j.LogSeq > 0 {
		p.Fact("log", "kept up to %d", j.LogSeq)
	}
	p.Fact("lease policy", "%s", j.LeasePolicy)
	p.Fact("asked back", "%s", j.AskedBack)
	p.Fact("delivery", "%s", j.Delivery)
	p.Fact("resume mode", "%s", j.ResumeMode)
	p.Fact("latest checkpoint", "%s", shortDigest(j.LatestCheckpoint))
	p.Fact("goes on from", "%s", shortDigest(j.ResumesFrom))
	if j.Interruptions > 0 {
		p.Fact("interruptions", "%d, the budget is %d", j.Interruptions, j.InterruptionBudget)
	}
	waiting(p, j)
	effects(p, j.Effects)
	committedSteps(p, j)
	history(p, j)
	results(p, j)
	events(p, j)
}

// events are the last decisions about the job and what it told, each with its reason.
func events(p *cli.Page, j *forgeyardv1.Job) {
	if len(j.Events) == 0 {
		return
	}
	p.Head("last events", "AT", "KIND", "EVENT")
	for _, e := range j.Events {
		p.Row(cli.At(e.At), cmp.Or(e.Type, e.Kind), e.Text)
	}
}

func statusLine(j *forgeyardv1.Job) string {
	s := j.Status
	held := j.LeaseState == "offered" || j.LeaseState == "accepted"
	if j.Phase != "" && held {
		s += ", " + j.Phase
	}
	if j.Runner != "" && (held || job.Status(j.Status).Terminal()) {
		s += " on " + j.Runner
	}
	if j.Epoch > 0 {
		s += fmt.Sprintf(", epoch %d", j.Epoch)
	}
	return s
}

// waiting says what keeps a job from every runner, and from each.
func waiting(p *cli.Page, j *forgeyardv1.Job) {
	p.Fact("held back", "%s", j.HeldBack)
	if len(j.Candidates) == 0 || j.HeldBack != "" {
		return
	}
	p.Head("why no runner has it", "RUNNER", "REASON")
	for _, c := range j.Candidates {
		if len(c.Reasons) == 0 {
			p.Row(c.Runner, "could take it")
		}
		for _, r := range c.Reasons {
			p.Row(c.Runner, r)
		}
	}
}

func history(p *cli.Page, j *forgeyardv1.Job) {
	if len(j.Epochs) > 0 {
		p.Head("epochs", "EPOCH", "RUNNER", "STARTED", "TOOK", "ENDED BY", "RESUMED FROM", "DETAIL")
		for _, e := range j.Epochs {
			took := ""
			if e.Started != nil && e.Ended != nil {
				took = cli.Dur(e.Ended.AsTime().Sub(e.Started.AsTime()))
			}
			p.Row(strconv.FormatUint(e.Epoch, 10), e.Runner, cli.At(e.Started), took, e.Reason, shortDigest(e.ResumedFrom), e.Detail)
		}
	}
	if len(j.Resumes) > 0 {
		p.Head("resumes", "EPOCH", "RUNNER", "FROM", "AT", "OUTCOME", "DETAIL")
		for _, r := range j.Resumes {
			p.Row(strconv.FormatUint(r.Epoch, 10), r.Runner, shortDigest(r.CheckpointId), cli.At(r.At), r.Outcome, r.Detail)
		}
	}
	if len(j.Checkpoints) > 0 {
		p.Head("checkpoints", "SEQ", "EPOCH", "CHECKPOINT", "SIZE", "AT", "STATE", "PROGRESS", "COPIES", "WHY")
		for _, c := range j.Checkpoints {
			p.Row(strconv.Itoa(int(c.Seq)), strconv.FormatUint(c.Epoch, 10), shortDigest(c.CheckpointId), cli.Size(c.Bytes), cli.At(c.At), c.State, c.Progress, strconv.Itoa(len(c.Replicas)), c.Why)
		}
	}
	if len(j.Late) > 0 {
		p.Head("refused results", "EPOCH", "RUNNER", "AT", "OUTCOME", "VERDICT", "WHY")
		for _, l := range j.Late {
			p.Row(strconv.FormatUint(l.Epoch, 10), l.Runner, cli.At(l.At), l.Outcome, l.Verdict, l.Why)
		}
	}
}

// shortDigest is a digest as tables show it.
func shortDigest(s string) string { return s[:min(len(s), 15)] }

func results(p *cli.Page, j *forgeyardv1.Job) {
	if len(j.Devices) > 0 {
		p.Head("devices", "AS", "DEVICE", "HOST", "LEASE", "TOKEN")
		for _, d := range j.Devices {
			p.Row(d.As, d.DeviceId, d.Host, d.LeaseId, strconv.FormatUint(d.Token, 10))
		}
	}
	if len(j.Steps) > 0 {
		p.Head("steps", "STEP", "EXIT", "SIGNAL", "TOOK")
		for _, s := range j.Steps {
			p.Row(s.Name, strconv.Itoa(int(s.ExitCode)), s.Signal, cli.PDur(s.Took))
		}
	}
	if len(j.Outputs) > 0 {
		p.Head("outputs, on " + orDash(cli.Join(j.Replicas)))
		outputTable(p, j.Outputs)
	}
	if len(j.Diagnostics) > 0 {
		p.Head("kept of the failure, on " + orDash(cli.Join(j.Replicas)))
		diagnosticTable(p, j.Diagnostics)
	}
}

func diagnosticTable(p *cli.Page, all []*forgeyardv1.Job_Diagnostic) {
	p.Row("PATH", "KIND", "SIZE", "DIGEST", "NOTE")
	for _, d := range all {
		kind, size, note := "file", cli.Size(d.Size), ""
		if d.Tree {
			kind = "dir"
		}
		if d.Sensitive {
			note = "sensitive"
		}
		if d.Digest == "" {
			kind, size, note = "-", "-", "left out: "+d.LeftOut
		}
		p.Row(d.Path, kind, size, orDash(d.Digest), note)
	}
}

// cancelText is how far a cancellation has come, and why.
func cancelText(c *forgeyardv1.Job_Cancellation) string {
	text := c.GetState() + " (" + c.GetReason() + ")"
	if c.GetAfterCheckpoint() {
		text += " after a checkpoint"
	}
	if c.GetSupersededBy() != "" {
		text += " by run " + c.SupersededBy
	}
	if c.GetNote() != "" {
		text += ": " + c.Note
	}
	return text
}
