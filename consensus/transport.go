package consensus

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus/carry"
)

// innerTransport is what carries raft's calls.
type innerTransport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

func openNetwork(in *instance) (innerTransport, error) {
	cfg := &in.g.cfg
	in.lent = in.g.layer.lend(in.broken)
	in.carrier = carry.New(carry.Config{Layer: in.lent, Timeout: cfg.Timings.RPC, Desk: in.desk()})
	return in.carrier, nil
}

// guardedTransport stands between raft and its peers.
//
//   - Heartbeats have no fast path (26a): raft would handle them beside its main
//     loop, and a leader deposed there can store an entry under the new term.
//   - A node that wiped its log neither asks for votes nor gives one while it is
//     behind what it gave up (see rebuild.go); nor does a process that most voters do not
//     know yet, and one that another refuses is deaf to all calls (see boots.go).
//   - What a follower says it has, it has said when this node's disk has it too (see ahead).
//   - It counts installs of the same snapshot (26c), remembers how far each
//     follower is, and learns below which index entries are not live.
//   - It makes raft stand for election when the leader's process has ended (see
//     loss.go).
type guardedTransport struct {
	innerTransport
	in   *instance
	out  chan raft.RPC
	turn chan struct{} // capacity 1: who holds it looks at a call and gives it to raft
	quit chan struct{}
	once sync.Once
	done chan struct{} // relay has ended
	open pipelines
	loss *lossWatch

	mu       sync.Mutex
	progress map[raft.ServerID]followerProgress

	// owned by whoever has the turn
	appends   int // seen from a leader, heartbeats apart
	installed position
	installs  int
	storedAt  uint64
}

type followerProgress struct {
	lastIndex uint64
	at        forgeyard.Instant
}

var errNotCurrent = errors.New("this node is rebuilding its log and may not stand for election")

func newGuardedTransport(inner innerTransport, in *instance) *guardedTransport {
	t := &guardedTransport{innerTransport: inner, in: in, out: make(chan raft.RPC), turn: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		progress: map[raft.ServerID]followerProgress{}}
	t.loss = newLossWatch(in, t)
	go t.relay()
	if in.carrier != nil {
		in.carrier.Start(t)
	}
	return t
}

func (t *guardedTransport) LocalAddr() raft.ServerAddress {
	return raft.ServerAddress(t.in.g.cfg.LocalAddr)
}

func (t *guardedTransport) Consumer() <-chan raft.RPC { return t.out }

// SetHeartbeatHandler does nothing: guard (a).
func (t *guardedTransport) SetHeartbeatHandler(handle func(raft.RPC)) {
	if t.in.g.cfg.off.heartbeats {
		t.innerTransport.SetHeartbeatHandler(handle)
	}
}

func (t *guardedTransport) RequestVote(id raft.ServerID, to raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := t.in.voteless(); err != nil {
		return err
	}
	return t.innerTransport.RequestVote(id, to, t.loss.request(id, req), resp)
}

func (t *guardedTransport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := t.in.voteless(); err != nil {
		return err
	}
	return t.innerTransport.RequestPreVote(id, to, req, resp)
}

