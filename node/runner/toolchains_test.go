//go:build linux

package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/job"
)

// RA-121, RA-123, RA-126: a toolchain is named by the digest of its tree, by the job or by the
// node under the name that the job requires. It is fetched and made once, is where every job
// finds it, and cannot be written.
func TestToolchainsComeFromTheStore(t *testing.T) {
	var warmed atomic.Int64
	managed := map[string]forgeyard.Digest{}
	b, c := layered(t, func(cfg *Config) {
		cfg.Toolchains = func() map[string]forgeyard.Digest { return managed }
		cfg.Warmed = func() { warmed.Add(1) }
	})
	root, _ := b.sources()
	managed["tool"] = root
	fetched := 0
	b.tree = func(context.Context, forgeyard.Digest) error { fetched++; return nil }
	look := `cat $FORGEYARD_TOOLCHAIN_TOOL/small; if echo x 2>/dev/null > /work/toolchains/tool/small; then echo written; fi; echo ${FORGEYARD_TOOLCHAIN_CAT-}`
	byName := from(root, "source", look)
	byName.Inputs, byName.Requires.Toolchains = nil, []string{"tool", "cat"} // of those the node manages one
	for i, s := range []job.Spec{from(root, "toolchains/tool", look), byName} {
		res, _, a := b.run(s)
		if res.Outcome != job.OutcomeDone || b.stdout(a) != "small source\n" {
			t.Fatalf("%d: %+v %q\n%s", i, res, b.stdout(a), b.text(a))
		}
		if err := a.Finish(false); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.Made != 1 || s.Reused < 1 || s.Leased != 0 || fetched < 1 {
		t.Errorf("%+v, fetched %d times", s, fetched)
	}
	if got := b.r.WarmToolchains(); !slices.Equal(got, []forgeyard.Digest{root}) || warmed.Load() != 1 {
		t.Errorf("%v are warm, told %d times", got, warmed.Load())
	}
	b.empty("workspaces")

	// A source is no toolchain, though it is kept for reuse as well.
	dir := b.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	ref, err := tree.Capture(t.Context(), b.store, dir, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := ref.Digest
	if res, _, a := b.run(from(other, "source", "true")); res.Outcome != job.OutcomeDone || a.Finish(false) != nil || !c.Has(other) || len(b.r.WarmToolchains()) != 1 {
		t.Errorf("%+v: %v", res, b.r.WarmToolchains())
	}
}

// Where nothing is kept for reuse the attempt has the toolchain to itself, in the same place and
// as little to be written.
func TestToolchainOfOneAttempt(t *testing.T) {
	b, _ := layered(t)
	b.r.cfg.Layers = nil
	root, _ := b.sources()
	res, _, a := b.run(from(root, "toolchains/tool", `cat /work/toolchains/tool/small; if echo x 2>/dev/null > /work/toolchains/tool/small; then echo written; fi`))
	if res.Outcome != job.OutcomeDone || b.stdout(a) != "small source" || len(b.r.WarmToolchains()) != 0 {
		t.Errorf("%+v %q %v\n%s", res, b.stdout(a), b.r.WarmToolchains(), b.text(a))
	}
	if err := a.Finish(false); err != nil {
		t.Error(err)
	}
	b.empty("workspaces")
}

// A toolchain that the node added takes nothing of the disk that the job asked for, kept for
// reuse or not; one that the job brings does.
func TestToolchainOfTheNodeIsNotOfTheJobsDisk(t *testing.T) {
	for name, kept := range map[string]bool{"kept for reuse": true, "of one attempt": false} {
		t.Run(name, func(t *testing.T) {
			managed := map[string]forgeyard.Digest{}
			b, _ := layered(t, func(cfg *Config) {
				cfg.Toolchains = func() map[string]forgeyard.Digest { return managed }
			})
			if !kept {
				b.r.cfg.Layers = nil
			}
			root, large := b.sources()
			managed["g++-12"] = root
			look := `wc -c < /work/toolchains/g++-12/sub/large; echo $FORGEYARD_TOOLCHAIN_G___12`
			brings := from(root, "toolchains/tool", "true")
			brings.Resources.Disk = int64(len(large)) / 2
			byName := from(root, "source", look)
			byName.Inputs, byName.Requires.Toolchains, byName.Resources.Disk = nil, []string{"g++-12"}, brings.Resources.Disk
			res, _, a := b.run(byName)
			if want := fmt.Sprintf("%d\n/work/toolchains/g++-12\n", len(large)); res.Outcome != job.OutcomeDone || b.stdout(a) != want {
				t.Errorf("%+v %q\n%s", res, b.stdout(a), b.text(a))
			}
			if err := a.Finish(false); err != nil {
				t.Error(err)
			}
			res, _, a = b.run(brings)
			if res.Outcome == job.OutcomeDone {
				t.Errorf("%+v", res)
			}
			if err := a.Finish(false); err != nil {
				t.Error(err)
			}
		})
	}
}

// What many jobs bring is remembered up to a bound, the longest unused forgotten first; what is
// not kept any more is not warm.
func TestWarmToolchainsAreBounded(t *testing.T) {
	r := &Runner{}
	digest := func(i int) forgeyard.Digest { return forgeyard.Digest{byte(i), 1} }
	for i := range job.MaxWarm + 3 {
		r.warmed(digest(i), false)
		r.warmed(digest(0), true) // used again and again
	}
	if n := len(r.toolchains.known); n != job.MaxWarm {
		t.Errorf("%d are remembered", n)
	}
	for i, want := range map[int]bool{0: true, 1: false, 3: false, 4: true, job.MaxWarm + 2: true} {
		if _, got := r.toolchains.known[digest(i)]; got != want {
			t.Errorf("number %d: %v", i, got)
		}
	}
	if got := r.WarmToolchains(); len(got) != 0 { // there is no cache that has them
		t.Errorf("%v", got)
	}
}
