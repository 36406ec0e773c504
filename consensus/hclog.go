package consensus

import (
	"bytes"
	"context"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// slogWriter turns hclog's lines, "[WARN]  raft: text: key=value", into slog
// records. raft's info is our debug: it narrates every connection.
type slogWriter struct{ log *slog.Logger }

var hclogLevels = map[string]slog.Level{
	"[ERROR]": slog.LevelWarn, // raft calls each failed dial an error
	"[WARN]":  slog.LevelInfo,
	"[INFO]":  slog.LevelDebug,
	"[DEBUG]": slog.LevelDebug - 4,
	"[TRACE]": slog.LevelDebug - 8,
}

func (w slogWriter) Write(line []byte) (int, error) {
	level, text := slog.LevelInfo, bytes.TrimSpace(line)
	if word, rest, ok := bytes.Cut(text, []byte(" ")); ok {
		if l, known := hclogLevels[string(word)]; known {
			level, text = l, bytes.TrimSpace(rest)
		}
	}
	w.log.Log(context.Background(), level, string(text))
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
	return hclog.New(&hclog.LoggerOptions{Name: "raft", Level: level, Output: slogWriter{log}, DisableTime: true})
}
