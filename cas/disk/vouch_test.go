//go:build linux

package disk_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

func givenOut(t testing.TB, s *disk.Store, d forgeyard.Digest) error {
	t.Helper()
	_, release, err := s.Path(ctx, d)
	if err == nil {
		release()
	}
	return err
}

// Whoever wrote to a stored blob, whichever way: its path is not given out, and the copy
// is set aside. Another look is not needed for what nobody touched.
func TestPathNoticesWrites(t *testing.T) {
	b := castest.Bytes(1, 3*cas.BlockSize)
	for name, write := range map[string]func(t *testing.T, path string){
		"a byte": func(t *testing.T, p string) { damage(t, p, flip(2<<20)) },
		"a byte, with the time of before": func(t *testing.T, p string) {
			st, err := os.Stat(p)
			must(t, err)
			damage(t, p, flip(0))
			must(t, os.Chtimes(p, st.ModTime(), st.ModTime()))
			must(t, os.Chmod(p, st.Mode()))
		},
		"through memory": func(t *testing.T, p string) {
			must(t, os.Chmod(p, 0o600))
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			must(t, err)
			m, err := unix.Mmap(int(f.Fd()), 0, len(b), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			m[5] ^= 1
			must(t, errors.Join(unix.Munmap(m), f.Close()))
		},
		"another file in its place": func(t *testing.T, p string) {
			must(t, os.WriteFile(p+".new", bytes.Repeat([]byte{7}, len(b)), 0o444))
			must(t, os.Rename(p+".new", p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, disk.Config{Dir: dir})
			ref := castest.Put(t, s, b)
			must(t, givenOut(t, s, ref.Digest))
			write(t, blobFile(t, dir, ref.Digest))
			castest.WantKind(t, givenOut(t, s, ref.Digest), forgeyard.Corrupt)
			if quarantined(t, dir) != 1 || s.Has(ctx, ref.Digest) {
				t.Fatal("not set aside")
			}
			if again := castest.Put(t, s, b); again != ref {
				t.Fatal("another name")
			}
			must(t, givenOut(t, s, ref.Digest))
		})
	}
}

// Damage below the filesystem changes no time of the file. It is found at the first use
// after a start, and a day after the last look.
func TestPathNoticesRot(t *testing.T) {
	needs.Root(t, "mount a disk to damage it from below")
	b := castest.Bytes(2, 2*cas.BlockSize)
	for name, again := range map[string]func(s *disk.Store, c *clock.Manual, cfg disk.Config) *disk.Store{
		"after a start": func(s *disk.Store, _ *clock.Manual, cfg disk.Config) *disk.Store {
			must(t, s.Close())
			return open(t, cfg)
		},
		"after a day": func(s *disk.Store, c *clock.Manual, _ disk.Config) *disk.Store {
			c.Advance(24*time.Hour + time.Second)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			image, at := rotting(t)
			c := clock.NewManual(time.Unix(1_700_000_000, 0))
			cfg := disk.Config{Dir: filepath.Join(at, "cas"), Reserve: -1, ReserveInodes: -1, Clock: c}
			s := open(t, cfg)
			ref := castest.Put(t, s, b)
			must(t, givenOut(t, s, ref.Digest))
			rot(t, image, blobFile(t, cfg.Dir, ref.Digest), b[1<<20:1<<20+64])
			s = again(s, c, cfg)
			castest.WantKind(t, givenOut(t, s, ref.Digest), forgeyard.Corrupt)
			if quarantined(t, cfg.Dir) != 1 {
				t.Fatal("not set aside")
			}
			must(t, s.Close())
		})
	}
}

// rotting is a mounted disk and the file that is its platters.
func rotting(t *testing.T) (image, at string) {
	t.Helper()
	image, at = filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 64<<20))
	run := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			needs.Lacking(t, "%s: %v: %s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("mkfs.ext4", "-q", "-F", image)
	loop := run("losetup", "--find", "--show", image)
	t.Cleanup(func() { run("losetup", "--detach", loop) })
	run("mount", loop, at)
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
	return image, at
}

// rot flips a bit of what the disk holds, beside the filesystem.
func rot(t *testing.T, image, path string, text []byte) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	must(t, f.Sync())
	must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)) // what is read next comes from the disk
	must(t, f.Close())
	all, err := os.ReadFile(image)
	must(t, err)
	i := bytes.Index(all, text)
	if i < 0 {
		t.Fatal("the bytes are not on the disk")
	}
	w, err := os.OpenFile(image, os.O_WRONLY, 0)
	must(t, err)
	_, err = w.WriteAt([]byte{text[0] ^ 1}, int64(i))
	must(t, errors.Join(err, w.Sync(), w.Close()))
}

// A block is given piece by piece only while it needs no comparing: not before its first use
// in a process's life, and not once somebody wrote to its file.
func TestOpenBlock(t *testing.T) {
	b := castest.Bytes(3, 2*cas.BlockSize+777)
	dir := t.TempDir()
	s := open(t, disk.Config{Dir: dir})
	ref := castest.Put(t, s, b)
	for _, at := range []int{0, 2} {
		want := b[at*cas.BlockSize : min(len(b), (at+1)*cas.BlockSize)]
		p := s.OpenBlock(cas.Sum(want))
		if p == nil || p.Size() != int64(len(want)) {
			t.Fatalf("block %d: %v", at, p)
		}
		got := make([]byte, len(want))
		for off := 0; off < len(got); off += 1000 {
			_, err := p.ReadAt(got[off:min(len(got), off+1000)], int64(off))
			must(t, err)
		}
		if _, err := p.ReadAt(make([]byte, 2), p.Size()-1); err == nil {
			t.Error("bytes beyond the block")
		}
		must(t, p.Close())
		if !bytes.Equal(got, want) {
			t.Fatalf("block %d has other bytes", at)
		}
	}
	first := cas.Sum(b[:cas.BlockSize])
	if s.OpenBlock(ref.Digest) != nil || s.OpenBlock(cas.Sum([]byte("nobody has it"))) != nil {
		t.Error("what is no block was opened")
	}
	must(t, s.Close())
	s = open(t, disk.Config{Dir: dir})
	if s.OpenBlock(first) != nil {
		t.Fatal("opened before it was compared")
	}
	_, err := s.ReadBlock(ctx, first, nil, false)
	must(t, err)
	p := s.OpenBlock(first)
	if p == nil {
		t.Fatal("compared, and not opened")
	}
	path := blobFile(t, dir, ref.Digest)
	damage(t, path, flip(5))
	if s.OpenBlock(first) != nil {
		t.Fatal("opened after somebody wrote to it")
	}
	must(t, os.Chmod(path, 0o600))
	must(t, os.Truncate(path, 100))
	if _, err := p.ReadAt(make([]byte, 1000), 0); err == nil {
		t.Error("a piece of what is gone")
	}
	must(t, p.Close())
	_, err = s.ReadBlock(ctx, first, nil, false)
	castest.WantKind(t, err, forgeyard.Corrupt)
}
