//go:build linux

package tree_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

func sh(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		needs.Lacking(t, "%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// filesystem mounts a fresh one of a kind, from a file.
func filesystem(t testing.TB, size int64, mkfs, mount []string) string {
	t.Helper()
	needs.Root(t, "mount a filesystem")
	image, at := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, size))
	loop := sh(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { sh(t, "losetup", "--detach", loop) })
	sh(t, mkfs[0], append(mkfs[1:], loop)...)
	sh(t, mount[0], append(mount[1:], loop, at)...)
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
	return at
}

func storeIn(t testing.TB, dir string) *disk.Store {
	t.Helper()
	s, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "cas"), NoSync: true, Reserve: -1, ReserveInodes: -1})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// three large files, and a small one.
func large(t testing.TB) (dir string, want map[string][]byte) {
	t.Helper()
	want = map[string][]byte{"a": castest.Bytes(1, 3<<20+5), "b": castest.Bytes(2, 200_000), "c": castest.Bytes(3, cas.BlockSize), "small": []byte("s")}
	dir = t.TempDir()
	for n, b := range want {
		must(t, os.WriteFile(filepath.Join(dir, n), b, 0o600))
	}
	return dir, want
}

func same(t testing.TB, dir string, want map[string][]byte) {
	t.Helper()
	for n, b := range want {
		if got, err := os.ReadFile(filepath.Join(dir, n)); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s holds %d other bytes, %v", n, len(got), err)
		}
	}
}

// RA-187, RA-188: a clone where the disk can, else a copy by the kernel, else a copy; and
// never a link to the store's file.
func TestHowFilesCome(t *testing.T) {
	xfs := [2][]string{{"mkfs.xfs", "-q", "-m", "reflink=1"}, {"mount", "-t", "xfs"}}
	btrfs := [2][]string{{"mkfs.btrfs", "-q"}, {"mount", "-t", "btrfs"}}
	ext4 := [2][]string{{"mkfs.ext4", "-q"}, {"mount", "-t", "ext4"}}
	for name, c := range map[string]struct {
		fs                     [2][]string
		elsewhere              bool // the workspace is on another disk
		cloned, ranged, copied int64
	}{
		"xfs":     {xfs, false, 3, 0, 1},
		"btrfs":   {btrfs, false, 3, 0, 1},
		"ext4":    {ext4, false, 0, 3, 1},
		"two":     {btrfs, true, 0, 0, 4},
		"two xfs": {xfs, true, 0, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, at := context.Background(), filesystem(t, 400<<20, c.fs[0], c.fs[1])
			s := storeIn(t, at)
			src, want := large(t)
			ref, err := tree.Capture(ctx, s, src, tree.Options{})
			must(t, err)
			dst := filepath.Join(at, "w")
			if c.elsewhere {
				dst = filepath.Join(t.TempDir(), "w")
			}
			r, err := tree.Materialise(ctx, s, ref.Digest, dst, tree.Materialisation{ReadOnly: true})
			must(t, err)
			if r.Cloned != c.cloned || r.Ranged != c.ranged || r.Copied != c.copied {
				t.Errorf("%+v", r)
			}
			if shared := int64(3<<20 + 5 + 200_000 + cas.BlockSize); c.cloned > 0 && r.Shared != shared {
				t.Errorf("%d bytes are shared, not %d", r.Shared, shared)
			}
			same(t, dst, want)
			noLinks(t, dst)
		})
	}
}

// noLinks checks that no file has a second name, such as the store's.
func noLinks(t testing.TB, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && d.Type().IsRegular() {
			if err = unix.Lstat(p, &st); err == nil && st.Nlink != 1 {
				t.Errorf("%s has %d names", p, st.Nlink)
			}
		}
		return err
	}))
}

// One file that cannot be cloned comes another way; the others are cloned all the same. On
// btrfs a file without copy-on-write is one.
func TestFallsBackForOneFileAlone(t *testing.T) {
	ctx, at := context.Background(), filesystem(t, 400<<20, []string{"mkfs.btrfs", "-q"}, []string{"mount", "-t", "btrfs"})
	s := storeIn(t, at)
	src, want := large(t)
	ref, err := tree.Capture(ctx, s, src, tree.Options{})
	must(t, err)
	stored, release, err := s.Path(ctx, cas.Sum(want["a"]))
	must(t, err)
	release()
	other := filepath.Join(at, "other")
	must(t, os.WriteFile(other, nil, 0o444))
	sh(t, "chattr", "+C", other)
	must(t, os.WriteFile(other, want["a"], 0o444))
	must(t, os.Rename(other, stored))
	r, err := tree.Materialise(ctx, s, ref.Digest, filepath.Join(at, "w"), tree.Materialisation{})
	must(t, err)
	if r.Cloned != 2 || r.Ranged != 1 {
		t.Errorf("%+v", r)
	}
	same(t, filepath.Join(at, "w"), want)
}

// onDisk is what a folder takes on its disk.
func onDisk(t testing.TB, dir string) (n int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && d.Type().IsRegular() {
			err = unix.Lstat(p, &st)
			n += st.Blocks * 512
		}
		return err
	}))
	return n
}

