package gocache

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Config binds a helper. Dir is required.
type Config struct {
	// Dir is the folder on this machine. It is made when missing.
	Dir string
	// Node is HOST:PORT of a node's build cache; empty: the folder serves alone.
	Node string
	// Token lets the helper write to the node; empty: it only reads there.
	Token string
	// Wait is how long the node may take for an answer, beside the time that its size
	// allows. Zero is 20 s; too short, and what a member has is never waited for.
	Wait time.Duration
	// Now tells the time for what is old; nil: the machine's.
	Now func() time.Time
	// Log gets what a person should know; nil: nothing.
	Log *slog.Logger
}

// Stats counts one run.
type Stats struct {
	Gets       int64 `json:"gets"`
	FolderHits int64 `json:"folder_hits"`
	NodeHits   int64 `json:"node_hits"`
	Misses     int64 `json:"misses"`
	Puts       int64 `json:"puts"`
	Uploaded   int64 `json:"uploaded"`
	Failed     int64 `json:"failed"`     // calls to the node that it did not serve
	NodeBytes  int64 `json:"node_bytes"` // that came from it
}

// uploadsAtOnce is enough to hide a node's round trip, and leaves cores to the compiler.
const uploadsAtOnce = 4

// uploadQueue is how many outputs may wait for the node before a put waits with them.
const uploadQueue = 4096

type counters struct{ gets, folder, node, misses, puts, uploaded, failed, bytes atomic.Int64 }

// helper is one run.
type helper struct {
	cfg   Config
	here  folder
	node  *node // nil: there is none
	stats counters

	outMu sync.Mutex // guards out
	out   *bufio.Writer

	work   sync.WaitGroup // gets
	slots  chan struct{}
	queue  chan upload
	writes sync.WaitGroup // uploaders
	said   sync.Once
	ended  sync.Once
}

type upload struct {
	action []byte
	entry  entry
	path   string
}

// getsAtOnce bounds the questions of the go command that are looked at together.
const getsAtOnce = 32

