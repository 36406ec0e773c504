// Package spool keeps the log of one epoch of one attempt on disk: framed,
// checksummed, numbered without a gap, readable live, flushed to the store in
// chunks.
//
//	append → segment file → Tail (live readers)
//	                      → Flush → chunk blobs in the store → space may be given back
//
// The sequence belongs to the attempt: the first epoch starts at 1, a later one goes
// on after the last number that reached the store, and begins with an epoch marker
// that says how much of a lost runner's tail is missing (decision 17).
//
// A full spool holds the writer back until something was flushed, so the workload's
// pipe fills; only a full disk drops, and then a gap frame with a number of its own
// counts the bytes. Memory does not grow with the log or with its readers; a slow
// reader reads from disk and never delays the writer.
//
// It has no goroutine. It decides nothing about retention: Close keeps the files,
// Remove deletes them.
package spool

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
	"github.com/forgeyard/forgeyard-node/job"
)

// Config of one spool.
type Config struct {
	Dir   string
	Epoch uint64
	First uint64 // number of the first frame when the folder is new; 0 means 1
	Limit int64  // bytes not yet flushed that hold the writer back; 0 means DefaultLimit
	// Most bounds what programs write into this epoch's log, in bytes of frames. What comes
	// after it is counted and left out, and the work goes on. 0 means no bound.
	Most int64
	// Parts is how many parts of this epoch's log somebody can name. With Most it bounds what
	// programs write as well, so that the last words of the runner are in a part that is
	// named. 0 means no bound.
	Parts int
	// Owner keeps flushed chunks in the store until it pins them (cas.PutOptions). Empty: nobody.
	Owner string
	// Pack is asked at each flush whether all who may read it read packed chunks. Nil: they do not.
	Pack  func() bool
	Clock clock.Clock
}

// Spool is safe for concurrent use.
type Spool struct {
	cfg Config

	mu      sync.Mutex // guards all below
	segs    []*segment // ascending; the last one is written to
	cur     *os.File   // the last segment; nil before the first frame and after Close
	next    uint64     // number of the next frame
	flushed uint64     // all up to here are in the store
	chunks  []job.LogChunk
	dropped int64 // bytes that a full disk took, not yet told by a gap frame
	written int64 // bytes of programs' frames
	left    int64 // bytes beyond the bound
	full    bool  // the bound was reached
	owed    int64 // of left, what a full disk has kept from being told
	closed  bool
	news    chan struct{} // closed and replaced when anything above changed
	buf     []byte        // encoding buffer of the writer

	flushMu sync.Mutex // one Flush at a time; taken before mu
}

// segment is one file. Its size only counts whole frames.
type segment struct {
	path  string
	first uint64
	last  uint64 // first-1 while empty
	size  int64
	marks []mark
}

type mark struct {
	seq uint64
	off int64
}

// Open opens or makes the spool. What a crash tore off the end is cut away;
// damage before the end puts the rest aside (*.damaged) and is told.
func Open(cfg Config) (*Spool, error) {
	if cfg.First == 0 {
		cfg.First = 1
	}
	if cfg.Limit <= 0 {
		cfg.Limit = DefaultLimit
	}
	err := os.MkdirAll(cfg.Dir, 0o700)
	if errors.Is(err, os.ErrNotExist) {
		err = os.MkdirAll(cfg.Dir, 0o700) // the end of the epoch before took the parent away in between
	}
	if err != nil {
		return nil, forgeyard.E("open spool", kindOf(err), err)
	}
	s := &Spool{cfg: cfg, next: cfg.First, news: make(chan struct{})}
	if err := s.load(); err != nil {
		return nil, err
	}
	s.flushed = s.first() - 1
	return s, nil
}

// load reads the segments that are there.
func (s *Spool) load() error {
	names, err := filepath.Glob(filepath.Join(s.cfg.Dir, "*.log"))
	if err != nil {
		return forgeyard.E("open spool", forgeyard.Invalid, err)
	}
	sort.Strings(names)
	for i, name := range names {
		seg, clean, err := scan(name)
		if err != nil {
			return err
		}
		if seg == nil || (len(s.segs) > 0 && seg.first != s.next) {
			return setAside(names[i:])
		}
		s.segs = append(s.segs, seg)
		s.next = seg.last + 1
		if !clean {
			return setAside(names[i+1:])
		}
	}
	return nil
}

