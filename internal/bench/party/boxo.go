package party

import (
	"context"
	"fmt"

	"github.com/ipfs/boxo/bitswap"
	"github.com/ipfs/boxo/bitswap/network/bsnet"
	"github.com/ipfs/boxo/blockstore"
	blocks "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	"github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	libpeer "github.com/libp2p/go-libp2p/core/peer"
	mh "github.com/multiformats/go-multihash"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// overBoxo is the stock bitswap with the settings that make it fast: the host is the
// mesh's, whose limits and windows are those; its hash is ours; blocks are kept in
// memory at both ends, so it pays for no disk.
type overBoxo struct {
	c     Config
	mesh  *mesh.Mesh
	swap  *bitswap.Bitswap
	store blockstore.Blockstore
}

func (*overBoxo) stats() string { return "" }

func (o *overBoxo) meet(ctx context.Context, more []At) error { return meetAll(ctx, o.mesh, more) }

func (o *overBoxo) ready(ctx context.Context) (Says, error) {
	peer.RegisterHasher()
	id, err := mesh.NewIdentity()
	if err != nil {
		return Says{}, err
	}
	everybody := func(libpeer.ID, *mesh.Credential) (mesh.Class, error) { return mesh.ClassMember, nil }
	if o.mesh, err = mesh.New(mesh.Config{Identity: id, Listen: o.c.Listen, Authorize: everybody}); err != nil {
		return Says{}, err
	}
	o.store = blockstore.NewBlockstore(dssync.MutexWrap(datastore.NewMapDatastore()))
	o.swap = bitswap.New(ctx, bsnet.NewFromIpfsHost(o.mesh.HostFor(mesh.ClassMember)), nil, o.store,
		bitswap.MaxOutstandingBytesPerPeer(16<<20), bitswap.WithTargetMessageSize(1<<20),
		bitswap.MaxQueuedWantlistEntriesPerPeer(4096), bitswap.SetSimulateDontHavesOnTimeout(false))
	s := Says{At: At{Peer: o.mesh.PeerID().String(), Addrs: o.mesh.Addrs()}}
	if err := meetAll(ctx, o.mesh, o.c.From); err != nil {
		return s, err
	}
	if o.c.From != nil {
		return s, nil
	}
	n := &Noise{o.c.Seed}
	for left := o.c.Size; left > 0; left -= boxoBlock {
		b := make([]byte, min(left, boxoBlock))
		_, _ = n.Read(b)
		d := cas.Sum(b)
		h, err := mh.Encode(d[:], mh.BLAKE3)
		if err != nil {
			return s, err
		}
		c := cid.NewCidV1(cid.Raw, h)
		blk, err := blocks.NewBlockWithCid(b, c)
		if err != nil {
			return s, err
		}
		if err := o.store.Put(ctx, blk); err != nil {
			return s, err
		}
		s.Names = append(s.Names, c.String())
	}
	return s, nil
}

const (
	boxoBlock  = 256 << 10 // the size at which it was measured fastest
	boxoWindow = 64        // wants at once; 512 stall
)

func (o *overBoxo) bring(ctx context.Context) error {
	session := o.swap.NewSession(ctx)
	got := 0
	for at := 0; at < len(o.c.Names); at += boxoWindow {
		var want []cid.Cid
		for _, name := range o.c.Names[at:min(at+boxoWindow, len(o.c.Names))] {
			c, err := cid.Decode(name)
			if err != nil {
				return err
			}
			want = append(want, c)
		}
		ch, err := session.GetBlocks(ctx, want)
		if err != nil {
			return err
		}
		for b := range ch {
			if err := o.store.Put(ctx, b); err != nil {
				return err
			}
			if err := o.swap.NotifyNewBlocks(ctx, b); err != nil {
				return err
			}
			got++
		}
	}
	if got != len(o.c.Names) {
		return fmt.Errorf("%d of %d blocks came", got, len(o.c.Names))
	}
	return nil
}
