package consensus

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus/carry"
	"github.com/forgeyard/forgeyard-node/consensus/roll"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// A copy of a voter's directory, or an old one put back, has forgotten votes and entries.
// Package roll decides who is one; here is what is done about it:
//
//   - Each connection begins with a hello of both sides. What a refused process says is
//     not heard, and it is told so.
//   - Who is told so by anybody neither votes nor stands nor takes entries.
//   - A process that begins says hello to all voters, and votes when a majority has not
//     refused it. An election needs a majority in any case, so that delays none.
//
// What is known is kept beside the votes (keyOwnBoots, keyBook), the own boot before anybody
// hears of it, the rest within a second where a process is new or refused, and each minute
// where only floors have risen.
type boots struct {
	g        *Group
	disowned atomic.Bool // there is a disowner

	mu        sync.Mutex                    // guards what is below
	own       roll.Boot                     // zero: it could not be written yet
	lineage   string                        // of all that follows
	known     map[string]roll.Record        // by id
	acked     map[raft.ServerID]followerAck // what others acknowledged to this leader
	welcome   map[string]bool               // do not refuse this process
	refusedBy map[string]Refusal            // by id
	refused   map[string]outcast            // by id: the last that was refused in its name
	electors  electors                      // see electorate
	loaded    bool                          // known has what the disk had
	warned    bool                          // that own cannot be written
	later     forgeyard.Instant             // when the disk is tried again
	saved     forgeyard.Instant
	unsaved   savedness
}

// electors are the voters by the configuration of one of them, which counts this node too,
// and where its log ended.
type electors struct {
	index uint64
	ids   []string
}

type savedness uint8

const (
	savedAll savedness = iota
	floorsRose
	someoneIsNew // to be written at the next look, within a second
)

// followerAck is the end of what a follower acknowledged to the leader of a term.
type followerAck struct{ term, index uint64 }

// Refusal is a process that does not count, since it was started from a copy of a node's
// disk, or from that disk as it was earlier.
type Refusal struct {
	Member  string // whose name it speaks in; or, of this node, who refuses it
	Verdict roll.Verdict
	First   forgeyard.Instant
	Last    forgeyard.Instant
}

// outcast is a process that this node refuses.
type outcast struct {
	Refusal
	nonce uint64
	told  bool
}

// shows: the last call of a process that ended may come late, so two must be heard under
// one name for a while before the earlier one is spoken of.
func (r outcast) shows() bool {
	return r.Verdict.Reason != roll.Earlier || r.Last.Sub(r.First) >= contested
}

var (
	keyOwnBoots = []byte("fy-boots")
	keyBook     = []byte("fy-roll")
)

var errNotWelcome = errors.New("this process is not known to most voters yet, and does not vote")

// Disowned is in the chain of what this node answers when another one refuses it.
type Disowned struct{ Refusal }

func (e *Disowned) Error() string {
	return "another node refuses this one as a voter: " + e.Verdict.String()
}

func newBoots(g *Group) *boots {
	b := &boots{g: g}
	b.forget("")
	return b
}

// forget begins a book for a lineage.
func (b *boots) forget(lineage string) {
	b.lineage, b.known, b.acked = lineage, map[string]roll.Record{}, map[raft.ServerID]followerAck{}
	b.disowned.Store(false)
	b.welcome, b.refusedBy, b.refused, b.electors = map[string]bool{}, map[string]Refusal{}, map[string]outcast{}, electors{}
}

// current takes the lock, with a book for the group that this node belongs to now.
func (b *boots) current() (unlock func()) {
	b.mu.Lock()
	if l := b.g.Lineage(); l != b.lineage {
		b.forget(l)
		b.unsaved = someoneIsNew
	}
	return b.mu.Unlock
}