func (t *guardedTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := t.innerTransport.AppendEntries(id, to, req, resp)
	if err == nil {
		last := resp.LastLog
		if n := len(req.Entries); n > 0 && resp.Success {
			last = max(last, req.Entries[n-1].Index)
		}
		t.mu.Lock()
		t.progress[id] = followerProgress{lastIndex: last, at: t.in.g.cfg.Clock.Now()}
		t.mu.Unlock()
		err = t.Held(req, resp)
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport; see pipelines, and Held.
func (t *guardedTransport) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.innerTransport.AppendEntriesPipeline(id, to)
	if err != nil {
		return p, err
	}
	if t.in.g.cfg.off.pipelines {
		return p, nil
	}
	return t.open.guard(p, t.in.g.cfg.Timings.RPC)
}

func (t *guardedTransport) follower(id string) (followerProgress, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.progress[raft.ServerID(id)]
	return p, ok
}

// Close cuts every connection and ends the relay. raft calls it too.
func (t *guardedTransport) Close() error {
	t.once.Do(func() { close(t.quit) })
	t.open.close()
	err := t.innerTransport.Close()
	<-t.done
	return err
}

// relay gives raft what does not come over the wire: elections that the loss of a leader
// calls for, and the calls of a test's transport.
func (t *guardedTransport) relay() {
	defer close(t.done)
	for {
		select {
		case <-t.quit:
			return
		case rpc := <-t.innerTransport.Consumer():
			if !t.Arrive(rpc) {
				rpc.Respond(nil, raft.ErrTransportShutdown)
			}
		case c := <-t.loss.stand:
			now := t.timeoutNow()
			t.inTurn(func() bool { return t.loss.take(c) }, &now)
		}
	}
}

// Arrive implements carry.Guard.
func (t *guardedTransport) Arrive(rpc raft.RPC) bool {
	return t.inTurn(func() bool { return t.inspect(&rpc) }, &rpc)
}

// Held implements carry.Guard; see ahead.
func (t *guardedTransport) Held(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	return t.in.store.awaitOwn(q, r)
}

// inTurn looks at one call at a time and gives it to raft, unless the look says that raft
// need not see it. So no other call comes between a look and what follows from it. A look
// may put another call in its place, not change one that others hold. False:
// the transport is closing, and raft did not get it.
func (t *guardedTransport) inTurn(look func() bool, rpc *raft.RPC) bool {
	select {
	case t.turn <- struct{}{}:
	case <-t.quit:
		return false
	}
	defer func() { <-t.turn }()
	if !look() {
		return true
	}
	select {
	case t.out <- *rpc:
		return true
	case <-t.quit:
		return false
	}
}

// inspect reports whether raft should see the call; if not, it was answered.
func (t *guardedTransport) inspect(rpc *raft.RPC) bool {
	if !t.ours(rpc) || t.greeted(rpc) || t.disowned(rpc) {
		return false
	}
	switch req := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		t.loss.heard(req.Term)
		t.sawAppend(req)
	case *raft.RequestVoteRequest:
		if t.in.voteless() != nil {
			rpc.Respond(&raft.RequestVoteResponse{RPCHeader: t.header(), Term: t.in.g.Term()}, nil)
			return false
		}
		asked := *req
		asked.ID = t.in.g.boots.vouched(req.ID)
		rpc.Command = &asked
	case *raft.RequestPreVoteRequest:
		if t.in.voteless() != nil {
			rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: t.header(), Term: t.in.g.Term()}, nil)
			return false
		}
		if t.loss.grants(req) {
			rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: t.header(), Term: req.Term, Granted: true}, nil)
			return false
		}
		asked := *req
		asked.ID = t.in.g.boots.vouched(req.ID)
		rpc.Command = &asked
	case *raft.TimeoutNowRequest:
		if err := t.in.voteless(); err != nil {
			rpc.Respond(nil, err)
			return false
		}
		t.loss.handedOver()
	case *raft.InstallSnapshotRequest:
		t.loss.heard(req.Term)
		t.watchInstall(rpc, req)
	}
	return true
}

func (t *guardedTransport) header() raft.RPCHeader {
	cfg := &t.in.g.cfg
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(cfg.LocalID), Addr: t.EncodePeer(raft.ServerID(cfg.LocalID), raft.ServerAddress(cfg.LocalAddr))}
}

// sawAppend learns the index up to which entries may be older than this
// process. A leader composes its second append to us after the first one
// reached us, so its commit index is of a time when we were open; the first
// may have been composed before and waited for our door.
func (t *guardedTransport) sawAppend(req *raft.AppendEntriesRequest) {
	heartbeat := req.PrevLogEntry == 0 && len(req.Entries) == 0 && req.LeaderCommitIndex == 0
	if heartbeat || t.appends >= 2 {
		return
	}
	if t.appends++; t.appends == 2 {
		t.in.g.machine.liveAfter(position{Term: req.Term, Index: req.LeaderCommitIndex})
	}
}

// watchInstall counts installs of one snapshot that change nothing: guard (c).
// A conflicting entry at the snapshot's index stays in the follower's log, the
// next append does not fit, and the leader sends the snapshot again, for ever.
func (t *guardedTransport) watchInstall(rpc *raft.RPC, req *raft.InstallSnapshotRequest) {
	at, stored := position{Term: req.LastLogTerm, Index: req.LastLogIndex}, t.in.store.stored.Load()
	if at != t.installed || stored != t.storedAt {
		t.installed, t.storedAt, t.installs = at, stored, 0
	}
	t.installs++
	if t.installs > loopInstalls && !t.in.g.cfg.off.loop {
		t.in.report(fault{kind: SnapshotLoop, wipe: wipeLog,
			err: forgeyard.Errorf("install snapshot", forgeyard.Conflict, "snapshot %d (term %d) came %d times and the log did not move", at.Index, at.Term, t.installs)})
	}
}

// askForVotesNow makes the only voter lead without waiting for a leader that
// cannot be there.
func (t *guardedTransport) askForVotesNow() {
	select {
	case t.out <- t.timeoutNow():
	case <-t.quit:
	case <-t.in.g.cfg.Clock.After(time.Second):
	}
}

// timeoutNow is what makes raft stand for election without a timer.
func (t *guardedTransport) timeoutNow() raft.RPC {
	return raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: t.header()}, RespChan: make(chan raft.RPCResponse, 1)}
}
