package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) checkpointCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "checkpoint", Aliases: []string{"checkpoints"}, Short: "Show what jobs can go on from, and take it away"})
	g.AddCommand(a.checkpointList(), a.checkpointInspect(), a.checkpointRevoke(), a.checkpointDelete(), a.checkpointFetch(), a.checkpointDoctor())
	return g
}

func (a *app) checkpointList() *cobra.Command {
	return a.Build(cli.Command{
		Use: "list [JOB]", Aliases: []string{"ls"}, Short: "List the committed checkpoints of a job, or of all", Args: cobra.MaximumNArgs(1),
		Example: "  forgeyard-node checkpoint list\n  forgeyard-node checkpoint list 7KQ2 -o json", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.ckpt.List, &forgeyardv1.ListCheckpointsRequest{JobId: strings.Join(args, "")})
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, l.Checkpoints, func(p *cli.Page) {
				p.Row("CHECKPOINT", "JOB", "EPOCH", "SLOT", "STATE", "BYTES", "AGE", "PROGRESS", "WHY")
				for _, k := range l.Checkpoints {
					p.Row(shortID(k.CheckpointId), k.JobId, strconv.FormatUint(k.Epoch, 10), strconv.Itoa(int(k.Seq)), k.State, strconv.FormatInt(k.Bytes, 10), cli.Since(now(), k.At), k.Progress, whose(k))
				}
			})
		},
	})
}

// shortID is as much of a checkpoint's identity as a person types.
func shortID(id string) string { return id[:min(len(id), len("b3:")+12)] }

// whose says why a checkpoint is not what it was, and by whose word.
func whose(k *forgeyardv1.Checkpoint) string {
	switch {
	case k.Why == "":
		return ""
	case k.By == "":
		return k.Why
	}
	return k.By + ": " + k.Why
}

func (a *app) checkpointInspect() *cobra.Command {
	return a.Build(cli.Command{
		Use: "inspect ID", Aliases: []string{"show"}, Short: "Show all that binds a checkpoint, and whether this node could go on from it", Args: cobra.ExactArgs(1),
		Long: "Show all that binds a checkpoint: the job, attempt and epoch, the spec and the contract, the machine that it was taken on; where its copies are; what became of it; " +
			"and the verdict of this node with its reason. Content is held against its digests when it is restored. ID is the identity, or its first letters.",
		Example: "  forgeyard-node checkpoint inspect b3:1f3a5c\n  forgeyard-node checkpoint inspect 1f3a5c -o json", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			d, err := unary(ctx, c.ckpt.Show, &forgeyardv1.ShowCheckpointRequest{CheckpointId: args[0]})
			if err != nil {
				return err
			}
			return a.Print(d, func(p *cli.Page) { checkpointPage(p, d) })
		},
	})
}

func checkpointPage(p *cli.Page, d *forgeyardv1.CheckpointDetail) {
	k := d.Checkpoint
	line := func(what, format string, args ...any) {
		if text := strings.TrimSpace(fmt.Sprintf(format, args...)); text != "" {
			p.Row(what, text)
		}
	}
	line("checkpoint", "%s", k.CheckpointId)
	line("verdict here", "%s", strings.TrimSpace(d.Verdict+" "+d.Code+" "+d.Detail))
	line("state", "%s %s", k.State, whose(k))
	line("job", "%s, attempt %s, epoch %d, slot %d", k.JobId, k.AttemptId, k.Epoch, k.Seq)
	line("taken", "%s by %s %s", cli.Since(now(), k.At), d.TakenBy, k.Progress)
	line("spec", "%s", d.Spec)
	line("contract", "%s %s", d.Contract, d.Format)
	line("consistency", "%s", k.Consistency)
	if w := k.Where; w != nil {
		line("machine", "%s/%s kernel %s, %s, %s %s", w.Os, w.Arch, w.Kernel, w.Libc, strings.Join(w.Tools, ", "), strings.Join(w.Devices, ", "))
		line("instruction sets", "%s", strings.Join(w.Cpu, " "))
	}
	line("payload", "%s, %d bytes in %d files", k.Payload, k.Bytes, d.Files)
	line("marker", "%s", d.Marker)
	line("builds on", "%s", d.Parent)
	line("acknowledged", "%s", strings.Join(d.Acknowledged, ", "))
	line("copies", "%s", strings.Join(d.Holders, ", "))
	line("sensitivity", "%s", k.Sensitivity)
	line("gone on from by", "%s", strings.Join(d.ResumedBy, ", "))
	if d.Next {
		line("next", "the job goes on from this one")
	}
	line("manifest", "%s", d.ManifestState)
}