// begin writes down that a process of this node begins. On a disk that has no room it is
// tried again (see watch): until then this node does not vote. What it knows of others it
// knows nevertheless. Only one instance at a time calls it.
func (b *boots) begin(s *guardedStore) error {
	if b.g.cfg.off.boots || !b.mayWrite() {
		return nil
	}
	if err := b.load(s); err != nil {
		return err
	}
	unlock := b.current()
	begun := !b.own.IsZero()
	unlock()
	if begun {
		return nil
	}
	raw, err := s.read(keyOwnBoots)
	if err != nil {
		return err
	}
	last, err := roll.DecodeBoot(raw)
	if err != nil {
		return err
	}
	var n [8]byte
	_, err = rand.Read(n[:])
	invariant.NoError(err, "the system has randomness")
	next := last.Next(binary.BigEndian.Uint64(n[:]) | 1) // zero stands for none
	err = s.setAside(keyOwnBoots, next.Encode())         // while others are heard
	defer b.current()()
	if err != nil {
		b.later = b.g.cfg.Clock.Now().Add(writeAgain)
		if !b.warned {
			b.warned = true
			b.g.cfg.Log.Warn("that this process begins cannot be written down yet, so it does not vote", "err", err)
		}
		return nil
	}
	b.own = next
	return nil
}

// load reads the book, once. One that cannot be read is an empty one: it knows less, and
// refuses less, and that is no reason for a node not to start.
func (b *boots) load(s *guardedStore) error {
	defer b.current()()
	if b.loaded {
		return nil
	}
	raw, err := s.read(keyBook)
	if err != nil {
		return err
	}
	b.loaded = true
	book, err := roll.DecodeBook(raw)
	if err != nil {
		b.g.cfg.Log.Warn("what was known of other voters cannot be read, and is learnt anew", "err", err)
		return nil
	}
	if book.Lineage == b.lineage && book.Known != nil {
		b.known = book.Known
	}
	return nil
}

// mayWrite: what failed a moment ago is not tried again yet.
func (b *boots) mayWrite() bool {
	defer b.current()()
	return b.g.cfg.Clock.Now() >= b.later
}

// read returns nil for a key that is not there.
func (s *guardedStore) read(key []byte) ([]byte, error) {
	v, err := s.disk.Get(key)
	if notFound(err) {
		return nil, nil
	}
	return v, err
}

// setAside saves something that raft does not know of: where it fails, raft's own writes
// say what is wrong with the disk.
func (s *guardedStore) setAside(key, v []byte) error {
	s.mu.Lock()
	if s.failed != nil {
		defer s.mu.Unlock()
		return s.failed
	}
	s.writes.Add(1)
	s.mu.Unlock()
	defer s.writes.Done()
	return s.disk.Set(key, v)
}

// desk is the boots at the door of one instance.
type desk struct {
	*boots
	in *instance
}

// Hello implements carry.Desk.
func (d desk) Hello(to raft.ServerAddress, who carry.Caller) []byte {
	b := d.boots
	index, err := d.in.end()
	if err != nil {
		return nil
	}
	id := ""
	if c, ok := who.(*caller); ok {
		id = c.id
	}
	for _, m := range b.g.Members() {
		if id == "" && m.Addr == string(to) {
			id = m.ID
		}
	}
	defer b.current()()
	if b.own.IsZero() {
		return nil
	}
	h := roll.Hello{Claim: roll.Claim{
		ID: b.g.cfg.LocalID, Boot: b.own, Lineage: b.lineage, Term: b.g.Term(), Index: index, Rebuilding: b.g.plan.Load() != nil,
	}}
	if v := b.g.voters(); len(v) <= roll.MaxVoters {
		for _, m := range v {
			h.Voters = append(h.Voters, m.ID)
		}
	}
	if r, ok := b.refused[id]; ok {
		h.Refused = &roll.Refusal{Nonce: r.nonce, Verdict: r.Verdict}
	}
	return h.Encode()
}

// end is the highest index that this node has, of its log or of a snapshot.
func (in *instance) end() (uint64, error) {
	last, err := in.store.disk.LastIndex()
	if err != nil {
		return 0, err
	}
	snap, err := in.snaps.at()
	return max(last, snap.Index), err
}

