package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// file is one blob that is to get its name.
type file struct {
	digest forgeyard.Digest
	size   int64
	inline []byte // the bytes of a small object, which has no file
	tmp    string // where its sealed bytes are; "" without inline: it bears its name already
	gen    uint64 // with tmp empty: the generation that was found and hashed; 0: the indexed one

	placed string // path it was renamed to by this commit
	skip   bool   // another commit was first
	here   bool   // as the commit begins the blob is here
	absent bool   // as the commit begins the index has no row of it
	buried bool   // with absent: the index tells why it went
}

// proof is a manifest whose blocks and whole were both hashed.
type proof struct {
	whole, digest forgeyard.Digest
	m             cas.Manifest
	plain         bool // Put's own division: it becomes the blob's first manifest
}

// job is what one put, heal or partial asks of the committer.
type job struct {
	class   cas.Class
	files   []file
	proved  []proof
	partial forgeyard.Digest // the partial that becomes the first file
	counted int64            // bytes of it that the index counts already
	sha     cas.SHA256       // another name of ref, the blob that was put; zero: none
	ref     cas.Ref
	err     error
	done    chan struct{}
}

func newJob(c cas.Class) *job { return &job{class: c, done: make(chan struct{})} }

// commitLoop takes all jobs that are waiting as one batch, so that many puts share
// the syncs of directories and index.
func (s *Store) commitLoop() {
	defer close(s.committed)
	for j := range s.jobs {
		batch := []*job{j}
		files := len(j.files)
	gather:
		for files < maxBatch {
			select {
			case more, ok := <-s.jobs:
				if !ok {
					break gather
				}
				batch = append(batch, more)
				files += len(more.files)
			default:
				break gather
			}
		}
		s.commitBatch(batch)
		for _, j := range batch {
			close(j.done)
		}
	}
}

