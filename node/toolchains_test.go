package node

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// What node.yaml names stays in the store, from its arrival on and until it is named no more;
// what is not here is told.
func TestToolchainsOfTheSettingsAreKept(t *testing.T) {
	s, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	// Objects, and trees of one file each; nothing but a pin keeps them.
	put := func(seed uint64) (root, file forgeyard.Digest) {
		f := castest.Put(t, s, castest.Bytes(seed, 300))
		b, err := cas.Tree{Entries: []cas.Entry{{Name: "tool", Kind: cas.File, Digest: f.Digest, Size: f.Size}}}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return castest.Put(t, s, b).Digest, f.Digest
	}
	goRoot, goFile := put(1)
	n := &Node{store: s, log: slog.New(slog.DiscardHandler)}
	has := func(ds ...forgeyard.Digest) bool {
		t.Helper()
		if err := n.keepToolchains(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GC(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(ds, func(d forgeyard.Digest) bool { return !s.Has(t.Context(), d) })
	}
	n.cfg.Settings.Toolchains = []sitecfg.ToolchainConfig{{Name: "go", Digest: goRoot}, {Name: "make"}}
	if !has(goRoot, goFile) {
		t.Error("it was collected")
	}

	elsewhere, nowhere := cas.Sum([]byte("elsewhere")), cas.Sum([]byte("nowhere"))
	n.cfg.Settings.Toolchains = append(n.cfg.Settings.Toolchains, sitecfg.ToolchainConfig{Name: "zig", Digest: elsewhere}, sitecfg.ToolchainConfig{Name: "rust", Digest: nowhere})
	ask := func(_ context.Context, peer string, ds []forgeyard.Digest) ([]caspeer.Answer, error) {
		if peer == "silent" {
			return nil, forgeyard.Errorf("ask", forgeyard.Unavailable, "no answer")
		}
		var out []caspeer.Answer
		for _, d := range ds {
			out = append(out, caspeer.Answer{Have: peer == "r2" && d == elsewhere})
		}
		return out, nil
	}
	for want, peers := range map[string][]string{"rust zig": {"silent", "r3"}, "rust": {"silent", "r3", "r2"}} {
		if got := strings.Join(n.lackingToolchains(t.Context(), peers, ask), " "); got != want {
			t.Errorf("asking %v: %s lack, not %s", peers, got, want)
		}
	}
	// A job is refused for what it names and nobody has, and for nothing else.
	for names, refused := range map[string]bool{"": false, "go": false, "make": false, "zig": false, "go zig gcc": false, "rust": true, "zig rust": true} {
		sp := job.Spec{Requires: job.Requires{Toolchains: strings.Fields(names)}}
		err := n.checkToolchainsOf(t.Context(), sp, []string{"silent", "r2"}, ask)
		if (err != nil) != refused || refused && (forgeyard.KindOf(err) != forgeyard.NotFound || !strings.Contains(err.Error(), "toolchain rust")) {
			t.Errorf("%q: %v", names, err)
		}
	}

	n.cfg.Settings.Toolchains = []sitecfg.ToolchainConfig{{Name: "go", Digest: elsewhere}}
	if has(goRoot) || s.Has(t.Context(), goFile) {
		t.Error("what the name does not mean any more is kept")
	}

	n.cfg.Settings.Toolchains = nil
	has()
	if pins, err := s.Pins(t.Context()); err != nil || len(pins) != 0 {
		t.Errorf("%+v %v", pins, err)
	}
}