// Meet implements carry.Desk.
func (d desk) Meet(raw []byte) carry.Caller {
	h, err := roll.DecodeHello(raw)
	if err != nil {
		d.g.cfg.Log.Warn("a hello of a voter cannot be read", "err", err)
		return nil
	}
	if c := d.meet(h); c != nil {
		return c
	}
	return nil
}

// meet judges who says hello. Nil: nothing is known of it here.
func (b *boots) meet(h roll.Hello) *caller {
	c := h.Claim
	if b.g.present() == nil {
		return &caller{b: b, id: c.ID, early: true}
	}
	term, votes, member := b.g.leadsIn(), b.g.votes(c.ID), b.g.has(c.ID)
	defer b.current()()
	if c.Lineage != b.lineage || c.ID == b.g.cfg.LocalID {
		return nil // see ours: it is heard, or not, by its lineage
	}
	ack := b.acked[raft.ServerID(c.ID)]
	if term == 0 || ack.term != term {
		ack = followerAck{}
	}
	old := b.known[c.ID]
	r, v := roll.Judge(old, c, ack.index, ack.term)
	if !votes {
		// What it forgot does no harm. Should it vote one day, it is this one that does.
		r, v = roll.Record{Number: c.Boot.Number, Nonce: c.Boot.Chain[0]}, roll.Verdict{}
	}
	if member { // whoever else calls itself something is not written down
		if old.Nonce != r.Nonce || !slices.Equal(old.Refused, r.Refused) {
			b.unsaved = someoneIsNew
		}
		b.known[c.ID] = r
	}
	who := &caller{b: b, id: c.ID, number: c.Boot.Number, nonce: c.Boot.Chain[0], verdict: v}
	if !v.OK() {
		b.refuses(c.ID, who.nonce, v)
	} else if member && slices.Contains(h.Voters, c.ID) && slices.Contains(h.Voters, b.g.cfg.LocalID) && c.Index >= b.electors.index {
		b.electors = electors{c.Index, h.Voters}
	}
	if h.Refused != nil && v.OK() && votes {
		b.refusedAs(c.ID, *h.Refused) // of a copy that takes us for one, nothing follows
	}
	return who
}

// refuses notes that somebody was refused in the name of a member.
func (b *boots) refuses(id string, nonce uint64, v roll.Verdict) {
	now := b.g.cfg.Clock.Now()
	r := b.refused[id]
	if r.nonce != nonce {
		r = outcast{Refusal: Refusal{Member: id, First: now}, nonce: nonce}
	}
	r.Verdict, r.Last = v, now
	if !r.told && r.shows() {
		r.told = true
		b.g.events.put(Event{Kind: VoterRefused, Term: b.g.Term(), Err: forgeyard.Errorf("raft hello", forgeyard.Denied, "%s: %s", id, v)})
	}
	b.refused[id] = r
}

// refusedAs notes that another node refuses this process, if it is meant.
func (b *boots) refusedAs(by string, f roll.Refusal) {
	if b.own.IsZero() {
		return // it has said nothing yet that could be refused
	}
	meant := f.Nonce == b.own.Chain[0] || f.Verdict.Reason != roll.Earlier && slices.Contains(b.own.Chain, f.Nonce)
	if !meant || f.Verdict.OK() {
		return
	}
	now := b.g.cfg.Clock.Now()
	r, ok := b.refusedBy[by]
	if !ok {
		r = Refusal{Member: by, First: now}
		b.g.events.put(Event{Kind: VoteDisowned, Term: b.g.Term(), Err: forgeyard.Errorf("raft hello", forgeyard.Denied, "%s refuses this process: %s", by, f.Verdict)})
	}
	r.Verdict, r.Last = f.Verdict, now
	b.refusedBy[by] = r
	b.disowned.Store(true)
}

// disowner is a member that refuses this process, and votes by what either this process or
// another voter says. The caller holds mu.
func (b *boots) disowner() (Refusal, bool) {
	for _, m := range append(b.g.voters(), b.electorate()...) {
		if r, ok := b.refusedBy[m.ID]; ok {
			return r, true
		}
	}
	return Refusal{}, false
}

