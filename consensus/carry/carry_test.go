//lint:file-ignore SA1019 older nodes read the deprecated fields, so they are carried

package carry

import (
	"bytes"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// street joins two stream layers by pipes and remembers what went from the first.
type street struct {
	mu   sync.Mutex
	sent bytes.Buffer
}

type house struct {
	on    *street
	other *house
	door  chan net.Conn
	quit  chan struct{}
	once  sync.Once
}

func newStreet() (*street, *house, *house) {
	s := &street{}
	a := &house{on: s, door: make(chan net.Conn), quit: make(chan struct{})}
	b := &house{on: s, door: make(chan net.Conn), quit: make(chan struct{}), other: a}
	a.other = b
	return s, a, b
}

func (h *house) Accept() (net.Conn, error) {
	select {
	case c := <-h.door:
		return c, nil
	case <-h.quit:
		return nil, net.ErrClosed
	}
}
func (h *house) Close() error   { h.once.Do(func() { close(h.quit) }); return nil }
func (h *house) Addr() net.Addr { return &net.UnixAddr{Name: "house"} }
func (h *house) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	mine, theirs := net.Pipe()
	select {
	case h.other.door <- theirs:
		return &heard{mine, h.on}, nil
	case <-h.other.quit:
		return nil, net.ErrClosed
	}
}

// heard is a connection whose caller's bytes are kept.
type heard struct {
	net.Conn
	on *street
}

func (c *heard) Write(b []byte) (int, error) {
	c.on.mu.Lock()
	c.on.sent.Write(b)
	c.on.mu.Unlock()
	return c.Conn.Write(b)
}

func (s *street) take() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := bytes.Clone(s.sent.Bytes())
	s.sent.Reset()
	return b
}

// desk is a Guard that answers calls itself.
type desk struct {
	calls chan raft.RPC
	held  error
}

func (d *desk) Arrive(c raft.RPC) bool { d.calls <- c; return true }
func (d *desk) Held(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) error {
	return d.held
}

func theirs(h *house) *raft.NetworkTransport {
	return raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: h, MaxPool: 3, Timeout: 5 * time.Second, Logger: hclog.NewNullLogger()})
}

// transport is what both sides have.
type transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

var head = raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1"), Addr: []byte("addr#lineage")}

// exchanges has each kind of call, what it carries and what comes back, at the edges of
// the format's numbers and lengths.
func exchanges() []exchange {
	at := time.Date(2026, 11, 30, 8, 0, 0, 5, time.FixedZone("", 3600))
	var logs []*raft.Log
	for i, n := range []int{0, 1, 31, 32, 255, 256, 65535, 65536, 70000} {
		logs = append(logs, &raft.Log{Index: 1 << (7 * i), Term: uint64(n), Type: raft.LogType(i), Data: bytes.Repeat([]byte{byte(i)}, n), AppendedAt: at})
	}
	logs[0].Extensions = []byte("x")
	many := make([]*raft.Log, 300)
	for i := range many {
		many[i] = &raft.Log{Index: uint64(i), Data: []byte{1}, AppendedAt: at}
	}
	appends := func(q *raft.AppendEntriesRequest) func(transport) (any, error) {
		return func(t transport) (any, error) {
			r := new(raft.AppendEntriesResponse)
			return r, t.AppendEntries("n2", "n2", q, r)
		}
	}
	grown := &raft.AppendEntriesResponse{RPCHeader: head, Term: 1 << 40, LastLog: 300, Success: true, NoRetryBackoff: true}
	vote := &raft.RequestVoteRequest{RPCHeader: head, Term: 127, Candidate: []byte("addr"), LastLogIndex: 128, LastLogTerm: 65536, LeadershipTransfer: true}
	pre := &raft.RequestPreVoteRequest{RPCHeader: head, Term: 255, LastLogIndex: 1 << 32, LastLogTerm: 1<<64 - 1}
	snap := &raft.InstallSnapshotRequest{RPCHeader: head, SnapshotVersion: 1, Term: 9, Leader: []byte("addr"), LastLogIndex: 7, LastLogTerm: 8,
		Configuration: bytes.Repeat([]byte{3}, 400), ConfigurationIndex: 6, Size: 300_000}
	full, beat, empty := &raft.AppendEntriesRequest{RPCHeader: head, Term: 3, Leader: []byte("addr"), PrevLogEntry: 4, PrevLogTerm: 2, Entries: logs, LeaderCommitIndex: 256},
		&raft.AppendEntriesRequest{RPCHeader: head, Term: 3, Leader: []byte("addr")}, &raft.AppendEntriesRequest{}
	lots := &raft.AppendEntriesRequest{RPCHeader: head, Term: 3, Entries: many}
	return []exchange{
		{"append", full, grown, nil, appends(full)},
		{"300 entries", lots, grown, nil, appends(lots)},
		{"heartbeat", beat, &raft.AppendEntriesResponse{}, nil, appends(beat)},
		{"empty", empty, &raft.AppendEntriesResponse{}, nil, appends(empty)},
		{"refused", beat, nil, errors.New("another lineage"), appends(beat)},
		{"vote", vote, &raft.RequestVoteResponse{RPCHeader: head, Term: 128, Peers: []byte{}, Granted: true}, nil, func(t transport) (any, error) {
			r := new(raft.RequestVoteResponse)
			return r, t.RequestVote("n2", "n2", vote, r)
		}},
		{"pre-vote", pre, &raft.RequestPreVoteResponse{RPCHeader: head, Term: 1, Granted: true}, nil, func(t transport) (any, error) {
			r := new(raft.RequestPreVoteResponse)
			return r, t.RequestPreVote("n2", "n2", pre, r)
		}},
		{"timeout now", &raft.TimeoutNowRequest{RPCHeader: head}, &raft.TimeoutNowResponse{RPCHeader: head}, nil, func(t transport) (any, error) {
			r := new(raft.TimeoutNowResponse)
			return r, t.TimeoutNow("n2", "n2", &raft.TimeoutNowRequest{RPCHeader: head}, r)
		}},
		{"snapshot", snap, &raft.InstallSnapshotResponse{RPCHeader: head, Term: 9, Success: true}, nil, func(t transport) (any, error) {
			r := new(raft.InstallSnapshotResponse)
			return r, t.InstallSnapshot("n2", "n2", snap, r, strings.NewReader(strings.Repeat("s", int(snap.Size))))
		}},
	}
}

