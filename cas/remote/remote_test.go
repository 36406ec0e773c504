package remote

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
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
)

// node is a node's store in memory, which can be told to lie.
type node struct {
	forgeyardv1connect.UnimplementedContentServiceHandler
	mu      sync.Mutex
	objects map[string][]byte
	lie     func([]byte) []byte // about what it has
	limit   int
}

func (n *node) Put(_ context.Context, st *connect.ClientStream[forgeyardv1.PutRequest]) (*connect.Response[forgeyardv1.PutResponse], error) {
	var b []byte
	for st.Receive() {
		b = append(b, st.Msg().Data...)
		if n.limit > 0 && len(b) > n.limit {
			return nil, forgeyard.Errorf("cas put", forgeyard.Limit, "over %d", n.limit)
		}
	}
	if err := st.Err(); err != nil {
		return nil, err
	}
	if n.lie != nil {
		b = n.lie(b)
	}
	m := cas.NewManifestBuilder()
	_, _ = m.Write(b) // it fails only above the largest blob
	ref, _, _, err := m.Finish()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.objects[ref.Digest.String()] = b
	return connect.NewResponse(&forgeyardv1.PutResponse{Digest: ref.Digest.String(), Size: ref.Size, Manifest: ref.Manifest.String()}), err
}

func (n *node) Get(_ context.Context, r *connect.Request[forgeyardv1.GetRequest], out *connect.ServerStream[forgeyardv1.GetResponse]) error {
	n.mu.Lock()
	b, ok := n.objects[r.Msg.Digest]
	n.mu.Unlock()
	if !ok {
		return forgeyard.Errorf("cas get", forgeyard.NotFound, "nobody has it")
	}
	if n.lie != nil {
		b = n.lie(b)
	}
	return out.Send(&forgeyardv1.GetResponse{Data: b, Size: int64(len(b))})
}

func serve(t *testing.T) (*node, *Store, string) {
	t.Helper()
	n := &node{objects: map[string][]byte{}}
	mux := http.NewServeMux()
	mux.Handle(forgeyardv1connect.NewContentServiceHandler(n, connect.WithInterceptors(wire.Interceptor{})))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	return n, New(forgeyardv1connect.NewContentServiceClient(s.Client(), s.URL, connect.WithInterceptors(wire.Interceptor{})), dir), dir
}

// A daemon that is older than the command knows no upload in blocks: it gets a stream.
func TestPutToAnOlderNode(t *testing.T) {
	_, s, _ := serve(t) // its handler says that the call is not implemented
	n := &node{objects: map[string][]byte{}}
	path, h := forgeyardv1connect.NewContentServiceHandler(n, connect.WithInterceptors(wire.Interceptor{}))
	mux := http.NewServeMux()
	mux.Handle(path, h)
	mux.HandleFunc(forgeyardv1connect.ContentServiceMissingProcedure, http.NotFound) // as a handler of then does
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	old := New(forgeyardv1connect.NewContentServiceClient(srv.Client(), srv.URL, connect.WithInterceptors(wire.Interceptor{})), t.TempDir())
	data := bytes.Repeat([]byte("sixteen bytes!! "), 1<<20)
	for name, s := range map[string]*Store{"without the call": s, "not found": old} {
		ref, err := s.Put(t.Context(), bytes.NewReader(data), cas.PutOptions{Size: int64(len(data))})
		if err != nil || ref.Digest != cas.Sum(data) {
			t.Errorf("%s: %v %v", name, ref, err)
		}
	}
}

// Files of a tree that are equal are asked for at once: each has a file of its own until it is
// released.
func TestPathOfEqualFiles(t *testing.T) {
	_, s, dir := serve(t)
	ref, err := s.Put(t.Context(), strings.NewReader("the same"), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one, release, err := s.Path(t.Context(), ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	two, release2, err := s.Path(t.Context(), ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	release()
	if b, err := os.ReadFile(two); one == two || err != nil || string(b) != "the same" {
		t.Errorf("%s and %s: %q %v", one, two, b, err)
	}
	release2()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func flip(b []byte) []byte {
	c := bytes.Clone(b)
	c[len(c)/2] ^= 1
	return c
}

func TestRoundTrip(t *testing.T) {
	_, s, dir := serve(t)
	for _, size := range []int{0, 1, chunk, 3<<20 + 17} {
		data := bytes.Repeat([]byte{byte(size), 7, 3}, size/3+1)[:size]
		ref, err := s.Put(t.Context(), bytes.NewReader(data), cas.PutOptions{})
		if err != nil || ref.Digest != cas.Sum(data) || ref.Size != int64(size) {
			t.Fatalf("%d: %v %v", size, ref, err)
		}
		if (size > cas.BlockSize) == ref.Manifest.IsZero() {
			t.Errorf("%d: manifest %v", size, ref.Manifest)
		}
		path := filepath.Join(dir, "out")
		if _, err := s.File(t.Context(), ref, path); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d: %d bytes, %v", size, len(got), err)
		}
	}
}

// TestLies: bytes that are not what was asked for never get the name (C01 at the
// last hand).
func TestLies(t *testing.T) {
	n, s, dir := serve(t)
	ref, err := s.Put(t.Context(), strings.NewReader("some words"), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.lie = flip
	path := filepath.Join(dir, "out")
	if _, err := s.File(t.Context(), ref, path); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("file: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if _, err := s.Block(t.Context(), ref.Digest); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("block: %v", err)
	}
	if _, err := s.Put(t.Context(), strings.NewReader("other words"), cas.PutOptions{}); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("put: %v", err)
	}
}

func TestKindsArrive(t *testing.T) {
	n, s, _ := serve(t)
	if _, err := s.Get(t.Context(), cas.Ref{Digest: cas.Sum([]byte("x"))}, false, io.Discard); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Errorf("get: %v", err)
	}
	n.limit = 100
	if _, err := s.Put(t.Context(), bytes.NewReader(make([]byte, 5<<20)), cas.PutOptions{}); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("put: %v", err)
	}
	broken := io.MultiReader(strings.NewReader("half"), readerFunc(func([]byte) (int, error) { return 0, errors.New("disk gone") }))
	if _, err := s.Put(t.Context(), broken, cas.PutOptions{}); err == nil || !strings.Contains(err.Error(), "disk gone") {
		t.Errorf("put of a broken reader: %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestTrees: a directory goes over and comes back the same.
func TestTrees(t *testing.T) {
	_, s, dir := serve(t)
	src := filepath.Join(t.TempDir(), "src")
	for name, text := range map[string]string{"a": "1", "sub/b": strings.Repeat("2", 200<<10), "sub/c": ""} {
		p := filepath.Join(src, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	ref, err := tree.Capture(t.Context(), s, src, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(dir, "dst")
	if _, err := tree.Materialise(t.Context(), s, ref.Digest, dst, tree.Materialisation{}); err != nil {
		t.Fatal(err)
	}
	again, err := tree.Capture(t.Context(), s, dst, tree.Options{})
	if err != nil || again.Digest != ref.Digest {
		t.Errorf("%v, not %v: %v", again.Digest, ref.Digest, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("temporary files stay: %v %v", left, err)
	}
}
