package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"github.com/rogpeppe/go-internal/testscript"
	bspb "google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// reapiWithin bounds one command, and how long a server may take to see a cut.
const reapiWithin = 30 * time.Second

// reapi is a client of the remote execution API by other hands than the node's. The action
// of a file is one that made it.
func reapi(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 3 {
		ts.Fatalf("usage: [!] reapi NAME write|status|read|missing|result|hit FILE [N]")
	}
	addr, err := os.ReadFile(ts.MkAbs(args[0] + "/cache-address"))
	ts.Check(err)
	tokens, err := os.ReadFile(ts.MkAbs(args[0] + "/cache-tokens"))
	ts.Check(err)
	_, token, _ := strings.Cut(string(tokens), "write ")
	b, err := os.ReadFile(ts.MkAbs(args[2]))
	ts.Check(err)
	conn, err := grpc.NewClient(strings.TrimSpace(string(addr)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	ts.Check(err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), reapiWithin)
	defer cancel()
	c := &reapiClient{ctx: metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(token)), conn: conn, b: b, n: int64(len(b))}
	if len(args) > 3 {
		c.n, err = strconv.ParseInt(args[3], 10, 64)
		ts.Check(err)
	}
	verbs := map[string]func() error{"write": c.write, "status": c.status, "read": c.read, "missing": c.missing, "result": c.result, "hit": c.hit}
	f := verbs[args[1]]
	if f == nil {
		ts.Fatalf("reapi %s: no such verb", args[1])
	}
	err = f()
	if (err != nil) != neg {
		ts.Fatalf("reapi %s: %v", strings.Join(args, " "), err)
	}
	ts.Logf("%v", err)
}

// reapiClient is one command: about the bytes b, with the number n.
type reapiClient struct {
	ctx  context.Context
	conn *grpc.ClientConn
	b    []byte
	n    int64
}

func sha256Of(b []byte) *repb.Digest {
	h := sha256.Sum256(b)
	return &repb.Digest{Hash: hex.EncodeToString(h[:]), SizeBytes: int64(len(b))}
}

func (c *reapiClient) name() string {
	return fmt.Sprintf("uploads/7b1c/blobs/%s/%d", sha256Of(c.b).Hash, len(c.b))
}

// write uploads up to byte n, from where the node says it is; short of the end the stream
// is cut once the node has them.
func (c *reapiClient) write() error {
	api := bspb.NewByteStreamClient(c.conn)
	q, err := api.QueryWriteStatus(c.ctx, &bspb.QueryWriteStatusRequest{ResourceName: c.name()})
	if err != nil {
		return err
	}
	ctx, cut := context.WithCancel(c.ctx)
	defer cut()
	st, err := api.Write(ctx)
	if err != nil {
		return err
	}
	last := c.n == int64(len(c.b))
	for at := q.CommittedSize; at < c.n; {
		end := min(at+1<<20, c.n)
		if err := st.Send(&bspb.WriteRequest{ResourceName: c.name(), WriteOffset: at, Data: c.b[at:end], FinishWrite: last && end == c.n}); err != nil {
			break // its end says why
		}
		at = end
	}
	if last {
		r, err := st.CloseAndRecv()
		if status.Code(err) == codes.Aborted { // the node has not seen the cut yet
			return c.write()
		}
		if err == nil && r.CommittedSize != c.n {
			err = fmt.Errorf("%d bytes are committed, not %d", r.CommittedSize, c.n)
		}
		return err
	}
	for q.CommittedSize < c.n {
		if q, err = api.QueryWriteStatus(c.ctx, &bspb.QueryWriteStatusRequest{ResourceName: c.name()}); err != nil {
			return err
		}
	}
	return nil
}

func (c *reapiClient) status() error {
	q, err := bspb.NewByteStreamClient(c.conn).QueryWriteStatus(c.ctx, &bspb.QueryWriteStatusRequest{ResourceName: c.name()})
	if err == nil && q.CommittedSize != c.n {
		err = fmt.Errorf("%d bytes are committed, not %d", q.CommittedSize, c.n)
	}
	return err
}

func (c *reapiClient) read() error {
	st, err := bspb.NewByteStreamClient(c.conn).Read(c.ctx, &bspb.ReadRequest{ResourceName: c.name()[len("uploads/7b1c/"):]})
	if err != nil {
		return err
	}
	var got bytes.Buffer
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		got.Write(m.Data)
	}
	if !bytes.Equal(got.Bytes(), c.b) {
		return fmt.Errorf("%d other bytes came", got.Len())
	}
	return nil
}

// missing succeeds when the blob is.
func (c *reapiClient) missing() error {
	r, err := repb.NewContentAddressableStorageClient(c.conn).FindMissingBlobs(c.ctx, &repb.FindMissingBlobsRequest{BlobDigests: []*repb.Digest{sha256Of(c.b)}})
	if err == nil && len(r.MissingBlobDigests) == 0 {
		err = errors.New("it is there")
	}
	return err
}

func (c *reapiClient) action() *repb.Digest { return sha256Of(append([]byte("made "), c.b...)) }

func (c *reapiClient) result() error {
	_, err := repb.NewActionCacheClient(c.conn).UpdateActionResult(c.ctx, &repb.UpdateActionResultRequest{
		ActionDigest: c.action(), ActionResult: &repb.ActionResult{OutputFiles: []*repb.OutputFile{{Path: "out", Digest: sha256Of(c.b)}}},
	})
	return err
}

func (c *reapiClient) hit() error {
	r, err := repb.NewActionCacheClient(c.conn).GetActionResult(c.ctx, &repb.GetActionResultRequest{ActionDigest: c.action()})
	if err == nil && r.OutputFiles[0].Digest.Hash != sha256Of(c.b).Hash {
		err = fmt.Errorf("the result is another: %v", r)
	}
	return err
}
