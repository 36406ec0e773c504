package peer

import (
	"context"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Ask asks one peer (a RunnerID, "uplink", or the text of a peer id) what it has
// of some digests, at most 1024. The answers stand in the order of the digests. An
// answer that does not come within WantTimeout is Unavailable.
func (x *Exchange) Ask(ctx context.Context, provider string, digests []forgeyard.Digest) ([]Answer, error) {
	if err := (request{Kind: kindAsk, Digests: digests}).validate(); err != nil {
		return nil, err
	}
	end, err := x.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	ctx, cancel := x.join(ctx)
	defer cancel()
	info, err := x.resolve(provider)
	if err != nil {
		return nil, forgeyard.E(opAsk, forgeyard.Unavailable, fmt.Errorf("%s: %w", provider, err))
	}
	if _, err := x.connect(ctx, info); err != nil {
		return nil, x.unreachable(ctx, opAsk, provider, err)
	}
	answers, err := x.askPeer(ctx, info.ID, provider, request{Kind: kindAsk, Digests: digests})
	if err != nil && forgeyard.KindOf(err) == forgeyard.Other {
		err = x.unreachable(ctx, opAsk, provider, err)
	}
	return answers, err
}

// unreachable types an error of the network.
func (x *Exchange) unreachable(ctx context.Context, op, name string, err error) error {
	kind := forgeyard.Unavailable
	if ctx.Err() != nil && x.ctx.Err() == nil {
		kind = interruption(ctx)
	}
	return forgeyard.E(op, kind, fmt.Errorf("%s: %s", name, reason(err)))
}

// askPeer puts one question to a connected peer. Errors of the network have no kind.
func (x *Exchange) askPeer(ctx context.Context, p libpeer.ID, name string, q request) ([]Answer, error) {
	x.stats.questions.Add(1)
	ctx, cancel := x.within(ctx, x.patience(p))
	defer cancel()
	st, stop, err := x.open(ctx, p, q)
	if err != nil {
		return nil, err
	}
	defer stop()
	var r response
	if err := readFrame(st, &r); err != nil {
		return nil, cause(ctx, err)
	}
	switch {
	case r.Error != nil:
		return nil, r.Error.err(opAsk, name)
	case len(r.Answers) != len(q.Digests):
		return nil, fmt.Errorf("%d answers to %d questions", len(r.Answers), len(q.Digests))
	}
	return r.Answers, nil
}

// open sends a request on a stream of its own, which ends with ctx or stop.
func (x *Exchange) open(ctx context.Context, p libpeer.ID, q request) (st network.Stream, stop func(), err error) {
	st, err = x.cfg.Host.NewStream(ctx, p, Protocol)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	unhook := context.AfterFunc(ctx, func() { _ = st.Reset() })
	stop = func() {
		unhook()
		_ = st.Reset() // the answer was read, or is not wanted any more
	}
	if err = writeFrame(st, q); err == nil {
		err = st.CloseWrite()
	}
	if err != nil {
		stop()
		return nil, nil, cause(ctx, err)
	}
	return st, stop, nil
}

// handle serves one inbound stream of Protocol.
func (x *Exchange) handle(st network.Stream) {
	end, err := x.begin()
	if err != nil {
		_ = st.Reset()
		return
	}
	defer end()
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = st.Reset() })()
	if err := x.serve(ctx, st); err != nil {
		x.cfg.Log.Debug("a request could not be served", "peer", st.Conn().RemotePeer(), "err", err)
		_ = st.Reset()
		return
	}
	_ = st.Close()
}

func (x *Exchange) serve(ctx context.Context, st network.Stream) error {
	p := st.Conn().RemotePeer()
	if !x.admit(p) {
		return x.answer(ctx, st, response{Error: refusalOf(forgeyard.Errorf("cas peer", forgeyard.Limit, "%d requests of this peer are being served already", x.cfg.MaxServePerPeer))})
	}
	defer x.dismiss(p)
	var q request
	if err := x.readRequest(ctx, st, &q); err != nil {
		return err
	}
	if err := q.validate(); err != nil {
		return x.answer(ctx, st, response{Error: refusalOf(err)})
	}
	if q.Kind == kindAsk {
		if q.Fetching {
			x.meetSibling(p, q.Digests[0])
		}
		return x.answer(ctx, st, x.answers(ctx, q.Digests))
	}
	return x.serveReplicate(ctx, st, q)
}

func (x *Exchange) admit(p libpeer.ID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.serving[p] >= x.cfg.MaxServePerPeer {
		return false
	}
	x.serving[p]++
	return true
}

func (x *Exchange) dismiss(p libpeer.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.serving[p]--; x.serving[p] == 0 {
		delete(x.serving, p)
	}
}

// readRequest gives the peer WantTimeout to say what it wants.
func (x *Exchange) readRequest(ctx context.Context, st network.Stream, q *request) error {
	defer x.deadline(ctx, st)()
	return readFrame(st, q)
}

// answer gives the peer WantTimeout to take it.
func (x *Exchange) answer(ctx context.Context, w network.Stream, r response) error {
	defer x.deadline(ctx, w)()
	return writeFrame(w, r)
}

// deadline resets the stream unless the returned function is called in time.
func (x *Exchange) deadline(ctx context.Context, st network.Stream) (met func()) {
	ctx, cancel := x.within(ctx, x.cfg.WantTimeout)
	unhook := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errTimeout) {
			_ = st.Reset()
		}
	})
	return func() { unhook(); cancel() }
}

// answers says what is here of some digests. What cannot be read is not here.
func (x *Exchange) answers(ctx context.Context, digests []forgeyard.Digest) response {
	out := make([]Answer, len(digests))
	for i, d := range digests {
		out[i] = x.look(ctx, d)
		out[i].Fetching = x.fetches(d)
	}
	x.stats.answered.Add(int64(len(out)))
	return response{Done: true, Answers: out}
}

func (x *Exchange) look(ctx context.Context, d forgeyard.Digest) Answer {
	if d == cas.Empty() {
		return Answer{Have: true}
	}
	info, err := x.cfg.Store.Stat(ctx, d)
	switch {
	case err == nil && info.Complete:
		return Answer{Have: true, Size: info.Ref.Size, Manifest: info.Ref.Manifest}
	case err == nil && info.Have > 0:
		return Answer{Size: info.Ref.Size, Manifest: info.Ref.Manifest, Partial: info.Have}
	}
	if n, err := x.cfg.Store.BlockSize(ctx, d); err == nil { // a block of a larger blob
		return Answer{Have: true, Size: n}
	}
	return Answer{}
}
