package node

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// reloads hands a node new settings, as a file and SIGHUP do.
type reloads struct {
	mu   sync.Mutex
	set  sitecfg.Node
	err  error
	ring chan os.Signal
}

func (r *reloads) load() (sitecfg.Node, []sitecfg.Setting, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set, []sitecfg.Setting{{Key: "limits.max_jobs", Value: "2", Source: sitecfg.FromFile}}, r.err
}

// say changes what the file says, and rings.
func (r *reloads) say(change func(*sitecfg.Node) error) {
	r.mu.Lock()
	r.err = change(&r.set)
	r.mu.Unlock()
	r.ring <- syscall.SIGHUP
}

// A running node takes over the log level (RA-359) and its limits (RA-360), in each part that
// has its own copy, and registers what it offers now (RA-114); a key that needs a restart is
// named and waits (RA-362); a file that is wrong changes nothing and doctor says why.
func TestReload(t *testing.T) {
	r, level := &reloads{ring: make(chan os.Signal, 1)}, &slog.LevelVar{}
	one := makeSite(t, 1, func(c *Config) {
		r.set, c.Load, c.Reload, c.Level = c.Settings, r.load, r.ring, level
	})[0]
	n := one.node
	health := func() string { return n.checkSettings().Status + ": " + n.checkSettings().Detail }
	r.say(func(s *sitecfg.Node) error {
		s.Log.Level, s.Limits.MaxJobs, s.Labels, s.CAS.Limit = "debug", 2, map[string]string{"bench": "a"}, 1<<20
		s.Limits.Reserve.Disk, s.Policy.Network, s.Executors = 123, "host", nil
		return nil
	})
	one.wait("registered anew", func() bool {
		m, _ := n.replica.State().Members.Get(n.enrolment.RunnerID)
		return m.Caps.MaxJobs == 2 && m.Caps.Labels["bench"] == "a" && m.Digest == capsDigest(n.capsNow())
	})
	if level.Level() != slog.LevelDebug || !n.allowsHost() || len(n.settings().Executors) == 0 {
		t.Errorf("%v, %+v", level, n.settings())
	}
	if _, err := n.store.Put(t.Context(), bytes.NewReader(make([]byte, 2<<20)), cas.PutOptions{}); forgeyard.KindOf(err) != forgeyard.NoSpace {
		t.Errorf("a store of 1 MiB took 2 MiB: %v", err)
	}
	if h := health(); !strings.Contains(h, "warn: ") || !strings.Contains(h, "executors") {
		t.Error(h)
	}
	for _, s := range n.Doctor(t.Context()).Settings {
		if s.Key == "limits.max_jobs" && (s.Value != "2" || s.Source != "file") || s.Key == "executors" && s.Value == "" {
			t.Errorf("doctor shows %v", s)
		}
	}

	r.say(func(*sitecfg.Node) error { return errors.New("node.yaml:3:7: no such key") })
	one.wait("refused", func() bool { return strings.Contains(health(), "node.yaml:3:7") })
	if n.settings().Limits.MaxJobs != 2 || level.Level() != slog.LevelDebug {
		t.Errorf("%+v", n.settings())
	}

	r.say(func(s *sitecfg.Node) error { s.Executors, s.Limits.MaxJobs = n.cfg.Settings.Executors, 3; return nil })
	one.wait("mended", func() bool { return strings.HasPrefix(health(), "ok: read again") && n.capsNow().MaxJobs == 3 })
}
