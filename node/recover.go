package node

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
)

// How long a forced recovery asks the others, and waits until this node leads.
const (
	recoverAsk  = 2 * time.Second
	recoverWait = 20 * time.Second
)

// Recover implements control.Node: E31. A site that lost its quorum for good goes on with
// this node as its only voter, as a new incarnation. Without force it only says what that
// would do.
func (n *Node) Recover(ctx context.Context, by string, force bool) (*forgeyardv1.RecoverResponse, error) {
	if !n.recovering.TryLock() {
		return nil, forgeyard.Errorf("recover", forgeyard.Conflict, "another recovery is under way on this node")
	}
	defer n.recovering.Unlock()
	if err := n.mayRecover(ctx); err != nil {
		return nil, err
	}
	st := n.replica.State()
	tail, err := n.group.Tail(st.Index)
	if err != nil {
		return nil, err
	}
	st = withTail(st, tail)
	b := site.Recover{
		Incarnation: st.Incarnation + 1, Lineage: newLineage(st.Incarnation+1, n.NewID()), Runner: n.enrolment.RunnerID, Node: n.enrolment.Name,
		Peer: n.mesh.PeerID().String(), From: st.Index, Formats: site.Formats,
	}
	raw := site.Command{ID: forgeyard.MessageID(n.NewID()), At: forgeyard.WallOf(n.clock.Wall()), By: by + "@" + n.enrolment.Name, Body: b}.Encode()
	fenced, err := foretell(st, b, raw, n.group.Term())
	if err != nil {
		return nil, err
	}
	r := &forgeyardv1.RecoverResponse{
		Incarnation: b.Incarnation, Previous: st.Incarnation, FromIndex: st.Index, LostVoters: n.otherVoters(), LastEntry: lastHappened(st),
		Leases: int64(fenced.Leases), DeviceLeases: int64(fenced.Devices), Tokens: int64(fenced.Tokens), Held: int64(fenced.Held),
	}
	if !force {
		return r, nil
	}
	n.log.Warn("forced recovery", "incarnation", b.Incarnation, "lineage", b.Lineage, "from", st.Index, "by", by, "lost", strings.Join(r.LostVoters, " "))
	ctx, cancel := context.WithTimeout(ctx, recoverWait)
	defer cancel()
	if err := n.group.Reseed(ctx, consensus.Reseed{Lineage: b.Lineage, Index: site.FirstIndex(b.Incarnation), Command: raw}); err != nil {
		return nil, err
	}
	r.Done = true
	return r, nil
}

// withTail is the state that a recovery goes on from: with all that the log of this node
// has, committed or not, since the lost voters may have committed each entry.
func withTail(st *site.State, tail []consensus.Entry) *site.State {
	for _, e := range tail {
		st, _ = st.ApplyEntry(e.Index, e.Term, e.Data)
	}
	return st
}

// foretell says what the command that begins the new incarnation would fence, or why the
// state would refuse it: a plan that is refused must not be written down.
func foretell(st *site.State, b site.Recover, raw []byte, term uint64) (site.Recovered, error) {
	if err := st.Readable(); err != nil {
		return site.Recovered{}, err
	}
	if m, ok := st.Members.Get(b.Runner); ok && m.Removed {
		return site.Recovered{}, forgeyard.Errorf("recover", forgeyard.Denied, "the log of %s ends with its own removal from the site, which the lost voters may have committed", b.Node).
			WithHint("recover on another node that may vote; if none is left, forgeyard-node site restore FILE goes on from a backup")
	}
	_, reply := st.ApplyEntry(site.FirstIndex(b.Incarnation), term, raw)
	return site.Value[site.Recovered](reply)
}

// newLineage names a group: its incarnation, and what nobody else draws.
func newLineage(incarnation uint64, id string) string { return fmt.Sprintf("%d-%s", incarnation, id) }

// incarnationOf reads the number back; the first group has no name.
func incarnationOf(lineage string) uint64 {
	var n uint64
	if _, err := fmt.Sscanf(lineage, "%d-", &n); err != nil {
		return 1
	}
	return n
}

func (n *Node) otherVoters() []string {
	var out []string
	for _, m := range n.group.Members() {
		if m.Voter && m.ID != string(n.enrolment.RunnerID) {
			out = append(out, n.memberName(forgeyard.RunnerID(m.ID)))
		}
	}
	slices.Sort(out)
	return out
}

func lastHappened(st *site.State) *timestamppb.Timestamp {
	if len(st.History) == 0 {
		return nil
	}
	return timestamppb.New(st.History[len(st.History)-1].At.Time())
}