// commitBatch brings files to their names and then the names into the index.
func (s *Store) commitBatch(batch []*job) {
	if err := s.syncData(batch); err != nil {
		s.undo(batch, err)
		return
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err := s.lookUp(batch); err != nil {
		s.undo(batch, err)
		return
	}
	dirs := map[string]struct{}{}
	seen := map[forgeyard.Digest]uint64{}
	for _, j := range batch {
		if err := s.place(j, seen, dirs); err != nil {
			s.undo([]*job{j}, err)
			for _, f := range j.files {
				if f.placed != "" || f.inline != nil {
					delete(seen, f.digest)
				}
			}
		}
	}
	if err := s.syncDirs(dirs); err != nil {
		s.undo(batch, err)
		return
	}
	if !s.cfg.NoSync {
		s.noteSynced(batch)
	}
	if !slices.ContainsFunc(batch, (*job).news) {
		return
	}
	err := s.write(anyDurable(batch), func(u *update) error {
		for _, j := range batch {
			if j.err != nil {
				continue
			}
			if err := s.index(u, j); err != nil {
				return err
			}
		}
		u.setMeta("gen", s.gen)
		return nil
	})
	if err != nil {
		s.undo(batch, err)
	}
}

// news reports whether the index has something to learn from a job.
func (j *job) news() bool {
	return j.err == nil && (len(j.proved) > 0 || !j.partial.IsZero() || !j.sha.IsZero() ||
		slices.ContainsFunc(j.files, func(f file) bool { return !f.skip }))
}

// anyDurable reports whether somebody waits for a sync; the others share it.
func anyDurable(batch []*job) bool {
	return slices.ContainsFunc(batch, func(j *job) bool { return j.class == cas.Durable })
}

// lookUp finds out which of the files that have bytes to store are here already. What has
// no row now has none until the commit writes it: rows are made under commitMu alone.
func (s *Store) lookUp(batch []*job) error {
	var fs []*file
	var ds []forgeyard.Digest
	for _, j := range batch {
		for i := range j.files {
			if f := &j.files[i]; f.tmp != "" || f.inline != nil {
				fs, ds = append(fs, f), append(ds, f.digest)
			}
		}
	}
	err := s.records(ds, func(i int, r record, ok bool) {
		fs[i].absent = !ok
		fs[i].here = ok && s.has(ds[i], r)
	})
	if err != nil {
		return err
	}
	return s.lookUpGone(fs)
}

// lookUpGone finds out which of the absent files have a tombstone. It comes after the look at
// their rows, for who takes a row away leaves one. To drop one of each file unseen would be a
// row more for each object, and compactions for nothing.
func (s *Store) lookUpGone(fs []*file) error {
	some := false
	if err := s.rows(tGone, nil, nil, func(_, _ []byte) bool { some = true; return false }); err != nil || !some {
		return err
	}
	var at []*file
	var keys [][]byte
	for _, f := range fs {
		if f.absent {
			at, keys = append(at, f), append(keys, rowKey(tGone, f.digest[:]))
		}
	}
	return s.idx.Look(keys, func(i int, v []byte) { at[i].buried = v != nil })
}

// place renames the job's files. seen has the digests that this batch brought.
func (s *Store) place(j *job, seen map[forgeyard.Digest]uint64, dirs map[string]struct{}) error {
	for i := range j.files {
		f := &j.files[i]
		if _, twice := seen[f.digest]; twice || f.here {
			f.skip = true
			continue
		}
		if f.inline != nil {
			s.gen++
			f.gen, seen[f.digest] = s.gen, s.gen
			continue
		}
		if f.tmp == "" {
			if f.gen == 0 {
				r, ok := s.record(f.digest)
				if !ok {
					return fmt.Errorf("%s went away while its manifest was stored", f.digest)
				}
				f.gen = r.Gen
			}
			continue
		}
		path, gen, err := s.freshName(f.digest, dirs, j.class)
		if err != nil {
			return err
		}
		if err := os.Rename(f.tmp, path); err != nil {
			return err
		}
		f.placed, f.gen = path, gen
		seen[f.digest] = gen
		if f.size >= vouchFrom {
			s.vouchPlaced(f.digest, gen, path)
		}
	}
	return nil
}

// freshName makes the directories and gives a name that no file bears. The index
// may have lost generations, the folder has not.
func (s *Store) freshName(d forgeyard.Digest, dirs map[string]struct{}, c cas.Class) (string, uint64, error) {
	dir := s.blobDir(d)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", 0, err
	}
	if c == cas.Durable {
		dirs[dir] = struct{}{}
		if _, ok := s.syncedDirs[[2]byte{d[0], d[1]}]; !ok {
			up := filepath.Dir(dir)
			dirs[up], dirs[filepath.Dir(up)] = struct{}{}, struct{}{}
		}
	}
	for {
		s.gen++
		path := s.blobPath(d, s.gen)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return path, s.gen, nil
		} else if err != nil {
			return "", 0, err
		}
	}
}

// syncData makes the bytes of the batch's durable files safe.
func (s *Store) syncData(batch []*job) error {
	var paths []string
	for _, j := range batch {
		for _, f := range j.files {
			if j.class == cas.Durable && f.tmp != "" {
				paths = append(paths, f.tmp)
			}
		}
	}
	return s.syncPaths(paths)
}

// syncDirs makes the batch's new names safe.
func (s *Store) syncDirs(dirs map[string]struct{}) error {
	return s.syncPaths(slices.Collect(maps.Keys(dirs)))
}

// syncPaths syncs files or directories: a few one by one, so that nobody else's
// writes are waited for; many by one sync of the filesystem, where there is such a thing.
func (s *Store) syncPaths(paths []string) error {
	if s.cfg.NoSync || len(paths) == 0 {
		return nil
	}
	if len(paths) >= syncAllFrom && s.cfg.power.all(s.lock) == nil {
		return nil
	}
	var g errgroup.Group
	g.SetLimit(parallelSyncs)
	for _, p := range paths {
		g.Go(func() error { return s.cfg.power.path(p) })
	}
	return g.Wait()
}

