//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
)

// saving is a job that saves its state when it is asked for it, and says in each epoch where
// it begins. What it goes on from it is done with.
const saving = `version: 1
kind: build
title: saving
job:
  steps:
    - sh: |
        if [ -n "${FORGEYARD_RESTORE_DIR:-}" ]; then
          echo "epoch $FORGEYARD_EPOCH from $(cat "$FORGEYARD_RESTORE_DIR/state")"
          exit 0
        fi
        echo "epoch $FORGEYARD_EPOCH from the beginning"
        trap 'echo "what epoch $FORGEYARD_EPOCH had" > state; exit 85' USR1
        while :; do sleep 1000 & wait $!; done
  resources: {cpu: 0.005, memory: 8MiB, disk: 8MiB, pids: 16}
  connectivity: {policy: continuous}
  interruption: {tolerance: checkpointable, budget: 3, stable_after: 1}
  resume: {mode: application, checkpoint: {exit_code: 85, files: [state], window: 1m, signal: USR1}, stop: {grace: 1s}}
`

// CK-316, CK-319, CK-321: 20 executions (200 with -long) on two machines are preempted at once,
// which both hear from a file, each when it looks. Each saves, is charged one interruption, and
// goes on from what it saved, once, on the machine that stays.
func TestPreemptionStorm(t *testing.T) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		needs.Lacking(t, "bubblewrap is not installed")
	}
	jobs := 20
	if *long {
		jobs = 200
	}
	s := newStormy(t, jobs)
	ids := s.submit(jobs)
	s.all("running", ids, func(j *forgeyardv1.Job) error {
		switch {
		case job.Status(j.Status).Terminal():
			return localsite.Final(fmt.Errorf("%s is %s: %s", j.JobId, j.Status, j.Reason))
		case j.Phase != string(job.PhaseRunning):
			return fmt.Errorf("%s is %s, %s", j.JobId, j.Status, j.Phase)
		}
		return nil
	})
	s.lines(ids, "epoch 1 from the beginning\n")
	s.command("runner", "resume", "n1")
	began := time.Now()
	if err := os.WriteFile(s.notice, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.all("done on the machine that stays", ids, func(j *forgeyardv1.Job) error {
		switch {
		case j.Status == string(job.Done):
			return nil
		case job.Status(j.Status).Terminal():
			return localsite.Final(fmt.Errorf("%s is %s: %s", j.JobId, j.Status, j.Reason))
		}
		return fmt.Errorf("%s is %s, %s", j.JobId, j.Status, j.Reason)
	})
	t.Logf("%d executions were preempted, and done elsewhere %s after the notice", jobs, time.Since(began).Round(time.Millisecond))
	s.lines(ids, "epoch 1 from the beginning\nepoch 2 from what epoch 1 had\n")
	for _, id := range ids {
		j, err := s.site.Nodes[0].Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if j.Epoch != 2 || j.Interruptions != 1 || len(j.Checkpoints) != 1 || j.Runner != "n1" || len(j.Epochs) != 2 || j.Epochs[1].ResumedFrom != j.Checkpoints[0].CheckpointId {
			t.Errorf("%s: epoch %d on %s, %d interruptions, %d checkpoints, epochs %v", id, j.Epoch, j.Runner, j.Interruptions, len(j.Checkpoints), j.Epochs)
		}
	}
}

// stormy is a site of three, of which two are told by a file that they will be taken away.
type stormy struct {
	t      *testing.T
	site   *localsite.Site
	notice string
}