// mayRecover refuses while the site can still decide by itself, was recovered elsewhere,
// or another node that is left has a newer log.
func (n *Node) mayRecover(ctx context.Context) error {
	no := func(kind forgeyard.Kind, hint, format string, args ...any) error {
		return forgeyard.Errorf("recover", kind, format, args...).WithHint("%s", hint)
	}
	if n.siteKey().IsZero() {
		return no(forgeyard.Denied, "run it on a node that may vote: forgeyard-node site members", "%s holds no site key, so it could enrol nobody", n.enrolment.Name)
	}
	if id, _, _ := n.group.Leader(); id != "" {
		return no(forgeyard.Conflict, "nothing needs to be recovered; forgeyard-node site members shows who is missing", "%s leads the site", n.memberName(forgeyard.RunnerID(id)))
	}
	voters, alive := 0, 0
	heard := n.askAll(ctx)
	for _, m := range n.group.Members() {
		if !m.Voter {
			continue
		}
		voters++
		if _, ok := heard[m.ID]; ok || m.ID == string(n.enrolment.RunnerID) {
			alive++
		}
	}
	if voters == 0 {
		return no(forgeyard.Conflict, "wait until a voter has sent it, or run it on a voter", "this node has nothing of the site's log")
	}
	if 2*alive > voters {
		return no(forgeyard.Conflict, "they elect a leader by themselves: wait a few seconds, then forgeyard-node site status", "%d of %d voters answer, which is a majority", alive, voters)
	}
	term, index, err := n.group.LastEntry()
	if err != nil {
		return no(forgeyard.KindOf(err), "forgeyard-node doctor says more; restore a backup on another node if this disk is lost", "where this node's log ends cannot be read: %v", err)
	}
	for id, a := range heard {
		if err := a.objection(n.memberName(forgeyard.RunnerID(id)), term, index); err != nil {
			return err
		}
	}
	return nil
}

// lastWord is what another member answered about its log.
type lastWord struct {
	term, index uint64 // zero: it cannot say, since no voter has an empty log
	voter       bool   // holds a vote in the group, as far as this node knows
	elsewhere   bool   // it is of another lineage
}

// objection says why a node whose log ends there may not recover while the other is left.
func (a lastWord) objection(name string, term, index uint64) error {
	no := func(kind forgeyard.Kind, format string, args ...any) *forgeyard.Error {
		return forgeyard.Errorf("recover", kind, format, args...)
	}
	switch {
	case a.elsewhere:
		return no(forgeyard.Conflict, "%s belongs to another incarnation: the site was recovered there already", name).
			WithHint("forgeyard-node site status on %s shows it; this node must give up its log: forgeyard-node site rejoin", name)
	case !a.voter:
		return nil
	case a.index == 0:
		return no(forgeyard.Unavailable, "%s cannot say where its log ends, which may be newer", name).
			WithHint("wait until it has opened its log: forgeyard-node doctor there says why it does not; or stop it")
	case a.term > term || a.term == term && a.index > index:
		return no(forgeyard.Conflict, "the log of %s is newer: it ends at %d of term %d, here at %d of term %d", name, a.index, a.term, index, term).
			WithHint("recover on %s, or stop it if it is not to be trusted", name)
	}
	return nil
}

