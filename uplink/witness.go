package uplink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/lease"
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
	seen  sighting
	own   bool   // seen was seen by this process
	saved uint64 // index that the file has

	writeMu sync.Mutex // one writer at a time; taken before mu
}

type sighting struct {
	Index   uint64            `cbor:"1,keyasint"`
	Boot    string            `cbor:"2,keyasint"`
	Instant forgeyard.Instant `cbor:"3,keyasint"` // no later than the moment at which the figure was true
	Wall    forgeyard.Wall    `cbor:"4,keyasint"` // of the figure, by its proposer's clock
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
		w.seen, err = decodeSighting(b)
	}
	if err != nil {
		w.seen = sighting{}
		cfg.Log.Warn("what was witnessed of the uplink cannot be read and is not used", "path", cfg.Path, "error", err)
	}
	w.saved = w.seen.Index
	return w, nil
}

func decodeSighting(b []byte) (sighting, error) {
	var s sighting
	if err := cborx.UnmarshalCanonical(b, &s); err != nil {
		return sighting{}, err
	}
	if s.Index == 0 || s.Instant <= 0 || len(s.Boot) > MaxName {
		return sighting{}, forgeyard.Errorf("uplink witness", forgeyard.Invalid, "index %d or instant %d is not possible", s.Index, s.Instant)
	}
	return s, nil
}

// Saw is told the uplink's record after an entry that changed it was applied live:
// never for entries that are replayed at start or come in a snapshot. It returns
// at once, and does nothing for a record that it knows.
//
// The figure was true when its proposer read the clock, a little before it was
// applied. By how much is told by the wall clock; if it is too much, this node was
// paused or cut off, and it saw nothing live.
func (w *Witness) Saw(u lease.Uplink) {
	now, wall := w.cfg.Clock.Now(), forgeyard.WallOf(w.cfg.Clock.Wall())
	late := time.Duration(max(0, wall-u.MarkedAt)) * time.Millisecond
	w.mu.Lock()
	defer w.mu.Unlock()
	known := u.Marked == w.seen.Index || u.Marked < w.seen.Index && w.own
	if u.Marked == 0 || known || late > lateBy || forgeyard.Instant(late) >= now {
		return
	}
	w.seen = sighting{Index: u.Marked, Boot: w.cfg.Clock.BootID(), Instant: now.Add(-late), Wall: u.MarkedAt}
	w.own = true
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// Elapsed says how long ago the figure of the given log index was committed: by
// the sleep-proof clock if this node saw it live in this boot, else by the wall
// clock. at is the wall time of the figure, where the caller knows it from the
// state; zero otherwise.
func (w *Witness) Elapsed(marked uint64, at forgeyard.Wall) Vouch {
	now, wall := w.cfg.Clock.Now(), w.cfg.Clock.Wall()
	w.mu.Lock()
	seen, own := w.seen, w.own
	w.mu.Unlock()
	boot := w.cfg.Clock.BootID()
	sameBoot := own || boot != "" && seen.Boot == boot
	if seen.Index == marked && sameBoot && now >= seen.Instant {
		return Vouch{Known: true, Elapsed: now.Sub(seen.Instant), How: ByBoot}
	}
	if at == 0 && seen.Index == marked {
		at = seen.Wall
	}
	switch by := forgeyard.WallOf(wall); {
	case at == 0:
		return Vouch{Why: fmt.Sprintf("the figure of index %d was not seen", marked)}
	case seen.Boot != boot && w.cfg.TimeSource != nil && !w.cfg.TimeSource():
		return Vouch{Why: "the wall clock was not set since the boot"}
	case by < at:
		return Vouch{Why: fmt.Sprintf("the wall clock reads %s, earlier than the log's %s", wall.UTC().Format(time.RFC3339), at.Time().Format(time.RFC3339))}
	default:
		return Vouch{Known: true, Elapsed: by.Time().Sub(at.Time()), How: ByWall}
	}
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
	seen, saved := w.seen, w.saved
	w.mu.Unlock()
	if seen.Index == 0 || seen.Index == saved {
		return nil
	}
	if err := durable.WriteFile(w.cfg.Path, cborx.Marshal(seen), 0o600); err != nil {
		return forgeyard.E("uplink witness", forgeyard.Other, err)
	}
	w.mu.Lock()
	w.saved = seen.Index
	w.mu.Unlock()
	return nil
}
