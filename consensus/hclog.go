package consensus

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// slogWriter turns hclog's lines, "[WARN]  raft: text: key=value", into slog
// records. raft's info is our debug: it narrates every connection.
//
// raft says of a peer that is away that it is away, three times a second for as long as
// that lasts: a weekend of it would fill a small disk. The same is said once a minute.
type slogWriter struct {
	log *slog.Logger
	now func() forgeyard.Instant

	mu   sync.Mutex
	said map[string]*repeated // by what two lines of one matter have in common
}

// repeated is a matter that is not over.
type repeated struct {
	at     forgeyard.Instant // it was said last
	unsaid int               // since then
}

const (
	saidAgain  = time.Minute
	mostSaid   = 64 // matters at once; with more all are forgotten, and said anew
	whatsTried = " backoff time="
)

// matter is what a line is about: its first line without how long raft waits next.
func matter(text []byte) string {
	text, _, _ = bytes.Cut(text, []byte("\n"))
	text, _, _ = bytes.Cut(text, []byte(whatsTried))
	return string(text)
}

// due reports whether a line is to be said now, and how many like it were not.
func (w *slogWriter) due(text []byte) (unsaid int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key, now := matter(text), w.now()
	r := w.said[key]
	if r != nil && now.Sub(r.at) < saidAgain {
		r.unsaid++
		return 0, false
	}
	if r != nil {
		unsaid = r.unsaid
	}
	if len(w.said) >= mostSaid {
		clear(w.said)
	}
	w.said[key] = &repeated{at: now}
	return unsaid, true
}

var hclogLevels = map[string]slog.Level{
	"[ERROR]": slog.LevelWarn, // raft calls each failed dial an error
	"[WARN]":  slog.LevelInfo,
	"[INFO]":  slog.LevelDebug,
	"[DEBUG]": slog.LevelDebug - 4,
	"[TRACE]": slog.LevelDebug - 8,
}

func (w *slogWriter) Write(line []byte) (int, error) {
	level, text := slog.LevelInfo, bytes.TrimSpace(line)
	if word, rest, ok := bytes.Cut(text, []byte(" ")); ok {
		if l, known := hclogLevels[string(word)]; known {
			level, text = l, bytes.TrimSpace(rest)
		}
	}
	if level < slog.LevelInfo { // who looks for the course of things wants all of it
		w.log.Log(context.Background(), level, string(text))
		return len(line), nil
	}
	switch unsaid, ok := w.due(text); {
	case ok && unsaid > 0:
		w.log.Log(context.Background(), level, string(text), "suppressed", unsaid)
	case ok:
		w.log.Log(context.Background(), level, string(text))
	}
	return len(line), nil
}

func newHCLog(log *slog.Logger) hclog.Logger {
	level := hclog.Off // cheaper than writing lines that nobody keeps
	for _, l := range []struct {
		at slog.Level
		is hclog.Level
	}{{slog.LevelWarn, hclog.Error}, {slog.LevelInfo, hclog.Warn}, {slog.LevelDebug, hclog.Info}, {slog.LevelDebug - 4, hclog.Debug}} {
		if log.Enabled(context.Background(), l.at) {
			level = l.is
		}
	}
	return hclog.New(&hclog.LoggerOptions{Name: "raft", Level: level, Output: &slogWriter{log: log, now: clock.System().Now, said: map[string]*repeated{}}, DisableTime: true})
}
