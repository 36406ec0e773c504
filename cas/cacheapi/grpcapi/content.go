package grpcapi

import (
	"bytes"
	"context"
	"encoding/hex"
	"strconv"

	"connectrpc.com/connect"
	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func digestOf(id cacheapi.ID) *repb.Digest {
	return &repb.Digest{Hash: hex.EncodeToString(id.Hash[:]), SizeBytes: id.Size}
}

func (s *Server) findMissing(ctx context.Context, r *repb.FindMissingBlobsRequest, _ cacheapi.Right) (*repb.FindMissingBlobsResponse, error) {
	f, err := ask(r.InstanceName, r.DigestFunction)
	if err != nil {
		return nil, err
	}
	ids := make([]cacheapi.ID, len(r.BlobDigests))
	for i, d := range r.BlobDigests {
		if ids[i], err = idOf(f, d); err != nil {
			return nil, err
		}
	}
	missing, err := s.cache.Missing(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := &repb.FindMissingBlobsResponse{}
	for _, id := range missing {
		out.MissingBlobDigests = append(out.MissingBlobDigests, digestOf(id))
	}
	return out, nil
}

func (s *Server) batchUpdate(ctx context.Context, r *repb.BatchUpdateBlobsRequest, _ cacheapi.Right) (*repb.BatchUpdateBlobsResponse, error) {
	f, err := ask(r.InstanceName, r.DigestFunction)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, x := range r.Requests {
		total += len(x.GetData())
	}
	if err := batchFits(int64(total)); err != nil {
		return nil, err
	}
	out := &repb.BatchUpdateBlobsResponse{}
	for _, x := range r.Requests {
		err := s.updateOne(ctx, f, x)
		if forgeyard.KindOf(err) == forgeyard.Interrupted {
			return nil, err
		}
		out.Responses = append(out.Responses, &repb.BatchUpdateBlobsResponse_Response{Digest: x.GetDigest(), Status: statusOf(err)})
	}
	return out, nil
}

func batchFits(total int64) error {
	if total > cacheapi.MaxBatchBytes {
		return forgeyard.Errorf("batch", forgeyard.Invalid, "%d bytes are more than %d in one batch, as the capabilities say", total, cacheapi.MaxBatchBytes)
	}
	return nil
}

func (s *Server) updateOne(ctx context.Context, f cacheapi.Function, x *repb.BatchUpdateBlobsRequest_Request) error {
	id, err := idOf(f, x.GetDigest())
	if err != nil {
		return err
	}
	switch x.GetCompressor() {
	case repb.Compressor_IDENTITY:
		return s.cache.Put(ctx, id, bytes.NewReader(x.Data))
	case repb.Compressor_ZSTD:
		return s.putPackedBytes(ctx, id, x.Data)
	}
	return forgeyard.Errorf("batch", forgeyard.Invalid, "compressor %v: zstd is spoken here, as the capabilities say", x.Compressor)
}

func (s *Server) batchRead(ctx context.Context, r *repb.BatchReadBlobsRequest, _ cacheapi.Right) (*repb.BatchReadBlobsResponse, error) {
	f, err := ask(r.InstanceName, r.DigestFunction)
	if err != nil {
		return nil, err
	}
	ids, total := make([]cacheapi.ID, len(r.Digests)), int64(0)
	for i, d := range r.Digests {
		if ids[i], err = idOf(f, d); err != nil {
			return nil, err
		}
		if total += ids[i].Size; total > cacheapi.MaxBatchBytes {
			return nil, batchFits(total)
		}
	}
	if _, err := s.cache.Bring(ctx, ids); err != nil { // all that is not here in one go
		return nil, err
	}
	out := &repb.BatchReadBlobsResponse{}
	for i, id := range ids {
		b, err := s.cache.Read(ctx, id, cacheapi.MaxBatchBytes)
		if forgeyard.KindOf(err) == forgeyard.Interrupted {
			return nil, err
		}
		out.Responses = append(out.Responses, &repb.BatchReadBlobsResponse_Response{Digest: r.Digests[i], Data: b, Status: statusOf(err)})
	}
	return out, nil
}

// getTree walks the directories below a root, breadth first and each once; what is not
// here, nor at a member, is left out, as the API says. A page token counts the
// directories of the pages before it.
func (s *Server) getTree(ctx context.Context, r *repb.GetTreeRequest, out *connect.ServerStream[repb.GetTreeResponse]) error {
	f, err := ask(r.InstanceName, r.DigestFunction)
	if err != nil {
		return err
	}
	root, err := idOf(f, r.RootDigest)
	if err != nil {
		return err
	}
	skip, err := parsePage(r.PageToken)
	if err != nil || r.PageSize < 0 {
		return forgeyard.Errorf("tree", forgeyard.Invalid, "page token %q of size %d was not given here", forgeyard.Clip(r.PageToken, 40), r.PageSize)
	}
	p := &pages{out: out, skip: skip, most: pageSize}
	if r.PageSize > 0 {
		p.most = min(int(r.PageSize), pageSize)
	}
	if err := s.walk(ctx, root, f, p.add); err != nil {
		return err
	}
	return p.flush(true)
}

// walk visits the directories below root.
func (s *Server) walk(ctx context.Context, root cacheapi.ID, f cacheapi.Function, visit func(*repb.Directory, int) error) error {
	seen := map[cacheapi.ID]bool{root: true}
	level := []cacheapi.ID{root}
	for first := true; len(level) > 0; first = false {
		if _, err := s.cache.Bring(ctx, level); err != nil {
			return err
		}
		var next []cacheapi.ID
		for _, id := range level {
			b, err := s.cache.Read(ctx, id, cacheapi.MaxMessage/2)
			if forgeyard.KindOf(err) == forgeyard.NotFound && !first {
				continue
			}
			if err != nil {
				return err
			}
			d := &repb.Directory{}
			if err := proto.Unmarshal(b, d); err != nil {
				return forgeyard.Errorf("tree", forgeyard.Invalid, "%v is no directory: %w", id, err)
			}
			for _, sub := range d.Directories {
				child, err := idOf(f, sub.GetDigest())
				if err != nil {
					return err
				}
				if !seen[child] {
					seen[child] = true
					next = append(next, child)
				}
			}
			if len(seen) > cacheapi.MaxClosure {
				return forgeyard.Errorf("tree", forgeyard.Limit, "it has more than %d directories", cacheapi.MaxClosure)
			}
			if err := visit(d, len(b)); err != nil {
				return err
			}
		}
		level = next
	}
	return nil
}

// pageSize is the most directories in one message; their bytes bound it too.
const pageSize = 1000

// pages gathers directories into messages.
type pages struct {
	out         *connect.ServerStream[repb.GetTreeResponse]
	skip, done  int // directories of earlier pages; directories seen
	most, bytes int
	now         []*repb.Directory
}

func (p *pages) add(d *repb.Directory, size int) error {
	if p.done++; p.done <= p.skip {
		return nil
	}
	if len(p.now) > 0 && (len(p.now) == p.most || p.bytes+size > cacheapi.MaxMessage/2) {
		p.done--
		err := p.flush(false)
		p.done++
		if err != nil {
			return err
		}
	}
	p.now, p.bytes = append(p.now, d), p.bytes+size
	return nil
}

func (p *pages) flush(last bool) error {
	m := &repb.GetTreeResponse{Directories: p.now}
	if !last {
		m.NextPageToken = "n" + strconv.Itoa(p.done)
	}
	p.now, p.bytes = nil, 0
	return p.out.Send(m)
}

func parsePage(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	if s[0] != 'n' {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(s[1:], 10, 31)
	return int(n), err
}
