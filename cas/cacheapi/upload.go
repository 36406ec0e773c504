package cacheapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// uploads are the files of uploads that are on their way, each named by the digest of its
// resource name: a client that was cut, or whose node was restarted, goes on where it ended.
type uploads struct {
	cfg Config
	mu  sync.Mutex
	// busy are the uploads that somebody writes right now.
	busy map[string]bool
}

func (u *uploads) open(cfg Config) error {
	u.cfg, u.busy = cfg, map[string]bool{}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return forgeyard.E("build cache", forgeyard.Other, err)
	}
	return nil
}

// Upload is one upload that is being written. It is for one goroutine. A small one stays in
// memory, and begins again after a cut.
type Upload struct {
	c        *Cache
	id       ID
	buf      bytes.Buffer // of a small one
	path     string
	f        *os.File // nil: it is small
	at       int64    // bytes that are here
	unsynced int64
	resumed  bool // some of them were here before this Upload
}

func (u *uploads) path(name string) string {
	return filepath.Join(u.cfg.Dir, cas.Sum([]byte(name)).Hex())
}

// Committed is how many bytes of an upload are safe here, and whether all of its blob is.
func (c *Cache) Committed(ctx context.Context, name string, id ID) (int64, bool, error) {
	missing, err := c.Missing(ctx, []ID{id})
	if err != nil {
		return 0, false, err
	}
	if len(missing) == 0 {
		return id.Size, true, nil
	}
	f, err := os.OpenFile(c.uploads.path(name), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, forgeyard.E("upload", forgeyard.Other, err)
	}
	defer func() { _ = f.Close() }() // Sync has spoken
	if err := f.Sync(); err != nil {
		return 0, false, fileErr(err)
	}
	st, err := f.Stat()
	if err != nil {
		return 0, false, forgeyard.E("upload", forgeyard.Other, err)
	}
	return st.Size(), false, nil
}

// Begin starts or continues an upload at an offset, which must not lie behind what is
// here; bytes after it are sent again. One writer at a time: another gives Conflict.
func (c *Cache) Begin(name string, id ID, offset int64) (*Upload, error) {
	u := &c.uploads
	if id.Size <= inMemory {
		if offset != 0 {
			return nil, badOffset(offset, 0)
		}
		return &Upload{c: c, id: id}, nil
	}
	path := u.path(name)
	if err := u.take(path); err != nil {
		return nil, err
	}
	up, err := c.begin(path, id, offset)
	if err != nil {
		u.release(path)
		return nil, err
	}
	return up, nil
}

func (u *uploads) take(path string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.busy[path] {
		return forgeyard.Errorf("upload", forgeyard.Stale, "somebody else is writing this upload: its connection may not have ended yet, try again")
	}
	u.busy[path] = true
	return nil
}

func (u *uploads) release(path string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.busy, path)
}

func (c *Cache) begin(path string, id ID, offset int64) (*Upload, error) {
	const op = "upload"
	st, err := os.Stat(path)
	have := int64(0)
	if err == nil {
		have = st.Size()
	} else if err := c.uploads.room(); err != nil {
		return nil, err
	}
	if offset < 0 || offset > have || offset > id.Size {
		return nil, badOffset(offset, min(have, id.Size))
	}
	if c.cfg.Free != nil {
		free, err := c.cfg.Free()
		if err != nil {
			return nil, forgeyard.E(op, forgeyard.Other, err)
		}
		if need := 2*id.Size - offset; need > free { // the file, and the blob that is made of it
			return nil, forgeyard.Errorf(op, forgeyard.NoSpace, "it needs %d bytes and %d may be taken", need, max(0, free)).WithHint("free space on the node's disk, or run: forgeyard-node cas gc")
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fileErr(err)
	}
	if err = f.Truncate(offset); err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		_ = f.Close() // the first error counts
		return nil, fileErr(err)
	}
	return &Upload{c: c, id: id, path: path, f: f, at: offset, resumed: offset > 0}, nil
}

func badOffset(offset, have int64) error {
	return forgeyard.Errorf("upload", forgeyard.Invalid, "offset %d is not in [0, %d], which is here: ask for the write status and go on from there", offset, have)
}

