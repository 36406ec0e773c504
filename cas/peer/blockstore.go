package peer

import (
	"context"
	"log/slog"

	"github.com/ipfs/boxo/blockstore"
	blocks "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	ipld "github.com/ipfs/go-ipld-format"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// blocksOf lets bitswap's server read a store. It is read-only: what arrives is
// stored by whoever wanted it, never by the protocol.
//
// Every failure is "not here" to the peer who asked, who then goes elsewhere; a
// corrupt copy was quarantined by the store and is told to the log.
type blocksOf struct {
	store cas.Store
	log   *slog.Logger
}

var _ blockstore.Blockstore = blocksOf{}

func (s blocksOf) Get(ctx context.Context, c cid.Cid) (blocks.Block, error) {
	d, ok := fromCID(c)
	if !ok {
		return nil, ipld.ErrNotFound{Cid: c}
	}
	b, err := s.store.Block(ctx, d)
	if err != nil {
		return nil, s.absent(c, d, err)
	}
	return blocks.NewBlockWithCid(b, c)
}

func (s blocksOf) GetSize(ctx context.Context, c cid.Cid) (int, error) {
	d, ok := fromCID(c)
	if !ok {
		return 0, ipld.ErrNotFound{Cid: c}
	}
	n, err := s.store.BlockSize(ctx, d)
	if err != nil {
		return 0, s.absent(c, d, err)
	}
	return int(n), nil
}

func (s blocksOf) Has(ctx context.Context, c cid.Cid) (bool, error) {
	_, err := s.GetSize(ctx, c)
	return err == nil, nil
}

func (s blocksOf) absent(c cid.Cid, d forgeyard.Digest, err error) error {
	if forgeyard.KindOf(err) != forgeyard.NotFound {
		s.log.Warn("a block that a peer wants cannot be read", "digest", d, "err", err)
	}
	return ipld.ErrNotFound{Cid: c}
}

func (blocksOf) refuse() error {
	return forgeyard.Errorf("cas peer", forgeyard.Denied, "the block store of the exchange is read-only")
}

// Put refuses.
func (s blocksOf) Put(context.Context, blocks.Block) error { return s.refuse() }

// PutMany refuses.
func (s blocksOf) PutMany(context.Context, []blocks.Block) error { return s.refuse() }

// DeleteBlock refuses.
func (s blocksOf) DeleteBlock(context.Context, cid.Cid) error { return s.refuse() }

// AllKeysChan refuses: a store is never listed.
func (s blocksOf) AllKeysChan(context.Context) (<-chan cid.Cid, error) { return nil, s.refuse() }
