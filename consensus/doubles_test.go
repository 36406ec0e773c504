package consensus

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Almost every test here runs in a testing/synctest bubble: time is virtual,
// so waiting costs nothing and a slow machine changes nothing; and a goroutine
// that outlives the test fails it, which is the leak check.

// bubbleClock reads the bubble's time.
type bubbleClock struct{}

func (bubbleClock) Now() forgeyard.Instant                 { return forgeyard.Instant(time.Now().UnixNano()) }
func (bubbleClock) Wall() time.Time                        { return time.Now().UTC() }
func (bubbleClock) BootID() string                         { return "bubble" }
func (bubbleClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

var _ clock.Clock = bubbleClock{}

// until waits in virtual time.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for range 60_000 {
		if cond() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("not within five minutes: %s", what)
}

var errUnread = errors.New("upgrade this node")

// notebook is a state machine that remembers everything.
type notebook struct {
	mu      sync.Mutex
	entries []Entry
	hash    [32]byte
	gate    chan struct{} // when set, Snapshot.WriteTo waits for it
	unread  string        // when set, what this program cannot read
	refused string        // when set, what it answers with an error

	held     bool    // readers go on to see shown
	shown    []Entry // what they see
	wentBack string  // of that, what was lost
}

// Rebuilding keeps what readers see.
func (n *notebook) Rebuilding(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = on
	n.show()
}

// show lets readers see the state, and notes if it lacks what they saw before.
func (n *notebook) show() {
	if n.held {
		return
	}
	for i, e := range n.shown {
		if string(e.Data) != "spoilt" && (i >= len(n.entries) || n.entries[i].Index != e.Index) {
			n.wentBack = fmt.Sprintf("%s at %d was seen, and is not there any more", e.Data, e.Index)
		}
	}
	n.shown = slices.Clone(n.entries)
}

// noMember is such an answer.
type noMember struct{}

func (noMember) Err() error {
	return forgeyard.Errorf("apply", forgeyard.Denied, "no member of the site")
}

func (n *notebook) Apply(e Entry) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unread != "" && string(e.Data) == n.unread {
		return &Halt{errUnread}
	}
	if n.refused != "" && string(e.Data) == n.refused {
		return noMember{}
	}
	n.entries = append(n.entries, e)
	n.hash = chain(n.hash, e)
	n.show()
	return len(n.entries)
}

func chain(h [32]byte, e Entry) [32]byte {
	b := binary.BigEndian.AppendUint64(h[:], e.Index)
	return sha256.Sum256(append(b, e.Data...))
}

type notebookSnapshot struct {
	Hash    [32]byte
	Entries []Entry
	gate    chan struct{}
}

func (s *notebookSnapshot) WriteTo(w io.Writer) (int64, error) {
	if s.gate != nil {
		<-s.gate
	}
	return 0, json.NewEncoder(w).Encode(s)
}

func (n *notebook) Snapshot() (Snapshot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &notebookSnapshot{n.hash, slices.Clone(n.entries), n.gate}, nil
}

func (n *notebook) Restore(r io.Reader, index uint64) error {
	var s notebookSnapshot
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.entries, n.hash = s.Entries, s.Hash
	for i := range n.entries {
		n.entries[i].Live = false
	}
	n.show()
	return nil
}

func (n *notebook) Hash() [32]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hash
}

func (n *notebook) Hasher() func() [32]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, gate := n.hash, n.gate
	return func() [32]byte {
		if gate != nil {
			<-gate
		}
		return h
	}
}

// spoil changes the state behind everybody's back.
func (n *notebook) spoil() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hash[0] ^= 1
	n.entries = append(n.entries, Entry{Data: []byte("spoilt")})
}

func (n *notebook) find(data string) (Entry, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		if string(e.Data) == data {
			return e, true
		}
	}
	return Entry{}, false
}

func (n *notebook) has(data string) bool { _, ok := n.find(data); return ok }

func (n *notebook) times(data string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		if string(e.Data) == data {
			count++
		}
	}
	return count
}

func (n *notebook) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.entries)
}

func (n *notebook) lines() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, e := range n.entries {
		out = append(out, fmt.Sprintf("%d/%s", e.Index, e.Data))
	}
	return out
}

