package content

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
	"github.com/forgeyard/forgeyard-node/job"
)

// The state of the program: so many files of so many bytes, of which one hundredth changes
// between two checkpoints, in runs.
const (
	stateFiles = 16
	stateFile  = 64 << 20
	stateRun   = 64 << 10
)

// Checkpoints measures the next checkpoint of a state against restic's backup of the same
// folder, and its restore. Ours includes the digests that the program's helper takes before
// it seals the folder, and every sync. Of restic the time to start and to open its
// repository, which is a slow hash by intent, is taken off.
func (b *Bench) Checkpoints(ctx context.Context) error {
	if _, err := exec.LookPath("restic"); err != nil {
		for _, name := range []string{"checkpoint.stored_to_restic", "checkpoint.time_to_restic", "checkpoint.restore_to_restic"} {
			b.Add(report.Result{Name: name, Unit: report.Ratio, Goal: checkpointGoals[name], Absent: "restic is not installed: scripts/setup.sh"})
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "forgeyard-bench-checkpoint-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is in the machine's folder for such things
	c := checkpointing{b: b, dir: dir, rnd: rand.New(rand.NewPCG(1, 2)), slot: filepath.Join(dir, "slots", checkpoint.SlotName(1))}
	return c.run(ctx)
}

var checkpointGoals = map[string]float64{"checkpoint.stored_to_restic": 1.3, "checkpoint.time_to_restic": 0.5, "checkpoint.restore_to_restic": 0.7}

type checkpointing struct {
	b     *Bench
	dir   string
	slot  string // the state's folder, which is a sealed slot for us
	rnd   *rand.Rand
	store *disk.Store
	last  capture.Ingested

	memory capture.Memory // as the runner has one for each execution
}

func (c *checkpointing) run(ctx context.Context) (err error) {
	if err := os.MkdirAll(c.slot, 0o755); err != nil {
		return err
	}
	for i := range stateFiles {
		if err := randomFile(c.file(i), stateFile); err != nil {
			return err
		}
		if err := c.change(i, 4096, int64(i)); err != nil { // no two are the same
			return err
		}
	}
	if c.store, err = disk.Open(disk.Config{Dir: filepath.Join(c.dir, "cas")}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.store.Close()) }()
	if _, err := c.restic(ctx, "init"); err != nil {
		return err
	}
	if err := errors.Join(c.ours(ctx, 1), c.backup(ctx)); err != nil {
		return err
	}
	var stored, took, restored []float64
	for i := range c.b.Rounds {
		s, t, r, err := c.round(ctx, i+2)
		if err != nil {
			return err
		}
		stored, took, restored = append(stored, s), append(took, t), append(restored, r)
	}
	for name, xs := range map[string][]float64{"checkpoint.stored_to_restic": stored, "checkpoint.time_to_restic": took, "checkpoint.restore_to_restic": restored} {
		c.b.Add(report.Measured(name, report.Ratio, checkpointGoals[name], xs))
	}
	return nil
}

func (c *checkpointing) file(i int) string { return filepath.Join(c.slot, fmt.Sprintf("part-%02d", i)) }

// change writes runs of new bytes over a file.
func (c *checkpointing) change(i, run int, at ...int64) error {
	f, err := os.OpenFile(c.file(i), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	b := make([]byte, run)
	for _, off := range at {
		for k := range b {
			b[k] = byte(c.rnd.Uint32())
		}
		if _, err := f.WriteAt(b, off); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// round changes a hundredth, lets both take it and put it back.
func (c *checkpointing) round(ctx context.Context, seq int) (stored, took, restored float64, err error) {
	for i := range stateFiles {
		var at []int64
		for range stateFile / 100 / stateRun {
			at = append(at, c.rnd.Int64N(stateFile-stateRun))
		}
		if err := c.change(i, stateRun, at...); err != nil {
			return 0, 0, 0, err
		}
	}
	ourBytes, resticBytes := c.store.Holds().Bytes, c.repository()
	one, err := timed(func() error { return c.ours(ctx, seq) })
	if err != nil {
		return 0, 0, 0, err
	}
	other, err := c.beyondStart(ctx, func() error { return c.backup(ctx) })
	if err != nil {
		return 0, 0, 0, err
	}
	ourBytes, resticBytes = c.store.Holds().Bytes-ourBytes, c.repository()-resticBytes
	back, err := timed(func() error { return c.restoreOurs(ctx) })
	if err != nil {
		return 0, 0, 0, err
	}
	otherBack, err := c.beyondStart(ctx, func() error { return c.restoreRestic(ctx) })
	if err != nil {
		return 0, 0, 0, err
	}
	c.b.Say("round %d: stored %s and restic %s; %.2fs and %.2fs; restored in %.2fs and %.2fs; load %s", seq-1,
		report.MiB(float64(ourBytes)), report.MiB(float64(resticBytes)), one, other, back, otherBack, report.Load())
	return float64(ourBytes) / float64(resticBytes), one / other, back / otherBack, nil
}

// ours is what `fyjob ckpt commit` and the runner do.
func (c *checkpointing) ours(ctx context.Context, seq int) error {
	const attempt = forgeyard.AttemptID("01J0000000000000000000000A")
	contract, err := checkpoint.NewContract(job.Resume{Mode: job.ResumeApplication}, checkpoint.Limits{})
	if err != nil {
		return err
	}
	m := checkpoint.Marker{V: checkpoint.MarkerVersion, Attempt: attempt, Epoch: 1, Seq: seq, Mode: job.ResumeApplication, Consistency: checkpoint.Application, Quiesced: true}
	m.Files = make([]checkpoint.File, stateFiles)
	var g errgroup.Group
	g.SetLimit(4) // as fyjob does
	for i := range m.Files {
		g.Go(func() error {
			d, err := digestOf(c.file(i))
			m.Files[i] = checkpoint.File{Path: filepath.Base(c.file(i)), Size: stateFile, BLAKE3: d, Mode: 0o644}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.slot, checkpoint.MarkerName), m.Encode(), 0o644); err != nil {
		return err
	}
	slot := filepath.Join(filepath.Dir(c.slot), checkpoint.SlotName(seq))
	if c.slot != slot {
		if err := os.Rename(c.slot, slot); err != nil {
			return err
		}
		c.slot = slot
	}
	c.last, err = capture.IngestSealed(ctx, c.store, slot, capture.Expect{
		Authority: forgeyard.Authority{Job: "01J0000000000000000000000J", Attempt: attempt, Spec: cas.Sum([]byte("spec")), Runner: "01J0000000000000000000000R", Fence: forgeyard.Fence{Incarnation: 1, Epoch: 1}},
		Contract:  contract, Pieces: true, Memory: &c.memory,
	})
	return errors.Join(err, os.Remove(filepath.Join(slot, checkpoint.MarkerName)))
}

func digestOf(path string) (d forgeyard.Digest, err error) {
	f, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	h := cas.NewHasher()
	_, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return h.Sum(), err
}

func (c *checkpointing) restoreOurs(ctx context.Context) error {
	to := filepath.Join(c.dir, "restored")
	return errors.Join(capture.Restore(ctx, c.store, c.last.Manifest, to), tree.Remove(to))
}

// restic runs it with a repository of its own.
func (c *checkpointing) restic(ctx context.Context, args ...string) ([]byte, error) {
	x := exec.CommandContext(ctx, "restic", append([]string{"--quiet", "--no-cache", "--repo", filepath.Join(c.dir, "restic")}, args...)...)
	x.Env = append(os.Environ(), "RESTIC_PASSWORD=bench")
	var errs bytes.Buffer
	x.Stderr = &errs
	out, err := x.Output()
	if err != nil {
		return nil, fmt.Errorf("restic %s: %w: %.200s", args[0], err, errs.Bytes())
	}
	return out, nil
}

// beyondStart is how long f takes without what a restic that does nothing takes.
func (c *checkpointing) beyondStart(ctx context.Context, f func() error) (float64, error) {
	start, err := timed(func() error {
		_, err := c.restic(ctx, "cat", "config")
		return err
	})
	if err != nil {
		return 0, err
	}
	whole, err := timed(f)
	return max(whole-start, time.Millisecond.Seconds()), err
}

func (c *checkpointing) backup(ctx context.Context) error {
	// The folder has another name each time: of the name it is not to know.
	parent := c.slot
	x := filepath.Join(c.dir, "state")
	if err := os.Rename(parent, x); err != nil {
		return err
	}
	_, err := c.restic(ctx, "backup", "--host", "bench", x)
	return errors.Join(err, os.Rename(x, parent))
}

func (c *checkpointing) restoreRestic(ctx context.Context) error {
	to := filepath.Join(c.dir, "restored-by-restic")
	_, err := c.restic(ctx, "restore", "latest", "--target", to)
	return errors.Join(err, os.RemoveAll(to))
}

// repository is what restic has written, in bytes.
func (c *checkpointing) repository() (n int64) {
	_ = filepath.WalkDir(filepath.Join(c.dir, "restic", "data"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}
