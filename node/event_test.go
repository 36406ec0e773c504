package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// lines is a log that is read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// events are the lines that have a type.
func (l *lines) events(t *testing.T) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []map[string]any
	for line := range strings.Lines(l.b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if m["event"] != nil && m["job"] != nil {
			out = append(out, m)
		}
	}
	return out
}

// RA-229–233: each thing that happens to an execution is one line of the log with a type
// that stays, in order, and names whose it is.
func TestStableEvents(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(InitRequest{DataDir: dir, SiteName: "cell", NodeName: "n1", Site: quick(t), Clock: clock.System()}); err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	p := startNode(t, dir, "n1", func(c *Config) { c.Log = slog.New(slog.NewJSONHandler(log, nil)) })
	_, id := p.submit(helloJob)
	j := p.waitDone(id)
	a := forgeyard.Authority{Job: forgeyard.JobID(id), Attempt: forgeyard.AttemptID(j.AttemptId), Lease: forgeyard.LeaseID(log.events(t)[0]["lease"].(string)), Fence: forgeyard.Fence{Epoch: 1}}
	p.node.notCleaned(a, errors.New("a mount is in it"))
	var types []string
	for _, e := range log.events(t) {
		types = append(types, e["event"].(string))
		for key, want := range map[string]any{"job": id, "attempt": j.AttemptId, "epoch": 1.0, "lease": string(a.Lease), "runner": string(p.node.enrolment.RunnerID), "session": forgeyard.Short(p.node.session)} {
			if e[key] != want {
				t.Errorf("%s has %s=%v, want %v", e["event"], key, e[key], want)
			}
		}
	}
	if want := []string{"lease_accepted", "workspace_prepared", "executor_started", "upload_completed", "cleanup_failed"}; !slices.Equal(types, want) {
		t.Errorf("%v, want %v", types, want)
	}
	if got := p.metrics()["forgeyard_agent_workspace_cleanup_failures_total"]; got != 1 {
		t.Errorf("%v failures of a clean-up are counted", got)
	}
}
