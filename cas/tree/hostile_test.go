//go:build linux

package tree_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

func TestCaptureRefuses(t *testing.T) {
	ctx, s := context.Background(), store(t)
	for name, c := range map[string]struct {
		make func(dir string) error
		path string // that the error must name
	}{
		"link out":       {func(d string) error { return os.Symlink("../../etc/passwd", filepath.Join(d, "sub/evil")) }, "sub/evil"},
		"absolute link":  {func(d string) error { return os.Symlink("/etc/passwd", filepath.Join(d, "evil")) }, "evil"},
		"up after name":  {func(d string) error { return os.Symlink("sub/../..", filepath.Join(d, "evil")) }, "evil"},
		"link to parent": {func(d string) error { return os.Symlink("..", filepath.Join(d, "evil")) }, "evil"},
		"pipe":           {func(d string) error { return syscall.Mkfifo(filepath.Join(d, "sub/pipe"), 0o600) }, "sub/pipe"},
		"socket": {func(d string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(d, "sock")})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		}, "sock"},
		"device": {func(d string) error {
			return unix.Mknod(filepath.Join(d, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
		}, "null"},
		"not UTF-8": {func(d string) error { return os.WriteFile(filepath.Join(d, "bad\xff"), nil, 0o600) }, `bad\xff`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, map[string]string{"sub/ok": "x"})
			if err := c.make(dir); err != nil {
				needs.Lacking(t, "cannot be made here: %v", err)
			}
			_, err := tree.Capture(ctx, s, dir, tree.Options{})
			castest.WantKind(t, err, forgeyard.Invalid)
			if !strings.Contains(err.Error(), c.path) {
				t.Errorf("does not name %s: %v", c.path, err)
			}
			_, err = tree.CaptureOutputs(ctx, s, dir, []string{"."}, tree.Options{})
			castest.WantKind(t, err, forgeyard.Invalid)
		})
	}
}

// RA-184, RA-259, CK-412: what is declared and nothing beside it, as one tree.
func TestCaptureOutputs(t *testing.T) {
	ctx, s := context.Background(), store(t)
	dir := lay(t, map[string]string{"bin/app": "#!app", "out/log/a": "1", "out/log/b": "-> a", "secret": "not declared", "out/other": "no"})
	got, err := tree.CaptureOutputs(ctx, s, dir, []string{"./bin/app", "out/log/"}, tree.Options{Owner: "attempt/1"})
	must(t, err)
	if len(got.Items) != 2 || got.Items[0].Path != "bin/app" || got.Items[0].Kind != cas.File || !got.Items[0].Exec || got.Items[0].Bytes != 5 ||
		got.Items[1].Path != "out/log" || got.Items[1].Kind != cas.Dir || got.Items[1].Bytes != 1 || got.Items[1].Files != 3 {
		t.Fatalf("%+v", got.Items)
	}
	dst := filepath.Join(t.TempDir(), "w")
	_, err = tree.Materialise(ctx, s, got.Root.Digest, dst, tree.Materialisation{})
	must(t, err)
	var names []string
	must(t, filepath.WalkDir(dst, func(p string, e os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dst, p)
		names = append(names, rel)
		return err
	}))
	if want := ". bin bin/app out out/log out/log/a out/log/b"; strings.Join(names, " ") != want {
		t.Fatalf("%v, want %s", names, want)
	}
	none, err := tree.CaptureOutputs(ctx, s, dir, nil, tree.Options{})
	if err != nil || none.Root.Files != 0 {
		t.Fatalf("%+v %v", none, err)
	}
}