type exchange struct {
	name    string
	call    any
	answer  any
	refusal error
	make    func(transport) (any, error)
}

// A site of mixed versions: a node with raft's own transport and one with this understand
// each other both ways, and the callers' bytes are the same.
func TestSpeaksAsRaftsOwnTransportDoes(t *testing.T) {
	var said [2]map[string][]byte
	for i, name := range []string{"ours calls theirs", "theirs calls ours"} {
		said[i] = map[string][]byte{}
		t.Run(name, func(t *testing.T) {
			on, a, b := newStreet()
			d := &desk{calls: make(chan raft.RPC)}
			var caller, callee transport
			var calls <-chan raft.RPC
			if i == 0 {
				ours := New(Config{Layer: a, Timeout: 5 * time.Second})
				caller, callee = ours, theirs(b)
				calls = callee.Consumer()
			} else {
				ours := New(Config{Layer: b, Timeout: 5 * time.Second})
				ours.Start(d)
				caller, callee = theirs(a), ours
				calls = d.calls
			}
			defer callee.Close()
			defer caller.Close()
			for _, e := range exchanges() {
				done := make(chan struct{})
				go func() { defer close(done); e.serve(t, <-calls) }()
				got, err := e.make(caller)
				<-done
				e.check(t, got, err)
				said[i][e.name] = on.take()
			}
		})
	}
	for name, b := range said[0] {
		if !bytes.Equal(b, said[1][name]) {
			t.Errorf("%s: we write\n%x\nraft writes\n%x", name, clip(b), clip(said[1][name]))
		}
	}
}

func clip(b []byte) []byte { return b[:min(len(b), 200)] }

func (e exchange) serve(t *testing.T, call raft.RPC) {
	if !same(call.Command, e.call) {
		t.Errorf("%s: %+v came as %+v", e.name, e.call, call.Command)
	}
	if call.Reader != nil {
		n, err := io.Copy(io.Discard, call.Reader)
		if q := e.call.(*raft.InstallSnapshotRequest); err != nil || n != q.Size {
			t.Errorf("%s: %d bytes of %d came: %v", e.name, n, q.Size, err)
		}
	}
	call.Respond(e.answer, e.refusal)
}

func (e exchange) check(t *testing.T, got any, err error) {
	if e.refusal != nil {
		if err == nil || err.Error() != e.refusal.Error() {
			t.Errorf("%s: refused with %v", e.name, err)
		}
		return
	}
	if err != nil || !same(got, e.answer) {
		t.Errorf("%s: the answer %+v came as %+v, %v", e.name, e.answer, got, err)
	}
}

// same tells messages apart by what they say: times are the same at one instant.
func same(a, b any) bool {
	x, err1 := appendMessage(nil, a)
	y, err2 := appendMessage(nil, b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y) && reflect.TypeOf(a) == reflect.TypeOf(b)
}