// Run serves the go command until it closes, its end is gone, or ctx ends.
func Run(ctx context.Context, cfg Config, in io.Reader, out io.Writer) (Stats, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Wait == 0 {
		cfg.Wait = answerTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	h := &helper{
		cfg: cfg, here: folder{dir: cfg.Dir, now: cfg.Now}, out: bufio.NewWriter(out),
		slots: make(chan struct{}, getsAtOnce), queue: make(chan upload, uploadQueue),
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return Stats{}, forgeyard.E("gocache", forgeyard.Other, err)
	}
	if cfg.Node != "" {
		h.node = newNode(cfg.Node, cfg.Token, cfg.Wait)
	}
	for range uploadsAtOnce {
		h.writes.Go(func() {
			for u := range h.queue {
				h.send(ctx, u)
			}
		})
	}
	err := h.say(response{KnownCommands: []string{cmdGet, cmdPut, cmdClose}})
	if err == nil {
		err = h.serve(ctx, bufio.NewReaderSize(in, maxLine))
	}
	err = errors.Join(err, h.finish())
	return h.snapshot(), err
}

// finish waits until the node has all that it is to have, and clears up. Repeating it does
// nothing.
func (h *helper) finish() (err error) {
	h.ended.Do(func() {
		h.work.Wait()
		close(h.queue)
		h.writes.Wait()
		err = h.here.trim()
	})
	return err
}

// serve reads requests until the end.
func (h *helper) serve(ctx context.Context, in *bufio.Reader) error {
	for {
		if err := ctx.Err(); err != nil {
			return forgeyard.E("gocache", forgeyard.Interrupted, err)
		}
		q, err := readRequest(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch q.Command {
		case cmdClose:
			return errors.Join(h.finish(), h.say(response{ID: q.ID}))
		case cmdPut:
			r, err := h.put(q, in)
			if err == nil {
				err = h.say(r)
			}
			if err != nil {
				return err
			}
		default:
			h.slots <- struct{}{}
			h.work.Go(func() {
				defer func() { <-h.slots }()
				if err := h.say(h.get(ctx, q)); err != nil {
					h.cfg.Log.Warn("the go command does not listen any more", "err", err)
				}
			})
		}
	}
}

// say writes one answer.
func (h *helper) say(r response) error {
	b, err := json.Marshal(r)
	if err != nil {
		return forgeyard.E("gocache", forgeyard.Other, err)
	}
	h.outMu.Lock()
	defer h.outMu.Unlock()
	if _, err = h.out.Write(append(b, '\n')); err == nil {
		err = h.out.Flush()
	}
	if err != nil {
		return forgeyard.E("gocache", forgeyard.Other, err)
	}
	return nil
}

func hit(id int64, e entry, path string) response {
	return response{ID: id, OutputID: e.output, Size: e.size, Time: &e.time, DiskPath: path}
}

func (h *helper) get(ctx context.Context, q request) response {
	h.stats.gets.Add(1)
	if e, path, ok := h.here.get(q.ActionID); ok {
		h.stats.folder.Add(1)
		return hit(q.ID, e, path)
	}
	if h.node.asked() {
		e, path, err := h.bring(ctx, q.ActionID)
		if err == nil {
			h.stats.node.Add(1)
			return hit(q.ID, e, path)
		}
		h.trouble(err)
	}
	h.stats.misses.Add(1)
	return response{ID: q.ID, Miss: true}
}

// bring makes of a node's output one of the folder's.
func (h *helper) bring(ctx context.Context, action []byte) (entry, string, error) {
	e, err := h.node.entry(ctx, action)
	if err != nil {
		return e, "", err
	}
	if !e.shareable() {
		return e, "", bad("an output id of %d bytes is no SHA-256", len(e.output))
	}
	path, ok := h.here.has(e)
	if !ok {
		if path, err = h.here.output(e.output, func(w io.Writer) error { return h.node.output(ctx, e, w) }); err != nil {
			return e, "", err
		}
		h.stats.bytes.Add(e.size)
	}
	return e, path, h.here.entry(action, e)
}

// put keeps an output in the folder and lets the node have it. An error is the end of the
// conversation; what only this put suffers stands in the answer.
func (h *helper) put(q request, in *bufio.Reader) (response, error) {
	h.stats.puts.Add(1)
	e := entry{output: q.OutputID, size: q.BodySize, time: h.cfg.Now()}
	var broken error
	read := false
	path, err := h.here.output(q.OutputID, func(w io.Writer) error {
		read = true
		err := readBody(in, q.BodySize, w)
		if forgeyard.KindOf(err) == forgeyard.Invalid || errors.Is(err, io.ErrUnexpectedEOF) {
			broken = err
		}
		return err
	})
	if !read { // there is no place for it, and the next request stands behind it
		broken = readBody(in, q.BodySize, io.Discard)
	}
	if broken != nil {
		return response{}, broken
	}
	if err == nil {
		err = h.here.entry(q.ActionID, e)
	}
	if err != nil {
		return response{ID: q.ID, Err: err.Error()}, nil
	}
	if h.node.asked() && h.node.token != "" && e.shareable() {
		h.queue <- upload{action: q.ActionID, entry: e, path: path}
	}
	return response{ID: q.ID, DiskPath: path}, nil
}

func (h *helper) send(ctx context.Context, u upload) {
	if !h.node.asked() {
		return
	}
	if err := h.node.put(ctx, u.action, u.entry, u.path); err != nil {
		h.trouble(err)
		return
	}
	h.stats.uploaded.Add(1)
}

// trouble counts what the node did not serve, and says it once.
func (h *helper) trouble(err error) {
	if forgeyard.KindOf(err) == forgeyard.NotFound {
		return
	}
	h.stats.failed.Add(1)
	h.said.Do(func() {
		h.cfg.Log.Warn("the build cache of the node is in trouble; this machine's folder serves", "err", err)
	})
}

func (h *helper) snapshot() Stats {
	s := &h.stats
	return Stats{
		Gets: s.gets.Load(), FolderHits: s.folder.Load(), NodeHits: s.node.Load(), Misses: s.misses.Load(), Puts: s.puts.Load(),
		Uploaded: s.uploaded.Load(), Failed: s.failed.Load(), NodeBytes: s.bytes.Load(),
	}
}