// electorate is who votes, as far as this process knows. One that heard nothing while others
// were promoted, or itself, would wait for those whom it happens to know: then a voter's word
// counts that it votes, and who else does, until the own log is as long as that voter's was.
// The caller holds mu.
func (b *boots) electorate() []Member {
	voters := b.g.voters()
	in := b.g.present()
	if b.electors.ids == nil || in == nil {
		return voters
	}
	if end, err := in.end(); err == nil && end > b.electors.index {
		b.electors = electors{}
		return voters
	}
	votes := func(id string) bool {
		return slices.ContainsFunc(voters, func(m Member) bool { return m.ID == id })
	}
	if !slices.ContainsFunc(b.electors.ids, func(id string) bool { return !votes(id) }) {
		return voters // nobody in it is new
	}
	var told []Member
	for _, id := range b.electors.ids {
		told = append(told, Member{ID: id, Voter: true})
	}
	return told
}

// vouched gives raft an id that votes by the configuration it has, where the candidate's
// does not yet: raft asks nothing else of it. A voter that was promoted while this node
// heard nothing has said so, and that this node votes; whose log is newer decides.
func (b *boots) vouched(candidate []byte) []byte {
	voters := b.g.voters()
	has := func(m Member) bool { return m.ID == string(candidate) }
	defer b.current()()
	if len(voters) == 0 || slices.ContainsFunc(voters, has) || !slices.ContainsFunc(b.electorate(), has) {
		return candidate
	}
	return []byte(voters[0].ID)
}

// heed lets this process hear again what comes once nobody who votes refuses it.
func (b *boots) heed() {
	defer b.current()()
	_, yes := b.disowner()
	b.disowned.Store(yes)
}

// caller is a process at the other end of a connection.
type caller struct {
	b       *boots
	id      string
	number  uint64
	nonce   uint64
	verdict roll.Verdict
	early   bool // it came before this node knew who votes: it must come again
}

// Refused implements carry.Caller: a later process of the same voter puts an end to it.
func (c *caller) Refused() bool {
	if c.early || !c.verdict.OK() {
		return true
	}
	defer c.b.current()()
	r, ok := c.b.known[c.id]
	if !ok && c.b.g.has(c.id) { // it came before this node knew it for a member
		c.b.known[c.id] = roll.Record{Number: c.number, Nonce: c.nonce}
		c.b.unsaved = someoneIsNew
	}
	if !ok || r.Nonce == c.nonce || r.Number < c.number || !c.b.g.votes(c.id) {
		return false
	}
	c.b.refuses(c.id, c.nonce, roll.Verdict{Reason: roll.Earlier, Number: r.Number})
	return true
}

// Took implements carry.Caller.
func (c *caller) Took(from raft.ServerID, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) {
	if string(from) == c.id {
		c.b.took(from, q, r)
	}
}

// Stayed implements carry.Caller.
func (c *caller) Stayed() { c.b.admitted(c.id) }

// admitted notes that a member does not refuse this process.
func (b *boots) admitted(id string) {
	defer b.current()()
	if !b.welcome[id] && b.g.has(id) { // who is none is asked once it votes
		b.welcome[id] = true
	}
}

// took notes what a follower acknowledged to this leader, after it said hello on that
// connection. Before that, the next process may be the one that speaks: what it says of
// its log elsewhere may be older than what it acknowledges here.
func (b *boots) took(id raft.ServerID, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) {
	n := len(q.Entries)
	if n == 0 || !r.Success {
		return
	}
	last := q.Entries[n-1].Index
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.acked[id]; a.term != q.Term || a.index < last {
		b.acked[id] = followerAck{term: q.Term, index: last}
	}
}

// raise moves the floors up to what is acknowledged and committed. What is committed in a
// term that this node leads is so for ever.
func (b *boots) raise(in *instance) {
	term := in.raft.CurrentTerm()
	commit := in.raft.CommitIndex()
	if !in.leads(term) {
		return // the index may be of a later leader's log
	}
	defer b.current()()
	for id, a := range b.acked {
		r, ok := b.known[string(id)]
		if f := min(a.index, commit); ok && a.term == term && f > r.Floor {
			r.Floor = f
			b.known[string(id)] = r
			b.unsaved = max(b.unsaved, floorsRose)
		}
	}
}

