//go:build linux

package runner

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/layer"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
)

// layered is a bench whose workspaces share their sources. It ends the test where there is
// no sandbox: nothing is shared then.
func layered(t *testing.T, change ...func(*Config)) (*bench, *layer.Cache) {
	t.Helper()
	var c *layer.Cache
	b := newBench(t, append(change, func(cfg *Config) {
		if cfg.Executors[job.SandboxStrict] == cfg.Executors[job.SandboxProcess] {
			needs.Lacking(t, "there is no sandbox here that shares a tree")
		}
		var err error
		c, err = layer.Open(layer.Config{
			Dir: filepath.Join(filepath.Dir(cfg.Workspaces), "layers"), MaxBytes: 1 << 30, MaxInodes: 1 << 20,
			Store: cfg.Store, Clock: clock.System(), Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Layers = c
	})...)
	return b, c
}

// sources stores a tree of a small file, a large one, and a folder.
func (b *bench) sources() (root forgeyard.Digest, large string) {
	b.t.Helper()
	dir := b.t.TempDir()
	large = strings.Repeat("large source. ", 20_000)
	for name, text := range map[string]string{"small": "small source", "sub/large": large, "sub/empty": ""} {
		p := filepath.Join(dir, name)
		if err := errorsJoin(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			b.t.Fatal(err)
		}
	}
	ref, err := tree.Capture(b.t.Context(), b.store, dir, tree.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	return ref.Digest, large
}

func from(root forgeyard.Digest, path string, steps ...string) job.Spec {
	s := spec(steps...)
	if os.Geteuid() != 0 { // no control groups
		s.Resources = job.Resources{Disk: s.Resources.Disk}
	}
	s.Inputs = []job.Input{{Path: path, Tree: true, Digest: root}}
	return s
}

// The second job with the same sources gets them without a fetch and without a file being
// written: it reads the very files (device and inode) that the first one read. Each has
// its own workspace all the same (RA-180), in which it sees nothing that the one before
// wrote (RA-201, RA-202), and what goes into build is never shared.
func TestLayersAreShared(t *testing.T) {
	b, c := layered(t)
	root, _ := b.sources()
	fetched := 0
	b.tree = func(context.Context, forgeyard.Digest) error { fetched++; return nil }
	look := `stat -c %d.%i $FORGEYARD_SOURCE_DIR/small; cat $FORGEYARD_SOURCE_DIR/small; touch mine; ls`
	var said [2]string
	for i := range said {
		res, _, a := b.run(from(root, "source", look))
		if res.Outcome != job.OutcomeDone {
			t.Fatalf("%+v\n%s", res, b.text(a))
		}
		said[i] = b.stdout(a)
		if err := a.Finish(false); err != nil {
			t.Fatal(err)
		}
	}
	if said[0] != said[1] || !strings.HasSuffix(said[0], "small sourcemine\n") || fetched != 1 {
		t.Errorf("%q, fetched %d times", said, fetched)
	}
	if s := c.Stats(); s.Made != 1 || s.Reused != 1 || s.Leased != 0 || s.Layers != 1 {
		t.Errorf("%+v", s)
	}
	b.empty("workspaces")
	for name, s := range map[string]job.Spec{
		"below source": from(root, "source/deep/er", `cat $FORGEYARD_SOURCE_DIR/deep/er/small`),
		"with another in it": func() job.Spec {
			s := from(root, "source", `cat $FORGEYARD_SOURCE_DIR/small`)
			s.Inputs = append(s.Inputs, job.Input{Path: "source/more", Digest: b.put("x").Digest, Size: 1})
			return s
		}(),
		"to be written": from(root, "build/w", `cat w/small; echo x > w/small`),
		"without a sandbox": func() job.Spec {
			s := from(root, "source", `cat $FORGEYARD_SOURCE_DIR/small`)
			s.Sandbox = job.SandboxProcess
			return s
		}(),
		"more than its budget": func() job.Spec {
			s := from(root, "source", `cat $FORGEYARD_SOURCE_DIR/small`)
			s.Resources.Disk = 4 << 20
			return s
		}(),
	} {
		if s.Sandbox == job.SandboxProcess && os.Geteuid() != 0 {
			continue // only root's can keep a workload from the network
		}
		before := c.Stats()
		res, _, a := b.run(s)
		if after := c.Stats(); res.Outcome != job.OutcomeDone || b.stdout(a) != "small source" || (name == "below source" || name == "more than its budget") != (after.Reused > before.Reused) || after.Made != before.Made {
			t.Errorf("%s: %+v, %+v then %+v\n%s", name, res, before, after, b.text(a))
		}
		if err := a.Finish(false); err != nil {
			t.Error(err)
		}
	}
}

// While a job reads a tree, no lack of room takes it away; when the last one ended it may go.
func TestLayerInUseIsNotEvicted(t *testing.T) {
	b, c := layered(t)
	root, _ := b.sources()
	a := b.start(task(from(root, "source", `echo up; while [ ! -e go ]; do sleep 0.02; done; cat $FORGEYARD_SOURCE_DIR/small`)))
	b.await(a, "up")
	if n := b.r.Evict(math.MaxInt64); n != 0 || c.Stats().Layers != 1 {
		t.Errorf("%d bytes came free of a tree in use: %+v", n, c.Stats())
	}
	if err := os.WriteFile(filepath.Join(a.root, "build", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if res, _ := b.wait(a); res.Outcome != job.OutcomeDone || !strings.HasSuffix(b.stdout(a), "small source") {
		t.Fatalf("%+v\n%s", res, b.text(a))
	}
	if n := b.r.Evict(math.MaxInt64); n == 0 || c.Stats().Layers != 0 {
		t.Errorf("%d bytes came free: %+v", n, c.Stats())
	}
	b.empty("layers")
}

// A job that lacks a little room takes a little: the trees that may stay do.
func TestNoMoreIsEvictedThanIsShort(t *testing.T) {
	needs.Root(t, "mount a small tmpfs")
	small, err := os.MkdirTemp("/tmp", "fysmall-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(small) })
	if err := errorsJoin(os.Chmod(small, 0o711), unix.Mount("tmpfs", small, "tmpfs", 0, "size=64m,mode=711")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	b, c := layered(t, func(cfg *Config) { cfg.Workspaces = filepath.Join(small, "workspaces") })
	for _, text := range []string{"a", "b"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "x"), []byte(strings.Repeat(text, 4<<20)), 0o644); err != nil {
			t.Fatal(err)
		}
		ref, err := tree.Capture(t.Context(), b.store, dir, tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.Get(t.Context(), ref.Digest, layer.Want{Fetch: func(context.Context) error { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	}
	free, err := diskFree(small)
	if err != nil {
		t.Fatal(err)
	}
	s := spec("true")
	s.Resources.Disk = free + 2<<20
	res, _, a := b.run(s)
	if res.Outcome != job.OutcomeDone || c.Stats().Layers != 1 {
		t.Errorf("%+v, %+v\n%s", res, c.Stats(), b.text(a))
	}
}

// RA-190, content: a copy that rotted in this node's store is found before the work
// starts, and with somebody who has a good one the work runs; all that is damaged is
// brought in one go.
func TestCorruptInputIsHealed(t *testing.T) {
	for name, c := range map[string]struct {
		path string
		tree bool
	}{"a tree that is shared": {"source", true}, "a tree of its own": {"build/in", true}, "a file": {"source/x", false}} {
		t.Run(name, func(t *testing.T) {
			b, _ := layered(t)
			root, large := b.sources()
			again := 0
			heal := func() { again++; b.put(large) } // as a peer would
			b.tree = func(context.Context, forgeyard.Digest) error {
				if !b.store.Has(t.Context(), cas.Sum([]byte(large))) {
					heal()
				}
				return nil
			}
			b.fetch = func(context.Context, cas.Ref) error { heal(); return nil }
			s := from(root, c.path, `wc -c < ${FORGEYARD_SOURCE_DIR%/source}/`+c.path+`/sub/large`)
			if !c.tree {
				s = spec(`wc -c < $FORGEYARD_SOURCE_DIR/x`)
				s.Inputs = []job.Input{{Path: c.path, Digest: cas.Sum([]byte(large)), Size: int64(len(large))}}
			}
			spoil(t, filepath.Join(b.dir, "cas"), "large source")
			res, _, a := b.run(s)
			if res.Outcome != job.OutcomeDone || b.stdout(a) != "280000\n" || again != 1 {
				t.Fatalf("%+v, brought %d times\n%s", res, again, b.text(a))
			}
			if !strings.Contains(b.text(a), "is damaged in this node's store") {
				t.Errorf("nobody is told: %s", b.text(a))
			}
		})
	}
}

// RA-189 RA-190: with nobody who has a good copy the work does not start, and the failure
// says what kind of trouble it is, which path, and which digest.
func TestCorruptInputNamesPathAndDigest(t *testing.T) {
	for _, path := range []string{"source", "build/in"} {
		t.Run(path, func(t *testing.T) {
			b, c := layered(t)
			root, large := b.sources()
			spoil(t, filepath.Join(b.dir, "cas"), "large source")
			res, _, a := b.run(from(root, path, "echo ran"))
			if res.Category != job.CorruptInput || strings.Contains(b.text(a), "ran\n") {
				t.Fatalf("%+v\n%s", res, b.text(a))
			}
			for _, word := range []string{"CorruptInput", path, root.String(), "sub/large", cas.Sum([]byte(large)).String()} {
				if !strings.Contains(res.Message, word) {
					t.Errorf("%q is not in %q", word, res.Message)
				}
			}
			if err := a.Finish(false); err != nil || c.Stats().Layers != 0 {
				t.Error(err, c.Stats())
			}
			b.empty("layers")
			b.empty("workspaces")
		})
	}
}

// A workload can never change a tree that others read too, whatever it tries, nor what is
// stored (RA-186). The attacker is this test's own program, inside the sandbox.
func TestLayerAttacks(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, c := layered(t, func(cfg *Config) { cfg.HelperPath = self })
	root, large := b.sources()
	s := from(root, "source", `/work/bin/fyjob; echo survived`)
	s.Env = map[string]string{envAttack: "/work/source"}
	s.Resources.Disk = 512 << 20
	res, _, a := b.run(s)
	said := b.text(a)
	if res.Outcome != job.OutcomeDone || !strings.Contains(said, "survived\n") || strings.Count(said, "tried ") < len(attacks) || strings.Contains(said, "WROTE") {
		t.Fatalf("%+v\n%s", res, said)
	}
	t.Log(said)
	l, err := c.Get(t.Context(), root, layer.Want{Fetch: func(context.Context) error { t.Error("the tree is not given out again"); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if err := tree.Check(t.Context(), b.store, root, l.Dir, tree.Limits{}); err != nil || !l.Reused || c.Stats().Wrong != 0 {
		t.Errorf("%v %+v", err, c.Stats())
	}
	if b.get(cas.Sum([]byte(large))) != large {
		t.Error("the store's bytes changed")
	}
}

// The attacks must be able to do harm, or that they do none says nothing: on a folder that
// may be written the plain ones succeed.
func TestAttacksCanWrite(t *testing.T) {
	dir := t.TempDir()
	if err := errorsJoin(os.MkdirAll(filepath.Join(dir, "sub"), 0o755), os.WriteFile(filepath.Join(dir, "small"), []byte("small source"), 0o644)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := exec.Command(os.Args[0])
	c.Env, c.Stdout, c.Stderr, c.Dir = append(os.Environ(), envAttack+"="+dir, envPlain+"=1"), &out, &out, t.TempDir()
	if err := c.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, x := range attacks {
		if x.plain && !strings.Contains(out.String(), "WROTE by "+x.name+"\n") {
			t.Errorf("%s does no harm where it could:\n%s", x.name, &out)
		}
	}
}

// As an ordinary user, where the workload has the daemon's own uid and only the mount
// stands between it and the tree.
func TestLayersRootless(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the tests above already run without root")
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "fyrootless-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "runner.test")
	if err := errorsJoin(os.WriteFile(bin, self, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups", bin, "-test.v", "-test.run", "^(TestLayersAreShared|TestLayerAttacks|TestLayerInUseIsNotEvicted)$")
	c.Dir = "/"
	c.Env = []string{"PATH=/usr/bin:/bin", "HOME=/", "TMPDIR=/tmp", "CI=" + os.Getenv("CI")}
	out, err := c.CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("SKIP")) {
		t.Fatalf("%v\n%s", err, out)
	}
}