// What a later program adds to a message is passed over, of whatever kind it is.
func TestUnknownFieldsArePassedOver(t *testing.T) {
	values := map[string][]byte{
		"nil": {0xc0}, "true": {0xc3}, "fix": {0x07}, "negative": {0xff}, "map": {0x81, 0xa1, 'a', 0x01}, "array": {0x92, 0x01, 0xc0},
		"raw": {0xa2, 'a', 'b'}, "bin8": {0xc4, 2, 0, 0}, "bin16": {0xc5, 0, 1, 9}, "bin32": {0xc6, 0, 0, 0, 1, 9}, "ext8": {0xc7, 1, 5, 9},
		"float32": {0xca, 0, 0, 0, 0}, "float64": {0xcb, 0, 0, 0, 0, 0, 0, 0, 0}, "uint16": {0xcd, 1, 1}, "int64": {0xd3, 0, 0, 0, 0, 0, 0, 0, 1},
		"fixext1": {0xd4, 0xff, 1}, "fixext16": append([]byte{0xd8, 0xff}, make([]byte, 16)...), "str8": {0xd9, 1, 'a'}, "raw16": {0xda, 0, 1, 'a'},
		"array16": {0xdc, 0, 1, 0xc0}, "array32": {0xdd, 0, 0, 0, 1, 0xc0}, "map16": {0xde, 0, 1, 0xc0, 0xc0}, "map32": {0xdf, 0, 0, 0, 1, 0xc0, 0xc0},
	}
	for name, v := range values {
		b := append([]byte{0x82, 0xa3, 'N', 'e', 'w'}, v...)
		b = append(b, 0xa4, 'T', 'e', 'r', 'm', 0x07)
		var m raft.AppendEntriesResponse
		if err := newReader(bytes.NewReader(b)).message(&m); err != nil || m.Term != 7 {
			t.Errorf("%s: term %d, %v", name, m.Term, err)
		}
	}
}

func TestHostileMessagesAreRefused(t *testing.T) {
	for name, b := range map[string][]byte{
		"not a map":            {0x07},
		"a name of 2 GiB":      {0x81, 0xdb, 0x80, 0, 0, 0},
		"data of 2 GiB":        {0x81, 0xa4, 'A', 'd', 'd', 'r', 0xdb, 0x80, 0, 0, 0},
		"a billion entries":    {0x81, 0xa7, 'E', 'n', 't', 'r', 'i', 'e', 's', 0xdd, 0x40, 0, 0, 0},
		"a negative term":      {0x81, 0xa4, 'T', 'e', 'r', 'm', 0xff},
		"a version of 64 bits": append([]byte("\x81\xafProtocolVersion"), 0xcf, 0xff, 0, 0, 0, 0, 0, 0, 0),
		"depth":                append([]byte{0x81, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 100)...),
		"a type of 300":        append([]byte("\x81\xa7Entries\x91\x81\xa4Type"), 0xcd, 1, 44),
		"a time of one byte":   append([]byte("\x81\xa7Entries\x91\x81\xaaAppendedAt"), 0xa1, 9),
		"no value at all":      {0x81, 0xa1, 'x', 0xc1},
	} {
		var m raft.AppendEntriesRequest
		if err := newReader(bytes.NewReader(b)).message(&m); err == nil {
			t.Errorf("%s: read as %+v", name, m)
		}
	}
	if _, err := newCall(5); err == nil {
		t.Error("a kind that there is not")
	}
}