// askAll asks every member for the end of its log.
func (n *Node) askAll(ctx context.Context) map[string]lastWord {
	ctx, cancel := context.WithTimeout(ctx, recoverAsk)
	defer cancel()
	votes := map[string]bool{}
	for _, m := range n.group.Members() {
		votes[m.ID] = m.Voter
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]lastWord{}
	for id, m := range n.replica.State().Members.All() {
		if m.Removed || id == n.enrolment.RunnerID {
			continue
		}
		wg.Go(func() {
			r, err := n.peers.to(m.Peer).Term(ctx, connect.NewRequest(&forgeyardv1.TermRequest{Lineage: n.group.Lineage()}))
			w := lastWord{voter: votes[string(id)]}
			switch {
			case err == nil:
				w.term, w.index = r.Msg.LastTerm, r.Msg.LastIndex
			case wire.Answered(err) && forgeyard.KindOf(err) == forgeyard.Stale:
				w.elsewhere = true
			default:
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[string(id)] = w
		})
	}
	wg.Wait()
	return out
}

// statement is what this node's incarnation began with, signed; empty for the first one,
// and on a node that holds no site key.
func (n *Node) statement() []byte {
	st := n.replica.State()
	if len(st.Recoveries) == 0 || n.siteKey().IsZero() {
		return nil
	}
	r := st.Recoveries[len(st.Recoveries)-1]
	b, err := mesh.Statement{Site: n.enrolment.SiteID, Incarnation: r.Incarnation, Lineage: r.Lineage, Runner: r.Runner, Node: n.memberName(r.Runner), At: r.At}.Sign(n.siteKey())
	if err != nil {
		n.log.Error("the incarnation cannot be told to others", "err", err)
	}
	return b
}

// strangerEvery is how often one peer of another lineage is talked to.
const strangerEvery = 2 * time.Second

// stranger is told the address of a node whose raft calls come from another lineage: the
// two compare notes, and the older incarnation ends.
func (n *Node) stranger(addr string) {
	now := n.clock.Now()
	n.mu.Lock()
	last, ok := n.strangers[addr]
	due := !ok || now.Sub(last) >= strangerEvery
	if due && (ok || len(n.strangers) < maxStrangers) {
		n.strangers[addr] = now
	}
	n.mu.Unlock()
	if !due || !n.opened.Load() {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), vouchTimeout)
		defer cancel()
		r, err := n.peers.to(addr).Lineage(ctx, connect.NewRequest(&forgeyardv1.LineageRequest{Statement: n.statement(), From: n.whereabouts()}))
		if err != nil {
			n.log.Debug("a node of another incarnation does not answer", "peer", addr, "err", err)
			return
		}
		n.judge(r.Msg.Statement, r.Msg.From)
	}()
}

// maxStrangers bounds the memory of whom was talked to: a site has no more members.
const maxStrangers = 256

// judge ends this node if the site's key says that a later incarnation began elsewhere. Of
// two that began at the same number, on two nodes that were both recovered by force, the
// one with the greater name stays.
func (n *Node) judge(raw []byte, from *forgeyardv1.Whereabouts) {
	if len(raw) == 0 {
		return
	}
	s, err := mesh.OpenStatement(raw, n.enrolment.SiteID, n.enrolment.SitePublicKey)
	if err != nil {
		n.log.Warn("a statement about the site's incarnation is not believed", "err", err)
		return
	}
	own := n.group.Lineage()
	if s.Lineage == own || s.Incarnation < incarnationOf(own) || s.Incarnation == incarnationOf(own) && s.Lineage < own {
		return
	}
	if err := writeFile(n.dir.join(fileSuperseded), raw, 0o600); err != nil {
		n.log.Error("the end of this incarnation cannot be written down", "err", err)
	}
	n.keepAddrs(from)
	n.fail(supersededBy(s, n.enrolment.Name, incarnationOf(own)))
}

// keepAddrs writes down where the members are: without its log this node knows nobody else.
func (n *Node) keepAddrs(from *forgeyardv1.Whereabouts) {
	var first []mesh.PeerAddr
	if id, err := peer.Decode(from.GetPeerId()); err == nil {
		first = []mesh.PeerAddr{{RunnerID: forgeyard.RunnerID(from.RunnerId), PeerID: id, Addrs: from.Addrs, GossipAddr: from.Gossip}}
	}
	if err := n.noteAddrs(first...); err != nil {
		n.log.Error("where the members are cannot be written down", "err", err)
	}
}

func supersededBy(s mesh.Statement, name string, own uint64) error {
	return forgeyard.Errorf("site", forgeyard.Conflict, "this node's log is of incarnation %d of the site, which was given up: incarnation %d was begun on %s at %s", own, s.Incarnation, s.Node, s.At.Time().Format(time.RFC3339)).
		WithHint("enter the new one with: forgeyard-node site rejoin, then start %s again; its old log is kept aside", name)
}

// Lineage implements the peer service.
func (s peerService) Lineage(ctx context.Context, r *connect.Request[forgeyardv1.LineageRequest]) (*connect.Response[forgeyardv1.LineageResponse], error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	if own := s.n.statement(); !bytes.Equal(own, r.Msg.Statement) {
		s.n.judge(r.Msg.Statement, r.Msg.From)
	}
	return connect.NewResponse(&forgeyardv1.LineageResponse{Statement: s.n.statement(), From: s.n.whereabouts()}), nil
}

func (n *Node) whereabouts() *forgeyardv1.Whereabouts {
	own := n.ownAddr()
	return &forgeyardv1.Whereabouts{RunnerId: string(own.RunnerID), PeerId: own.PeerID.String(), Addrs: own.Addrs, Gossip: own.GossipAddr}
}
