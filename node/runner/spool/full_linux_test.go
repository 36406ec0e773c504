package spool

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/internal/needs"
)

func small(t *testing.T) (dir string) {
	t.Helper()
	needs.Root(t, "mount a small tmpfs")
	dir = t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=256k"); err != nil {
		needs.Lacking(t, "no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// What the bound of a log kept out is told with its number where the disk is full at that
// moment, too: as soon as there is room.
func TestBoundOnAFullDisk(t *testing.T) {
	dir := small(t)
	s := open(t, Config{Dir: filepath.Join(dir, "s"), Most: 16 << 10})
	for range 3 {
		if err := s.Append(t.Context(), Stdout, 1, make([]byte, 10<<10)); err != nil {
			t.Fatal(err)
		}
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 256<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	for s.dropped == 0 { // the last page of the file
		if err := s.Append(t.Context(), Agent, 0, make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.EndGap(t.Context()); n != 20<<10 || err != nil {
		t.Fatal(n, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := s.Event(t.Context(), 0, map[string]any{"event": "end"}); err != nil {
		t.Fatal(err)
	}
	var told []Gap
	for f, err := range s.Tail(t.Context(), 1, false) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Stream == Structured {
			var g Gap
			if err := json.Unmarshal(f.Bytes, &g); err != nil {
				t.Fatal(err)
			}
			told = append(told, g)
		}
	}
	want := []Gap{{Event: "gap", Bytes: 64}, {Event: "gap", Bytes: 20 << 10, Why: GapBound}, {Event: "end"}}
	if !slices.Equal(told, want) {
		t.Errorf("%+v, want %+v", told, want)
	}
}

// A full disk drops, and a gap frame with a number of its own counts the bytes.
func TestFullDiskLeavesAGap(t *testing.T) {
	dir := small(t)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 128<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{Dir: filepath.Join(dir, "s")})
	for range 20 {
		if err := s.Append(t.Context(), Stdout, 1, make([]byte, 16<<10)); err != nil {
			t.Fatal(err)
		}
	}
	kept := s.Last()
	if kept == 0 || kept >= 20 {
		t.Fatalf("%d frames of 16 KiB on a disk of 128 KiB", kept)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), Stdout, 1, []byte("after")); err != nil {
		t.Fatal(err)
	}
	var gap Gap
	var last []byte
	seq := uint64(1)
	for f, err := range s.Tail(t.Context(), 1, false) {
		if err != nil || f.Seq != seq {
			t.Fatalf("%d %v", f.Seq, err)
		}
		if f.Stream == Structured {
			if err := json.Unmarshal(f.Bytes, &gap); err != nil {
				t.Fatal(err)
			}
		}
		seq, last = seq+1, f.Bytes
	}
	if want := int64(20-kept) * 16 << 10; gap.Event != "gap" || gap.Bytes != want || string(last) != "after" {
		t.Errorf("%+v, want %d bytes; last %q", gap, want, last)
	}
}
