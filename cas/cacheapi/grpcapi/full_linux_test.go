package grpcapi_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// C11: a disk that is full ends an upload with a code that says so, at the bytes of the upload
// and at its file; what was acknowledged stays, and the same upload goes through once there
// is room, in the same process.
func TestFullDisk(t *testing.T) {
	needs.Root(t, "mount a small tmpfs")
	for what, use := range map[string]func(t *testing.T, dir string) (undo func()){
		"no bytes": func(t *testing.T, dir string) func() {
			hog := filepath.Join(dir, "hog")
			if err := os.WriteFile(hog, make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			return func() { _ = os.Remove(hog) } // the next upload sees it
		},
		"no inodes": func(t *testing.T, dir string) func() {
			hogs := filepath.Join(dir, "hogs")
			if err := os.Mkdir(hogs, 0o700); err != nil {
				t.Fatal(err)
			}
			var err error
			for i := 0; err == nil; i++ {
				err = os.WriteFile(filepath.Join(hogs, fmt.Sprint(i)), nil, 0o600)
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			return func() { _ = os.RemoveAll(hogs) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("small", dir, "tmpfs", 0, "size=48m,nr_inodes=400"); err != nil {
				needs.Lacking(t, "no tmpfs can be mounted: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			c := serveOn(t, disk.Config{Dir: dir, Reserve: -1, ReserveInodes: -1})
			kept := castest.Bytes(1, 3<<20)
			c.put(castest.Bytes(2, 100))
			stream := func(b []byte) (int64, error) {
				return c.upload(fmt.Sprintf("uploads/u/blobs/%s/%d", dig(b).Hash, len(b)), b, 0, int64(len(b)), true)
			}
			if n, err := stream(kept); n != int64(len(kept)) || err != nil {
				t.Fatalf("%d %v", n, err)
			}
			undo := use(t, dir)
			late, batch := castest.Bytes(3, 3<<20), castest.Bytes(4, 1<<20)
			_, err := stream(late)
			c.want(err, codes.ResourceExhausted, "no space left")
			request := &repb.BatchUpdateBlobsRequest{Requests: []*repb.BatchUpdateBlobsRequest_Request{{Digest: dig(batch), Data: batch}}}
			r, err := c.BatchUpdateBlobs(c.writer(), request)
			if err != nil || codes.Code(r.Responses[0].Status.GetCode()) != codes.ResourceExhausted {
				t.Errorf("%v %v", r, err)
			}
			if n := c.missing(0, dig(kept), dig(late), dig(batch), dig(castest.Bytes(2, 100))); n != 2 {
				t.Errorf("%d of 4 are missing, 2 were acknowledged", n)
			}
			if got, err := c.download(fmt.Sprintf("blobs/%s/%d", dig(kept).Hash, len(kept)), 0, 0); err != nil || !bytes.Equal(got, kept) {
				t.Errorf("%d bytes are back: %v", len(got), err)
			}
			undo()
			if n, err := stream(late); n != int64(len(late)) || err != nil {
				t.Errorf("with room again: %d %v", n, err)
			}
			c.put(batch)
			if n := c.missing(0, dig(late), dig(batch)); n != 0 {
				t.Errorf("%d of 2 are missing", n)
			}
		})
	}
}
