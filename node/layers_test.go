package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// Trees that were kept for reuse go when none are to be kept any more, or nothing can use them:
// nobody else would ever remove them.
func TestNoLayersAreLeft(t *testing.T) {
	s, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	strict := map[job.Sandbox]executor.Executor{job.SandboxStrict: nil}
	for name, c := range map[string]struct {
		executors map[job.Sandbox]executor.Executor
		budget    int64
		stays     bool
	}{"kept": {strict, 1 << 30, true}, "none is kept": {strict, 0, false}, "no sandbox": {nil, 1 << 30, false}} {
		n := &Node{dir: &dataDir{path: t.TempDir()}, store: s, clock: clock.System(), log: slog.New(slog.DiscardHandler), executors: c.executors}
		n.cfg.Settings.Limits.Layers = sitecfg.Size(c.budget)
		kept := filepath.Join(n.dir.join(dirLayers), cas.Sum(nil).Hex()+"-8192-0-2-1")
		if err := os.MkdirAll(filepath.Join(kept, "tree"), 0o700); err != nil {
			t.Fatal(err)
		}
		got, err := n.openLayers()
		if err != nil || (got != nil) != c.stays || n.layers != got {
			t.Errorf("%s: %v %v", name, got, err)
		}
		if _, err := os.Stat(kept); os.IsNotExist(err) == c.stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}
