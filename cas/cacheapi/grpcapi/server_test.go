package grpcapi_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"github.com/klauspost/compress/zstd"
	bspb "google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi/grpcapi"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

// client is gRPC by other hands against our handler, over a real connection.
type client struct {
	repb.CapabilitiesClient
	repb.ContentAddressableStorageClient
	repb.ActionCacheClient
	bspb.ByteStreamClient
	t           *testing.T
	cache       *cacheapi.Cache
	read, write string
	free        int64
}

func serve(t *testing.T) *client {
	t.Helper()
	return serveOn(t, disk.Config{})
}

func serveOn(t *testing.T, cfg disk.Config) *client {
	t.Helper()
	dir := cmp.Or(cfg.Dir, t.TempDir())
	cfg.Dir, cfg.NoSync = filepath.Join(dir, "cas"), true
	s, err := disk.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // nothing of it is kept
	c := &client{t: t, free: 1 << 40, read: strings.Repeat("11", 32), write: strings.Repeat("22", 32)}
	if c.cache, err = cacheapi.New(cacheapi.Config{Store: s, Names: s, Dir: filepath.Join(dir, "uploads"), Keep: time.Hour, Free: func() (int64, error) { return c.free, nil }}); err != nil {
		t.Fatal(err)
	}
	tokens, err := cacheapi.ParseTokens("read " + c.read + "\nwrite " + c.write)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: grpcapi.New(c.cache, tokens), Protocols: &p}
	go func() { _ = srv.Serve(l) }()      // ends with Close
	t.Cleanup(func() { _ = srv.Close() }) // the connections are the test's own
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // as above
	c.CapabilitiesClient, c.ContentAddressableStorageClient = repb.NewCapabilitiesClient(conn), repb.NewContentAddressableStorageClient(conn)
	c.ActionCacheClient, c.ByteStreamClient = repb.NewActionCacheClient(conn), bspb.NewByteStreamClient(conn)
	return c
}

func with(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// writer is the context of somebody who may write.
func (c *client) writer() context.Context { return with(c.t.Context(), c.write) }

func (c *client) want(err error, code codes.Code, text string) {
	c.t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), text) {
		c.t.Errorf("got %v, want %v with %q", err, code, text)
	}
}

func dig(b []byte) *repb.Digest {
	h := sha256.Sum256(b)
	return &repb.Digest{Hash: hex.EncodeToString(h[:]), SizeBytes: int64(len(b))}
}

func dig3(b []byte) *repb.Digest {
	return &repb.Digest{Hash: cas.Sum(b).Hex(), SizeBytes: int64(len(b))}
}

func (c *client) put(b []byte) {
	c.t.Helper()
	r, err := c.BatchUpdateBlobs(c.writer(), &repb.BatchUpdateBlobsRequest{Requests: []*repb.BatchUpdateBlobsRequest_Request{{Digest: dig(b), Data: b}}})
	if err != nil || len(r.Responses) != 1 || r.Responses[0].Status.GetCode() != 0 {
		c.t.Fatalf("%v %v", r, err)
	}
}

func (c *client) missing(f repb.DigestFunction_Value, ds ...*repb.Digest) int {
	c.t.Helper()
	r, err := c.FindMissingBlobs(c.writer(), &repb.FindMissingBlobsRequest{BlobDigests: ds, DigestFunction: f})
	if err != nil {
		c.t.Fatal(err)
	}
	return len(r.MissingBlobDigests)
}

// upload writes b from an offset in pieces, and says how many bytes the server has.
func (c *client) upload(name string, b []byte, from, to int64, finish bool) (int64, error) {
	c.t.Helper()
	st, err := c.Write(c.writer())
	if err != nil {
		c.t.Fatal(err)
	}
	const piece = 1 << 20
	for at := from; ; at += piece {
		end := min(at+piece, to)
		last := end == to
		err := st.Send(&bspb.WriteRequest{ResourceName: name, WriteOffset: at, Data: b[at:end], FinishWrite: last && finish})
		if last || err != nil {
			break
		}
	}
	r, err := st.CloseAndRecv()
	return r.GetCommittedSize(), err
}

func (c *client) download(name string, offset, limit int64) ([]byte, error) {
	c.t.Helper()
	st, err := c.Read(with(c.t.Context(), c.read), &bspb.ReadRequest{ResourceName: name, ReadOffset: offset, ReadLimit: limit})
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, m.Data...)
	}
}

