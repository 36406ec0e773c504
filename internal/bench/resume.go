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
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// resumingJob saves its state once, and says in each epoch where it begins.
const resumingJob = `
version: 1
kind: build
title: resuming
job:
  steps:
    - sh: |
        if from=$(fyjob restore path); then
          cp "$from/n" n; fyjob restore ok; echo "from $(cat n)"
        else
          echo "from the beginning"
          d=$(fyjob ckpt begin); echo 7 > "$d/n"; fyjob ckpt commit "$d"
        fi
        while :; do sleep 0.2; done
  resources: {cpu: 0.1, memory: 64MiB, disk: 64MiB, pids: 32}
  connectivity: {policy: continuous}
  resume: {mode: application, checkpoint: {window: 20s}, stop: {grace: 1s}}
`

// afterTTL is what a site may add to the silence after which a lease ends: the election where
// the leader is the one that was killed, the next grant, the restore, and the program's start.
const afterTTL = 2 * time.Second

// resumeSuite kills runners, and takes the time to the first line of the next epoch, which
// goes on from the checkpoint on another node.
func (b *bench) resumeSuite(ctx context.Context) error {
	spec, err := specOf(resumingJob)
	if err != nil {
		return err
	}
	var all []float64
	for i := range b.rounds {
		took, led, err := b.killRunner(ctx, spec)
		if err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "kill %d: first line of the next epoch after %s%s, load %s\n", i+1, report.Millis(took.Seconds()), led, report.Load())
		all = append(all, took.Seconds())
	}
	b.Add(report.Measured("checkpoint.runner_killed_to_first_line", report.Millis, (sitecfg.DefaultSite().Lease.TTL + afterTTL).Seconds(), all))
	return nil
}

func (b *bench) killRunner(ctx context.Context, spec []byte) (took time.Duration, led string, err error) {
	leader, _, err := b.leaderOf(ctx)
	if err != nil {
		return 0, "", err
	}
	r, err := submit(ctx, leader, spec)
	if err != nil {
		return 0, "", err
	}
	id := r.JobIds[0]
	var j *forgeyardv1.Job
	err = b.site.Await(ctx, "a committed checkpoint", patience, func(ctx context.Context) (bool, error) {
		j, err = leader.Job(ctx, id)
		return err == nil && len(j.Checkpoints) > 0, err
	})
	if err != nil {
		return 0, "", err
	}
	holder, err := b.site.Node(j.Runner)
	if err != nil {
		return 0, "", err
	}
	if holder == leader {
		led = ", it led"
	}
	at := b.site.Nodes[0]
	if at == holder {
		at = b.site.Nodes[1]
	}
	killed := time.Now()
	if err := holder.Kill(); err != nil {
		return 0, "", err
	}
	var line *forgeyardv1.LogFrame
	err = b.site.Await(ctx, "the next epoch's first line", patience, func(ctx context.Context) (bool, error) {
		line, err = lineOf(ctx, at, id, j.Epoch+1)
		return line != nil, err
	})
	if err != nil {
		return 0, "", err
	}
	if string(line.Data) != "from 7\n" {
		return 0, "", fmt.Errorf("epoch %d of %s says %q", line.Epoch, id, line.Data)
	}
	if _, err := at.API.Job.Cancel(ctx, connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: id, Force: true})); err != nil {
		return 0, "", err
	}
	err = b.site.Await(ctx, "the end of it", patience, func(ctx context.Context) (bool, error) {
		j, err := at.Job(ctx, id)
		return err == nil && job.Status(j.Status).Terminal(), err
	})
	if err != nil {
		return 0, "", err
	}
	if err := holder.Up(); err != nil {
		return 0, "", err
	}
	return line.At.AsTime().Sub(killed), led, b.site.AwaitOnline(ctx, patience, holder)
}

// lineOf is the first of an epoch's output, as its runner had it; nil: there is none yet.
func lineOf(ctx context.Context, at *localsite.Node, id string, epoch uint64) (*forgeyardv1.LogFrame, error) {
	s, err := at.API.Job.Log(ctx, connect.NewRequest(&forgeyardv1.LogRequest{JobId: id, Stream: "stdout"}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // it was read to its end, or what is sought was found
	for s.Receive() {
		if f := s.Msg(); f.Epoch >= epoch && len(f.Data) > 0 {
			return f, nil
		}
	}
	return nil, s.Err()
}
