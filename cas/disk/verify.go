package disk

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Checked is what a verification or a repair has seen so far.
type Checked struct {
	Objects, Bytes int64
	Damaged        []forgeyard.Digest // set aside now, so absent: whoever asked fetches them again
	Indexed        int64              // files that the index did not have
	Proved         int64              // manifests that were held against their blob
	Forgotten      int64              // rows whose file is gone
}

// Verify reads every object and sets aside what is not what its name says. It
// reads at most rate bytes a second, 0: as fast as the disk; it stops no reader and no
// writer. told hears how far it is, after each page of objects; nil: nobody does.
func (s *Store) Verify(ctx context.Context, rate int64, told func(Checked)) (Checked, error) {
	var c Checked
	pace := pacer{s: s, rate: rate, began: s.cfg.Clock.Now()}
	for after := []byte(nil); ; {
		last, err := s.verifyPage(ctx, after, gcPage, pace.wait, &c)
		if err != nil {
			return c, err
		}
		if told != nil {
			told(c)
		}
		if last == nil {
			return c, nil
		}
		after = last
	}
}

// Pace is told of bytes that were read, and returns when more may be.
type Pace func(ctx context.Context, n int64) error

// VerifySome is Verify of up to most objects, those whose names come after one. It tells
// the last name that it looked at; done: there are no more.
func (s *Store) VerifySome(ctx context.Context, after forgeyard.Digest, most int, pace Pace) (c Checked, last forgeyard.Digest, done bool, err error) {
	var from []byte
	if !after.IsZero() {
		from = after[:]
	}
	end, err := s.verifyPage(ctx, from, most, pace, &c)
	copy(last[:], end)
	return c, last, err == nil && end == nil, err
}

// verifyPage reads one page of objects; nil: there are no more.
func (s *Store) verifyPage(ctx context.Context, after []byte, most int, pace Pace, c *Checked) (last []byte, err error) {
	const op = "cas verify"
	page, last, err := s.objectsFrom(after, most)
	if err != nil {
		return nil, s.fail(op, err)
	}
	for _, v := range page {
		if err := s.verifyOne(ctx, op, v, pace, c); err != nil {
			return nil, s.fail(op, err)
		}
	}
	return last, nil
}

func (s *Store) verifyOne(ctx context.Context, op string, v victim, pace Pace, c *Checked) error {
	release, dying := s.claim("", v.digest)
	defer release()
	if dying {
		return nil
	}
	err := s.look(ctx, op, v.digest, pace)
	c.Objects, c.Bytes = c.Objects+1, c.Bytes+v.rec.Size
	switch forgeyard.KindOf(err) {
	case forgeyard.Corrupt:
		c.Damaged = append(c.Damaged, v.digest)
		return nil
	case forgeyard.NotFound:
		if _, still := s.Gone(v.digest); still {
			c.Damaged = append(c.Damaged, v.digest)
		}
		return nil
	}
	return err
}

// look reads one object, whatever was seen of it before.
func (s *Store) look(ctx context.Context, op string, d forgeyard.Digest, pace Pace) error {
	f, r, err := s.openBlob(ctx, op, d)
	if err != nil {
		return err
	}
	if r.Inline {
		if _, err := s.inline(op, d, r); err != nil {
			return err
		}
		return pace(ctx, r.Size)
	}
	defer closeQuiet(f)
	h := cas.NewHasher()
	if err := copyTo(ctx, paced{ctx, h, pace}, f); err != nil {
		return s.fail(op, err)
	}
	if h.Sum() != d {
		return s.corrupt(op, d, r.Gen, "the bytes do not match the name")
	}
	return nil
}

// paced writes no faster than its pace.
type paced struct {
	ctx  context.Context
	h    *cas.Hasher
	pace Pace
}

func (p paced) Write(b []byte) (int, error) {
	n, _ := p.h.Write(b) // a hasher never fails
	return n, p.pace(p.ctx, int64(n))
}

// pacer holds work back to a rate.
type pacer struct {
	s     *Store
	rate  int64
	began forgeyard.Instant
	done  int64
}