func setAside(names []string) error {
	for _, n := range names {
		if err := os.Rename(n, n+".damaged"); err != nil {
			return forgeyard.E("open spool", kindOf(err), err)
		}
	}
	return nil
}

// scan reads one segment and cuts it after its last good frame. A nil segment
// means that nothing of it is good.
func scan(path string) (seg *segment, clean bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, false, forgeyard.E("open spool", kindOf(err), err)
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if packed, err := readHeader(r); err != nil || packed {
		return nil, false, nil
	}
	seg = &segment{path: path, size: headerSize}
	for {
		fr, err := readFrame(r)
		if errors.Is(err, io.EOF) {
			clean = true
			break
		}
		if err != nil || (seg.first != 0 && fr.Seq != seg.last+1) {
			break
		}
		if seg.first == 0 {
			seg.first = fr.Seq
		}
		seg.add(&fr)
	}
	if seg.first == 0 {
		return nil, false, nil
	}
	if !clean {
		if err := f.Truncate(seg.size); err != nil {
			return nil, false, forgeyard.E("open spool", kindOf(err), err)
		}
	}
	return seg, clean, nil
}

// add accounts for a frame that stands at the segment's end.
func (g *segment) add(f *Frame) {
	if len(g.marks) == 0 || g.size-g.marks[len(g.marks)-1].off >= markBytes {
		g.marks = append(g.marks, mark{f.Seq, g.size})
	}
	g.last, g.size = f.Seq, g.size+f.size()
}

// seek is where to start reading to find seq.
func (g *segment) seek(seq uint64) int64 {
	i := sort.Search(len(g.marks), func(i int) bool { return g.marks[i].seq > seq })
	if i == 0 {
		return headerSize
	}
	return g.marks[i-1].off
}

func (s *Spool) first() uint64 {
	if len(s.segs) > 0 {
		return s.segs[0].first
	}
	return s.next
}

// Last is the number of the last frame; the number before the first when there is none.
func (s *Spool) Last() uint64 { s.mu.Lock(); defer s.mu.Unlock(); return s.next - 1 }

// Flushed is the last number that is in the store.
func (s *Spool) Flushed() uint64 { s.mu.Lock(); defer s.mu.Unlock(); return s.flushed }

// Chunks lists what was flushed, in order.
func (s *Spool) Chunks() []job.LogChunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.chunks)
}

// Unflushed counts the bytes that only this disk has.
func (s *Spool) Unflushed() int64 { s.mu.Lock(); defer s.mu.Unlock(); return s.unflushed() }

func (s *Spool) unflushed() int64 {
	var n int64
	for _, g := range s.segs {
		switch {
		case g.last <= s.flushed:
		case g.first > s.flushed:
			n += g.size
		default:
			n += g.size - g.seek(s.flushed)
		}
	}
	return n
}

// changed wakes everyone who waits. The caller holds mu.
func (s *Spool) changed() { close(s.news); s.news = make(chan struct{}) }

// Append adds b to a stream, in as many frames as it takes. It waits while the spool is full,
// until ctx ends (Interrupted) or the spool closes (Conflict). A full disk is no error:
// the bytes are counted, and a gap frame tells of them as soon as there is room.
func (s *Spool) Append(ctx context.Context, stream Stream, step uint16, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), MaxFrameBytes)
		if err := s.append1(ctx, stream, step, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Event adds a structured frame.
func (s *Spool) Event(ctx context.Context, step uint16, event any) error {
	b, err := json.Marshal(event)
	invariant.NoError(err, "events of ours encode")
	invariant.True(len(b) <= MaxFrameBytes, "an event of %d bytes fits a frame", len(b))
	return s.append1(ctx, Structured, step, b)
}

func (s *Spool) append1(ctx context.Context, stream Stream, step uint16, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beyond(stream, b) {
		if s.left += int64(len(b)); s.left == int64(len(b)) {
			stream, b = Agent, []byte("the log is at its bound: what the programs write from here on is counted and left out\n")
		} else {
			return nil
		}
	}
	if err := s.place(ctx, len(b)); err != nil {
		return err
	}
	if s.gaps() != nil {
		s.dropped += int64(len(b))
		return nil
	}
	if err := s.write(stream, step, b); err != nil {
		if kindOf(err) != forgeyard.NoSpace {
			return forgeyard.E("log", kindOf(err), err)
		}
		s.dropped += int64(len(b))
	}
	return nil
}

// place waits until n bytes may be added. The caller holds mu.
func (s *Spool) place(ctx context.Context, n int) error {
	for !s.closed && s.unflushed()+int64(n) > s.cfg.Limit {
		news := s.news
		s.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			s.mu.Lock()
			return forgeyard.E("log", forgeyard.Interrupted, ctx.Err())
		}
		s.mu.Lock()
	}
	if s.closed {
		return forgeyard.Errorf("log", forgeyard.Conflict, "the log of this epoch is closed")
	}
	return nil
}