// room refuses more files than are kept.
func (u *uploads) room() error {
	es, err := os.ReadDir(u.cfg.Dir)
	if err != nil {
		return forgeyard.E("upload", forgeyard.Other, err)
	}
	if len(es) >= maxUploads {
		return forgeyard.Errorf("upload", forgeyard.Limit, "%d uploads wait to be continued, and no more are kept", len(es)).WithHint("they are forgotten after %v", uploadLife)
	}
	return nil
}

// Write takes the next bytes.
func (u *Upload) Write(b []byte) (int, error) {
	if u.at+int64(len(b)) > u.id.Size {
		u.discard()
		return 0, wrongBytes(u.id, "there are more")
	}
	if u.f == nil {
		u.at += int64(len(b))
		return u.buf.Write(b)
	}
	n, err := u.f.Write(b)
	u.at += int64(n)
	if u.unsynced += int64(n); err == nil && u.unsynced >= syncEvery {
		err = u.f.Sync()
		u.unsynced = 0
	}
	if err != nil {
		return n, fileErr(err)
	}
	return n, nil
}

// Committed is how many bytes are here.
func (u *Upload) Committed() int64 { return u.at }

// Close lets go of an upload that was cut; what came stays for the next try.
func (u *Upload) Close() {
	if u.f == nil {
		return
	}
	_ = u.f.Sync() // a power cut may cost it; QueryWriteStatus syncs again before it promises
	_ = u.f.Close()
	u.c.uploads.release(u.path)
}

// discard forgets what came.
func (u *Upload) discard() {
	if u.f != nil {
		_ = os.Remove(u.path) // or it is swept later
	}
}

// Finish makes a blob of a complete upload.
func (u *Upload) Finish(ctx context.Context) error {
	if u.f == nil {
		return u.c.Put(ctx, u.id, &u.buf)
	}
	if _, err := u.f.Seek(0, io.SeekStart); err != nil {
		return forgeyard.E("upload", forgeyard.Other, err)
	}
	err := u.c.Put(ctx, u.id, u.f)
	switch forgeyard.KindOf(err) {
	case forgeyard.NoSpace, forgeyard.Interrupted, forgeyard.Unavailable:
		return err // the bytes may be right; the client comes again
	case forgeyard.Invalid:
		if u.resumed {
			// What stood here from an earlier connection may be to blame, after a power cut.
			err = forgeyard.Errorf("upload", forgeyard.Stale, "the continued upload is not what its name says; begin again: %w", err)
		}
	}
	u.discard()
	return err
}

func fileErr(err error) error {
	kind := forgeyard.Other
	if durable.Full(err) {
		kind = forgeyard.NoSpace
	}
	return forgeyard.E("upload", kind, err)
}

// Upkeep forgets uploads that nobody continued, and of names what was not used for long.
func (c *Cache) Upkeep(ctx context.Context, namesSince time.Time, most int) error {
	c.sweepUploads()
	var errs []error
	for _, space := range []cas.Space{cas.SpaceAction, cas.SpacePlain, cas.SpaceSHA256} {
		n, err := c.cfg.Names.Trim(ctx, space, namesSince, most)
		errs = append(errs, err)
		if n > 0 {
			c.cfg.Log.Info("names of a build cache that were not used for long are forgotten", "space", space, "names", n)
		}
	}
	return errors.Join(errs...)
}

func (c *Cache) sweepUploads() {
	es, err := os.ReadDir(c.cfg.Dir)
	if err != nil {
		return // the next upload says so
	}
	for _, e := range es {
		path := filepath.Join(c.cfg.Dir, e.Name())
		st, err := e.Info()
		if err != nil || len(e.Name()) != 64 || strings.Trim(e.Name(), "0123456789abcdef") != "" || c.cfg.Clock.Wall().Sub(st.ModTime()) < uploadLife {
			continue
		}
		if c.uploads.take(path) == nil {
			_ = os.Remove(path) // or the next sweep does
			c.uploads.release(path)
		}
	}
}

// Waiting is how many uploads wait to be continued, and their bytes.
func (c *Cache) Waiting() (n int, bytes int64) {
	es, err := os.ReadDir(c.cfg.Dir)
	if err != nil {
		return 0, 0
	}
	for _, e := range es {
		if st, err := e.Info(); err == nil {
			n++
			bytes += st.Size()
		}
	}
	return n, bytes
}