// A file with holes takes neither the store's disk nor the workspace's, on any way.
func TestSparseFiles(t *testing.T) {
	const size, data = 160 << 20, 100_000
	ext4 := filesystem(t, 400<<20, []string{"mkfs.ext4", "-q"}, []string{"mount", "-t", "ext4"})
	xfs := filesystem(t, 400<<20, []string{"mkfs.xfs", "-q"}, []string{"mount", "-t", "xfs"})
	src := t.TempDir()
	f, err := os.Create(filepath.Join(src, "disk.img"))
	must(t, err)
	for _, at := range []int64{0, 77<<20 + 5, 120 << 20} {
		_, err = f.WriteAt(castest.Bytes(uint64(at+1), data), at)
		must(t, err)
	}
	must(t, errors.Join(f.Truncate(size), f.Close()))
	for name, c := range map[string]struct{ store, work string }{"ranged": {ext4, ext4}, "cloned": {xfs, xfs}, "copied": {xfs, ext4}} {
		ctx, dir := context.Background(), filepath.Join(c.store, name)
		must(t, os.Mkdir(dir, 0o700))
		s, dst := storeIn(t, dir), filepath.Join(c.work, name+"-w")
		ref, err := tree.Capture(ctx, s, src, tree.Options{})
		must(t, err)
		if n := onDisk(t, filepath.Join(dir, "cas", "blobs")); n > 16<<20 {
			t.Errorf("%s: the store takes %d bytes for %d of data", name, n, 3*data)
		}
		r, err := tree.Materialise(ctx, s, ref.Digest, dst, tree.Materialisation{})
		must(t, err)
		if n := onDisk(t, dst); n > 16<<20 || r.Cloned+r.Ranged+r.Copied != 1 {
			t.Errorf("%s: the workspace takes %d bytes, %+v", name, n, r)
		}
		if again, err := tree.Capture(ctx, s, dst, tree.Options{}); err != nil || again != ref {
			t.Errorf("%s: it is another file now: %v", name, err)
		}
		must(t, tree.Remove(dst))
	}
}

// RA-189 PathIncompatible: names that a filesystem folds together or does not have are
// refused by name. Where it keeps them apart, both are there: case, and the two ways to
// write a letter with an accent.
func TestPathsThatAFilesystemCannotHold(t *testing.T) {
	ctx, s := context.Background(), store(t)
	exfat := filesystem(t, 50<<20, []string{"mkfs.exfat"}, []string{"mount.exfat-fuse"})
	for name, c := range map[string]struct {
		files map[string]string
		path  string // what the error names, in small letters: which of two comes second is chance; empty: it fits everywhere
	}{
		"plain":              {map[string]string{"d/a": "1", "b": "2"}, ""},
		"case of files":      {map[string]string{"d/Readme": "1", "d/readme": "2"}, "d/readme"},
		"case of folders":    {map[string]string{"D/x": "1", "d/y": "2"}, `"d"`},
		"case of an umlaut":  {map[string]string{"É": "1", "é": "2"}, "é"},
		"forms of a letter":  {map[string]string{"caf\u00e9": "nfc", "cafe\u0301": "nfd"}, ""}, // exFAT keeps these apart too
		"a character":        {map[string]string{"a:b": "1"}, "a:b"},
		"a link":             {map[string]string{"l": "-> a", "a": "1"}, `"l"`},
		"a link and a file ": {map[string]string{"X": "1", "x/y": "-> z"}, `"x`},
	} {
		t.Run(name, func(t *testing.T) {
			ref, err := tree.Capture(ctx, s, lay(t, c.files), tree.Options{})
			must(t, err)
			here, there := filepath.Join(t.TempDir(), "w"), filepath.Join(exfat, "w")
			_, err = tree.Materialise(ctx, s, ref.Digest, here, tree.Materialisation{})
			must(t, err)
			if again, err := tree.Capture(ctx, s, here, tree.Options{}); err != nil || again != ref {
				t.Errorf("not what it was: %v", err)
			}
			_, err = tree.Materialise(ctx, s, ref.Digest, there, tree.Materialisation{})
			if (err != nil) != (c.path != "") || (err != nil && (!errors.Is(err, tree.ErrPath) || forgeyard.KindOf(err) != forgeyard.Invalid || !strings.Contains(strings.ToLower(err.Error()), c.path))) {
				t.Errorf("%v", err)
			}
			must(t, tree.Remove(there))
		})
	}
}

// E25, RA-189 DiskInsufficient: space or inodes that end at any write of a tree give
// NoSpace; what was made goes away; and the same process goes on when there is room.
func TestMaterialiseWhereverTheDiskEnds(t *testing.T) {
	needs.Root(t, "mount a small tmpfs")
	ctx, s := context.Background(), store(t)
	files := map[string]string{"a/b/c/one": "1", "a/two": string(castest.Bytes(1, 40_000)), "l": "-> a", "big": string(castest.Bytes(2, 300_000)), "z/empty": ""}
	ref, err := tree.Capture(ctx, s, lay(t, files), tree.Options{})
	must(t, err)
	at := t.TempDir()
	must(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=4k,nr_inodes=2"))
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	dst, went := filepath.Join(at, "w"), map[string]int{}
	for _, c := range []struct{ unit, room string }{{"nr_inodes=%d", "size=1m,nr_inodes=%d"}, {"size=%dk", "nr_inodes=100,size=%dk"}} {
		for n, step := 2, 1; ; n += step {
			if strings.HasPrefix(c.unit, "size") {
				step = 4 // a page
			}
			must(t, unix.Mount("tmpfs", at, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf(c.room, n*step)))
			_, err := tree.Materialise(ctx, s, ref.Digest, dst, tree.Materialisation{ReadOnly: true})
			if err == nil {
				must(t, tree.Remove(dst))
				break
			}
			castest.WantKind(t, err, forgeyard.NoSpace)
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %v", err)
			}
			went[c.unit]++
			must(t, tree.Remove(dst))
			if l, err := os.ReadDir(at); err != nil || len(l) > 0 {
				t.Fatalf("%v stays, %v", l, err)
			}
		}
	}
	if went["nr_inodes=%d"] < 8 || went["size=%dk"] < 20 {
		t.Errorf("it ended at too few places: %v", went)
	}
}
