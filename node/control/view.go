package control

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// stamp is a wall time on the wire; unset stays unset.
func stamp(w forgeyard.Wall) *timestamppb.Timestamp {
	if w == 0 {
		return nil
	}
	return timestamppb.New(w.Time())
}

// Assigned shows what the site says of a runner.
func Assigned(a job.Assignment) *forgeyardv1.Assignment {
	if a.IsZero() {
		return nil
	}
	v := &forgeyardv1.Assignment{Pool: a.Pool, Labels: a.Labels, Class: string(a.Class)}
	for _, t := range a.Trust {
		v.Trust = append(v.Trust, string(t))
	}
	return v
}

// Caps shows what a machine is, and what the site says of it.
func Caps(c job.Capabilities, digest forgeyard.Digest, given job.Assignment) *forgeyardv1.Capabilities {
	v := &forgeyardv1.Capabilities{
		Os: c.OS, Arch: c.Arch, MilliCpu: c.MilliCPU, Memory: c.Memory, Disk: c.Disk, MaxJobs: int32(c.MaxJobs), Labels: c.Labels, Digest: digest.String(), Assigned: Assigned(given),
	}
	for _, s := range c.Sandboxes {
		v.Sandboxes = append(v.Sandboxes, &forgeyardv1.Capabilities_Sandbox{Kind: string(s.Kind), Version: s.Version, Limits: s.Limits})
	}
	for _, g := range c.GPUs {
		v.Gpus = append(v.Gpus, &forgeyardv1.Capabilities_GPU{Bus: g.Bus, Vendor: g.Vendor, Model: g.Model, Driver: g.Driver, Memory: g.Memory})
	}
	for _, t := range c.Toolchains {
		v.Toolchains = append(v.Toolchains, &forgeyardv1.Capabilities_Toolchain{Name: t.Name, Version: t.Version, Source: t.Source, Verified: t.Verified, Digest: t.Digest.String(), Warm: t.Warm})
	}
	for _, d := range c.WarmToolchains {
		v.WarmToolchains = append(v.WarmToolchains, d.String())
	}
	for _, n := range c.Networks {
		v.Networks = append(v.Networks, string(n))
	}
	for _, d := range c.Devices {
		v.Devices = append(v.Devices, &forgeyardv1.Capabilities_DeviceFact{Id: string(d.ID), Kind: d.Kind, Serial: d.Serial, Labels: d.Labels})
	}
	return v
}

// Job shows a job when used of the uplink's silence was counted; a short view leaves out what
// lists do not need.
func Job(s *site.State, j site.Job, used time.Duration, long bool) *forgeyardv1.Job {
	a := j.Lease.Authority
	v := &forgeyardv1.Job{
		JobId: string(j.ID), RunId: string(j.Run), Title: j.Spec.Title, Status: string(j.Status), Reason: j.Reason, AttemptId: string(j.Attempt),
		Epoch: j.Epoch, Term: j.Term, Phase: string(phase(j)), SpecId: j.SpecID.String(), Category: string(j.Category),
		Submitted: stamp(j.Submitted), Started: stamp(j.Started), Ended: stamp(j.Ended), CancellationRequestedAt: stamp(j.CancelAt),
		Interruptions: int32(j.Interruptions), Durability: string(j.Spec.Durability),
	}
	v.Connectivity = string(j.Spec.Connectivity.Policy)
	if j.Spec.Connectivity.For > 0 {
		v.Connectivity += " " + j.Spec.Connectivity.For.String()
	}
	if a.Lease != "" {
		v.LeaseId, v.LeaseState, v.Fence = string(a.Lease), string(j.Lease.State), a.Fence.String()
		v.RunnerId, v.Runner = string(a.Runner), memberName(s, a.Runner)
	}
	if a.Lease != "" {
		v.LeasePolicy = leasePolicy(j.Lease)
	}
	v.CancelPending, v.Delivery, v.AskedBack = cancelPending(s, j), delivery(s, j), askedBack(j)
	v.LogSeq = j.LogSeq
	if h := j.Hold; h != nil {
		v.Suspension = &forgeyardv1.Job_Suspension{State: h.State, By: h.By, At: stamp(h.At), Otherwise: h.Or, Why: h.Why}
	}
	v.InterruptionBudget = int32(j.Spec.Interruption.Budget)
	v.Cancellation, v.OnlyStable = cancellation(j), j.OnlyStable() && !j.Status.Terminal()
	if j.Grant != nil {
		v.GrantId, v.HardEnd = string(j.Grant.ID), stamp(j.Grant.End)
		left := max(0, j.Grant.Left(s.Uplink, max(used, s.Uplink.Used)))
		if j.Status.Terminal() {
			left = 0 // nothing acts under it any more
		}
		v.AuthorityLeft = durationpb.New(left)
	}
	if j.Result != nil {
		v.ExitCode = int32(j.Result.ExitCode)
	}
	if long {
		longJob(s, j, v)
	}
	return v
}