// save writes the book down if it is due.
func (b *boots) save(in *instance, now bool) {
	unlock := b.current()
	at := b.g.cfg.Clock.Now()
	due := b.unsaved == someoneIsNew || b.unsaved == floorsRose && (now || at.Sub(b.saved) >= saveFloors)
	if !due || !now && at < b.later {
		unlock()
		return
	}
	b.prune(in)
	raw := roll.Book{Lineage: b.lineage, Known: b.known}.Encode()
	before := b.unsaved
	b.unsaved, b.saved = savedAll, at
	unlock()
	if err := in.store.setAside(keyBook, raw); err != nil {
		b.g.cfg.Log.Debug("what is known of other voters cannot be written down", "err", err)
		unlock = b.current()
		b.unsaved, b.later = max(b.unsaved, before), at.Add(writeAgain)
		unlock()
	}
}

// prune keeps the book readable, however many members came and went. The caller holds mu.
func (b *boots) prune(in *instance) {
	if len(b.known) <= roll.MaxRecords {
		return
	}
	members := map[string]roll.Record{}
	for _, s := range in.servers() {
		if r, ok := b.known[string(s.ID)]; ok {
			members[string(s.ID)] = r
		}
	}
	b.known = members
}

// withheld says why this process neither votes nor stands; nil: it may.
func (b *boots) withheld(in *instance) error {
	if in.carrier == nil || b.g.cfg.off.boots {
		return nil // nobody could be told
	}
	if b.g.present() != in {
		return errNotWelcome // it begins, and knows no voters yet
	}
	return b.standing()
}

// standing is withheld by the voters as they were last known.
func (b *boots) standing() error {
	defer b.current()()
	if r, yes := b.disowner(); yes {
		return &Disowned{r}
	}
	voters := b.electorate()
	self := b.g.cfg.LocalID
	if len(voters) == 0 || len(voters) == 1 && voters[0].ID == self {
		return nil // there is nobody to ask
	}
	if b.own.IsZero() || !welcomed(voters, self, b.welcome) {
		return errNotWelcome
	}
	return nil
}

// welcomed reports whether most voters, this process among them, do not refuse it. One that
// was promoted and whose log ended before it heard of that is a voter to the others: it counts
// itself, for else two of three, started together, would wait for the third.
func welcomed(voters []Member, self string, welcome map[string]bool) bool {
	all, have := len(voters)+1, 1
	for _, m := range voters {
		switch {
		case m.ID == self:
			all--
		case welcome[m.ID]:
			have++
		}
	}
	return have > all/2
}

// Promised is Term as a leader's Confirm may count it: what a peer's TermOf asks. Zero is
// the term of nobody: this process is not known to most voters yet. Denied: another node
// refuses it, and what it has forgotten it cannot vouch for.
func (g *Group) Promised() (uint64, error) {
	if g.layer == nil || g.cfg.off.boots {
		return g.Term(), nil // as in withheld
	}
	switch err := g.boots.standing(); {
	case errors.Is(err, errNotWelcome):
		return 0, nil
	case err != nil:
		return 0, forgeyard.E("term", forgeyard.Denied, err)
	}
	return g.Term(), nil
}

// voteless says why this node neither votes nor stands; nil: it may.
func (in *instance) voteless() error {
	if in.g.votesWithheld(in) {
		return errNotCurrent
	}
	return in.g.boots.withheld(in)
}

func (in *instance) desk() carry.Desk {
	if in.g.cfg.off.boots {
		return nil
	}
	return desk{in.g.boots, in}
}

// greeted answers a hello that is nothing else.
func (t *guardedTransport) greeted(rpc *raft.RPC) bool {
	q, ok := rpc.Command.(*raft.AppendEntriesRequest)
	if ok = ok && greeting(q); ok {
		rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: t.header(), Term: t.in.g.Term()}, nil)
	}
	return ok
}