func (a *app) checkpointRevoke() *cobra.Command {
	var req forgeyardv1.RevokeCheckpointRequest
	c := a.Build(cli.Command{
		Use: "revoke [ID]", Short: "Withdraw a checkpoint for ever, and what came of it", Args: cobra.MaximumNArgs(1),
		Long: "Withdraw a checkpoint for ever: no job goes on from it any more, nor from what an execution committed that had gone on from it. An execution that runs from one is asked for its job, " +
			"and commits no checkpoint. --runner withdraws all that a runner took, of every job or of --job; --job with --epoch all of one epoch. It stands in the site's events.",
		Example: "  forgeyard-node checkpoint revoke 1f3a5c --reason 'bad memory'\n  forgeyard-node checkpoint revoke --runner bench-2 --reason 'key stolen'\n  forgeyard-node checkpoint revoke --job 7KQ2 --epoch 3 --reason 'wrong data'",
		Exits:   []int{1, 2, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			switch {
			case strings.TrimSpace(req.Reason) == "":
				return a.Usage("checkpoint revoke", "--reason is empty; say why, it stands in the site's events")
			case len(args) == 0 && req.Runner == "" && req.Epoch == 0:
				return a.Usage("checkpoint revoke", "an ID, --runner, or --job with --epoch: one of them is needed")
			case (len(args) > 0 && (req.Runner != "" || req.Epoch != 0 || req.JobId != "")) || (req.Runner != "" && req.Epoch != 0):
				return a.Usage("checkpoint revoke", "an ID, --runner, or --job with --epoch: only one of them")
			case req.Epoch != 0 && req.JobId == "":
				return a.Usage("checkpoint revoke", "--epoch %d needs --job", req.Epoch)
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			req.CheckpointId = strings.Join(args, "")
			r, err := unary(ctx, c.ckpt.Revoke, &req)
			if err != nil {
				return err
			}
			return a.Print(r, func(p *cli.Page) {
				p.Line("%d revoked", r.Revoked)
				for _, j := range r.AskedBack {
					p.Line("%s runs from one, and is asked back", j)
				}
			})
		},
	})
	f := c.Flags()
	f.StringVar(&req.Reason, "reason", "", "why; required")
	f.StringVar(&req.Runner, "runner", "", "all that this runner took")
	f.StringVar(&req.JobId, "job", "", "of this job")
	f.Uint64Var(&req.Epoch, "epoch", 0, "all of this epoch")
	return c
}

func (a *app) checkpointDelete() *cobra.Command {
	var force bool
	c := a.Build(cli.Command{
		Use: "delete ID", Aliases: []string{"rm"}, Short: "Let the payload of a checkpoint go; its manifest stays", Args: cobra.ExactArgs(1),
		Long:    "Let the payload of a checkpoint go on all nodes; its manifest and its record stay. The only one that a job can go on from is not deleted without --force: the job would begin anew.",
		Example: "  forgeyard-node checkpoint delete 1f3a5c", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.ckpt.Delete, &forgeyardv1.DeleteCheckpointRequest{CheckpointId: args[0], Force: force})
			if err != nil {
				return err
			}
			return a.Print(r.Checkpoint, func(p *cli.Page) { p.Line("%s %s", shortID(r.Checkpoint.CheckpointId), r.Checkpoint.State) })
		},
	})
	c.Flags().BoolVar(&force, "force", false, "even if the job begins anew without it")
	return c
}

