package httpapi_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// C11: on a disk without bytes or inodes a PUT of content or of a value is answered with 507
// and what to do; what was acknowledged is still served, half an upload never, and the same
// PUT is taken once there is room, in the same process.
func TestFullDisk(t *testing.T) {
	needs.Root(t, "mount a small tmpfs")
	for what, fill := range map[string]func(t *testing.T, hogs string){
		"no bytes": func(t *testing.T, hogs string) {
			if err := os.WriteFile(filepath.Join(hogs, "hog"), make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
		},
		"no inodes": func(t *testing.T, hogs string) {
			var err error
			for i := 0; err == nil; i++ {
				err = os.WriteFile(filepath.Join(hogs, fmt.Sprint(i)), nil, 0o600)
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("small", dir, "tmpfs", 0, "size=48m,nr_inodes=400"); err != nil {
				needs.Lacking(t, "no tmpfs can be mounted: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			hogs := filepath.Join(dir, "hogs")
			if err := os.Mkdir(hogs, 0o700); err != nil {
				t.Fatal(err)
			}
			s := serveOn(t, true, dir, disk.Config{Reserve: -1, ReserveInodes: -1})
			w, kept, late := "Bearer "+writeToken, castest.Bytes(1, 3<<20), castest.Bytes(2, 3<<20)
			s.do("PUT", "/cas/"+sha(kept), w, bytes.NewReader(kept), http.StatusCreated)
			s.do("PUT", "/kv/kept", w, strings.NewReader("a value"), http.StatusCreated)
			fill(t, hogs)
			for _, path := range []string{"/cas/" + sha(late), "/kv/late"} {
				if got := s.do("PUT", path, w, bytes.NewReader(late), http.StatusInsufficientStorage); !strings.Contains(got, "cas gc") {
					t.Errorf("PUT %s: %q", path, got)
				}
				s.do("GET", path, "", nil, http.StatusNotFound)
			}
			if got := s.do("GET", "/cas/"+sha(kept), "", nil, http.StatusOK); got != string(kept) {
				t.Errorf("%d bytes are back", len(got))
			}
			if got := s.do("GET", "/kv/kept", "", nil, http.StatusOK); got != "a value" {
				t.Errorf("%q", got)
			}
			if err := os.RemoveAll(hogs); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{"/cas/" + sha(late), "/kv/late"} {
				s.do("PUT", path, w, bytes.NewReader(late), http.StatusCreated)
				if got := s.do("GET", path, "", nil, http.StatusOK); got != string(late) {
					t.Errorf("%s: %d bytes are back", path, len(got))
				}
			}
		})
	}
}