// FuzzMessage: whatever comes, a message is refused or means what is written for it.
func FuzzMessage(f *testing.F) {
	for _, e := range exchanges() {
		b, err := appendMessage(nil, e.call)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 2000 {
			for k := range requestPreVote + 1 {
				f.Add(k, b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, k byte, b []byte) {
		m, err := newCall(k)
		if err != nil {
			return
		}
		if newReader(bytes.NewReader(b)).message(m) != nil {
			return
		}
		first, err := appendMessage(nil, m)
		if err != nil {
			return // a time that has no binary form
		}
		again, _ := newCall(k)
		if err := newReader(bytes.NewReader(first)).message(again); err != nil {
			t.Fatalf("%x is read and not read again: %v", first, err)
		}
		second, err := appendMessage(nil, again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%x became %x, %v", first, second, err)
		}
	})
}

// duct is a pipeline in a bubble, and what arrives at its other end.
func duct(t *testing.T, held error) (p raft.AppendPipeline, calls <-chan raft.RPC, end *Transport) {
	_, a, b := newStreet()
	d := &desk{calls: make(chan raft.RPC), held: held}
	ours, peer := New(Config{Layer: a, Timeout: time.Second}), New(Config{Layer: b, Timeout: time.Second})
	ours.Start(d)
	peer.Start(d)
	t.Cleanup(func() { ours.Close(); peer.Close() })
	p, err := ours.AppendEntriesPipeline("n2", "n2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, d.calls, peer
}

func TestPipelineAnswersInOrderAndHoldsTheThird(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, calls, _ := duct(t, nil)
		sent := make(chan error, 4)
		go func() {
			for i := range uint64(4) {
				_, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: i + 1, LeaderCommitIndex: 1}, new(raft.AppendEntriesResponse))
				sent <- err
			}
		}()
		first := <-p.Consumer()
		synctest.Wait()
		if n := len(sent); n != 1 {
			t.Errorf("%d appends are done while the first has no answer", n)
		}
		go func() {
			for range 4 {
				c := <-calls
				c.Respond(&raft.AppendEntriesResponse{Term: c.Command.(*raft.AppendEntriesRequest).Term, Success: true}, nil)
			}
		}()
		for f := first; ; f = <-p.Consumer() {
			if r := f.Response(); !r.Success || r.Term != f.Request().Term || f.Error() != nil {
				t.Errorf("append %d was answered with %+v, %v", f.Request().Term, r, f.Error())
			}
			if f.Request().Term == 4 {
				return
			}
		}
	})
}

// raft looks at nothing but the response, so an answer that failed, that does not come in
// time, or that may not be heard must not look like one.
func TestPipelineWithoutAnAnswerSaysNo(t *testing.T) {
	for name, story := range map[string]struct {
		held error
		do   func(p raft.AppendPipeline, call raft.RPC, peer *Transport)
	}{
		"too late": {do: func(raft.AppendPipeline, raft.RPC, *Transport) {}},
		"refused": {do: func(_ raft.AppendPipeline, c raft.RPC, _ *Transport) {
			c.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, errors.New("stranger"))
		}},
		"the peer ends": {do: func(_ raft.AppendPipeline, _ raft.RPC, peer *Transport) { peer.Close() }},
		"it is closed":  {do: func(p raft.AppendPipeline, _ raft.RPC, _ *Transport) { p.Close() }},
		"not on this disk": {held: errors.New("the disk failed"), do: func(_ raft.AppendPipeline, c raft.RPC, _ *Transport) {
			c.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, calls, peer := duct(t, story.held)
				go func() { story.do(p, <-calls, peer) }()
				go func() {
					_, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1, LeaderCommitIndex: 1}, new(raft.AppendEntriesResponse))
					if err != nil {
						t.Errorf("the append: %v", err)
					}
				}()
				f := <-p.Consumer()
				if r := f.Response(); r.Success || r.Term != 0 || f.Error() == nil {
					t.Errorf("%+v, %v", r, f.Error())
				}
			})
		})
	}
}

// raft reads nothing after an answer that is no success. Whoever sends meanwhile, and would
// wait for a reader, is free at once.
func TestTheFirstNoFreesTheSender(t *testing.T) {
	for name, held := range map[string]error{"the peer's": nil, "our own": errors.New("the disk failed")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, calls, _ := duct(t, held)
				go func() {
					for range 2 {
						c := <-calls
						c.Respond(&raft.AppendEntriesResponse{Term: 1, Success: held != nil}, nil)
					}
				}()
				freed := make(chan error, 1)
				go func() {
					for range 2 {
						_, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1, LeaderCommitIndex: 1}, new(raft.AppendEntriesResponse))
						if err != nil {
							freed <- err
							return
						}
					}
					freed <- nil
				}()
				first := <-p.Consumer()
				synctest.Wait() // the second is sent, and waits for its reader
				began := time.Now()
				if first.Response().Success {
					t.Error("the first succeeded")
				}
				if err := <-freed; err == nil {
					t.Error("somebody read the second")
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("freed after %s", took)
				}
			})
		})
	}
}

func TestClosingAPipelineFreesItsSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, calls, _ := duct(t, nil)
		go func() { <-calls }()
		freed := make(chan error, 2)
		go func() {
			for range 2 {
				_, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, new(raft.AppendEntriesResponse))
				freed <- err
			}
		}()
		if err := <-freed; err != nil {
			t.Errorf("the first: %v", err)
		}
		synctest.Wait() // the second waits for the first's answer
		p.Close()
		if err := <-freed; err == nil {
			t.Error("the second is under way on a closed pipeline")
		}
		if _, err := p.AppendEntries(&raft.AppendEntriesRequest{}, new(raft.AppendEntriesResponse)); !errors.Is(err, raft.ErrPipelineShutdown) {
			t.Errorf("an append to a closed one: %v", err)
		}
	})
}

