package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/layer"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/bench/party"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

const (
	stageFiles = 8
	stageSize  = 64 << 20 // of each
)

// loopDisk is a filesystem of its own, in a file.
type loopDisk struct{ image, at, loop string }

func command(ctx context.Context, words ...string) (string, error) {
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, text)
	}
	return text, err
}

// newLoopDisk makes and mounts one.
func newLoopDisk(ctx context.Context, dir, kind string, size int64) (d *loopDisk, err error) {
	d = &loopDisk{image: filepath.Join(dir, kind+".image"), at: filepath.Join(dir, kind)}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if err := errors.Join(os.Mkdir(d.at, 0o700), os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, size)); err != nil {
		return d, err
	}
	if _, err := command(ctx, "mkfs."+kind, "-q", d.image); err != nil {
		return d, err
	}
	if d.loop, err = command(ctx, "losetup", "--find", "--show", d.image); err != nil {
		return d, err
	}
	_, err = command(ctx, "mount", "-t", kind, d.loop, d.at)
	return d, err
}

// close takes it away again, also half made. What was not mounted says so, which is no
// trouble.
func (d *loopDisk) close() error {
	_, _ = command(context.Background(), "umount", "--lazy", d.at)
	if d.loop == "" {
		return nil
	}
	_, err := command(context.Background(), "losetup", "--detach", d.loop)
	return err
}

func inGBs(v float64) string { return fmt.Sprintf("%.1fGB/s", v/1e9) }

// stage measures how fast inputs get into a workspace: by reflink where the disk can, on
// one of its own, and by copy_file_range beside cp on the disk that is there.
func (b *Bench) stage(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "stage-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clone := report.Result{Name: "content.stage_reflink", Goal: 5e9, Unit: inGBs}.AtLeast()
	d, derr := newLoopDisk(ctx, dir, "xfs", 4<<30)
	if derr != nil {
		b.Add(clone.Lacking("no disk that clones files: " + derr.Error()))
	} else {
		err = b.stageOn(ctx, d.at, "reflink", func(r tree.Report, took, _ float64) error {
			if r.Cloned != stageFiles {
				return fmt.Errorf("%d of %d files were cloned", r.Cloned, stageFiles)
			}
			return nil
		}, func(own, _ []float64) {
			b.Add(report.Measured(clone.Name, inGBs, clone.Goal, speeds(own, stageFiles*stageSize)).AtLeast())
		})
		if err = errors.Join(err, d.close()); err != nil {
			return err
		}
	}
	ranged := true
	return b.stageOn(ctx, dir, "copy_file_range", func(r tree.Report, _, _ float64) error { ranged = r.Ranged == stageFiles; return nil }, func(own, cp []float64) {
		r := report.Measured("content.stage_copy_vs_cp", report.Ratio, 0.8, ratios(cp, own)).AtLeast()
		if !ranged {
			r = r.Lacking("the kernel copied not all files on this disk")
		}
		b.Add(r)
	})
}

func speeds(seconds []float64, bytes float64) (out []float64) {
	for _, s := range seconds {
		out = append(out, bytes/s)
	}
	return out
}

func ratios(a, b []float64) (out []float64) {
	for i := range a {
		out = append(out, a[i]/b[i])
	}
	return out
}

// stageOn stages one tree in turns with cp, on one disk.
func (b *Bench) stageOn(ctx context.Context, dir, how string, saw func(r tree.Report, own, cp float64) error, say func(own, cp []float64)) (err error) {
	s, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1, ReserveInodes: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	src := filepath.Join(dir, "source")
	if err := os.Mkdir(src, 0o700); err != nil {
		return err
	}
	for i := range stageFiles {
		if err := randomFile(filepath.Join(src, fmt.Sprintf("f%d", i)), stageSize); err != nil {
			return err
		}
	}
	// The bytes are hashed on their way in, so nothing is left for the first use to hash.
	root, err := tree.Capture(ctx, s, src, tree.Options{})
	if err != nil {
		return err
	}
	var own, cp []float64
	to := filepath.Join(dir, "workspace")
	for i := range b.Rounds {
		if _, err := command(ctx, "sync", "-f", dir); err != nil { // what was written before costs neither
			return err
		}
		other, err := timed(func() error {
			_, err := command(ctx, "cp", "-r", "--reflink=auto", "--sparse=never", src, to)
			return err
		})
		if err = errors.Join(err, os.RemoveAll(to)); err != nil {
			return err
		}
		if _, err := command(ctx, "sync", "-f", dir); err != nil {
			return err
		}
		var r tree.Report
		took, err := timed(func() (err error) {
			r, err = tree.Materialise(ctx, s, root.Digest, to, tree.Materialisation{})
			return err
		})
		if err = errors.Join(err, os.RemoveAll(to)); err != nil {
			return err
		}
		if err := saw(r, took, other); err != nil {
			return err
		}
		b.Say("%d files of 64 MiB by %s, round %d: staged in %s, cp %s; load %s", stageFiles, how, i+1, report.Millis(took), report.Millis(other), report.Load())
		own, cp = append(own, took), append(cp, other)
	}
	say(own, cp)
	return nil
}

// layers measures the second job with the same sources: its tree is given to it as it is,
// where a first one, and every one without a place for trees, has it made.
func (b *Bench) layers(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "layers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1, ReserveInodes: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	root, err := smallTree(ctx, s)
	if err != nil {
		return err
	}
	var all []float64
	for i := range b.Rounds {
		c, err := layer.Open(layer.Config{Dir: filepath.Join(dir, fmt.Sprint("layers", i)), MaxBytes: 1 << 30, MaxInodes: 2 * smallCount, Store: s, Clock: clock.System(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		get := func() error {
			l, err := c.Get(ctx, root.Digest, layer.Want{Fetch: func(context.Context) error { return nil }})
			if err == nil {
				l.Release()
			}
			return err
		}
		first, err := timed(get)
		if err != nil {
			return err
		}
		second, err := timed(get)
		if err != nil {
			return err
		}
		b.Say("a tree of %d files of 4 KiB, round %d: the first job waits %s for it, the second %s; load %s", smallCount, i+1, report.Millis(first), report.Millis(second), report.Load())
		all = append(all, first/second)
	}
	b.Add(report.Measured("content.second_job_same_tree", report.Ratio, 5, all).AtLeast())
	return nil
}

// smallTree stores the small files as a tree.
func smallTree(ctx context.Context, s cas.Store) (cas.Ref, error) {
	n := &party.Noise{X: 1}
	var t cas.Tree
	for i := range smallCount {
		r, err := s.Put(ctx, io.LimitReader(n, smallSize), cas.PutOptions{Class: cas.Cache})
		if err != nil {
			return r, err
		}
		t.Entries = append(t.Entries, cas.Entry{Name: fmt.Sprintf("f%05d", i), Kind: cas.File, Digest: r.Digest, Size: r.Size})
	}
	enc, err := t.Encode()
	if err != nil {
		return cas.Ref{}, err
	}
	return s.Put(ctx, strings.NewReader(string(enc)), cas.PutOptions{Class: cas.Cache})
}