func (a *app) checkpointFetch() *cobra.Command {
	var out, reason string
	c := a.Build(cli.Command{
		Use: "fetch ID --out DIR --reason WHY", Short: "Read the payload of a checkpoint, as evidence", Args: cobra.ExactArgs(1),
		Long:    "Read the payload of a checkpoint into a new directory. It may hold whatever the job had in its hands, so who reads it and why stands in the site's events. Only a member that may vote passes it on; of a restricted checkpoint only one that it is sealed for.",
		Example: "  forgeyard-node checkpoint fetch 1f3a5c --out ./state --reason 'ticket 7'", Exits: []int{1, 2, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			if strings.TrimSpace(reason) == "" || out == "" {
				return a.Usage("checkpoint fetch", "--out and --reason are needed; the reason stands in the site's events")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.ckpt.Open, &forgeyardv1.OpenCheckpointRequest{CheckpointId: args[0], Reason: reason})
			if err != nil {
				return err
			}
			ref, err := parseRef(r.Payload, "", 0)
			if err != nil {
				return err
			}
			if len(r.Key) > 0 {
				return a.fetchSealed(ctx, c, ref, r, out)
			}
			return a.download(ctx, c, ref, true, out)
		},
	})
	c.Flags().StringVarP(&out, "out", "O", "", "directory to make")
	c.Flags().StringVar(&reason, "reason", "", "why; required")
	return c
}

// fetchSealed opens a restricted payload where the person is who may read it.
func (a *app) fetchSealed(ctx context.Context, c *client, payload cas.Ref, r *forgeyardv1.OpenCheckpointResponse, out string) (err error) {
	defer clear(r.Key)
	if _, err := os.Lstat(out); err == nil {
		return forgeyard.Errorf("checkpoint fetch", forgeyard.Conflict, "%s is there already", out).WithHint("name another place")
	}
	marker, err := parseRef(r.Marker, "", 0)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(out)), ".forgeyard-*")
	if err != nil {
		return withFileKind(err, out)
	}
	defer func() { err = errors.Join(err, tree.Remove(tmp)) }()
	if err := a.download(ctx, c, payload, true, filepath.Join(tmp, "payload")); err != nil {
		return err
	}
	if err := a.download(ctx, c, marker, false, filepath.Join(tmp, "marker")); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(tmp, "marker"))
	if err != nil {
		return withFileKind(err, out)
	}
	return capture.OpenSealed(ctx, filepath.Join(tmp, "payload"), b, r.Key, filepath.Clean(out))
}

func (a *app) checkpointDoctor() *cobra.Command {
	return a.Build(cli.Command{
		Use: "doctor", Short: "Say what is wrong with the site's checkpoints, and what helps", Args: cobra.NoArgs,
		Long:    "Say what is wrong with the site's checkpoints: payloads of no job on this node, chains with a part missing, suspended jobs that nobody resumes, resumes that get nowhere, work from what was revoked, and more kept than is to be. Each with what helps. It exits with 1 if there is anything.",
		Example: "  forgeyard-node checkpoint doctor", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.ckpt.Doctor, &forgeyardv1.CheckpointDoctorRequest{})
			if err != nil {
				return err
			}
			err = a.Print(r, func(p *cli.Page) {
				p.Line("checkpoints are %s", r.Health)
				for _, why := range r.HealthReasons {
					p.Line("  %s", why)
				}
				if len(r.Faults) == 0 {
					p.Line("nothing is wrong with the checkpoints")
				}
				for _, f := range r.Faults {
					p.Line("%s: %s %s: %s", f.What, f.JobId, shortID(f.CheckpointId), f.Detail)
					p.Line("  %s", f.Fix)
				}
			})
			if err == nil && len(r.Faults) > 0 {
				err = forgeyard.Errorf("checkpoint doctor", forgeyard.Other, "%d things are wrong", len(r.Faults))
			}
			return err
		},
	})
}