// syncDir makes the names in one folder safe.
func (s *Store) syncDir(dir string) error {
	if s.cfg.NoSync {
		return nil
	}
	return s.cfg.power.path(dir)
}

// noteSynced remembers the folders whose names are safe now.
func (s *Store) noteSynced(batch []*job) {
	for _, j := range batch {
		for _, f := range j.files {
			if f.placed != "" && j.class == cas.Durable {
				s.syncedDirs[[2]byte{f.digest[0], f.digest[1]}] = struct{}{}
			}
		}
	}
}

// index writes what the job brought.
func (s *Store) index(u *update, j *job) error {
	now := s.cfg.Clock.Wall()
	for i, f := range j.files {
		var r record
		ok := false
		if !f.absent || f.skip {
			r, ok = u.record(f.digest)
		}
		if f.skip {
			if !ok {
				return fmt.Errorf("%s went away while it was stored again", f.digest)
			}
			continue
		}
		if !ok || (r.Gen != f.gen && f.gen != 0) {
			if ok {
				u.bytes, u.objects = u.bytes-r.Size, u.objects-1
			}
			if r.Inline && f.inline == nil {
				u.drop(tInline, f.digest[:])
			}
			r = record{Size: f.size, Gen: f.gen, Stored: now.UnixNano(), Used: hourOf(now), Synced: j.class == cas.Durable, Inline: f.inline != nil, Manifests: r.Manifests}
			if f.inline != nil {
				u.put(tInline, f.inline, f.digest[:])
			}
			if !f.absent || f.buried {
				u.drop(tGone, f.digest[:])
			}
			u.bytes, u.objects = u.bytes+f.size, u.objects+1
			if i == 0 {
				u.bytes -= j.counted
			}
		}
		u.putRecord(f.digest, r)
	}
	for _, p := range j.proved {
		if err := u.prove(p); err != nil {
			return err
		}
	}
	if !j.sha.IsZero() {
		u.putName(cas.Name{Space: cas.SpaceSHA256, Key: j.sha}, nameRecord{Ref: j.ref, Hour: hourOf(now)})
	}
	if j.partial.IsZero() {
		return nil
	}
	if j.files[0].skip {
		u.bytes -= j.counted // the blob is here from elsewhere; the partial's bytes go
	}
	u.dropPartial(j.partial, j.proved[0].m)
	return nil
}

// prove connects a manifest with its blob.
func (u *update) prove(p proof) error {
	r, ok := u.record(p.whole)
	if !ok {
		return fmt.Errorf("%s is not indexed", p.whole)
	}
	if r.hasManifest(p.digest) && (!p.plain || r.Manifests[0] == p.digest) {
		u.addBlocks(p.m, p.whole)
		return nil
	}
	list := []forgeyard.Digest{}
	for _, m := range r.Manifests {
		if m != p.digest {
			list = append(list, m)
		}
	}
	if p.plain {
		list = append([]forgeyard.Digest{p.digest}, list...)
	} else {
		list = append(list, p.digest)
	}
	r.Manifests = list
	u.putRecord(p.whole, r)
	u.put(tManifests, p.whole[:], p.digest[:])
	u.addBlocks(p.m, p.whole)
	return nil
}

func (u *update) dropPartial(manifest forgeyard.Digest, m cas.Manifest) {
	u.dropBlocks(m, manifest)
	u.drop(tPartials, manifest[:])
}

// undo takes the names away again: what is not indexed was not stored. A file that
// came from a partial goes back to it.
func (s *Store) undo(batch []*job, cause error) {
	for _, j := range batch {
		if j.err == nil {
			j.err = cause
		}
		for i := range j.files {
			f := &j.files[i]
			if f.placed == "" {
				continue
			}
			var err error
			if i == 0 && !j.partial.IsZero() {
				err = os.Rename(f.placed, f.tmp)
			} else {
				err = os.Remove(f.placed)
			}
			if err != nil {
				s.log.Warn("cas: an unindexed file stays until the next collection", "file", f.placed, "err", err)
			}
		}
	}
}