// phase is what the attempt does that is current; of a job that has ended, how its last one
// ended. A job that waits for a runner has none.
func phase(j site.Job) job.Phase {
	switch {
	case j.Lease.Live(), j.Status == job.Unknown:
		return j.Phase
	case !j.Status.Terminal() || j.Lease.State == "":
		return ""
	case j.Lease.Reason == lease.EndCompleted:
		return job.PhaseCompleted
	case j.Lease.Reason == lease.EndRejected:
		return job.PhaseRejected
	}
	return job.PhaseLost // whatever it did, nothing of it counts
}

func longJob(s *site.State, j site.Job, v *forgeyardv1.Job) {
	for _, e := range j.History {
		v.Epochs = append(v.Epochs, &forgeyardv1.Job_Epoch{
			Epoch: e.Epoch, AttemptId: string(e.Attempt), LeaseId: string(e.Lease), Runner: memberName(s, e.Runner), SessionId: string(e.Session),
			ResumedFrom: e.Resumed.String(), Started: stamp(e.Started), Ended: stamp(e.Ended), Reason: string(e.Reason), Detail: e.Detail,
		})
	}
	for _, c := range j.Checkpoints {
		v.Checkpoints = append(v.Checkpoints, Checkpoint(c))
	}
	for _, l := range j.Late {
		v.Late = append(v.Late, &forgeyardv1.Job_LateResult{At: stamp(l.At), Epoch: l.Epoch, Runner: memberName(s, l.Runner), MessageId: string(l.Message), Outcome: string(l.Outcome), Why: l.Why, Verdict: string(site.StaleRejected)})
	}
	v.Events = jobEvents(s, j)
	resumption(s, j, v)
	outsideOf(j, v)
	for _, d := range j.Devices {
		v.Devices = append(v.Devices, &forgeyardv1.Job_HeldDevice{As: d.As, DeviceId: string(d.Device), LeaseId: string(d.Lease), Token: d.Token, Host: memberName(s, d.Host)})
	}
	if j.Result == nil {
		return
	}
	v.Outputs = Outputs(j.Result.Outputs)
	for _, d := range j.Result.Diagnostics {
		m := &forgeyardv1.Job_Diagnostic{Path: d.Path, Sensitive: d.Sensitive, LeftOut: d.LeftOut}
		if !d.Digest.IsZero() {
			m.Digest, m.Size, m.Tree, m.Manifest = d.Digest.String(), d.Size, d.Tree, d.Manifest.String()
		}
		v.Diagnostics = append(v.Diagnostics, m)
	}
	for _, r := range j.Result.Steps {
		v.Steps = append(v.Steps, &forgeyardv1.StepResult{Name: r.Name, ExitCode: int32(r.ExitCode), Signal: r.Signal, Took: durationpb.New(r.Took)})
	}
	for _, r := range j.Result.Replicas {
		v.Replicas = append(v.Replicas, memberName(s, r))
	}
}

// Outputs shows captured outputs.
func Outputs(all []job.Output) []*forgeyardv1.Output {
	var out []*forgeyardv1.Output
	for _, o := range all {
		out = append(out, &forgeyardv1.Output{Path: o.Path, Digest: o.Digest.String(), Size: o.Size, Tree: o.Tree, Manifest: o.Manifest.String()})
	}
	return out
}

// Checkpoint shows a committed checkpoint.
func Checkpoint(c checkpoint.Commit) *forgeyardv1.Checkpoint {
	v := &forgeyardv1.Checkpoint{
		CheckpointId: c.Manifest.String(), Seq: int32(c.Seq), Epoch: c.Epoch, AttemptId: string(c.Attempt), Payload: c.Payload.String(), Bytes: c.Bytes,
		Consistency: string(c.Consistency), At: stamp(c.At), State: c.State.String(), Why: c.Why,
	}
	for _, r := range c.Replicas {
		v.Replicas = append(v.Replicas, string(r))
	}
	if c.Progress.Done > 0 || c.Progress.Total > 0 {
		v.Progress = fmt.Sprintf("%v/%v %s", c.Progress.Done, c.Progress.Total, c.Progress.Unit)
	}
	return v
}

// Run shows a run of the ledger.
func Run(s *site.State, r site.Run) *forgeyardv1.Run {
	v := &forgeyardv1.Run{
		RunId: string(r.ID), Kind: string(r.Kind), Title: r.Title, Status: string(r.Status), Summary: r.Summary, Error: r.Error, Category: string(r.Category),
		Created: stamp(r.Created), Started: stamp(r.Started), Ended: stamp(r.Ended), CancellationRequestedAt: stamp(r.CancelAt),
		JobIds: []string{string(r.Job)}, Node: memberName(s, r.Exec.Node), Pid: int64(r.Exec.PID), By: r.By, LastSeq: r.LastSeq,
		Group: r.Group, Order: r.Order, SupersededBy: string(r.SupersededBy),
	}
	if h := r.Suspension; h != nil {
		v.Suspension = &forgeyardv1.Run_Suspension{SuspensionId: string(h.ID), By: h.By, At: stamp(h.At), Otherwise: h.Or, State: runSuspension(s, r), Ended: stamp(h.Ended)}
	}
	return v
}

