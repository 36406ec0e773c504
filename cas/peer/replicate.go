package peer

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// Replicate asks the target (a RunnerID or the text of a peer id) to fetch roots
// from us, to keep them durably and to pin them for owner until expires (zero:
// until unpinned). It returns nil once the target said that all is done. Repeating
// it is harmless and cheap: what is there is not sent again.
//
// Errors: what the target answers, with its kind (NoSpace, Limit, NotFound when we
// lack a part ourselves); Unavailable when it could not be reached or fell silent,
// after which it may or may not keep the roots.
func (x *Exchange) Replicate(ctx context.Context, target string, roots []Root, owner string, expires time.Time) error {
	q := request{Kind: kindReplicate, Roots: roots, Owner: owner}
	if !expires.IsZero() {
		q.Expires = forgeyard.WallOf(expires)
	}
	if err := q.validate(); err != nil {
		return err
	}
	end, err := x.begin()
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := x.join(ctx)
	defer cancel()
	info, err := x.resolve(target)
	if err != nil {
		return forgeyard.E(opReplicate, forgeyard.Unavailable, fmt.Errorf("%s: %w", target, err))
	}
	if info.ID == x.cfg.Host.ID() {
		return forgeyard.Errorf(opReplicate, forgeyard.Invalid, "%s is this node: a replica is kept elsewhere", target)
	}
	if _, err := x.connect(ctx, info); err != nil {
		return x.unreachable(ctx, opReplicate, target, err)
	}
	st, stop, err := x.open(ctx, info.ID, q)
	if err != nil {
		return x.unreachable(ctx, opReplicate, target, err)
	}
	defer stop()
	return x.awaitReplica(ctx, st, target)
}

// awaitReplica reads the target's signs of life until its verdict.
func (x *Exchange) awaitReplica(ctx context.Context, st network.Stream, target string) error {
	for {
		sctx, cancel := x.within(ctx, replicateSilence)
		unhook := context.AfterFunc(sctx, func() { _ = st.Reset() })
		var r response
		err := readFrame(st, &r)
		unhook()
		if err != nil {
			err = cause(sctx, err)
		}
		cancel()
		switch {
		case err != nil:
			return x.unreachable(ctx, opReplicate, target, err)
		case r.Error != nil:
			return r.Error.err(opReplicate, target)
		case r.Done:
			x.stats.replicated.Add(1)
			return nil
		}
	}
}

// serveReplicate fetches for a peer, telling it each second that we live.
func (x *Exchange) serveReplicate(ctx context.Context, st network.Stream, q request) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := st.Conn().RemotePeer()
	result := make(chan error, 1)
	job := replication{x: x, from: p, q: q}
	x.wg.Add(1) // begun by handle, so Close waits for this one too
	go func() {
		defer x.wg.Done()
		result <- job.run(ctx)
	}()
	for {
		select {
		case err := <-result:
			if err != nil {
				x.cfg.Log.Warn("a replica for a peer could not be made", "peer", p, "owner", q.Owner, "err", err)
				return x.answer(ctx, st, response{Error: refusalOf(err)})
			}
			x.stats.replicas.Add(1)
			return x.answer(ctx, st, response{Done: true})
		case <-x.cfg.Clock.After(replicateAlive):
			if err := x.answer(ctx, st, response{Progress: job.bytes.Load()}); err != nil {
				cancel() // whoever asked is gone
				<-result
				return err
			}
		}
	}
}

// replication is what we do when a peer asks us to keep something.
type replication struct {
	x     *Exchange
	from  libpeer.ID
	q     request
	bytes atomic.Int64 // here so far, those that were here before included
}

func (r *replication) run(ctx context.Context) error {
	if err := r.wait(ctx); err != nil {
		return err
	}
	defer func() { <-r.x.replicate }()
	if r.x.cfg.Urgent != nil && r.x.cfg.Urgent(r.q.Owner) {
		ctx = WithPriority(ctx, bulk.Urgent)
	}
	pin := cas.Pin{Owner: guard(r.q.Owner, r.from), Expires: r.x.cfg.Clock.Wall().Add(guardTTL)}
	for _, root := range r.q.Roots {
		if root.Kind == Tree {
			pin.Trees = append(pin.Trees, root.Ref.Digest)
		} else {
			pin.Roots = append(pin.Roots, root.Ref.Digest)
		}
	}
	store := r.x.cfg.Store
	// The owner's pin is replaced only when all is here: its earlier roots stay
	// until then, and the guard keeps what arrives.
	if err := store.Pin(ctx, pin); err != nil {
		return forgeyard.E(opReplicate, forgeyard.Other, err)
	}
	if err := r.fetch(ctx); err != nil {
		return err
	}
	guarded := pin.Owner
	pin.Owner, pin.Expires = r.q.Owner, r.q.Expires.Time()
	if err := store.Pin(ctx, pin); err != nil {
		return forgeyard.E(opReplicate, forgeyard.Other, err)
	}
	if err := store.Unpin(ctx, guarded); err != nil {
		return forgeyard.E(opReplicate, forgeyard.Other, err)
	}
	return nil
}

// wait takes one of the few places, or refuses when many wait already.
func (r *replication) wait(ctx context.Context) error {
	if r.x.waiting.Add(1) > replicateQueue {
		r.x.waiting.Add(-1)
		return forgeyard.Errorf(opReplicate, forgeyard.Limit, "%d replications wait here already", replicateQueue).WithHint("try again later or ask another node")
	}
	defer r.x.waiting.Add(-1)
	select {
	case r.x.replicate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return forgeyard.E(opReplicate, forgeyard.Interrupted, context.Cause(ctx))
	}
}

// fetch brings every root, from whoever asked first. Blobs whose refs are whole
// share a session; what must be asked about by its digest has one of its own.
func (r *replication) fetch(ctx context.Context) error {
	w := walk{limit: r.x.cfg.MaxReplicateBytes, tell: func(p Progress) { r.bytes.Store(p.Bytes) }}
	var whole []cas.Ref
	var asked []Root
	for _, root := range r.q.Roots {
		if root.Kind == Tree || root.Ref.Size > cas.BlockSize && root.Ref.Manifest.IsZero() {
			asked = append(asked, root)
		} else {
			whole = append(whole, root.Ref)
		}
	}
	if len(whole) > 0 {
		if err := r.session(ctx, &w, whole[0].Digest, func() error { return w.blobs(whole) }); err != nil {
			return err
		}
	}
	for _, root := range asked {
		ref := cas.Ref{Digest: root.Ref.Digest, Size: sizeUnknown(root.Ref.Digest)}
		err := r.session(ctx, &w, ref.Digest, func() error {
			if root.Kind == Tree {
				return w.run(ref)
			}
			return w.blobs([]cas.Ref{root.Ref})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *replication) session(ctx context.Context, w *walk, subject forgeyard.Digest, do func() error) error {
	w.s = r.x.newSession(ctx, opReplicate, subject, []string{r.from.String()}, cas.Durable)
	defer w.s.close()
	return do()
}

// guard is the owner of the pin that holds while a replication runs. It is one for
// each real owner and peer, so that a second try takes over the first one's.
func guard(owner string, p libpeer.ID) string {
	d := cas.Sum([]byte(owner + "\x00" + string(p)))
	return "replicate/" + hex.EncodeToString(d[:16])
}