// An output that leaves the workspace, by its text (RA-255), by a link or through one
// (RA-256, CK-412).
func TestCaptureOutputsRefuses(t *testing.T) {
	ctx, s := context.Background(), store(t)
	dir := lay(t, map[string]string{
		"f": "x", "d/f": "x", "inside": "-> f", "outside": "-> /etc/passwd", "via": "-> d", "viaout": "-> /etc", "bad/l": "-> ../f", "loop": "-> loop",
	})
	for name, c := range map[string]struct {
		paths []string
		want  forgeyard.Kind
	}{
		"dotdot":              {[]string{"../x"}, forgeyard.Invalid},
		"dotdot inside":       {[]string{"d/../f"}, forgeyard.Invalid},
		"absolute":            {[]string{"/etc/passwd"}, forgeyard.Invalid},
		"empty":               {[]string{""}, forgeyard.Invalid},
		"NUL":                 {[]string{"a\x00b"}, forgeyard.Invalid},
		"a link out":          {[]string{"outside"}, forgeyard.Invalid},
		"a link":              {[]string{"inside"}, forgeyard.Invalid},
		"a loop":              {[]string{"loop"}, forgeyard.Invalid},
		"through a link":      {[]string{"via/f"}, forgeyard.Invalid},
		"through a link out":  {[]string{"viaout/passwd"}, forgeyard.Invalid},
		"holds a link out":    {[]string{"bad"}, forgeyard.Invalid},
		"through a file":      {[]string{"f/x"}, forgeyard.Invalid},
		"twice":               {[]string{"f", "./f"}, forgeyard.Invalid},
		"nested":              {[]string{"d", "d/f"}, forgeyard.Invalid},
		"root and part":       {[]string{".", "f"}, forgeyard.Invalid},
		"was not produced":    {[]string{"f", "d/none"}, forgeyard.NotFound},
		"too deep":            {[]string{strings.Repeat("d/", cas.MaxDepth+1)}, forgeyard.Limit},
		"more than the limit": {[]string{"f", "d"}, forgeyard.Limit},
	} {
		o := tree.Options{}
		if c.want == forgeyard.Limit {
			o.MaxBytes = 1
		}
		_, err := tree.CaptureOutputs(ctx, s, dir, c.paths, o)
		if err == nil || forgeyard.KindOf(err) != c.want || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Files of another user than the workload's are not what it made, however they came there.
func TestCaptureOutputsOfOneUser(t *testing.T) {
	ctx, s := context.Background(), store(t)
	dir := lay(t, map[string]string{"f": "x", "d/f": "x"})
	for _, p := range []string{"f", "d"} {
		_, err := tree.CaptureOutputs(ctx, s, dir, []string{p}, tree.Options{UID: os.Geteuid() + 1})
		if forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s of another user: %v", p, err)
		}
	}
	_, err := tree.CaptureOutputs(ctx, s, dir, []string{"f", "d"}, tree.Options{UID: os.Geteuid()})
	must(t, err)
}

// A workload that swaps files, directories and links while its outputs are captured:
// the capture fails or holds what was declared, and never a byte from outside or of
// what was not declared.
func TestCaptureRace(t *testing.T) {
	ctx, s := context.Background(), store(t)
	outside := t.TempDir()
	secret, undeclared := []byte("s3cr"), []byte("undc") // as long as what is declared, so that no size gives them away
	must(t, os.WriteFile(filepath.Join(outside, "f"), secret, 0o600))
	dir := lay(t, map[string]string{
		"d/f": "mine", "f": "mine", "undeclared": string(undeclared), "other/f": string(undeclared),
		"swap/d1": "-> " + outside, "swap/d2": "-> ../other", "swap/f1": "-> " + filepath.Join(outside, "f"), "swap/f2": "-> ../undeclared", "swap/f3": "-> undeclared", "swap/d3": "-> other",
	})
	must(t, syscall.Mkfifo(filepath.Join(dir, "swap/f4"), 0o600))
	must(t, syscall.Mkfifo(filepath.Join(dir, "swap/d4"), 0o600))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, name := range []string{"d", "f"} {
				a, b := filepath.Join(dir, name), filepath.Join(dir, "swap", name+strconv.Itoa(1+i%4))
				for range 2 { // there and back, with no moment in between at which there is nothing
					if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
						t.Errorf("swap: %v", err)
						return
					}
				}
			}
		}
	}()
	won, lost := 0, 0
	for i := range 6000 {
		_, err := tree.CaptureOutputs(ctx, s, dir, [][]string{{"d"}, {"f"}, {"d", "f"}, {"d/f"}}[i%4], tree.Options{})
		if err == nil {
			won++
		} else {
			lost++
			switch forgeyard.KindOf(err) {
			case forgeyard.Invalid, forgeyard.Conflict, forgeyard.NotFound:
			default:
				t.Fatalf("%v", err)
			}
		}
	}
	close(stop)
	<-done
	t.Logf("%d captures went through, %d noticed", won, lost)
	if s.Has(ctx, cas.Sum(secret)) || s.Has(ctx, cas.Sum(undeclared)) {
		t.Fatal("what was not declared was captured")
	}
	if won == 0 || lost == 0 {
		t.Fatal("the race was never met, so this shows nothing")
	}
}

// A disk that is full while a tree is materialised gives NoSpace, named.
func TestMaterialiseOnFullDisk(t *testing.T) {
	ctx, s := context.Background(), store(t)
	ref, err := tree.Capture(ctx, s, lay(t, map[string]string{"a": string(castest.Bytes(1, 300_000)), "b": string(castest.Bytes(2, 3<<20))}), tree.Options{})
	must(t, err)
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		needs.Lacking(t, "no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(small, 0)) })
	_, err = tree.Materialise(ctx, s, ref.Digest, filepath.Join(small, "w"), tree.Materialisation{})
	castest.WantKind(t, err, forgeyard.NoSpace)
	must(t, tree.Remove(filepath.Join(small, "w")))
}
