package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/remote"
)

// storeNode is a node as far as its store goes.
type storeNode struct {
	Node
	store *disk.Store
	limit int64
}

func (n storeNode) Store() cas.Store   { return n.store }
func (n storeNode) UploadLimit() int64 { return n.limit }

// upNode starts a node over the store in dir, which may be there already, until the end of
// the test or until it is stopped.
func upNode(t *testing.T, dir string, limit int64) (dial func(dir string) *remote.Store, s *disk.Store, stop func()) {
	t.Helper()
	s, err := disk.Open(disk.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	opt := connect.WithHandlerOptions(connect.WithInterceptors(wire.Interceptor{}), connect.WithReadMaxBytes(maxMessage))
	mux.Handle(forgeyardv1connect.NewContentServiceHandler(contentService{storeNode{store: s, limit: limit}}, opt))
	srv := httptest.NewServer(mux)
	var stopped atomic.Bool
	stop = func() {
		if stopped.CompareAndSwap(false, true) {
			srv.CloseClientConnections()
			srv.Close()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return func(dir string) *remote.Store {
		return remote.New(forgeyardv1connect.NewContentServiceClient(srv.Client(), srv.URL, connect.WithInterceptors(wire.Interceptor{})), dir)
	}, s, stop
}

// gauge counts what passes, and ends ctx after so many bytes (0: never).
type gauge struct {
	passed, stopAfter int64
	cancel            context.CancelFunc
	before            int64 // what an earlier try had brought
}

func (g *gauge) watch(s *remote.Store) {
	s.Wrap = func(r io.Reader) io.Reader { return gauged{r, g} }
	s.Had = func(n int64) { g.before += n }
}

type gauged struct {
	io.Reader
	g *gauge
}

func (r gauged) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if r.g.passed += int64(n); r.g.stopAfter > 0 && r.g.passed >= r.g.stopAfter {
		r.g.cancel()
	}
	return n, err
}

func putFile(ctx context.Context, s *remote.Store, b []byte) (cas.Ref, error) {
	return s.Put(ctx, bytes.NewReader(b), cas.PutOptions{Size: int64(len(b))})
}

// RA-199: an upload of a large file that was cut goes on with what the node had verified,
// whether the command or the node ended; and what is whole is kept for its hold.
func TestUploadGoesOn(t *testing.T) {
	dir := t.TempDir()
	open, store, stop := upNode(t, dir, 0)
	data := castest.Bytes(7, 40<<20+123)
	ctx, cancel := context.WithCancel(t.Context())
	first := &gauge{stopAfter: 24 << 20, cancel: cancel}
	s := open("")
	first.watch(s)
	if ref, err := putFile(ctx, s, data); err == nil {
		t.Fatalf("a cut upload gave %v", ref)
	}
	if store.Has(t.Context(), cas.Sum(data)) {
		t.Fatal("half a file has the name of the whole")
	}
	stop()

	open, store, _ = upNode(t, dir, 0)
	second := &gauge{}
	s = open("")
	s.Hold = "h1"
	second.watch(s)
	ref, err := putFile(t.Context(), s, data)
	if err != nil || ref.Digest != cas.Sum(data) {
		t.Fatal(ref, err)
	}
	if second.passed+second.before != int64(len(data)) || second.before < 8<<20 {
		t.Errorf("%d bytes were sent again, %d came before", second.passed, second.before)
	}
	if got := castest.Read(t, store, ref.Digest); !bytes.Equal(got, data) {
		t.Error("other bytes")
	}

	// A third time nothing is sent. Collections take it only when the hold is over.
	third := &gauge{}
	third.watch(s)
	if _, err := putFile(t.Context(), s, data); err != nil || third.passed != 0 {
		t.Errorf("%d bytes for what is there: %v", third.passed, err)
	}
	for _, kept := range []bool{true, false} {
		if _, err := store.GC(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if store.Has(t.Context(), ref.Digest) != kept {
			t.Errorf("kept: %v", !kept)
		}
		if err := store.Unpin(t.Context(), holdOwner("h1")); err != nil {
			t.Fatal(err)
		}
	}
}

// shifting is a file that is another one at the second look.
type shifting struct {
	*bytes.Reader
	looks int
}

func (s *shifting) ReadAt(b []byte, off int64) (int, error) {
	n, err := s.Reader.ReadAt(b, off)
	if off == 3<<20 {
		if s.looks++; s.looks > 1 {
			b[0]++
		}
	}
	return n, err
}

// What cannot be is refused with a word of its own, and leaves nothing under a name.
func TestUploadsInBlocksThatAreRefused(t *testing.T) {
	open, store, _ := upNode(t, t.TempDir(), 64<<20)
	data := castest.Bytes(8, 20<<20)
	s := open("")
	if _, err := s.Put(t.Context(), &shifting{Reader: bytes.NewReader(data)}, cas.PutOptions{Size: int64(len(data))}); forgeyard.KindOf(err) != forgeyard.Conflict || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("a file that changes: %v", err)
	}
	if _, err := putFile(t.Context(), s, make([]byte, 65<<20)); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("over the bound: %v", err)
	}
	if u, err := store.Usage(t.Context()); err != nil || u.Objects > 1 { // the first one's manifest
		t.Errorf("%+v %v", u, err)
	}

	svc := contentService{storeNode{store: store}}
	for name, manifest := range map[string][]byte{"none": nil, "no manifest": []byte("words"), "a tree's": castest.Bytes(1, 4096)} {
		if _, err := svc.Missing(t.Context(), connect.NewRequest(&forgeyardv1.MissingRequest{Manifest: manifest})); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}

	// A manifest whose blocks are right and whose whole is a lie (C01).
	_, m := castest.Describe(t, data)
	m.Whole = cas.Sum([]byte("another"))
	enc, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	st := clientOf(t, store).PutBlocks(t.Context())
	msg := &forgeyardv1.PutBlocksRequest{Manifest: enc}
	for i, off := range m.Offsets() {
		msg.Block, msg.Data = uint32(i), data[off:off+m.Blocks[i].Size]
		if err := st.Send(msg); err != nil {
			t.Fatal(err)
		}
		msg = &forgeyardv1.PutBlocksRequest{}
	}
	if _, err := st.CloseAndReceive(); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("a lie about the whole: %v", err)
	}
	if store.Has(t.Context(), m.Whole) || store.Has(t.Context(), cas.Sum(data)) {
		t.Error("it has a name")
	}
	// A block that is none of it.
	st = clientOf(t, store).PutBlocks(t.Context())
	if err := st.Send(&forgeyardv1.PutBlocksRequest{Manifest: enc, Block: 20, Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.CloseAndReceive(); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("block 20 of 20: %v", err)
	}
}

func clientOf(t *testing.T, s *disk.Store) forgeyardv1connect.ContentServiceClient {
	mux := http.NewServeMux()
	mux.Handle(forgeyardv1connect.NewContentServiceHandler(contentService{storeNode{store: s}}, connect.WithInterceptors(wire.Interceptor{})))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return forgeyardv1connect.NewContentServiceClient(srv.Client(), srv.URL, connect.WithInterceptors(wire.Interceptor{}))
}

// RA-198: a download that was cut goes on behind what lies beside its place; a part that
// was damaged, or is another's, costs time and never gives wrong bytes a name.
func TestDownloadGoesOn(t *testing.T) {
	open, store, _ := upNode(t, t.TempDir(), 0)
	data := castest.Bytes(9, 12<<20+7)
	ref := castest.Put(t, store, data)
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	cut := func() string {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		g := &gauge{stopAfter: 8 << 20, cancel: cancel}
		s := open(dir)
		g.watch(s)
		_, err := s.File(ctx, ref, path)
		var e *forgeyard.Error
		if forgeyard.KindOf(err) != forgeyard.Interrupted || !errors.As(err, &e) || !strings.Contains(e.Hint, "goes on from there") {
			t.Fatalf("cut: %v", err)
		}
		es, err := os.ReadDir(dir)
		if err != nil || len(es) != 1 || !strings.HasSuffix(es[0].Name(), ".part") {
			t.Fatalf("%v %v", es, err)
		}
		return filepath.Join(dir, es[0].Name())
	}
	get := func(want string) *gauge {
		t.Helper()
		g, s := &gauge{}, open(dir)
		g.watch(s)
		if _, err := s.File(t.Context(), ref, path); err != nil {
			t.Fatal(want, err)
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatal(want, "other bytes", err)
		}
		if es, err := os.ReadDir(dir); err != nil || len(es) != 1 {
			t.Errorf("%s: %v %v", want, es, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return g
	}

	cut()
	if g := get("after a cut"); g.before < 7<<20 || g.before+g.passed != int64(len(data)) {
		t.Errorf("%d bytes came again, %d were there", g.passed, g.before)
	}
	change := func(what string, f func(part string) error) {
		t.Helper()
		part := cut()
		if err := f(part); err != nil {
			t.Fatal(err)
		}
		get(what)
	}
	change("damaged", func(p string) error {
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte("rot"), 1000)
		return errors.Join(err, f.Close())
	})
	change("longer than the whole", func(p string) error { return os.Truncate(p, int64(len(data))+1) })
	change("all there, and wrong", func(p string) error { return os.Truncate(p, int64(len(data))) })
	change("all there", func(p string) error { return os.WriteFile(p, data, 0o600) })

	// A link that lies there is not written through: what comes goes beside it.
	part := cut()
	victim := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.Remove(part), os.WriteFile(victim, []byte("mine"), 0o600), os.Symlink(victim, part)); err != nil {
		t.Fatal(err)
	}
	if _, err := open(dir).File(t.Context(), ref, path); err != nil {
		t.Error("beside a link:", err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, data) {
		t.Error("beside a link: other bytes", err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "mine" {
		t.Errorf("%q %v", b, err)
	}
}

// What fails for another reason than a cut leaves nothing beside its place.
func TestDownloadsThatFailLeaveNothing(t *testing.T) {
	open, store, _ := upNode(t, t.TempDir(), 0)
	ref := castest.Put(t, store, castest.Bytes(10, 3<<20))
	dir := t.TempDir()
	for name, ctx := range map[string]context.Context{"small": func() context.Context { c, stop := context.WithCancel(t.Context()); stop(); return c }()} {
		if _, err := open(dir).File(ctx, ref, filepath.Join(dir, "out")); err == nil {
			t.Error(name)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := open(dir).File(t.Context(), ref, filepath.Join(dir, "d")); err == nil {
		t.Error("a file in the place of a directory")
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 1 {
		t.Errorf("%v %v", es, err)
	}
}

// Two that bring the same thing to the same place at once do not disturb each other.
func TestDownloadsAtOnce(t *testing.T) {
	open, store, _ := upNode(t, t.TempDir(), 0)
	data := castest.Bytes(11, 6<<20)
	ref := castest.Put(t, store, data)
	dir := t.TempDir()
	errs := make(chan error)
	for range 4 {
		go func() {
			_, err := open(dir).File(t.Context(), ref, filepath.Join(dir, "out"))
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "out"))
	if es, rerr := os.ReadDir(dir); err != nil || rerr != nil || !bytes.Equal(got, data) || len(es) != 1 {
		t.Errorf("%v %v %v", es, err, rerr)
	}
}