// disowned answers what comes to a process that another one refuses: to say that it has
// an entry would count.
func (t *guardedTransport) disowned(rpc *raft.RPC) bool {
	if !t.in.g.boots.disowned.Load() {
		return false
	}
	if rpc.Reader != nil {
		_, _ = io.Copy(io.Discard, rpc.Reader) // as in ours
	}
	rpc.Respond(nil, carry.ErrRefused)
	return true
}

// watch makes this process known, and keeps the book, until the instance ends.
func (b *boots) watch(in *instance) {
	if in.carrier == nil || b.g.cfg.off.boots {
		return
	}
	asked := map[string]forgeyard.Instant{}
	said := b.g.voters()
	for {
		if err := b.begin(in.store); err != nil {
			b.g.cfg.Log.Warn("what is known of other voters cannot be read", "err", err)
		}
		wait := floorsEvery
		if errors.Is(b.withheld(in), errNotWelcome) {
			wait = min(wait, b.g.cfg.Timings.Heartbeat/4)
		}
		if v := b.g.voters(); !slices.EqualFunc(v, said, func(a, b Member) bool { return a.ID == b.ID }) {
			said = v
			in.carrier.Renew() // each hello names who votes
		}
		b.greetAll(in, asked)
		b.heed()
		b.raise(in)
		b.save(in, false)
		select {
		case <-b.g.cfg.Clock.After(wait):
		case <-in.quit:
			return
		}
	}
}

// greetAll says hello to the voters that were not met yet. A call to one that does not
// answer may outlast the instance: it only touches what is closed.
func (b *boots) greetAll(in *instance, asked map[string]forgeyard.Instant) {
	now := b.g.cfg.Clock.Now()
	unlock := b.current()
	ready := !b.own.IsZero()
	met := func(id string) bool { return b.welcome[id] || id == b.g.cfg.LocalID }
	voters := b.electorate()
	votes := func(id string) bool { return slices.ContainsFunc(voters, func(m Member) bool { return m.ID == id }) }
	var to []raft.Server
	for _, s := range in.servers() {
		last, ok := asked[string(s.ID)]
		if votes(string(s.ID)) && !met(string(s.ID)) && ready && (!ok || now.Sub(last) >= greetAgain) {
			asked[string(s.ID)] = now
			to = append(to, s)
		}
	}
	unlock()
	for _, s := range to {
		go func() {
			if in.carrier.AppendEntries(s.ID, s.Address, &raft.AppendEntriesRequest{RPCHeader: in.trans.header()}, new(raft.AppendEntriesResponse)) == nil {
				b.admitted(string(s.ID))
			}
		}()
	}
}

// greeting tells a hello from raft's own calls: an append of term zero, which no raft
// makes, and which an older program's refuses.
func greeting(q *raft.AppendEntriesRequest) bool {
	return q.Term == 0 && len(q.Entries) == 0 && q.PrevLogEntry == 0 && q.LeaderCommitIndex == 0
}

const (
	floorsEvery = time.Second
	saveFloors  = time.Minute
	greetAgain  = time.Second
	writeAgain  = time.Second
	contested   = 5 * time.Second
	lately      = 30 * time.Second
)

// KnownTo is how many members do not refuse this process: they know of its start.
func (g *Group) KnownTo() int {
	defer g.boots.current()()
	return len(g.boots.welcome)
}

// Refusals are the processes that this node refuses, of those that tried lately, and the
// members that refuse this one.
func (g *Group) Refusals() (refused, by []Refusal) {
	defer g.boots.current()()
	now := g.cfg.Clock.Now()
	for _, r := range g.boots.refused {
		if r.shows() && now.Sub(r.Last) < lately {
			refused = append(refused, r.Refusal)
		}
	}
	for _, m := range g.boots.electorate() {
		if r, ok := g.boots.refusedBy[m.ID]; ok {
			by = append(by, r)
		}
	}
	order := func(a, b Refusal) int { return cmp.Compare(a.Member, b.Member) }
	slices.SortFunc(refused, order)
	slices.SortFunc(by, order)
	return refused, by
}