// runSuspension is what became of the last wish to suspend a run.
func runSuspension(s *site.State, r site.Run) string {
	j, _ := s.Jobs.Get(r.Job)
	switch {
	case r.Suspension.Ended != 0 || j.Hold == nil || j.Hold.Step != r.Suspension.Wish:
		return "ended"
	case j.Hold.State == site.SuspendResuming: // by its job alone
		return "ended"
	}
	return j.Hold.State
}

// cancellation is how far a cancellation has come, and why it was asked for.
func cancellation(j site.Job) *forgeyardv1.Job_Cancellation {
	if j.CancelAt == 0 {
		return nil
	}
	v := &forgeyardv1.Job_Cancellation{State: string(j.CancelState()), Reason: string(j.CancelReason()), By: j.CancelBy, At: stamp(j.CancelAt), Force: j.Force}
	if n := j.Cancel; n != nil {
		v.Note, v.AfterCheckpoint, v.SupersededBy = n.Note, n.After, string(n.By)
	}
	return v
}

// Event shows one event of a run.
func Event(run forgeyard.RunID, e job.Event) *forgeyardv1.RunEvent {
	v := &forgeyardv1.RunEvent{RunId: string(run), Seq: e.Seq, At: stamp(e.At), Kind: string(e.Kind), Status: string(e.Status), Message: e.Message, Type: string(e.Type)}
	if t := e.Tool; t != nil {
		v.Tool = &forgeyardv1.ToolUse{Source: string(t.Source), Name: t.Name, State: string(t.State), Count: t.Count, Bytes: t.Bytes, Took: durationpb.New(t.Took), Code: int32(t.Code)}
	}
	if o := e.Output; o != nil {
		v.Output = &forgeyardv1.Printed{FirstSeq: o.FirstSeq, LastSeq: o.LastSeq, Stdout: o.Stdout, Stderr: o.Stderr}
	}
	if e.Tool != nil || e.Output != nil { // one line says it, whoever reads it
		v.Message = job.Happening{Kind: e.Kind, Message: e.Message, Tool: e.Tool, Output: e.Output}.String()
	}
	return v
}

// Device shows a device. A view of a device whose host is away is marked by its
// presence and never shown as available.
func Device(s *site.State, d devices.Device, asOf time.Time) *forgeyardv1.Device {
	v := &forgeyardv1.Device{
		DeviceId: string(d.ID), Host: memberName(s, d.Host), HostId: string(d.Host), Kind: d.Kind, Labels: d.Labels, Serial: d.Serial,
		Presence: string(d.Presence), Health: string(d.Health), Use: string(d.Use), Reason: d.Grantable(), AsOf: timestamppb.New(asOf),
	}
	if d.Lease != nil {
		v.LeaseId, v.Token, v.Holder = string(d.Lease.ID), d.Lease.Token, d.Lease.Holder.String()
	}
	return v
}

// Connectivity shows how the site stands to its central daemon; used is the freshest
// figure that is known, which may be ahead of the committed one.
func Connectivity(s *site.State, used time.Duration, now time.Time) *forgeyardv1.Connectivity {
	u := s.Uplink
	v := &forgeyardv1.Connectivity{State: string(u.State), Since: stamp(u.Since), Central: s.Central.Name, Drill: s.Central.Drill, Doubt: u.Doubt}
	if u.State == lease.Standalone || u.State == "" {
		v.State = string(lease.Standalone)
		v.Used, v.Allowance, v.Left = durationpb.New(0), durationpb.New(0), durationpb.New(0)
		return v
	}
	v.Shortfalls, v.Readiness = shortfalls(s.Ready), readiness(s.Ready)
	v.ReadinessSince, v.SilentAfter, v.Grace = stamp(s.Ready.Since), durationpb.New(u.Terms.SilentAfter), durationpb.New(u.Terms.Grace)
	used = max(used, u.Used)
	left := max(0, u.Terms.Allowance-used)
	v.Used, v.Allowance, v.Left = durationpb.New(used), durationpb.New(u.Terms.Allowance), durationpb.New(left)
	if u.State == lease.InGrace || u.State == lease.Offline {
		v.Until = timestamppb.New(now.Add(left))
	}
	return v
}

// Outbox shows what waits for the central daemon.
func Outbox(s *site.State) *forgeyardv1.Outbox {
	v := &forgeyardv1.Outbox{Pending: int64(s.Outbox.Len()), Acked: s.Acked, Sent: s.Sent}
	if _, r, ok := s.Outbox.Min(); ok {
		v.Oldest = stamp(r.At)
	}
	return v
}

func memberName(s *site.State, r forgeyard.RunnerID) string {
	if m, ok := s.Members.Get(r); ok {
		return m.Name
	}
	return string(r)
}