// What the capabilities say is what is done; who may not write is told that he may not.
func TestCapabilities(t *testing.T) {
	c := serve(t)
	for token, may := range map[string]bool{c.read: false, c.write: true} {
		r, err := c.GetCapabilities(with(t.Context(), token), &repb.GetCapabilitiesRequest{InstanceName: "a/b"})
		if err != nil {
			t.Fatal(err)
		}
		cc := r.CacheCapabilities
		if cc.ActionCacheUpdateCapabilities.UpdateEnabled != may || len(cc.DigestFunctions) != 2 || len(cc.SupportedCompressors) != 1 || r.ExecutionCapabilities != nil {
			t.Errorf("%v", r)
		}
	}
	r, err := c.GetCapabilities(c.writer(), &repb.GetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	most := int(r.CacheCapabilities.MaxBatchTotalSizeBytes)
	half := castest.Bytes(1, most/2)
	other := castest.Bytes(2, most-most/2)
	both := []*repb.BatchUpdateBlobsRequest_Request{{Digest: dig(half), Data: half}, {Digest: dig(other), Data: other}}
	if _, err := c.BatchUpdateBlobs(c.writer(), &repb.BatchUpdateBlobsRequest{Requests: both}); err != nil {
		t.Fatalf("as much as is promised: %v", err)
	}
	got, err := c.BatchReadBlobs(c.writer(), &repb.BatchReadBlobsRequest{Digests: []*repb.Digest{dig(half), dig(other)}})
	if err != nil || !bytes.Equal(got.Responses[1].Data, other) {
		t.Fatalf("as much as is promised, back: %v", err)
	}
	both[0] = &repb.BatchUpdateBlobsRequest_Request{Digest: dig(append(half, 1)), Data: append(half, 1)}
	_, err = c.BatchUpdateBlobs(c.writer(), &repb.BatchUpdateBlobsRequest{Requests: both})
	c.want(err, codes.InvalidArgument, "in one batch")
	_, err = c.BatchReadBlobs(c.writer(), &repb.BatchReadBlobsRequest{Digests: []*repb.Digest{dig(half), dig(other), dig([]byte("a"))}})
	c.want(err, codes.InvalidArgument, "in one batch")
}

func TestRights(t *testing.T) {
	c := serve(t)
	b := []byte("bytes")
	for name, call := range map[string]func(context.Context) error{
		"BatchUpdateBlobs": func(ctx context.Context) error {
			_, err := c.BatchUpdateBlobs(ctx, &repb.BatchUpdateBlobsRequest{Requests: []*repb.BatchUpdateBlobsRequest_Request{{Digest: dig(b), Data: b}}})
			return err
		},
		"UpdateActionResult": func(ctx context.Context) error {
			_, err := c.UpdateActionResult(ctx, &repb.UpdateActionResultRequest{ActionDigest: dig(b), ActionResult: &repb.ActionResult{}})
			return err
		},
		"Write": func(ctx context.Context) error {
			st, err := c.Write(ctx)
			if err != nil {
				return err
			}
			_ = st.Send(&bspb.WriteRequest{ResourceName: fmt.Sprintf("uploads/u/blobs/%s/5", dig(b).Hash), Data: b, FinishWrite: true}) // its end says why
			_, err = st.CloseAndRecv()
			return err
		},
	} {
		c.want(call(t.Context()), codes.Unauthenticated, "needs a token")
		c.want(call(with(t.Context(), "nonsense")), codes.Unauthenticated, "no token of this cache")
		c.want(call(with(t.Context(), c.read)), codes.PermissionDenied, "may read")
		if c.missing(0, dig(b)) != 1 {
			t.Fatal(name, "wrote without the right to")
		}
		if err := call(c.writer()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c = serve(t)
	}
	_, err := c.FindMissingBlobs(t.Context(), &repb.FindMissingBlobsRequest{})
	c.want(err, codes.Unauthenticated, "needs a token")
}

// Both functions, in batches; each blob has its own verdict.
func TestBatches(t *testing.T) {
	c := serve(t)
	a, b := castest.Bytes(3, 10), castest.Bytes(4, 100_000)
	c.put(a)
	r, err := c.BatchUpdateBlobs(c.writer(), &repb.BatchUpdateBlobsRequest{DigestFunction: repb.DigestFunction_BLAKE3, Requests: []*repb.BatchUpdateBlobsRequest_Request{
		{Digest: dig3(b), Data: b}, {Digest: dig(b), Data: b}, {Digest: &repb.Digest{Hash: dig3(b).Hash, SizeBytes: 7}, Data: b}, {Digest: &repb.Digest{Hash: "00"}, Data: b}, {},
		{Digest: dig3(nil)}, {Digest: dig3(a), Data: a, Compressor: repb.Compressor_ZSTD}, {Digest: dig3(b), Data: pack(t, b), Compressor: repb.Compressor_ZSTD}, {Digest: dig3(a), Data: a, Compressor: repb.Compressor_DEFLATE},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []codes.Code{codes.OK, codes.InvalidArgument, codes.InvalidArgument, codes.InvalidArgument, codes.InvalidArgument, codes.OK, codes.InvalidArgument, codes.OK, codes.InvalidArgument} {
		if got := codes.Code(r.Responses[i].Status.GetCode()); got != want {
			t.Errorf("%d: %v %s", i, got, r.Responses[i].Status.GetMessage())
		}
	}
	if c.missing(0, dig(a), dig(b), dig(nil)) != 1 || c.missing(repb.DigestFunction_BLAKE3, dig3(a), dig3(b), dig3(nil)) != 0 {
		t.Error("what is missing is not what is missing")
	}
	got, err := c.BatchReadBlobs(c.writer(), &repb.BatchReadBlobsRequest{DigestFunction: repb.DigestFunction_BLAKE3, Digests: []*repb.Digest{dig3(b), dig3([]byte("nowhere")), dig3(nil)}})
	if err != nil || !bytes.Equal(got.Responses[0].Data, b) || codes.Code(got.Responses[1].Status.GetCode()) != codes.NotFound || got.Responses[2].Status.GetCode() != 0 {
		t.Fatalf("%v %v", got, err)
	}
	_, err = c.FindMissingBlobs(c.writer(), &repb.FindMissingBlobsRequest{DigestFunction: repb.DigestFunction_MD5, BlobDigests: []*repb.Digest{dig(a)}})
	c.want(err, codes.InvalidArgument, "SHA256 and BLAKE3")
	_, err = c.FindMissingBlobs(c.writer(), &repb.FindMissingBlobsRequest{BlobDigests: []*repb.Digest{{Hash: dig(a).Hash, SizeBytes: -1}}})
	c.want(err, codes.InvalidArgument, "size -1")
}

// C17: a stream that is cut in the middle, a question how far it came, and the rest.
func TestC17UploadsGoOn(t *testing.T) {
	c := serve(t)
	b := castest.Bytes(5, 9<<20)
	name := fmt.Sprintf("i/uploads/4a7e/blobs/%s/%d/meta", dig(b).Hash, len(b))
	if n, err := c.upload(name, b, 0, 5<<20, false); n != 5<<20 || err != nil {
		t.Fatalf("%d %v", n, err)
	}
	ctx, cancel := context.WithCancel(c.writer())
	st, err := c.Write(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&bspb.WriteRequest{ResourceName: name, WriteOffset: 5 << 20, Data: b[5<<20 : 6<<20]}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; { // the message is on its way; the cut is not to outrun it
		if q, err := c.QueryWriteStatus(c.writer(), &bspb.QueryWriteStatusRequest{ResourceName: name}); err != nil {
			t.Fatal(err)
		} else if q.CommittedSize == 6<<20 && !q.Complete {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the piece does not arrive")
		}
	}
	cancel()
	if _, err := st.CloseAndRecv(); status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	// Until the server has seen the cut, the stream of before is the writer.
	patient := func(from int64) (n int64, err error) {
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
			if n, err = c.upload(name, b, from, int64(len(b)), true); status.Code(err) != codes.Aborted {
				break
			}
		}
		return n, err
	}
	_, err = patient(7 << 20)
	c.want(err, codes.InvalidArgument, "offset 7340032 is not in")
	n, err := patient(6 << 20)
	if n != int64(len(b)) || err != nil {
		t.Fatalf("%d %v", n, err)
	}
	got, err := c.download(fmt.Sprintf("blobs/%s/%d", dig(b).Hash, len(b)), 0, 0)
	if err != nil || !bytes.Equal(got, b) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	q, err := c.QueryWriteStatus(c.writer(), &bspb.QueryWriteStatusRequest{ResourceName: name})
	if err != nil || !q.Complete || q.CommittedSize != int64(len(b)) {
		t.Errorf("%v %v", q, err)
	}
	// Somebody else uploads the same: it is here already, and the stream ends at once.
	if n, err := c.upload(strings.Replace(name, "4a7e", "other", 1), b, 0, 1<<20, false); n != int64(len(b)) || err != nil {
		t.Errorf("%d %v", n, err)
	}
}

func TestUploadsThatAreRefused(t *testing.T) {
	c := serve(t)
	b := castest.Bytes(6, 3<<20)
	name := func(d *repb.Digest) string { return fmt.Sprintf("uploads/u/blobs/%s/%d", d.Hash, d.SizeBytes) }
	wrong := &repb.Digest{Hash: dig(b[1:]).Hash, SizeBytes: int64(len(b))}
	_, err := c.upload(name(wrong), b, 0, int64(len(b)), true)
	c.want(err, codes.InvalidArgument, "another hash")
	_, err = c.upload(name(&repb.Digest{Hash: dig(b).Hash, SizeBytes: 2 << 20}), b, 0, int64(len(b)), true)
	c.want(err, codes.InvalidArgument, "there are more")
	_, err = c.upload(name(dig(b)), b, 0, 2<<20, true)
	c.want(err, codes.InvalidArgument, "are missing")
	small := b[:100]
	_, err = c.upload(name(&repb.Digest{Hash: dig(b).Hash, SizeBytes: 100}), small, 0, 100, true)
	c.want(err, codes.InvalidArgument, "another hash")
	_, err = c.upload("uploads/u/blobs/abc/1", small, 0, 1, true)
	c.want(err, codes.InvalidArgument, "64 lower-case hex")
	_, err = c.upload(fmt.Sprintf("uploads/u/compressed-blobs/deflate/%s/100", dig(small).Hash), small, 0, 100, true)
	c.want(err, codes.InvalidArgument, "zstd is spoken here")
	c.free = 1 << 20
	_, err = c.upload(name(dig(b)), b, 0, int64(len(b)), true)
	c.want(err, codes.ResourceExhausted, "may be taken")
	c.free = 1 << 40
	if n, err := c.upload(name(dig(b)), b, 0, int64(len(b)), true); n != int64(len(b)) || err != nil {
		t.Errorf("with room again: %d %v", n, err)
	}
}

func TestReads(t *testing.T) {
	c := serve(t)
	b := castest.Bytes(7, 700_000)
	c.put(b)
	name := fmt.Sprintf("any/thing/blobs/blake3/%s/%d", dig3(b).Hash, len(b))
	for _, r := range [][3]int64{{0, 0, 700_000}, {1, 0, 699_999}, {300_000, 10, 10}, {699_999, 100, 1}, {700_000, 0, 0}} {
		got, err := c.download(name, r[0], r[1])
		if err != nil || !bytes.Equal(got, b[r[0]:r[0]+r[2]]) {
			t.Errorf("%v: %d bytes, %v", r, len(got), err)
		}
	}
	_, err := c.download(name, 700_001, 0)
	c.want(err, codes.OutOfRange, "offset")
	_, err = c.download(name, -1, 0)
	c.want(err, codes.OutOfRange, "offset")
	_, err = c.download(name, 0, -1)
	c.want(err, codes.InvalidArgument, "limit")
	_, err = c.download(fmt.Sprintf("blobs/%s/7", dig(b).Hash), 0, 0)
	c.want(err, codes.NotFound, "is not here")
	if got, err := c.download(fmt.Sprintf("blobs/%s/0", dig(nil).Hash), 0, 0); err != nil || len(got) != 0 {
		t.Errorf("%q %v", got, err)
	}
}

// C08: a result with a hole is refused with the name of what is missing, one without is
// given back, and its streams along with it where they were asked for.
func TestC08ActionResults(t *testing.T) {
	c := serve(t)
	out, text := castest.Bytes(8, 50), []byte("it was made\n")
	c.put(out)
	r := &repb.ActionResult{OutputFiles: []*repb.OutputFile{{Path: "o", Digest: dig(out)}}, StdoutDigest: dig(text), ExitCode: 3}
	action := dig([]byte("action"))
	_, err := c.GetActionResult(c.writer(), &repb.GetActionResultRequest{ActionDigest: action})
	c.want(err, codes.NotFound, "nothing is cached")
	_, err = c.UpdateActionResult(c.writer(), &repb.UpdateActionResultRequest{ActionDigest: action, ActionResult: r})
	c.want(err, codes.FailedPrecondition, dig(text).Hash)
	var subjects []string
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*errdetails.PreconditionFailure); ok {
			for _, v := range f.Violations {
				subjects = append(subjects, v.Type+" "+v.Subject)
			}
		}
	}
	if want := fmt.Sprintf("MISSING blobs/%s/%d", dig(text).Hash, len(text)); strings.Join(subjects, ",") != want {
		t.Errorf("%v, want %s", subjects, want)
	}
	c.put(text)
	if _, err := c.UpdateActionResult(c.writer(), &repb.UpdateActionResultRequest{ActionDigest: action, ActionResult: r}); err != nil {
		t.Fatal(err)
	}
	got, err := c.GetActionResult(c.writer(), &repb.GetActionResultRequest{ActionDigest: action})
	if err != nil || !proto.Equal(got, r) {
		t.Fatalf("%v %v", got, err)
	}
	if got, err = c.GetActionResult(c.writer(), &repb.GetActionResultRequest{ActionDigest: action, InlineStdout: true}); err != nil || !bytes.Equal(got.StdoutRaw, text) {
		t.Fatalf("%v %v", got, err)
	}
	_, err = c.GetActionResult(c.writer(), &repb.GetActionResultRequest{ActionDigest: action, InstanceName: "another"})
	c.want(err, codes.NotFound, "nothing is cached")
	_, err = c.UpdateActionResult(c.writer(), &repb.UpdateActionResultRequest{ActionDigest: action})
	c.want(err, codes.InvalidArgument, "not set")
}

// A tree comes in pages, each directory once; what is missing below the root is left out,
// a missing root is not.
func TestGetTree(t *testing.T) {
	c := serve(t)
	put := func(d *repb.Directory) *repb.Digest {
		b, err := proto.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		c.put(b)
		return dig(b)
	}
	leaf := put(&repb.Directory{Files: []*repb.FileNode{{Name: "f", Digest: dig([]byte("f"))}}})
	lost := dig([]byte("lost"))
	mid := put(&repb.Directory{Directories: []*repb.DirectoryNode{{Name: "leaf", Digest: leaf}, {Name: "lost", Digest: lost}}})
	root := put(&repb.Directory{Directories: []*repb.DirectoryNode{{Name: "again", Digest: leaf}, {Name: "mid", Digest: mid}}})
	list := func(r *repb.GetTreeRequest) (pages []int, last string, err error) {
		st, err := c.GetTree(c.writer(), r)
		if err != nil {
			t.Fatal(err)
		}
		for {
			m, err := st.Recv()
			if errors.Is(err, io.EOF) {
				return pages, last, nil
			}
			if err != nil {
				return pages, last, err
			}
			pages = append(pages, len(m.Directories))
			if len(pages) == 1 {
				last = m.NextPageToken
			}
		}
	}
	if pages, _, err := list(&repb.GetTreeRequest{RootDigest: root}); err != nil || fmt.Sprint(pages) != "[3]" {
		t.Errorf("%v %v", pages, err)
	}
	pages, token, err := list(&repb.GetTreeRequest{RootDigest: root, PageSize: 1})
	if err != nil || fmt.Sprint(pages) != "[1 1 1]" {
		t.Errorf("%v %v", pages, err)
	}
	if pages, _, err = list(&repb.GetTreeRequest{RootDigest: root, PageToken: token}); err != nil || fmt.Sprint(pages) != "[2]" {
		t.Errorf("%v %v", pages, err)
	}
	_, _, err = list(&repb.GetTreeRequest{RootDigest: lost})
	c.want(err, codes.NotFound, "not here")
	_, _, err = list(&repb.GetTreeRequest{RootDigest: root, PageToken: "x"})
	c.want(err, codes.InvalidArgument, "page token")
	c.put([]byte("\xffno directory"))
	_, _, err = list(&repb.GetTreeRequest{RootDigest: dig([]byte("\xffno directory"))})
	c.want(err, codes.InvalidArgument, "no directory")
}

// A full store says so in the API's word, and goes on with what it can take.
func TestFullStore(t *testing.T) {
	c := serveOn(t, disk.Config{Limit: 1 << 20})
	b, small := castest.Bytes(9, 2<<20), castest.Bytes(9, 100)
	r, err := c.BatchUpdateBlobs(c.writer(), &repb.BatchUpdateBlobsRequest{Requests: []*repb.BatchUpdateBlobsRequest_Request{{Digest: dig(b), Data: b}, {Digest: dig(small), Data: small}}})
	if err != nil || codes.Code(r.Responses[0].Status.GetCode()) != codes.ResourceExhausted || r.Responses[1].Status.GetCode() != 0 {
		t.Errorf("%v %v", r, err)
	}
	_, err = c.upload(fmt.Sprintf("uploads/u/blobs/%s/%d", dig(b).Hash, len(b)), b, 0, int64(len(b)), true)
	c.want(err, codes.ResourceExhausted, "")
}

func pack(t *testing.T, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(b, nil)
}

// Blobs travel compressed both ways and are the same bytes as ever; what unfolds to more
// than its name says is stopped there.
func TestCompressed(t *testing.T) {
	c := serve(t)
	for i, n := range []int{0, 1, 100_000, 3 << 20} {
		b := bytes.Repeat(castest.Bytes(uint64(20+i), n/4+1), 4)[:n]
		packed := pack(t, b)
		name := fmt.Sprintf("compressed-blobs/zstd/%s/%d", dig(b).Hash, n)
		if got, err := c.upload("uploads/u/"+name, packed, 0, int64(len(packed)), true); err != nil || got != int64(len(packed)) && n > 0 {
			t.Fatalf("%d bytes: %d %v", n, got, err)
		}
		if c.missing(0, dig(b)) != 0 {
			t.Errorf("%d bytes are missing", n)
		}
		q, err := c.QueryWriteStatus(c.writer(), &bspb.QueryWriteStatusRequest{ResourceName: "uploads/u/" + name})
		if err != nil || !q.Complete || q.CommittedSize != -1 {
			t.Errorf("%v %v", q, err)
		}
		for _, from := range []int{0, n / 2} {
			z, err := c.download(name, int64(from), 0)
			if err != nil {
				t.Fatal(err)
			}
			d, err := zstd.NewReader(nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := d.DecodeAll(z, nil); err != nil || !bytes.Equal(got, b[from:]) {
				t.Errorf("%d bytes from %d: %d came, %v", n, from, len(got), err)
			}
			d.Close()
		}
		_, err = c.download(name, 0, 5)
		c.want(err, codes.InvalidArgument, "no limit")
	}
	bomb := pack(t, make([]byte, 64<<20))
	for _, size := range []int64{10, 2 << 20} {
		_, err := c.upload(fmt.Sprintf("uploads/u/compressed-blobs/zstd/%s/%d", dig([]byte("x")).Hash, size), bomb, 0, int64(len(bomb)), true)
		c.want(err, codes.InvalidArgument, "there are more")
	}
	b := castest.Bytes(30, 1000)
	name := fmt.Sprintf("uploads/u/compressed-blobs/zstd/%s/1000", dig(b).Hash)
	_, err := c.upload(name, b, 0, 1000, true)
	c.want(err, codes.InvalidArgument, "zstd")
	packed := pack(t, b)
	_, err = c.upload(name, packed, 0, int64(len(packed))-5, true)
	c.want(err, codes.InvalidArgument, "")
	_, err = c.upload(name, packed, 5, int64(len(packed)), true)
	c.want(err, codes.InvalidArgument, "offset 5 does not follow 0")
	if c.missing(0, dig(b)) != 1 {
		t.Error("something is here")
	}
}

// Whatever comes as zstd, no more than the announced size comes out of it.
func FuzzCompressed(f *testing.F) {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(z.EncodeAll([]byte("hello"), nil), int64(5))
	f.Add(z.EncodeAll(make([]byte, 1<<20), nil), int64(7))
	s, err := disk.Open(disk.Config{Dir: f.TempDir(), NoSync: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() }) // nothing of it is kept
	cache, err := cacheapi.New(cacheapi.Config{Store: s, Names: s, Dir: f.TempDir(), Keep: time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		id := cacheapi.ID{Func: cacheapi.SHA256, Hash: sha256.Sum256([]byte("hello")), Size: size}
		if err := grpcapi.PutPacked(t.Context(), cache, id, b); err == nil && size != 5 {
			t.Fatalf("%x is taken for %v", b, id)
		} else if err != nil && forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Fatal(err)
		}
	})
}