// wire carries raft's calls, one by one, with delay and one-way cuts.
type wire struct {
	timeout time.Duration
	mu      sync.Mutex
	ends    map[string]*wireEnd
	cut     map[[2]string]bool
	delay   map[[2]string]time.Duration
	hang    func(from, to string, call any) bool // such calls go nowhere
	hangFor time.Duration                        // and take that long; zero is timeout
}

func newWire(timeout time.Duration) *wire {
	return &wire{timeout: timeout, ends: map[string]*wireEnd{}, cut: map[[2]string]bool{}, delay: map[[2]string]time.Duration{}}
}

func (w *wire) setCut(from, to string, v bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]string{from, to}] = v
}

func (w *wire) isolate(id string, v bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.ends {
		w.cut[[2]string{id, other}], w.cut[[2]string{other, id}] = v, v
	}
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.cut)
	clear(w.delay)
	w.hang = nil
}

func (w *wire) end(addr string) *wireEnd {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ends[addr] == nil {
		w.ends[addr] = &wireEnd{wire: w, addr: addr, calls: make(chan raft.RPC)}
	}
	return w.ends[addr]
}

// leg is one direction of one call.
func (w *wire) leg(from, to string, call any) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := [2]string{from, to}
	return time.Millisecond + w.delay[k], !w.cut[k] && (w.hang == nil || !w.hang(from, to, call))
}

type wireEnd struct {
	wire  *wire
	addr  string
	calls chan raft.RPC
	mu    sync.Mutex
	fast  func(raft.RPC)
}

var errWire = errors.New("wire: no answer")

func (e *wireEnd) call(to string, cmd any, r io.Reader) (any, error) {
	end := time.Now().Add(e.wire.timeout)
	lost := func() (any, error) { time.Sleep(time.Until(end)); return nil, errWire }
	d, ok := e.wire.leg(e.addr, to, cmd)
	if !ok {
		e.wire.mu.Lock()
		if w := e.wire; w.hang != nil && w.hang(e.addr, to, cmd) && w.hangFor > 0 {
			end = time.Now().Add(w.hangFor)
		}
		e.wire.mu.Unlock()
		return lost()
	}
	time.Sleep(d)
	peer := e.wire.end(to)
	answer := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: cmd, Reader: r, RespChan: answer}
	late := time.NewTimer(time.Until(end))
	defer late.Stop()
	peer.mu.Lock()
	fast := peer.fast
	peer.mu.Unlock()
	if a, is := cmd.(*raft.AppendEntriesRequest); is && fast != nil && a.Term != 0 && len(a.Entries) == 0 && a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && a.LeaderCommitIndex == 0 {
		fast(rpc) // what raft's own network transport does with heartbeats
	} else {
		select {
		case peer.calls <- rpc:
		case <-late.C:
			return nil, errWire
		}
	}
	var resp raft.RPCResponse
	select {
	case resp = <-answer:
	case <-late.C:
		return nil, errWire
	}
	d, ok = e.wire.leg(to, e.addr, nil)
	if !ok {
		return lost()
	}
	time.Sleep(d)
	return resp.Response, resp.Error
}

func (e *wireEnd) Consumer() <-chan raft.RPC     { return e.calls }
func (e *wireEnd) LocalAddr() raft.ServerAddress { return raft.ServerAddress(e.addr) }
func (e *wireEnd) Close() error                  { return nil }
func (e *wireEnd) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte {
	return []byte(a)
}
func (e *wireEnd) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }
func (e *wireEnd) SetHeartbeatHandler(f func(raft.RPC)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fast = f
}
func (e *wireEnd) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func answerOf[T any](e *wireEnd, to raft.ServerAddress, cmd any, r io.Reader, into *T) error {
	v, err := e.call(string(to), cmd, r)
	if got, ok := v.(*T); ok {
		*into = *got
	}
	return err
}

