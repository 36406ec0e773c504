package uplink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// WitnessConfig binds a Witness.
type WitnessConfig struct {
	// Path is the file in which it remembers across restarts; its folder exists.
	Path  string
	Clock clock.Clock
	// TimeSource says whether the wall clock was set since the boot, by a battery or by
	// the network. Nil: it was. A board that forgot its clock overnight must not say that no time passed.
	TimeSource func() bool
	// Log is told of a file that cannot be read or written. Nil: nobody.
	Log *slog.Logger
}

// Witness remembers, on one voter, when it saw the last figure of uplink silence
// applied, by a clock that nobody can set back. What it knows answers a new
// leader's question: how long ago was that? It is evidence, never authority: all it
// can do is to make the count larger.
//
//	file = CBOR {1 index, 2 boot id, 3 instant, 4 wall time of the figure}
//
// One goroutine (Run) writes; Saw and Elapsed may be called from any.
type Witness struct {
	cfg   WitnessConfig
	dirty chan struct{}

	mu    sync.Mutex // guards what follows
	mem   reckon.Memory
	saved uint64 // index that the file has

	writeMu sync.Mutex // one writer at a time; taken before mu
}

// OpenWitness reads the file. One that is missing or damaged is a witness who has
// seen nothing; the next figure writes it anew.
func OpenWitness(cfg WitnessConfig) (*Witness, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Witness{cfg: cfg, dirty: make(chan struct{}, 1)}
	st, err := os.Stat(cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return nil, forgeyard.E("uplink witness", forgeyard.Other, err)
	}
	b, err := os.ReadFile(cfg.Path)
	if err != nil {
		return nil, forgeyard.E("uplink witness", forgeyard.Other, err)
	}
	if st.Size() > maxWitnessFile {
		err = fmt.Errorf("%d bytes, the bound is %d", st.Size(), maxWitnessFile)
	} else {
		w.mem.Seen, err = reckon.DecodeSighting(b)
	}
	if err != nil {
		cfg.Log.Warn("what was witnessed of the uplink cannot be read and is not used", "path", cfg.Path, "error", err)
	}
	w.saved = w.mem.Seen.Index
	return w, nil
}

// reading is one look at the clocks.
func (w *Witness) reading() reckon.Reading {
	return reckon.Reading{
		Now: w.cfg.Clock.Now(), Wall: w.cfg.Clock.Wall(), Boot: w.cfg.Clock.BootID(), TimeSet: w.cfg.TimeSource == nil || w.cfg.TimeSource(),
	}
}

// Saw is told the uplink's record after an entry that changed it was applied live:
// never for entries that are replayed at start or come in a snapshot. It returns
// at once, and does nothing for a record that it knows.
func (w *Witness) Saw(u lease.Uplink) {
	r := w.reading()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.mem.Saw(u, r) {
		return
	}
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// Elapsed says how long ago the figure of the given log index was committed. at is the
// wall time of the figure, where the caller knows it from the state; zero otherwise.
func (w *Witness) Elapsed(marked uint64, at forgeyard.Wall) Vouch {
	r := w.reading()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mem.Elapsed(marked, at, r)
}

// Run writes the file whenever something new was seen, until ctx ends; then once
// more. A file that cannot be written costs only what it would have proved.
func (w *Witness) Run(ctx context.Context) {
	for {
		select {
		case <-w.dirty:
		case <-ctx.Done():
		}
		if err := w.Flush(); err != nil {
			w.cfg.Log.Warn("what was witnessed of the uplink could not be written", "path", w.cfg.Path, "error", err)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// Flush writes the file if it is behind: temp, sync, rename, sync of the folder.
func (w *Witness) Flush() error {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	w.mu.Lock()
	seen, saved := w.mem.Seen, w.saved
	w.mu.Unlock()
	if seen.Index == 0 || seen.Index == saved {
		return nil
	}
	if err := durable.WriteFile(w.cfg.Path, seen.Encode(), 0o600); err != nil {
		return forgeyard.E("uplink witness", forgeyard.Other, err)
	}
	w.mu.Lock()
	w.saved = seen.Index
	w.mu.Unlock()
	return nil
}