// gaps tells what is missing from here on backwards and was not told. The caller holds mu.
func (s *Spool) gaps() error {
	if s.dropped > 0 {
		if err := s.write(Structured, 0, gapOf(s.dropped, "")); err != nil {
			return err
		}
		s.dropped = 0
	}
	if s.owed > 0 {
		if err := s.write(Structured, 0, gapOf(s.owed, GapBound)); err != nil {
			return err
		}
		s.owed = 0
	}
	return nil
}

// Gap is the event that stands for bytes which a full disk took, or for those beyond the
// bound of a log.
type Gap struct {
	Event string `json:"event"`
	Bytes int64  `json:"bytes"`
	Why   string `json:"why,omitempty"` // GapBound, or nothing for a full disk
}

// GapBound says that the log had reached its bound.
const GapBound = "bound"

func gapOf(n int64, why string) []byte {
	b, err := json.Marshal(Gap{Event: "gap", Bytes: n, Why: why})
	invariant.NoError(err, "a gap encodes")
	return b
}

// beyond reports whether a frame of a program has no place any more. Frames of the runner
// always have one: they are few, and say how the work ends. The caller holds mu.
func (s *Spool) beyond(stream Stream, b []byte) bool {
	if stream != Stdout && stream != Stderr || s.cfg.Most <= 0 {
		return false
	}
	n := int64(prefixSize + fixedSize + len(b))
	if s.full = s.full || s.written+n > s.cfg.Most || s.cfg.Parts > 0 && s.parts(n) > s.cfg.Parts-endParts; s.full {
		return true
	}
	s.written += n
	return false
}

// parts is how many parts the log has, at most, with n more bytes. The caller holds mu.
func (s *Spool) parts(n int64) int { return len(s.chunks) + int((s.unflushed()+n)/fullBytes) + 1 }

// Left counts the bytes that the bound kept out.
func (s *Spool) Left() int64 { s.mu.Lock(); defer s.mu.Unlock(); return s.left }

// EndGap writes how much the bound kept out, if anything, as a gap frame, and returns it. It
// is called once, when the last program has ended. On a full disk the frame comes before
// the next one that finds room.
func (s *Spool) EndGap(ctx context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 {
		return 0, nil
	}
	s.owed = s.left
	if err := s.place(ctx, 0); err != nil {
		return s.left, err
	}
	if err := s.gaps(); err != nil && kindOf(err) != forgeyard.NoSpace {
		return s.left, forgeyard.E("log", kindOf(err), err)
	}
	return s.left, nil
}

// write adds one frame at the end. After an error the file ends where it did.
func (s *Spool) write(stream Stream, step uint16, b []byte) error {
	f := Frame{Seq: s.next, At: forgeyard.WallOf(s.cfg.Clock.Wall()), Stream: stream, Epoch: s.cfg.Epoch, Step: step, Bytes: b}
	seg, err := s.room()
	if err != nil {
		return err
	}
	s.buf = appendFrame(s.buf[:0], &f)
	if _, err := s.cur.WriteAt(s.buf, seg.size); err != nil {
		return errors.Join(err, s.cur.Truncate(seg.size))
	}
	seg.add(&f)
	s.next++
	s.changed()
	return nil
}

// room returns the segment to write to, a new one when the last is full.
func (s *Spool) room() (*segment, error) {
	if n := len(s.segs); n > 0 && s.segs[n-1].size < segmentBytes {
		if s.cur != nil {
			return s.segs[n-1], nil
		}
		f, err := os.OpenFile(s.segs[n-1].path, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		s.cur = f
		return s.segs[n-1], nil
	}
	path := filepath.Join(s.cfg.Dir, segmentName(s.next))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(header, 0); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	if s.cur != nil {
		if err := s.cur.Close(); err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(path))
		}
	}
	s.cur = f
	seg := &segment{path: path, first: s.next, last: s.next - 1, size: headerSize}
	s.segs = append(s.segs, seg)
	return seg, nil
}

