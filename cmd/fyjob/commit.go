package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// How often the answer is looked for: at once for a small checkpoint, seldom for one
// that is being replicated.
const (
	pollFirst = 20 * time.Millisecond
	pollMost  = 200 * time.Millisecond
)

const commitUsage = "fyjob ckpt commit DIR [--progress DONE[/TOTAL]] [--quiesced=false] [--format NAME:VERSION]"

// commit seals a directory and waits for the answer. It may be repeated: what is sealed
// already is only asked about again.
func (h *helper) commit(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	progress, format := flags.String("progress", "", ""), flags.String("format", "", "")
	quiesced := flags.Bool("quiesced", true, "")
	rest, err := parse(flags, args, 1, commitUsage)
	if err != nil {
		return err
	}
	m := checkpoint.Marker{
		V: checkpoint.MarkerVersion, Attempt: h.attempt, Epoch: h.epoch, Mode: h.mode, Quiesced: *quiesced,
		Consistency: checkpoint.Application, Format: h.format,
	}
	if !*quiesced {
		m.Consistency = checkpoint.Crash
	}
	if *format != "" {
		if m.Format, err = parseFormat(*format); err != nil {
			return err
		}
	}
	if *progress != "" {
		if m.Progress, err = parseProgress(*progress); err != nil {
			return err
		}
	}
	if m.Seq, err = h.slot(rest[0]); err != nil {
		return err
	}
	// A request that comes from here on is about a later state.
	request, err := h.request()
	if err != nil {
		return err
	}
	if err := h.seal(m); err != nil {
		return err
	}
	n, err := h.post(checkpoint.Message{Kind: checkpoint.MessageCommit, Seq: m.Seq})
	if err != nil {
		return err
	}
	return h.await(n, m.Seq, request.Seq)
}

// seal makes all of NNNNNN.tmp durable, describes it, and gives it its name: in this
// order, so that a marker never promises what a power cut can take.
func (h *helper) seal(m checkpoint.Marker) error {
	staged, sealed := filepath.Join(h.ckpt, checkpoint.StagedName(m.Seq)), filepath.Join(h.ckpt, checkpoint.SlotName(m.Seq))
	if !exists(staged) && exists(filepath.Join(sealed, checkpoint.MarkerName)) {
		return nil
	}
	if exists(sealed) {
		return exitf(exitRejected, "checkpoint %d is sealed, and %s is there too: take another from `fyjob ckpt begin`", m.Seq, staged)
	}
	files, err := h.gather(staged)
	if err != nil {
		return err
	}
	m.Files = files
	if err := writeMarker(staged, m.Encode()); err != nil {
		return err
	}
	// The number is used before the runner can see it and free it.
	if last, err := h.lastSlot(); err != nil || last <= m.Seq {
		if err := errors.Join(err, replaceFile(filepath.Join(h.ctl, slotName), []byte(checkpoint.SlotName(m.Seq)))); err != nil {
			return err
		}
	}
	if err := os.Rename(staged, sealed); err != nil {
		return err
	}
	return syncDir(h.ckpt)
}

// markerTemp is where a marker is written before it gets its name.
const markerTemp = checkpoint.MarkerName + ".tmp"

func writeMarker(dir string, b []byte) error {
	tmp := filepath.Join(dir, markerTemp)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, checkpoint.MarkerName)); err != nil {
		return err
	}
	return syncDir(dir)
}

// gather syncs and hashes all files below dir, and syncs the directories. A marker, or a
// part of one, of a commit that did not come to its end is passed by: it is replaced.
func (h *helper) gather(dir string) ([]checkpoint.File, error) {
	var paths []string
	var total int64
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == checkpoint.MarkerName || rel == markerTemp {
			return err
		}
		switch {
		case d.IsDir():
			return syncDir(p)
		case !d.Type().IsRegular():
			return exitf(exitRejected, "%s is no regular file: links, pipes and devices have no place in a checkpoint", rel)
		case len(paths) == checkpoint.MaxFiles:
			return exitf(exitLimit, "more than %d files", checkpoint.MaxFiles)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		paths = append(paths, rel)
		if total += info.Size(); h.maxBytes > 0 && total > h.maxBytes {
			return exitf(exitLimit, "more than %d bytes, which is the contract's max_bytes", h.maxBytes)
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		err = exitf(exitRejected, "%s holds no file", dir)
	}
	if err != nil {
		return nil, err
	}
	files := make([]checkpoint.File, len(paths))
	var g errgroup.Group
	g.SetLimit(hashers)
	for i, p := range paths {
		g.Go(func() (err error) {
			files[i], err = hashFile(filepath.Join(dir, p))
			files[i].Path = filepath.ToSlash(p)
			return err
		})
	}
	return files, g.Wait()
}

const (
	hashers = 4       // files at once: while one waits for the disk, others are hashed
	hashed  = 1 << 20 // bytes at a time: from 128 KiB on hashing is fastest
)

func hashFile(p string) (checkpoint.File, error) {
	f, err := openToSync(p)
	if err != nil {
		return checkpoint.File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return checkpoint.File{}, err
	}
	sum := cas.NewHasher()
	// Without its other methods the file is read by the buffer that is given.
	n, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{f}, make([]byte, min(hashed, max(info.Size(), 1))))
	if err := errors.Join(err, f.Sync()); err != nil {
		return checkpoint.File{}, err
	}
	return checkpoint.File{Size: n, BLAKE3: sum.Sum(), Mode: checkpoint.FileMode(info.Mode().Perm())}, nil
}

// await waits for the answer to message n until the contract's window has passed.
func (h *helper) await(n, seq, request int) error {
	a, ok, err := h.answered(n, h.window)
	switch {
	case err != nil:
		return err
	case !ok:
		return exitf(exitStaged, "no answer within %v: checkpoint %d is sealed and is taken when the runner can", h.window, seq)
	}
	return h.conclude(a, request)
}

func (h *helper) conclude(a checkpoint.Answer, request int) error {
	if a.Status != checkpoint.StatusCommitted {
		return h.refused(a)
	}
	m, _ := h.recall()
	m.Committed, m.Request = h.now().UnixMilli(), request
	return h.remember(m)
}

// refused is an answer that is no yes, with the exit code that programs branch on.
func (h *helper) refused(a checkpoint.Answer) error {
	why := func(otherwise string) string {
		if a.Reason != "" {
			return a.Reason
		}
		return otherwise
	}
	switch a.Status {
	case checkpoint.StatusStaged:
		return exitf(exitStaged, "%s", why("the site has no quorum to commit it now"))
	case checkpoint.StatusStale:
		return exitf(exitStale, "%s", why("another epoch runs this job: stop now"))
	case checkpoint.StatusLimit:
		return exitf(exitLimit, "%s", why("a limit was hit"))
	}
	return exitf(exitRejected, "%s", why(fmt.Sprintf("status %q", forgeyard.Clip(string(a.Status), 40))))
}