// The reader has a future before there is an append. Where none will come it ends, as raft
// waits for that, and hears of no append that was not made.
func TestReaderEndsWithAnIdlePipeline(t *testing.T) {
	for name, story := range map[string]struct {
		do    func(p *pipeline)
		after time.Duration
	}{
		"it is closed": {do: func(p *pipeline) { p.Close() }},
		"nobody sends": {do: func(*pipeline) {}, after: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, calls, _ := duct(t, nil)
				go func() {
					c := <-calls
					c.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
				}()
				heard, ended := 0, make(chan struct{})
				go func() {
					defer close(ended)
					for f := range p.Consumer() {
						_ = f.Request()
						heard++
					}
				}()
				if _, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, new(raft.AppendEntriesResponse)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				began := time.Now()
				story.do(p.(*pipeline))
				<-ended
				if took := time.Since(began); heard != 1 || took != story.after {
					t.Errorf("the reader ended after %s and heard of %d appends, one was made", took, heard)
				}
				if _, err := p.AppendEntries(&raft.AppendEntriesRequest{}, new(raft.AppendEntriesResponse)); !errors.Is(err, raft.ErrPipelineShutdown) {
					t.Errorf("an append after that: %v", err)
				}
			})
		})
	}
}

// What a peer says unasked answers no append, neither the last nor the next.
func TestAnAnswerToNobodyEndsThePipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, _ := duct(t, nil)
		p.(*pipeline).link.in.Reset(strings.NewReader("\xa0\x81\xa7Success\xc3"))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f := <-p.Consumer()
			t.Errorf("it answered %v", f.Request())
		}()
		<-ended
		if _, err := p.AppendEntries(&raft.AppendEntriesRequest{}, new(raft.AppendEntriesResponse)); !errors.Is(err, raft.ErrPipelineShutdown) {
			t.Errorf("an append after that: %v", err)
		}
	})
}

// An answer may take its time anew for each append, though the connection has one deadline.
func TestEachAppendHasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, calls, _ := duct(t, nil)
		go func() {
			for range 3 {
				c := <-calls
				time.Sleep(900 * time.Millisecond)
				c.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
			}
		}()
		go func() {
			for range 3 {
				f := <-p.Consumer()
				if !f.Response().Success {
					t.Errorf("%v", f.Error())
				}
			}
		}()
		for range 3 {
			if _, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, new(raft.AppendEntriesResponse)); err != nil {
				t.Errorf("%v", err)
			}
			time.Sleep(950 * time.Millisecond)
		}
	})
}

func TestCallsEndWithTheTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := newStreet()
		d := &desk{calls: make(chan raft.RPC)}
		ours, peer := New(Config{Layer: a, Timeout: time.Second}), New(Config{Layer: b})
		peer.Start(d)
		defer peer.Close()
		defer ours.Close()
		began := time.Now()
		go func() { <-d.calls; peer.Close() }()
		if err := ours.TimeoutNow("n2", "n2", &raft.TimeoutNowRequest{}, new(raft.TimeoutNowResponse)); err == nil {
			t.Error("a peer that closed answered")
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it was noticed after %s", took)
		}
	})
}

// A heartbeat takes the fast path only where somebody asked for it.
func TestHeartbeatsTakeTheFastPathOnDemand(t *testing.T) {
	_, a, b := newStreet()
	d := &desk{calls: make(chan raft.RPC, 1)}
	ours, peer := New(Config{Layer: a, Timeout: time.Second}), New(Config{Layer: b, Timeout: time.Second})
	peer.Start(d)
	defer peer.Close()
	defer ours.Close()
	fast := 0
	peer.SetHeartbeatHandler(func(c raft.RPC) { fast++; c.Respond(&raft.AppendEntriesResponse{Success: true}, nil) })
	var r raft.AppendEntriesResponse
	beat := &raft.AppendEntriesRequest{RPCHeader: head, Term: 1}
	if err := ours.AppendEntries("n2", "n2", beat, &r); err != nil || fast != 1 || len(d.calls) != 0 {
		t.Errorf("%d took the fast path, %d not: %v", fast, len(d.calls), err)
	}
	peer.SetHeartbeatHandler(nil)
	go func() { c := <-d.calls; c.Respond(&raft.AppendEntriesResponse{Success: true}, nil) }()
	if err := ours.AppendEntries("n2", "n2", beat, &r); err != nil || fast != 1 {
		t.Errorf("%d took the fast path: %v", fast, err)
	}
}