// Tail reads from a number on (0: from the first that is here). With follow it
// waits for more until ctx ends or the spool is closed. NotFound: the number was
// flushed and its space given back; read the chunks. One reader has one buffer.
func (s *Spool) Tail(ctx context.Context, from uint64, follow bool) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		s.mu.Lock()
		if from == 0 {
			from = s.first()
		}
		s.mu.Unlock()
		for ctx.Err() == nil {
			seg, end, news, err := s.find(from)
			if err != nil {
				yield(Frame{}, err)
				return
			}
			if seg == nil {
				if news == nil || !follow {
					return
				}
				select {
				case <-news:
				case <-ctx.Done():
				}
				continue
			}
			next, more := readSegment(ctx, seg, from, end, yield)
			if !more {
				return
			}
			from = next
		}
	}
}

// Read yields what lies in the folder of a log that nobody writes any more, and touches nothing
// there. Like Open, it leaves out what a crash tore off and what follows damage.
func Read(dir string) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		names, err := filepath.Glob(filepath.Join(dir, "*.log"))
		if err != nil {
			yield(Frame{}, forgeyard.E("read log", forgeyard.Invalid, err))
			return
		}
		sort.Strings(names)
		for last, i := uint64(0), 0; i < len(names); i++ {
			var whole bool
			if last, whole = readWhole(names[i], last, yield); !whole {
				return
			}
		}
	}
}

// Restore puts a chunk into the folder of a log that nobody writes any more, where Read finds
// its frames. first is the number of the first of them. A segment that begins with it is
// there already with all that follows, and stays.
func Restore(dir string, first uint64, chunk io.Reader) error {
	b := slices.Clone(header)
	for f, err := range DecodeFrames(chunk) {
		if err != nil {
			return err
		}
		b = appendFrame(b, &f)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return forgeyard.E("restore log", kindOf(err), err)
	}
	name := filepath.Join(dir, segmentName(first))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return forgeyard.E("restore log", kindOf(err), err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(forgeyard.E("restore log", kindOf(err), err), os.Remove(name))
	}
	return nil
}

func segmentName(first uint64) string { return fmt.Sprintf("%020d.log", first) }

// readWhole yields the frames of a file that follow last, and reports whether it ends as it was
// written.
func readWhole(path string, last uint64, yield func(Frame, error) bool) (uint64, bool) {
	f, err := os.Open(path)
	if err != nil {
		return last, yield(Frame{}, forgeyard.E("read log", kindOf(err), err)) && false
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if packed, err := readHeader(r); err != nil || packed {
		return last, false
	}
	for {
		fr, err := readFrame(r)
		if err != nil || last != 0 && fr.Seq != last+1 {
			return last, errors.Is(err, io.EOF)
		}
		if last = fr.Seq; !yield(fr, nil) {
			return last, false
		}
	}
}

// find returns a copy of the segment that holds seq and how far it may be read. No segment:
// it is not written yet; news nil as well: it never will be.
func (s *Spool) find(seq uint64) (*segment, int64, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq < s.first() {
		return nil, 0, nil, forgeyard.Errorf("read log", forgeyard.NotFound, "frame %d is no longer spooled, the first is %d", seq, s.first()).
			WithHint("read the chunks up to %d from the store", s.flushed)
	}
	if seq >= s.next {
		if s.closed {
			return nil, 0, nil, nil
		}
		return nil, 0, s.news, nil
	}
	i := sort.Search(len(s.segs), func(i int) bool { return s.segs[i].last >= seq })
	c := *s.segs[i]
	c.marks = slices.Clone(c.marks)
	return &c, c.size, nil, nil
}

// readSegment yields frames from seq to the end that was known.
func readSegment(ctx context.Context, seg *segment, seq uint64, end int64, yield func(Frame, error) bool) (next uint64, more bool) {
	f, err := os.Open(seg.path)
	if err != nil {
		return 0, yield(Frame{}, forgeyard.E("read log", kindOf(err), err)) && false
	}
	defer f.Close()
	off := seg.seek(seq)
	r := bufio.NewReader(io.NewSectionReader(f, off, end-off))
	for seq <= seg.last && ctx.Err() == nil {
		fr, err := readFrame(r)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, errTorn) {
				err = corrupt("%s ends before frame %d", filepath.Base(seg.path), seq)
			}
			yield(Frame{}, err)
			return 0, false
		}
		if fr.Seq < seq {
			continue
		}
		if !yield(fr, nil) {
			return 0, false
		}
		seq = fr.Seq + 1
	}
	return seq, ctx.Err() == nil
}

