package consensus

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// A peer that is away for an hour is told of once a minute, with how often more raft said
// so; another peer, and another matter, are told at once.
func TestPeerThatIsAwayIsToldOnceAMinute(t *testing.T) {
	var out bytes.Buffer
	var now forgeyard.Instant
	w := &slogWriter{log: slog.New(slog.NewTextHandler(&out, nil)), now: func() forgeyard.Instant { return now }, said: map[string]*repeated{}}
	away := func(peer string, try int) {
		fmt.Fprintf(w, "[ERROR] raft: failed to heartbeat to: peer=%s backoff time=%dms\n  error=\n  | try %d\n", peer, 10*try, try)
	}
	for i := range 3600 {
		away("n2", i)
		now = now.Add(time.Second)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 60 || strings.Contains(lines[0], "suppressed") || !strings.Contains(lines[1], "suppressed=59") || !strings.Contains(lines[1], "try 60") {
		t.Fatalf("%d lines of an hour: %s", len(lines), strings.Join(lines[:min(3, len(lines))], "\n"))
	}
	out.Reset()
	away("n3", 1)
	fmt.Fprintln(w, "[ERROR] raft: failed to appendEntries to: peer=n2")
	fmt.Fprintln(w, "[ERROR] raft: failed to appendEntries to: peer=n2")
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines of two matters: %s", n, out.String())
	}
	for i := range 10 * mostSaid {
		fmt.Fprintln(w, "[ERROR] raft: number", i)
	}
	if len(w.said) > mostSaid {
		t.Errorf("%d matters are remembered", len(w.said))
	}
}
