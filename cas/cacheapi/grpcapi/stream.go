package grpcapi

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"
	bspb "google.golang.org/genproto/googleapis/bytestream"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

func (s *Server) read(ctx context.Context, r *bspb.ReadRequest, out *connect.ServerStream[bspb.ReadResponse]) error {
	res, err := cacheapi.ParseResource(r.ResourceName)
	if err != nil {
		return err
	}
	switch {
	case res.Upload != "":
		return forgeyard.Errorf("read", forgeyard.Invalid, "%q names an upload", forgeyard.Clip(r.ResourceName, 120))
	case r.ReadLimit < 0:
		return forgeyard.Errorf("read", forgeyard.Invalid, "read limit %d is negative", r.ReadLimit)
	case r.ReadOffset < 0 || r.ReadOffset > res.ID.Size:
		return connect.NewError(connect.CodeOutOfRange, forgeyard.Errorf("read", forgeyard.Invalid, "offset %d is not in [0, %d]", r.ReadOffset, res.ID.Size))
	}
	if res.Zstd && r.ReadLimit != 0 {
		return forgeyard.Errorf("read", forgeyard.Invalid, "a compressed read has no limit, this one %d", r.ReadLimit)
	}
	if res.ID.Empty() && !res.Zstd {
		return nil
	}
	o, err := s.cache.Open(ctx, res.ID)
	if err != nil {
		return err
	}
	defer func() { _ = o.Close() }() // only read
	if _, err := o.Seek(r.ReadOffset, io.SeekStart); err != nil {
		return err
	}
	if res.Zstd {
		return s.sendPacked(o, out)
	}
	left := res.ID.Size - r.ReadOffset
	if r.ReadLimit > 0 {
		left = min(left, r.ReadLimit)
	}
	buf := make([]byte, min(left, cacheapi.ReadChunk))
	for left > 0 {
		n, err := io.ReadFull(o, buf[:min(left, int64(len(buf)))])
		if err != nil {
			return err
		}
		if err := out.Send(&bspb.ReadResponse{Data: buf[:n]}); err != nil {
			return err
		}
		left -= int64(n)
		s.cache.Stats.BytesRead.Add(int64(n))
	}
	return nil
}

func (s *Server) writeStatus(ctx context.Context, r *bspb.QueryWriteStatusRequest, _ cacheapi.Right) (*bspb.QueryWriteStatusResponse, error) {
	res, err := uploadName(r.ResourceName)
	if err != nil {
		return nil, err
	}
	n, done, err := s.cache.Committed(ctx, r.ResourceName, res.ID)
	if err != nil {
		return nil, err
	}
	if res.Zstd && done {
		n = -1 // as the API has it: the size of the compressed bytes is nobody's
	}
	return &bspb.QueryWriteStatusResponse{CommittedSize: n, Complete: done}, nil
}

func uploadName(name string) (cacheapi.Resource, error) {
	res, err := cacheapi.ParseResource(name)
	if err == nil && res.Upload == "" {
		err = forgeyard.Errorf("upload", forgeyard.Invalid, "%q has no uploads/UUID before blobs", forgeyard.Clip(name, 120))
	}
	return res, err
}

// write takes one upload. What is here already ends it at once; what comes stays for the
// next try, whatever ends the stream.
func (s *Server) write(ctx context.Context, in *connect.ClientStream[bspb.WriteRequest]) (*bspb.WriteResponse, error) {
	if !in.Receive() {
		return nil, ended(in.Err())
	}
	first := in.Msg()
	name := first.ResourceName
	res, err := uploadName(name)
	if err != nil {
		return nil, err
	}
	missing, err := s.cache.Missing(ctx, []cacheapi.ID{res.ID})
	if err != nil {
		return nil, err
	}
	switch {
	case len(missing) == 0 && res.Zstd:
		return &bspb.WriteResponse{CommittedSize: -1}, nil
	case len(missing) == 0:
		return &bspb.WriteResponse{CommittedSize: res.ID.Size}, nil
	case res.Zstd:
		return s.writePacked(ctx, in, res)
	}
	up, err := s.cache.Begin(name, res.ID, first.WriteOffset)
	if err != nil {
		return nil, err
	}
	defer up.Close()
	for m := first; ; m = in.Msg() {
		if err := takeOne(up, m, name); err != nil {
			return nil, err
		}
		if m.FinishWrite {
			break
		}
		if !in.Receive() {
			if err := in.Err(); err != nil {
				return nil, ended(err)
			}
			// The stream ended without finish_write: the client means to go on later.
			return &bspb.WriteResponse{CommittedSize: up.Committed()}, nil
		}
	}
	if err := up.Finish(ctx); err != nil {
		return nil, err
	}
	return &bspb.WriteResponse{CommittedSize: res.ID.Size}, nil
}

func ended(err error) error {
	if err == nil {
		err = errors.New("the stream had no message")
	}
	return forgeyard.E("upload", forgeyard.Interrupted, err)
}

func takeOne(up *cacheapi.Upload, m *bspb.WriteRequest, name string) error {
	if m.ResourceName != "" && m.ResourceName != name {
		return forgeyard.Errorf("upload", forgeyard.Invalid, "the resource name changed in the middle of the stream")
	}
	if m.WriteOffset != up.Committed() {
		return badFollow(m.WriteOffset, up.Committed())
	}
	_, err := up.Write(m.Data)
	return err
}

func badFollow(offset, after int64) error {
	return forgeyard.Errorf("upload", forgeyard.Invalid, "offset %d does not follow %d", offset, after)
}