// Flush brings all that is here into the store, in chunks, and gives the space of
// whole flushed segments back once the spool is half full. It returns the new chunks. After an error
// what was flushed stays flushed, and Flush goes on from there.
func (s *Spool) Flush(ctx context.Context, store cas.Store) ([]job.LogChunk, error) {
	return s.flush(ctx, store, 1)
}

// FlushFull does so with parts that are full. The rest waits for more, since the number of
// parts is bounded; but not where it is much of what the spool may hold.
func (s *Spool) FlushFull(ctx context.Context, store cas.Store) ([]job.LogChunk, error) {
	return s.flush(ctx, store, min(fullBytes, s.cfg.Limit/2))
}

// flush stores parts of at least so many bytes.
func (s *Spool) flush(ctx context.Context, store cas.Store, least int64) ([]job.LogChunk, error) {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	var out []job.LogChunk
	for {
		s.mu.Lock()
		from, to := s.flushed+1, s.next-1
		s.mu.Unlock()
		if from > to {
			return out, nil
		}
		c, err := s.flush1(ctx, store, from, to, least)
		if err != nil || c.LastSeq < from {
			return out, err
		}
		out = append(out, c)
	}
}

// flush1 stores one chunk that starts at from, and none if there is less than that.
func (s *Spool) flush1(ctx context.Context, store cas.Store, from, to uint64, least int64) (job.LogChunk, error) {
	b := slices.Clone(header)
	last := from - 1
	for f, err := range s.Tail(ctx, from, false) {
		if err != nil {
			return job.LogChunk{}, err
		}
		if f.Seq > to || (last >= from && int64(len(b))+f.size() > chunkBytes) {
			break
		}
		b, last = appendFrame(b, &f), f.Seq
	}
	if last < from {
		return job.LogChunk{}, forgeyard.E("flush log", forgeyard.Interrupted, context.Cause(ctx))
	}
	if int64(len(b)) < least {
		return job.LogChunk{}, nil
	}
	if s.cfg.Pack != nil && s.cfg.Pack() {
		b = pack(b)
	}
	ref, err := store.Put(ctx, strings.NewReader(string(b)), cas.PutOptions{Class: cas.Durable, Size: int64(len(b)), Owner: s.cfg.Owner})
	if err != nil {
		return job.LogChunk{}, forgeyard.E("flush log", forgeyard.Other, err)
	}
	c := job.LogChunk{Digest: ref.Digest, Manifest: ref.Manifest, Size: ref.Size, FirstSeq: from, LastSeq: last}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushed = last
	s.chunks = append(s.chunks, c)
	err = s.trim()
	s.changed()
	return c, err
}

// trim gives flushed segments back when the spool is over half full. The caller
// holds mu.
func (s *Spool) trim() error {
	var total int64
	for _, g := range s.segs {
		total += g.size
	}
	for len(s.segs) > 1 && s.segs[0].last <= s.flushed && total > s.cfg.Limit/2 {
		if err := os.Remove(s.segs[0].path); err != nil {
			return forgeyard.E("trim log", kindOf(err), err)
		}
		total -= s.segs[0].size
		s.segs = s.segs[1:]
	}
	return nil
}

// Close ends the log: readers that follow come to their end, the files stay.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.changed()
	if s.cur == nil {
		return nil
	}
	err := s.cur.Close()
	s.cur = nil
	return err
}

// Remove closes the log and deletes its files.
func (s *Spool) Remove() error {
	return errors.Join(s.Close(), os.RemoveAll(s.cfg.Dir))
}

// Writer is a stream as an io.Writer: what an executor writes to.
func (s *Spool) Writer(ctx context.Context, stream Stream, step uint16) io.Writer {
	return writer{s, ctx, stream, step}
}

type writer struct {
	s      *Spool
	ctx    context.Context
	stream Stream
	step   uint16
}

func (w writer) Write(b []byte) (int, error) {
	if err := w.s.Append(w.ctx, w.stream, w.step, b); err != nil {
		return 0, err
	}
	return len(b), nil
}