func (e *wireEnd) AppendEntries(_ raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	c := *q
	c.Entries = nil
	for _, l := range q.Entries {
		x := *l
		c.Entries = append(c.Entries, &x)
	}
	return answerOf(e, to, &c, nil, r)
}
func (e *wireEnd) RequestVote(_ raft.ServerID, to raft.ServerAddress, q *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	return answerOf(e, to, q, nil, r)
}
func (e *wireEnd) RequestPreVote(_ raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	return answerOf(e, to, q, nil, r)
}
func (e *wireEnd) InstallSnapshot(_ raft.ServerID, to raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	b, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	return answerOf(e, to, q, bytes.NewReader(b), r)
}
func (e *wireEnd) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, q *raft.TimeoutNowRequest, r *raft.TimeoutNowResponse) error {
	return answerOf(e, to, q, nil, r)
}

// exchange is an in-memory switch of streams for raft's real network transport.
type exchange struct {
	mu    sync.Mutex
	ports map[string]*port
	apart map[string]bool // isolated
	deaf  [2]string       // these two do not reach each other
	conns map[net.Conn][2]string
}

func newExchange() *exchange {
	return &exchange{ports: map[string]*port{}, apart: map[string]bool{}, conns: map[net.Conn][2]string{}}
}

type port struct {
	x    *exchange
	addr string
	in   chan net.Conn
	quit chan struct{}
}

type portAddr string

func (a portAddr) Network() string { return "memory" }
func (a portAddr) String() string  { return string(a) }

func (x *exchange) port(addr string) *port {
	p := &port{x: x, addr: addr, in: make(chan net.Conn), quit: make(chan struct{})}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ports[addr] = p
	return p
}

func (x *exchange) isolate(addr string, v bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.apart[addr] = v
	for c, ends := range x.conns {
		if v && (ends[0] == addr || ends[1] == addr) {
			c.Close()
			delete(x.conns, c)
		}
	}
}

// between cuts the link of two, which both stay connected to the others.
func (x *exchange) between(a, b string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.deaf = [2]string{a, b}
	for c, ends := range x.conns {
		if x.cut(ends[0], ends[1]) {
			c.Close()
			delete(x.conns, c)
		}
	}
}

// cut is asked with mu held.
func (x *exchange) cut(a, b string) bool {
	return x.apart[a] || x.apart[b] || x.deaf == [2]string{a, b} || x.deaf == [2]string{b, a}
}

func (x *exchange) reachable(a, b string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.cut(a, b)
}

func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.in:
		return c, nil
	case <-p.quit:
		return nil, net.ErrClosed
	}
}
func (p *port) Close() error   { close(p.quit); return nil }
func (p *port) Addr() net.Addr { return portAddr(p.addr) }
func (p *port) Dial(to raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	p.x.mu.Lock()
	peer := p.x.ports[string(to)]
	apart := p.x.cut(p.addr, string(to))
	p.x.mu.Unlock()
	if apart || peer == nil {
		return nil, errWire
	}
	a, b := net.Pipe()
	select {
	case peer.in <- b:
	case <-peer.quit:
		return nil, errWire
	}
	p.x.mu.Lock()
	p.x.conns[a], p.x.conns[b] = [2]string{p.addr, string(to)}, [2]string{p.addr, string(to)}
	p.x.mu.Unlock()
	return a, nil
}

// faultyDisk is a store whose writes fail or hang on demand. It keeps its
// contents over Close when inner is in memory.
type faultyDisk struct {
	raft.LogStore
	raft.StableStore
	inner any
	fault *diskFault
}

type diskFault struct {
	mu      sync.Mutex
	err     error         // every write returns it
	hang    chan struct{} // every write waits for it
	partial bool          // with err: StoreLogs stores and then fails, as a failed sync may
	unset   []byte        // this key cannot be set: the disk has no room for it
	tries   int           // to set it
}

// keep says which key cannot be set; nil: all can.
func (f *diskFault) keep(key []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unset = key
}

func (f *diskFault) keeps(key []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unset == nil || !bytes.Equal(f.unset, key) {
		return false
	}
	f.tries++
	return true
}

func (f *diskFault) set(err error, hang chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.hang = err, hang
}

func (f *diskFault) write(do func() error) error {
	f.mu.Lock()
	err, hang, partial := f.err, f.hang, f.partial
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if err != nil {
		if partial {
			return errors.Join(do(), err)
		}
		return err
	}
	return do()
}

