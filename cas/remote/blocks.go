package remote

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
)

// inBlocks is from which size on an upload is named before its first byte is sent, which
// costs a second look at the file, and then goes on where an earlier one ended. Below it
// beginning again costs less than a person sees.
const inBlocks = 16 << 20

// putBlocks sends what the node lacks of a file. r is read twice: a file that changes
// between the two is found out by the node, block by block.
func (s *Store) putBlocks(ctx context.Context, r io.ReaderAt, size int64) (cas.Ref, error) {
	name := cas.NewManifestBuilder()
	if _, err := io.Copy(name, ended{ctx, io.NewSectionReader(r, 0, size+1)}); err != nil {
		return cas.Ref{}, err
	}
	ref, m, manifest, err := name.Finish()
	if err != nil {
		return cas.Ref{}, err
	}
	if ref.Size != size {
		return ref, nil // the caller sees that it is another file by now
	}
	missing, err := s.api.Missing(ctx, connect.NewRequest(&forgeyardv1.MissingRequest{Manifest: manifest}))
	if err != nil {
		return cas.Ref{}, err
	}
	out, err := s.sendBlocks(ctx, r, m, manifest, missing.Msg.Blocks)
	if err != nil {
		switch forgeyard.KindOf(err) {
		case forgeyard.Corrupt:
			return cas.Ref{}, forgeyard.Errorf("cas put", forgeyard.Conflict, "it changed while it was read: %v", err)
		case forgeyard.Interrupted:
			return cas.Ref{}, forgeyard.E("cas put", forgeyard.Interrupted, errInterrupted).WithHint("the same command goes on from there")
		case forgeyard.Unavailable:
			return cas.Ref{}, forgeyard.Errorf("cas put", forgeyard.Unavailable, "the node went away: %w", err).WithHint("the same command goes on from there")
		}
		return cas.Ref{}, err
	}
	return ref, s.stored(out, ref)
}

// sendBlocks sends the blocks that are missing, and asks for the whole to be committed.
func (s *Store) sendBlocks(ctx context.Context, r io.ReaderAt, m cas.Manifest, manifest []byte, missing []uint32) (*forgeyardv1.PutResponse, error) {
	offsets, left := m.Offsets(), int64(0)
	for _, i := range missing {
		if int(i) >= len(m.Blocks) {
			return nil, forgeyard.Errorf("cas put", forgeyard.Corrupt, "the node asks for block %d of %d", i, len(m.Blocks))
		}
		left += m.Blocks[i].Size
	}
	if s.Had != nil && left > 0 { // else it is here already, and nothing goes on
		s.Had(m.Size - left)
	}
	st := s.api.PutBlocks(ctx)
	msg := &forgeyardv1.PutBlocksRequest{Manifest: manifest, Hold: s.Hold}
	err := st.Send(msg)
	buf := make([]byte, cas.BlockSize)
	for _, i := range missing {
		if err != nil {
			break
		}
		b := buf[:m.Blocks[i].Size]
		if _, err = io.ReadFull(s.wrap(io.NewSectionReader(r, offsets[i], int64(len(b)))), b); err == nil {
			err = st.Send(&forgeyardv1.PutBlocksRequest{Block: i, Data: b})
		}
	}
	out, answer := st.CloseAndReceive()
	switch {
	case err != nil && !errors.Is(err, io.EOF): // EOF: the node ended it, and says why in its answer
		return nil, err
	case answer != nil:
		return nil, answer
	}
	return out.Msg, nil
}

// ended is a reader that stops with its context.
type ended struct {
	ctx context.Context
	r   io.Reader
}

func (e ended) Read(b []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, forgeyard.E("cas put", forgeyard.Interrupted, err)
	}
	return e.r.Read(b)
}
