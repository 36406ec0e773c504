package control

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
)

// An upload in blocks goes on where an earlier one was cut: its manifest says what all of
// it is, and the store keeps each block that it verified, whoever sent it and whatever
// ended the sending.

// blocksAtOnce is how many blocks of one upload are hashed and written at once. Each is a
// block in memory; two keep a disk busy, and the others are for the hashing.
const blocksAtOnce = 4

// Missing implements the service.
func (s contentService) Missing(ctx context.Context, r *connect.Request[forgeyardv1.MissingRequest]) (*connect.Response[forgeyardv1.MissingResponse], error) {
	p, _, err := s.partial(ctx, r.Msg.Manifest)
	if err != nil {
		return nil, err
	}
	out := &forgeyardv1.MissingResponse{}
	for _, i := range p.Missing() {
		out.Blocks = append(out.Blocks, uint32(i))
	}
	return respond(out, p.Close())
}

// partial opens the blob of an encoded manifest for its blocks.
func (s contentService) partial(ctx context.Context, manifest []byte) (cas.Partial, cas.Manifest, error) {
	m, err := cas.DecodeManifest(manifest)
	if err != nil {
		return nil, m, err
	}
	if limit := s.n.UploadLimit(); limit > 0 && m.Size > limit {
		return nil, m, tooLarge(m.Size, limit)
	}
	p, err := s.n.Store().Partial(ctx, m)
	return p, m, err
}

// PutBlocks implements the service.
func (s contentService) PutBlocks(ctx context.Context, st *connect.ClientStream[forgeyardv1.PutBlocksRequest]) (*connect.Response[forgeyardv1.PutResponse], error) {
	if !st.Receive() {
		return nil, errors.Join(forgeyard.Errorf("cas put", forgeyard.Invalid, "nothing was sent"), st.Err())
	}
	first := st.Msg()
	p, m, err := s.partial(ctx, first.Manifest)
	if err != nil {
		return nil, err
	}
	// Held before it is whole, so that no collection finds it without a keeper.
	if h, ok := s.n.Store().(cas.Holder); ok && first.Hold != "" {
		err = h.Hold(holdOwner(first.Hold), m.Whole, cas.Sum(first.Manifest))
	}
	if err == nil {
		err = putBlocks(p, first, st)
	}
	var ref cas.Ref
	if err == nil {
		ref, err = p.Commit(ctx, cas.Durable)
	}
	err = errors.Join(err, p.Close()) // what was verified stays for the next try
	return respond(&forgeyardv1.PutResponse{Digest: ref.Digest.String(), Size: ref.Size, Manifest: ref.Manifest.String()}, err)
}

// putBlocks keeps the blocks of a stream, a few at once. The first that is wrong ends it.
func putBlocks(p cas.Partial, msg *forgeyardv1.PutBlocksRequest, st *connect.ClientStream[forgeyardv1.PutBlocksRequest]) error {
	var g errgroup.Group
	g.SetLimit(blocksAtOnce)
	failed := make(chan struct{}, 1)
	for more := true; more; more = st.Receive() {
		if msg == nil {
			msg = st.Msg()
		}
		if b := msg; len(b.Data) > 0 {
			g.Go(func() error {
				err := p.PutBlock(int(b.Block), b.Data)
				if err != nil {
					select {
					case failed <- struct{}{}:
					default: // another failed first
					}
				}
				return err
			})
		}
		msg = nil
		select {
		case <-failed:
			return g.Wait()
		default:
		}
	}
	return errors.Join(g.Wait(), st.Err())
}