func (d *faultyDisk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }
func (d *faultyDisk) StoreLogs(l []*raft.Log) error {
	return d.fault.write(func() error { return d.LogStore.StoreLogs(l) })
}
func (d *faultyDisk) DeleteRange(a, b uint64) error {
	return d.fault.write(func() error { return d.LogStore.DeleteRange(a, b) })
}
func (d *faultyDisk) Set(k, v []byte) error {
	if d.fault.keeps(k) {
		return errFull
	}
	return d.fault.write(func() error { return d.StableStore.Set(k, v) })
}
func (d *faultyDisk) SetUint64(k []byte, v uint64) error {
	return d.fault.write(func() error { return d.StableStore.SetUint64(k, v) })
}
func (d *faultyDisk) IsMonotonic() bool {
	m, ok := d.inner.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}
func (d *faultyDisk) deletesAtOnce() bool {
	a, ok := d.inner.(atOnce)
	return ok && a.deletesAtOnce()
}
func (d *faultyDisk) probe() error {
	p, ok := d.inner.(prober)
	if !ok {
		return nil
	}
	return d.fault.write(p.probe)
}
func (d *faultyDisk) Close() error {
	if c, ok := d.inner.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// town is some nodes and what joins them.
type town struct {
	t     testing.TB
	wire  *wire     // calls, or
	x     *exchange // streams
	nodes []*resident
}

type resident struct {
	refused string // by its state machine, from the next open on
	town    *town
	id      string
	cfg     Config
	fsm     *notebook
	g       *Group
	fault   *diskFault
	mem     *raft.InmemStore // with a wire

	mu     sync.Mutex
	events []Event

	foresight *foresight // when set, it stands before fsm
}

type townOption func(i int, cfg *Config)

func quick() Timings {
	return Timings{Heartbeat: 200 * time.Millisecond, Lease: 100 * time.Millisecond, RPC: time.Second, Hash: time.Hour, Retry: 200 * time.Millisecond, Commit: 20 * time.Millisecond}
}

// newTown makes n nodes: over calls with stores in memory, or over streams
// with real databases.
func newTown(t testing.TB, n int, w *wire, options ...townOption) *town {
	tn := &town{t: t, wire: w}
	if w == nil {
		tn.x = newExchange()
	}
	for i := range n {
		tn.add(i, options...)
	}
	t.Cleanup(tn.stop) // a failed test, too, leaves nothing behind in its bubble
	return tn
}

func (tn *town) add(i int, options ...townOption) *resident {
	r := &resident{town: tn, id: fmt.Sprintf("n%d", i), fault: &diskFault{}}
	r.cfg = Config{Dir: filepath.Join(tn.t.TempDir(), r.id), LocalID: r.id, LocalAddr: r.id, Clock: bubbleClock{}, Timings: quick(), OnEvent: r.listen}
	if os.Getenv("FY_TEST_LOG") != "" {
		r.cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", r.id)
	}
	r.cfg.TermOf = func(ctx context.Context, addr string) (uint64, error) {
		peer, err := tn.reach(ctx, r.id, addr)
		if err != nil {
			return 0, err
		}
		return peer.g.Promised()
	}
	r.cfg.HashOf = func(ctx context.Context, addr string, index uint64) ([32]byte, error) {
		peer, err := tn.reach(ctx, r.id, addr)
		if err != nil {
			return [32]byte{}, err
		}
		return peer.g.HashAt(ctx, index)
	}
	if tn.wire != nil {
		r.mem = raft.NewInmemStore()
		end := tn.wire.end(r.id)
		r.cfg.openTransport = func(*instance) (innerTransport, error) { return end, nil }
		r.cfg.openStore = func(string) (diskStore, error) {
			return &faultyDisk{LogStore: r.mem, StableStore: r.mem, fault: r.fault}, nil
		}
	} else {
		r.cfg.openStore = func(path string) (diskStore, error) {
			d, err := openDisk(filepath.Dir(path), cmp.Or(r.cfg.LogStore, DefaultLogStore), newHCLog(quiet()))
			if err != nil {
				return nil, err
			}
			return &faultyDisk{LogStore: d, StableStore: d, inner: d, fault: r.fault}, nil
		}
	}
	for _, o := range options {
		o(i, &r.cfg)
	}
	tn.nodes = append(tn.nodes, r)
	return r
}

// reach is a mesh call: it takes a moment, and has no end while cut.
func (tn *town) reach(ctx context.Context, from, to string) (*resident, error) {
	ok := true
	if tn.wire != nil {
		_, there := tn.wire.leg(from, to, nil)
		_, back := tn.wire.leg(to, from, nil)
		ok = there && back
	} else {
		ok = tn.x.reachable(from, to)
	}
	if !ok {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(time.Millisecond)
	for _, r := range tn.nodes {
		if r.id == to && r.g != nil {
			return r, nil
		}
	}
	return nil, errWire
}

func (r *resident) listen(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *resident) saw(k EventKind) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.events, func(e Event) bool { return e.Kind == k })
}

