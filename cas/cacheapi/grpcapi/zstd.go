package grpcapi

import (
	"bytes"
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/zstd"
	bspb "google.golang.org/genproto/googleapis/bytestream"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

// maxWindow is the most memory that unpacking one stream may take; clients stay at 8 MiB.
const maxWindow = 32 << 20

// unpack reads zstd. What comes out is bounded by whoever reads it: a blob has a size.
func unpack(r io.Reader) (*zstd.Decoder, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
	if err != nil {
		return nil, forgeyard.E("zstd", forgeyard.Invalid, err)
	}
	return d, nil
}

// damaged tells bytes that are no zstd from trouble of another kind.
type damaged struct{ d *zstd.Decoder }

func (r damaged) Read(b []byte) (int, error) {
	n, err := r.d.Read(b)
	if err != nil && !errors.Is(err, io.EOF) && forgeyard.KindOf(err) == forgeyard.Other {
		err = forgeyard.E("zstd", forgeyard.Invalid, err)
	}
	return n, err
}

// putPacked keeps a blob of which the bytes come compressed.
func (s *Server) putPacked(ctx context.Context, id cacheapi.ID, r io.Reader) error {
	d, err := unpack(r)
	if err != nil {
		return err
	}
	defer d.Close()
	return s.cache.Put(ctx, id, damaged{d})
}

func (s *Server) putPackedBytes(ctx context.Context, id cacheapi.ID, b []byte) error {
	return s.putPacked(ctx, id, bytes.NewReader(b))
}

// messages are the bytes of an upload, one message after the other, up to finish_write.
type messages struct {
	in   *connect.ClientStream[bspb.WriteRequest]
	name string
	now  []byte
	at   int64 // bytes that came
	last bool
}

func (m *messages) take(w *bspb.WriteRequest) error {
	if w.ResourceName != "" && w.ResourceName != m.name {
		return forgeyard.Errorf("upload", forgeyard.Invalid, "the resource name changed in the middle of the stream")
	}
	if w.WriteOffset != m.at {
		return badFollow(w.WriteOffset, m.at)
	}
	m.now, m.last = w.Data, w.FinishWrite
	m.at += int64(len(w.Data))
	return nil
}

func (m *messages) Read(b []byte) (int, error) {
	for len(m.now) == 0 {
		if m.last {
			return 0, io.EOF
		}
		if !m.in.Receive() {
			return 0, ended(m.in.Err())
		}
		if err := m.take(m.in.Msg()); err != nil {
			return 0, err
		}
	}
	n := copy(b, m.now)
	m.now = m.now[n:]
	return n, nil
}

// writePacked takes a compressed upload. It begins at its beginning: what a cut left of
// compressed bytes says nothing of how many plain ones they are.
func (s *Server) writePacked(ctx context.Context, in *connect.ClientStream[bspb.WriteRequest], res cacheapi.Resource) (*bspb.WriteResponse, error) {
	m := &messages{in: in, name: in.Msg().ResourceName}
	if err := m.take(in.Msg()); err != nil {
		return nil, err
	}
	if err := s.putPacked(ctx, res.ID, m); err != nil {
		return nil, err
	}
	return &bspb.WriteResponse{CommittedSize: m.at}, nil
}

// sender turns what is written into messages.
type sender struct {
	out *connect.ServerStream[bspb.ReadResponse]
}

func (w sender) Write(b []byte) (int, error) {
	for at := 0; at < len(b); at += cacheapi.ReadChunk {
		if err := w.out.Send(&bspb.ReadResponse{Data: b[at:min(at+cacheapi.ReadChunk, len(b))]}); err != nil {
			return at, err
		}
	}
	return len(b), nil
}

// sendPacked sends a blob compressed, fast rather than small.
func (s *Server) sendPacked(r io.Reader, out *connect.ServerStream[bspb.ReadResponse]) error {
	z, err := zstd.NewWriter(sender{out}, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	n, err := io.Copy(z, r)
	s.cache.Stats.BytesRead.Add(n)
	if err != nil {
		_ = z.Close() // the first error counts
		return err
	}
	return z.Close()
}
