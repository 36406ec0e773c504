package main

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
	"github.com/forgeyard/forgeyard-node/job"
)

const echoJob = `
version: 1
kind: build
title: echo
job:
  steps: [{name: echo, sh: "echo up"}]
  resources: {cpu: 0.1, memory: 64MiB, disk: 64MiB, pids: 32}
`

// jobsPart is the part of the suite lease that needs a site.
const jobsPart = "jobs"

// leaseSuite measures how soon work runs, and how soon the site leases again after
// its leader was killed.
func (b *bench) leaseSuite(ctx context.Context) error {
	spec, err := echoSpec()
	if err != nil {
		return err
	}
	if err := b.starts(ctx, spec); err != nil {
		return err
	}
	return b.kills(ctx, spec)
}

func echoSpec() ([]byte, error) { return specOf(echoJob) }

func submit(ctx context.Context, at *localsite.Node, spec []byte) (*forgeyardv1.SubmitResponse, error) {
	r, err := at.API.Job.Submit(ctx, connect.NewRequest(&forgeyardv1.SubmitRequest{Kind: string(job.Build), Spec: spec, Title: "echo"}))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

// warmup is how many jobs run before it counts.
const warmup = 3

// starts submits one job after the other, to each node in turn, and takes the time from
// before the call to the moment at which the runner had the workload's first line: what
// stands in its log, by the same machine's clock. The time to the answer and to the
// phase event are printed beside it.
func (b *bench) starts(ctx context.Context, spec []byte) error {
	var line, answered, phase []float64
	for i := range b.jobs + warmup {
		at := b.site.Nodes[i%len(b.site.Nodes)]
		t0 := time.Now()
		r, err := submit(ctx, at, spec)
		if err != nil {
			return err
		}
		t1 := time.Now()
		t2, err := b.follow(ctx, at, r.RunId)
		if err != nil {
			return err
		}
		t3, err := firstLine(ctx, at, r.JobIds[0])
		if err != nil {
			return err
		}
		if i < warmup {
			continue
		}
		answered, phase, line = append(answered, t1.Sub(t0).Seconds()), append(phase, t2.Sub(t0).Seconds()), append(line, t3.Sub(t0).Seconds())
	}
	for _, m := range []struct {
		name string
		all  []float64
	}{{"answer", answered}, {"workload's first line", line}, {"phase event running", phase}} {
		r := report.Measured(m.name, report.Millis, 0, m.all)
		fmt.Fprintf(b.Out, "submit to %s: p50 %s (%s to %s), %d jobs\n", m.name, report.Millis(r.Median), report.Millis(r.Min), report.Millis(r.Max), len(m.all))
	}
	b.Add(report.Measured("lease.submit_to_running_p50", report.Millis, 0.1, line))
	return nil
}

// follow reads the run's events to its end and tells when it was seen to run.
func (b *bench) follow(ctx context.Context, at *localsite.Node, run string) (running time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := at.API.Run.Attach(ctx, connect.NewRequest(&forgeyardv1.AttachRequest{RunId: run}))
	if err != nil {
		return running, err
	}
	defer func() { _ = s.Close() }() // it was read to its end, or the error says why not
	last := ""
	for s.Receive() {
		if st := s.Msg().Status; st != "" {
			last = st
		}
		if last == string(job.Running) && running.IsZero() {
			running = time.Now()
		}
	}
	if err := s.Err(); err != nil {
		return running, err
	}
	if last != string(job.Done) || running.IsZero() {
		return running, fmt.Errorf("run %s ended as %q", run, last)
	}
	return running, nil
}

// firstLine is when the runner had the first bytes of the workload.
func firstLine(ctx context.Context, at *localsite.Node, id string) (time.Time, error) {
	s, err := at.API.Job.Log(ctx, connect.NewRequest(&forgeyardv1.LogRequest{JobId: id, Stream: "stdout"}))
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = s.Close() }() // as above
	for s.Receive() {
		if f := s.Msg(); len(f.Data) > 0 {
			return f.At.AsTime(), nil
		}
	}
	if err := s.Err(); err != nil {
		return time.Time{}, err
	}
	return time.Time{}, fmt.Errorf("the log of %s is empty", id)
}

// kills kills the leader and takes the time to the grant of the next lease, which is
// that of a job submitted right after the kill; then the killed node comes back.
func (b *bench) kills(ctx context.Context, spec []byte) error {
	var granted, back []float64
	for i := range b.rounds {
		leader, other, err := b.leaderOf(ctx)
		if err != nil {
			return err
		}
		t0 := time.Now()
		if err := leader.Kill(); err != nil {
			return err
		}
		took, answered, err := b.nextLease(ctx, other, spec, t0)
		if err != nil {
			return err
		}
		t1 := time.Now()
		if err := leader.Up(); err != nil {
			return err
		}
		if err := b.site.AwaitOnline(ctx, patience, leader); err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "kill %d: %s led; submit answered after %s, next lease after %s; back online in %s\n",
			i+1, leader.Name, report.Millis(answered.Seconds()), report.Millis(took.Seconds()), report.Millis(time.Since(t1).Seconds()))
		granted, back = append(granted, took.Seconds()), append(back, time.Since(t1).Seconds())
	}
	b.Add(report.Measured("lease.leader_killed_to_next_lease", report.Millis, 1.2, granted))
	b.Add(report.Measured("node.restart_to_online", report.Millis, 2, back))
	return nil
}

func (b *bench) nextLease(ctx context.Context, at *localsite.Node, spec []byte, t0 time.Time) (granted, answered time.Duration, err error) {
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var r *forgeyardv1.SubmitResponse
	// Nobody can take it at first; the same node is asked until it can.
	err = b.site.Await(call, "a submit after the kill", patience, func(ctx context.Context) (bool, error) {
		r, err = submit(ctx, at, spec)
		return err == nil, err
	})
	if err != nil {
		return 0, 0, err
	}
	answered = time.Since(t0)
	err = b.site.Await(call, "the next lease", patience, func(ctx context.Context) (bool, error) {
		j, err := at.Job(ctx, r.JobIds[0])
		if err != nil || j.LeaseId == "" {
			return false, err
		}
		granted = j.Epochs[0].Started.AsTime().Sub(t0)
		return true, nil
	})
	return granted, answered, err
}
