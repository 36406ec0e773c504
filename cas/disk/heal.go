package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// hashFile names the bytes of a file from its start.
func hashFile(ctx context.Context, f *os.File) (forgeyard.Digest, error) {
	h := cas.NewHasher()
	if err := copyTo(ctx, h, f); err != nil {
		return forgeyard.Digest{}, err
	}
	return h.Sum(), nil
}

func copyTo(ctx context.Context, w io.Writer, f *os.File) error {
	buf := blockPool.Get().(*[]byte)
	defer blockPool.Put(buf)
	for off := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(*buf, off)
		if _, werr := w.Write((*buf)[:n]); werr != nil {
			return werr
		}
		off += int64(n)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// heal looks for a blob that the index lacks, or has under a file that is gone, by
// the place where its file would be. What is found is hashed and indexed; what
// does not match is set aside. With nothing found the index forgets the blob.
func (s *Store) heal(ctx context.Context, op string, d forgeyard.Digest) error {
	gens, err := s.generations(d)
	if err != nil {
		return s.fail(op, err)
	}
	if _, ok := s.record(d); !ok && len(gens) == 0 {
		return notFound(op, d) // the usual miss: one failed readdir
	}
	s.healMu.Lock()
	defer s.healMu.Unlock()
	if s.present(d) {
		return nil // somebody else healed it, or a commit was under way
	}
	if gens, err = s.settled(d); err != nil {
		return s.fail(op, err)
	}
	if s.present(d) {
		return nil
	}
	for _, gen := range gens {
		err := s.reindex(ctx, op, d, gen)
		if err == nil {
			s.log.Info("cas: a blob that the index had lost was found by its name", "digest", d, "generation", gen)
			return nil
		}
		if forgeyard.KindOf(err) != forgeyard.Corrupt {
			return err
		}
	}
	s.forget(d)
	return notFound(op, d)
}

// settled lists generations when no commit is between rename and index.
func (s *Store) settled(d forgeyard.Digest) ([]uint64, error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	return s.generations(d)
}

// forget drops the record of a blob whose file is gone.
func (s *Store) forget(d forgeyard.Digest) {
	r, ok := s.record(d)
	if !ok {
		return
	}
	s.log.Warn("cas: the file of an indexed blob is gone; it is fetched again when wanted", "digest", d, "generation", r.Gen)
	s.dropRecord(d, r)
}

// dropRecord forgets one generation, with the blocks of the manifests that can be read.
func (s *Store) dropRecord(d forgeyard.Digest, r record) {
	ms := s.readableManifests(r)
	err := s.update(func(u *update) error {
		u.dropObject(d, r.Gen, ms)
		u.bury(d, s.tombstone(r, goneDamaged))
		return nil
	})
	if err != nil {
		s.log.Warn("cas: the index could not forget a blob that is gone", "digest", d, "err", err)
	}
}

func (s *Store) readableManifests(r record) (out []cas.Manifest) {
	for _, md := range r.Manifests {
		if m, err := s.loadManifest(md); err == nil {
			out = append(out, m)
		}
	}
	return out
}

// reindex hashes one generation of a blob and brings it, and its plain manifest,
// into the index. Bytes that do not match are set aside as Corrupt.
func (s *Store) reindex(ctx context.Context, op string, d forgeyard.Digest, gen uint64) error {
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	f, err := os.Open(s.blobPath(d, gen))
	if err != nil {
		return s.fail(op, err)
	}
	defer closeQuiet(f)
	mb := cas.NewManifestBuilder()
	if err := copyTo(ctx, mb, f); err != nil {
		return s.fail(op, err)
	}
	ref, m, enc, err := mb.Finish()
	if err != nil {
		return err
	}
	if ref.Digest != d {
		return s.corrupt(op, d, gen, fmt.Sprintf("its %d bytes are %s", ref.Size, ref.Digest))
	}
	j := newJob(cas.Cache)
	j.files = []file{{digest: d, size: ref.Size, gen: gen}}
	if enc != nil {
		w := &spool{s: s, op: op, ctx: ctx}
		defer w.discard()
		f, err := w.stage(ref.Manifest, enc)
		if err != nil {
			return s.fail(op, err)
		}
		j.files = append(j.files, f)
		j.proved = []proof{{whole: d, digest: ref.Manifest, m: m, plain: true}}
	}
	return s.fail(op, s.submit(j))
}

// corrupt sets a generation aside and gives the error that says so.
func (s *Store) corrupt(op string, d forgeyard.Digest, gen uint64, why string) error {
	s.quarantine(d, gen, why)
	return forgeyard.Errorf(op, forgeyard.Corrupt, "%s: %s; the copy is in quarantine", d, why).WithHint("fetch it again; `forgeyard-node cas get` does")
}

// quarantine moves one generation of a blob out of the way, with the reason, and
// lets the index forget it. A newer generation is not touched.
func (s *Store) quarantine(d forgeyard.Digest, gen uint64, why string) {
	s.log.Error("cas: a damaged blob is set aside", "digest", d, "generation", gen, "reason", why)
	from := s.blobPath(d, gen)
	to := filepath.Join(s.cfg.Dir, quarantineDir, filepath.Base(from))
	s.commitMu.Lock()
	err := s.setAside(d, gen, from, to)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		err = os.Remove(from) // a full disk: better gone than served
	} else if _, serr := os.Lstat(to); serr == nil {
		note := fmt.Sprintf("%s\n%s\n%s\n", d, s.cfg.Clock.Wall().Format(time.RFC3339), why)
		_ = os.WriteFile(to+".reason", []byte(note), 0o600) // the log has it too
	}
	s.commitMu.Unlock()
	if err != nil {
		s.log.Error("cas: a damaged blob cannot be moved; the index forgets it", "file", from, "err", err)
	}
	if r, ok := s.record(d); ok && r.Gen == gen {
		s.dropRecord(d, r)
	}
	s.pruneQuarantine()
}

// setAside moves the file, or writes one with what the index has.
func (s *Store) setAside(d forgeyard.Digest, gen uint64, from, to string) error {
	r, ok := s.record(d)
	if !ok || r.Gen != gen || !r.Inline {
		return os.Rename(from, to)
	}
	b, _ := s.row(tInline, d[:])
	_ = os.WriteFile(to, b, 0o600) // for people to look at; without it the reason stays
	return nil
}

// pruneQuarantine keeps the newest files.
func (s *Store) pruneQuarantine() {
	dir := filepath.Join(s.cfg.Dir, quarantineDir)
	es, err := os.ReadDir(dir)
	if err != nil || len(es) <= 2*maxQuarantine {
		return
	}
	type aged struct {
		name string
		at   time.Time
	}
	var files []aged
	for _, e := range es {
		if st, err := e.Info(); err == nil && !strings.HasSuffix(e.Name(), ".reason") {
			files = append(files, aged{e.Name(), st.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b aged) int { return a.at.Compare(b.at) })
	for len(files) > maxQuarantine {
		_ = os.Remove(filepath.Join(dir, files[0].name)) // what stays is tried again next time
		_ = os.Remove(filepath.Join(dir, files[0].name+".reason"))
		files = files[1:]
	}
}