func newStormy(t *testing.T, jobs int) *stormy {
	t.Helper()
	programs, err := localsite.FindPrograms(os.Getenv("FORGEYARD_BIN"))
	if err != nil {
		t.Fatal(err)
	}
	s := &stormy{t: t, site: localsite.New(t.TempDir(), programs)}
	s.notice = filepath.Join(s.site.Dir, "notice")
	t.Cleanup(func() {
		s.site.Stop()
		if t.Failed() {
			t.Log(s.site.Tails(30))
		}
	})
	token := ""
	for i := range 3 {
		set := localsite.Settings{"limits": map[string]any{"max_jobs": jobs}}
		if i > 0 {
			set["preemption"] = map[string]any{"file": s.notice, "every": "1s"}
		}
		n, config, err := s.site.AddNode(fmt.Sprint("n", i+1), set)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			_, err = s.site.Command(t.Context(), programs.Node, n.Env(), "", "init", "--site", "storm", "--config", config)
		} else {
			_, err = s.site.Command(t.Context(), programs.Node, n.Env(), token, "join", "-", "--config", config)
		}
		if err := errors.Join(err, n.Up()); err != nil {
			t.Fatal(err)
		}
		if err := s.site.AwaitOnline(t.Context(), settles, n); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			token = s.command("token", "create", "--uses", "2")
		}
	}
	if _, err := s.site.AwaitVoters(t.Context(), s.site.Nodes[0], 3, settles); err != nil {
		t.Fatal(err)
	}
	s.command("runner", "drain", "n1")
	for _, n := range []string{"n2", "n3"} {
		s.command("runner", "assign", n, "--class", "spot")
	}
	return s
}

func (s *stormy) command(args ...string) string {
	s.t.Helper()
	n := s.site.Nodes[0]
	out, err := s.site.Command(s.t.Context(), s.site.Programs.Node, n.Env(), "", args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *stormy) submit(jobs int) []string {
	s.t.Helper()
	f, err := job.ParseFile("saving.yaml", []byte(saving), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	spec, err := f.Spec(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	ids := make([]string, jobs)
	var g errgroup.Group
	g.SetLimit(8)
	for i := range ids {
		g.Go(func() error {
			q := &forgeyardv1.SubmitRequest{Kind: string(job.Build), Spec: spec.Canonical(), Title: "saving", IdempotencyKey: fmt.Sprint("saving ", i)}
			return s.site.Await(s.t.Context(), "a submission", settles, func(ctx context.Context) (bool, error) { // asked again where the outcome is not known
				r, err := s.site.Nodes[0].API.Job.Submit(ctx, connect.NewRequest(q))
				if err == nil {
					ids[i] = r.Msg.JobIds[0]
				}
				return err == nil, err
			})
		})
	}
	if err := g.Wait(); err != nil {
		s.t.Fatal(err)
	}
	return ids
}

// all waits until look finds nothing to wait for in any job.
func (s *stormy) all(what string, ids []string, look func(*forgeyardv1.Job) error) {
	s.t.Helper()
	for _, id := range ids {
		err := s.site.Await(s.t.Context(), id+" "+what, 3*settles, func(ctx context.Context) (bool, error) {
			j, err := s.site.Nodes[0].Job(ctx, id)
			if err == nil {
				err = look(j)
			}
			return err == nil, err
		})
		if err != nil {
			s.t.Fatalf("%v; %s", err, s.census(ids))
		}
	}
}

// census says how many of the jobs stand where.
func (s *stormy) census(ids []string) string {
	where := map[string]int{}
	for _, id := range ids {
		j, err := s.site.Nodes[0].Job(s.t.Context(), id)
		if err != nil {
			return err.Error()
		}
		where[fmt.Sprintf("%s/%s in epoch %d at %s with %d checkpoints, asked back: %q", j.Status, j.Phase, j.Epoch, j.Runner, len(j.Checkpoints), j.AskedBack)]++
	}
	return fmt.Sprint(where)
}

// lines waits until each job has printed that, and no more.
func (s *stormy) lines(ids []string, want string) {
	s.t.Helper()
	for _, id := range ids {
		err := s.site.Await(s.t.Context(), "the log of "+id, settles, func(ctx context.Context) (bool, error) {
			parts, err := s.site.Nodes[0].Log(ctx, id, "stdout")
			if err != nil {
				return false, err
			}
			got := parts[1] + parts[2] + parts[3]
			if !strings.HasPrefix(want, got) {
				return false, localsite.Final(fmt.Errorf("it says %q, want %q", got, want))
			}
			if got != want {
				return false, fmt.Errorf("it says %q so far", got)
			}
			return true, nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
}