func (p *pacer) wait(ctx context.Context, n int64) error {
	p.done += n
	if p.rate <= 0 {
		return ctx.Err()
	}
	ahead := time.Duration(float64(p.done)/float64(p.rate)*float64(time.Second)) - p.s.cfg.Clock.Now().Sub(p.began)
	if ahead <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(ahead)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Repair makes the index agree with the files (C15): files that it lacks are hashed and
// taken in, rows whose file is gone are forgotten, and every manifest that is here, of
// whatever division, is held against its blob, so that its blocks are found again. It
// then counts anew. What was damaged is set aside. When it returns, all of it is on the disk.
func (s *Store) Repair(ctx context.Context, told func(Checked)) (Checked, error) {
	const op = "cas fsck"
	leave, err := s.enter(op)
	if err != nil {
		return Checked{}, err
	}
	defer leave()
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	var c Checked
	if err := s.repairFiles(ctx, op, &c, told); err != nil {
		return c, s.fail(op, err)
	}
	if err := s.repairRows(ctx, op, &c, told); err != nil {
		return c, s.fail(op, err)
	}
	return c, s.fail(op, s.recount(ctx))
}

// repairFiles takes in the files that the index lacks.
func (s *Store) repairFiles(ctx context.Context, op string, c *Checked, told func(Checked)) error {
	return filepath.WalkDir(filepath.Join(s.cfg.Dir, blobsDir), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return errors.Join(ctx.Err(), ignoreGone(err))
		}
		d, gen, ok := parseBlobName(e.Name())
		if !ok || s.present(d) {
			return nil
		}
		release, _ := s.claim("", d)
		defer release()
		c.Objects++
		err = s.reindex(ctx, op, d, gen)
		switch forgeyard.KindOf(err) {
		case forgeyard.Corrupt:
			c.Damaged = append(c.Damaged, d)
			return nil
		case forgeyard.NotFound:
			return nil // it went meanwhile
		}
		if err == nil {
			c.Indexed++
		}
		if told != nil && c.Indexed%gcPage == 0 {
			told(*c)
		}
		return err
	})
}

// repairRows forgets the rows that lead nowhere and proves the manifests.
func (s *Store) repairRows(ctx context.Context, op string, c *Checked, told func(Checked)) error {
	for after := []byte(nil); ; {
		page, last, err := s.objectsFrom(after, gcPage)
		if err != nil {
			return err
		}
		for _, v := range page {
			if err := ctx.Err(); err != nil {
				return err
			}
			c.Objects++
			if !s.present(v.digest) {
				if s.heal(ctx, op, v.digest) != nil {
					c.Forgotten++
				}
				continue
			}
			if err := s.proveManifest(ctx, v, c); err != nil {
				return err
			}
		}
		if told != nil {
			told(*c)
		}
		if last == nil {
			return nil
		}
		after = last
	}
}

// proveManifest connects an object with its blob, if it is a manifest whose blob is here.
// A user's bytes that look like one are proved or not like any other, without harm.
func (s *Store) proveManifest(ctx context.Context, v victim, c *Checked) error {
	if v.rec.Size > cas.BlockSize {
		return nil
	}
	if _, known := s.wholeOf(v.digest); known {
		return nil
	}
	m, err := s.loadManifest(v.digest)
	if err != nil || !s.present(m.Whole) {
		return nil // no manifest, or one of what is not here
	}
	err = newPartialState(s, m, v.digest).proveHere(ctx)
	switch {
	case err == nil:
		c.Proved++
	case forgeyard.KindOf(err) == forgeyard.Corrupt || forgeyard.KindOf(err) == forgeyard.NotFound:
		s.log.Warn("cas: a manifest does not describe its blob", "manifest", v.digest, "blob", m.Whole, "err", err)
	default:
		return err
	}
	return nil
}

// recount sets the counters to what the rows say.
func (s *Store) recount(ctx context.Context) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	var bytes, objects int64
	err := s.rows(tObjects, nil, nil, func(_, v []byte) bool {
		if r, ok := decodeRecord(v); ok {
			bytes, objects = bytes+r.Size, objects+1
		}
		return ctx.Err() == nil
	})
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	for _, p := range s.partialRecords() {
		bytes += p.Have
	}
	return s.update(func(u *update) error {
		u.setMeta("objects", u.meta("objects")) // an update of nothing syncs nothing, and with this all before it is on the disk
		u.bytes, u.objects = bytes-int64(u.meta("bytes")), objects-int64(u.meta("objects"))
		return nil
	})
}