func (r *resident) open() {
	r.town.t.Helper()
	r.fsm = &notebook{refused: r.refused}
	r.cfg.FSM = r.fsm
	if r.foresight != nil {
		r.foresight.notebook, r.cfg.FSM = r.fsm, r.foresight
	}
	if r.town.x != nil {
		r.cfg.Layer = r.town.x.port(r.id)
	}
	g, err := Open(r.cfg)
	if err != nil {
		r.town.t.Fatal(err)
	}
	r.g = g
}

func (r *resident) close() {
	r.town.t.Helper()
	if r.g == nil {
		return
	}
	if err := r.g.Close(context.Background()); err != nil {
		r.town.t.Error(err)
	}
	r.g = nil
}

// start opens all nodes, makes the first lead and the others vote.
func (tn *town) start() {
	tn.t.Helper()
	for _, r := range tn.nodes {
		r.open()
	}
	first := tn.nodes[0].g
	if err := first.Bootstrap(context.Background()); err != nil {
		tn.t.Fatal(err)
	}
	tn.awaitLeader(tn.nodes[0])
	for _, r := range tn.nodes[1:] {
		if err := first.AddVoter(context.Background(), r.id, r.id); err != nil {
			tn.t.Fatal(err)
		}
	}
	tn.awaitApplied(first.Applied(), tn.nodes...)
}

func (tn *town) stop() {
	tn.t.Helper()
	for _, r := range tn.nodes {
		r.close()
	}
	if tn.wire != nil {
		time.Sleep(time.Minute) // calls that were cut off come to their timeout
	}
}

func (tn *town) awaitLeader(of ...*resident) *resident {
	tn.t.Helper()
	var leader *resident
	until(tn.t, "a leader", func() bool {
		for _, r := range of {
			if r.g != nil && r.g.IsLeader() {
				leader = r
			}
		}
		return leader != nil
	})
	return leader
}

func (tn *town) awaitApplied(index uint64, of ...*resident) {
	tn.t.Helper()
	for _, r := range of {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		if err := r.g.WaitApplied(ctx, index); err != nil {
			tn.t.Fatalf("%s at %d: %v; %+v", r.id, index, err, r.g.Stats())
		}
		cancel()
	}
}

func (tn *town) put(r *resident, data string) uint64 {
	tn.t.Helper()
	res, err := r.g.Propose(context.Background(), []byte(data))
	if err != nil {
		tn.t.Fatalf("%s: put %q: %v", r.id, data, err)
	}
	return res.Index
}

func (tn *town) without(r *resident) []*resident {
	var list []*resident
	for _, o := range tn.nodes {
		if o != r {
			list = append(list, o)
		}
	}
	return list
}

func (tn *town) sameState(of ...*resident) {
	tn.t.Helper()
	for _, r := range of[1:] {
		if !slices.Equal(r.fsm.lines(), of[0].fsm.lines()) {
			tn.t.Errorf("%s has %v\n%s has %v", of[0].id, of[0].fsm.lines(), r.id, r.fsm.lines())
		}
	}
}

// oldNotebook cannot read the snapshots of newer ones.
type oldNotebook struct{ notebook }

func (o *oldNotebook) Restore(_ io.Reader, index uint64) error {
	if index == 0 {
		return nil
	}
	return &Halt{errUnread}
}
