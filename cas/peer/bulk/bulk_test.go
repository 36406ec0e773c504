package bulk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// memSource serves what is put into it.
type memSource struct {
	mu        sync.Mutex
	blocks    map[forgeyard.Digest][]byte
	manifests map[forgeyard.Digest]cas.Manifest
	absent    chan forgeyard.Digest // each block that was looked for and is not here; nil: nobody listens
}

func (m *memSource) Block(_ context.Context, name forgeyard.Digest, buf []byte, _ bool) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.blocks[name]
	if !ok {
		if m.absent != nil {
			m.absent <- name
		}
		return 0, forgeyard.Errorf("mem", forgeyard.NotFound, "%s is not here", name.Short())
	}
	return copy(buf, b), nil
}

func (m *memSource) Manifest(_ context.Context, name forgeyard.Digest) (cas.Manifest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	man, ok := m.manifests[name]
	if !ok {
		return man, forgeyard.Errorf("mem", forgeyard.NotFound, "%s is not here", name.Short())
	}
	return man, nil
}

// add keeps a blob of so many blocks, all or none of them, and gives its manifest.
func (m *memSource) add(t testing.TB, seed byte, blocks int, bytesToo bool) (forgeyard.Digest, cas.Manifest) {
	t.Helper()
	mb, data := cas.NewManifestBuilder(), map[forgeyard.Digest][]byte{}
	for i := range blocks {
		b := bytes.Repeat([]byte{seed, byte(i)}, cas.BlockSize/2)
		_, _ = mb.Write(b)
		data[cas.Sum(b)] = b
	}
	ref, man, _, err := mb.Finish()
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.manifests[ref.Manifest] = man
	if bytesToo {
		for d, b := range data {
			m.blocks[d] = b
		}
	}
	return ref.Manifest, man
}

func (m *memSource) put(b []byte) forgeyard.Digest {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := cas.Sum(b)
	m.blocks[d] = b
	return d
}

// got is what a client was told, in order.
type got struct {
	name   forgeyard.Digest
	data   []byte
	reason Reason
	lie    string
}

type recorder struct {
	events chan got
	alive  chan int64
	told   chan struct{} // something was added; capacity 1
}

func (r *recorder) tell() {
	select {
	case r.told <- struct{}{}:
	default:
	}
}

func newRecorder() *recorder {
	return &recorder{events: make(chan got, 4096), alive: make(chan int64, 64), told: make(chan struct{}, 1)}
}

func (r *recorder) Block(name forgeyard.Digest, b []byte, release func()) {
	r.events <- got{name: name, data: bytes.Clone(b)}
	r.tell()
	release()
}
func (r *recorder) Refused(name forgeyard.Digest, why Reason) {
	r.events <- got{name: name, reason: why}
	r.tell()
}
func (r *recorder) Lied(name forgeyard.Digest, why string) { r.events <- got{name: name, lie: why} }
func (r *recorder) Heard(int, bool)                        {}
func (r *recorder) Alive(p int64) {
	select {
	case r.alive <- p:
		r.tell()
	default:
	}
}

// next waits for an answer.
func (r *recorder) next(t *testing.T) got {
	t.Helper()
	select {
	case g := <-r.events:
		return g
	case <-time.After(20 * time.Second):
		t.Fatal("no answer came")
		panic("unreachable")
	}
}

// heeded is a clock that tells when a server begins to wait for it.
type heeded struct {
	*clock.Manual
	asked chan struct{} // capacity 1
}

func (h *heeded) After(d time.Duration) <-chan time.Time {
	ch := h.Manual.After(d)
	if d > aliveEvery {
		return ch // a watchdog, for which time must not run
	}
	select {
	case h.asked <- struct{}{}:
	default:
	}
	return ch
}

// pair is a client and a server with a pipe between them.
type pair struct {
	*Client
	rec     *recorder
	src     *memSource
	clk     *heeded
	server  *Server
	conn    net.Conn // the client's end
	served  chan error
	clientE chan error
}

func newPair(t *testing.T, tune ...func(*Server)) *pair {
	t.Helper()
	a, b := net.Pipe()
	p := &pair{
		rec: newRecorder(), src: &memSource{blocks: map[forgeyard.Digest][]byte{}, manifests: map[forgeyard.Digest]cas.Manifest{}, absent: make(chan forgeyard.Digest, 64)},
		clk: &heeded{clock.NewManual(time.UnixMilli(0)), make(chan struct{}, 1)}, conn: a, served: make(chan error, 1), clientE: make(chan error, 1),
	}
	p.server = &Server{Source: p.src, Parking: &Parking{}, Clock: p.clk, Stall: 2 * time.Second, Progress: func() int64 { return 7 }}
	for _, f := range tune {
		f(p.server)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { p.served <- p.server.Serve(ctx, b) }()
	p.Client = NewClient(a, p.rec, NewPool(4), p.clk, 2*time.Second)
	go func() { p.clientE <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-p.served
		<-p.clientE
	})
	return p
}

func ask(t *testing.T, c *Client, terms Terms, blocks ...Block) {
	t.Helper()
	if err := c.Ask(blocks, terms); err != nil {
		t.Fatal(err)
	}
}

func blocksOf(id forgeyard.Digest, m cas.Manifest, from, to int) (out []Block) {
	for i := from; i < to; i++ {
		out = append(out, Block{Name: m.Blocks[i].Digest, Size: m.Blocks[i].Size, Manifest: id, Index: i})
	}
	return out
}

// A range comes in order, each block once; an object by its own name among them.
func TestRangesAndObjects(t *testing.T) {
	p := newPair(t)
	id, m := p.src.add(t, 1, 5, true)
	small := p.src.put([]byte("small"))
	ask(t, p.Client, Terms{}, append(blocksOf(id, m, 1, 4), Block{Name: small, Size: 5})...)
	for i := 1; i < 4; i++ {
		if g := p.rec.next(t); g.name != m.Blocks[i].Digest || cas.Sum(g.data) != g.name {
			t.Fatalf("block %d came as %+v", i, g.name.Short())
		}
	}
	if g := p.rec.next(t); g.name != small || string(g.data) != "small" {
		t.Fatalf("%+v", g)
	}
}

// piecewise gives blocks piece by piece, and fails from some byte on.
type piecewise struct {
	*memSource
	fails  int64
	opened atomic.Int64
}

func (p *piecewise) Open(name forgeyard.Digest) cas.Pieces {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened.Add(1)
	if b, ok := p.blocks[name]; ok {
		return pieces{b, p.fails}
	}
	return nil
}

type pieces struct {
	b     []byte
	fails int64
}

func (p pieces) Size() int64  { return int64(len(p.b)) }
func (p pieces) Close() error { return nil }
func (p pieces) ReadAt(b []byte, off int64) (int, error) {
	if off >= p.fails {
		return 0, errors.New("the disk failed")
	}
	return copy(b, p.b[off:]), nil
}

// A block that is read piece by piece is the same block. When the first piece cannot be read
// it is read as any other; later the connection ends, since a frame was begun. With care it
// is never read so.
func TestPieces(t *testing.T) {
	for _, c := range []struct {
		fails  int64
		check  bool
		opened int64
		ends   bool
	}{{fails: cas.BlockSize, opened: 3}, {fails: 0, opened: 3}, {fails: cas.BlockSize, check: true}, {fails: 3 * pieceSize, opened: 1, ends: true}} {
		var src *piecewise
		p := newPair(t, func(s *Server) {
			src = &piecewise{memSource: s.Source.(*memSource), fails: c.fails}
			s.Source = src
		})
		id, m := p.src.add(t, 1, 2, true)
		small := p.src.put(bytes.Repeat([]byte("odd"), 1+pieceSize/3))
		ask(t, p.Client, Terms{Check: c.check}, append(blocksOf(id, m, 0, 2), Block{Name: small, Size: cas.BlockSize})...)
		if c.ends {
			if err := <-p.clientE; err == nil {
				t.Error("a frame that was begun and not ended passed")
			}
			p.clientE <- nil
			if len(p.rec.events) > 0 {
				t.Error("half a block was handed on")
			}
		} else {
			for _, want := range []forgeyard.Digest{m.Blocks[0].Digest, m.Blocks[1].Digest, small} {
				if g := p.rec.next(t); g.name != want || cas.Sum(g.data) != want {
					t.Fatalf("%+v: %s came with other bytes: %v", c, want.Short(), g.reason)
				}
			}
		}
		if n := src.opened.Load(); n != c.opened {
			t.Errorf("%+v: %d were opened", c, n)
		}
	}
}

// together gives what lies side by side in it: all that begins with a small letter.
type together struct {
	*memSource
	passes chan int // how many names each pass was asked for
}

func (g *together) Many(_ context.Context, names []forgeyard.Digest, f func(i int, b []byte)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passes <- len(names)
	for i := len(names) - 1; i >= 0; i-- { // in an order of its own
		if b := g.blocks[names[i]]; len(b) > 0 && b[0] >= 'a' {
			f(i, bytes.Clone(b))
		}
	}
}

type gatedTogether struct {
	*gate
	all *together
}

func (g gatedTogether) Many(ctx context.Context, names []forgeyard.Digest, f func(i int, b []byte)) {
	g.all.Many(ctx, names, f)
}

// Small objects are read together and each comes once; what lies elsewhere, is too large to
// be sent with others, is absent, or is to be read with care is answered as if alone. One that
// was taken back is not sent.
func TestSmallObjectsTogether(t *testing.T) {
	var g *gate
	var src *together
	p := newPair(t, func(s *Server) {
		src = &together{s.Source.(*memSource), make(chan int, 8)}
		g = &gate{src.memSource, make(chan struct{}), make(chan struct{}, 1)}
		s.Source = gatedTogether{g, src}
	})
	first := p.src.put([]byte("First is read by itself, while the others gather"))
	want := map[forgeyard.Digest]string{first: "by itself"}
	var blocks []Block
	add := func(b []byte, how string) {
		d := p.src.put(b)
		want[d] = how
		blocks = append(blocks, Block{Name: d, Size: int64(len(b))})
	}
	for i := range 20 {
		add([]byte(fmt.Sprintf("small %d", i)), "together")
	}
	add([]byte("Elsewhere"), "by itself")
	add(bytes.Repeat([]byte("large"), maxSmall), "by itself")
	nobody := cas.Sum([]byte("nobody has it"))
	blocks = append(blocks, Block{Name: nobody, Size: 9})
	ask(t, p.Client, Terms{Check: true}, Block{Name: first, Size: 64})
	<-g.entered
	ask(t, p.Client, Terms{}, blocks...)
	gone := blocks[3].Name
	if err := p.Cancel([]forgeyard.Digest{gone}); err != nil {
		t.Fatal(err)
	}
	ask(t, p.Client, Terms{Check: true}, Block{Name: urgent2(p), Size: 1}) // behind it, so that all before was read
	close(g.open)
	delete(want, gone)
	want[cas.Sum([]byte("2"))] = "by itself"
	for range len(want) + 1 {
		got := p.rec.next(t)
		if got.name == nobody && got.reason == Absent {
			continue
		}
		if want[got.name] == "" || cas.Sum(got.data) != got.name {
			t.Fatalf("%s: %d bytes, %v", got.name.Short(), len(got.data), got.reason)
		}
		delete(want, got.name)
	}
	if len(src.passes) != 1 {
		t.Fatalf("%d passes, want one", len(src.passes))
	}
	if n := <-src.passes; n != len(blocks) {
		t.Errorf("the pass was over %d names, want %d", n, len(blocks))
	}
}

// Who lacks something says so, at once and by name.
func TestRefusals(t *testing.T) {
	p := newPair(t)
	id, m := p.src.add(t, 1, 3, false)
	nobody := cas.Sum([]byte("nobody has it"))
	ask(t, p.Client, Terms{}, Block{Name: nobody, Size: 9})
	if g := p.rec.next(t); g.name != nobody || g.reason != Absent {
		t.Fatalf("%+v", g)
	}
	ask(t, p.Client, Terms{}, blocksOf(id, m, 0, 3)...)
	for i := range 3 {
		if g := p.rec.next(t); g.name != m.Blocks[i].Digest || g.reason != Absent {
			t.Fatalf("%+v", g)
		}
	}
	// A range beyond the manifest.
	beyond := blocksOf(id, m, 0, 1)
	beyond[0].Index = 3
	ask(t, p.Client, Terms{}, beyond...)
	if g := p.rec.next(t); g.reason != Wrong {
		t.Fatalf("%+v", g)
	}
}

// A want is answered when what it waits for arrives, and meanwhile its side hears
// that the other lives; its time over, it is refused as late.
func TestParkedUntilItArrives(t *testing.T) {
	p := newPair(t)
	data := []byte("on its way")
	name := cas.Sum(data)
	ask(t, p.Client, Terms{Park: 4 * time.Second}, Block{Name: name, Size: 10})
	p.parked(t, 1)
	p.pass(t, aliveEvery, func() bool { return len(p.rec.alive) > 0 })
	if progress := <-p.rec.alive; progress != 7 {
		t.Fatalf("progress %d", progress)
	}
	p.src.put(data)
	p.server.Parking.Arrived(name)
	if g := p.rec.next(t); g.name != name || string(g.data) != "on its way" {
		t.Fatalf("%+v", g)
	}
	never := cas.Sum([]byte("never"))
	ask(t, p.Client, Terms{Park: time.Second}, Block{Name: never, Size: 10})
	p.parked(t, 1)
	p.pass(t, aliveEvery, func() bool { return len(p.rec.events) > 0 })
	if g := p.rec.next(t); g.name != never || g.reason != Late || p.server.Parking.Waiting() != 0 {
		t.Fatalf("%+v", g)
	}
}

// A parked range waits for its manifest too.
func TestParkedForItsManifest(t *testing.T) {
	p := newPair(t)
	other := &memSource{blocks: map[forgeyard.Digest][]byte{}, manifests: map[forgeyard.Digest]cas.Manifest{}}
	id, m := other.add(t, 3, 2, true)
	ask(t, p.Client, Terms{Park: 4 * time.Second}, blocksOf(id, m, 0, 2)...)
	p.parked(t, 1)
	p.src.add(t, 3, 2, true)
	p.server.Parking.Arrived(id)
	for i := range 2 {
		if g := p.rec.next(t); g.name != m.Blocks[i].Digest || len(g.data) != cas.BlockSize {
			t.Fatalf("%+v", g.reason)
		}
	}
}

// parked waits until so many wants are parked.
func (p *pair) parked(t *testing.T, n int) {
	t.Helper()
	for p.server.Parking.Waiting() < n {
		select {
		case <-p.src.absent: // the server looks once more after it has parked
		case <-time.After(20 * time.Second):
			t.Fatal("nothing was parked")
		}
	}
}

// pass lets time pass, step by step whenever somebody waits for it, until seen.
func (p *pair) pass(t *testing.T, step time.Duration, seen func() bool) {
	t.Helper()
	for !seen() {
		select {
		case <-p.clk.asked:
			p.clk.Advance(step)
		case <-p.rec.told:
		case <-time.After(20 * time.Second):
			t.Fatal("it was not seen")
		}
	}
}

// gate holds the server's reading of blocks until it is opened.
type gate struct {
	*memSource
	open    chan struct{}
	entered chan struct{}
}

func (g *gate) Block(ctx context.Context, name forgeyard.Digest, buf []byte, check bool) (int, error) {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	<-g.open
	return g.memSource.Block(ctx, name, buf, check)
}

// What is urgent waits for one block of content at most; what was cancelled is not sent.
func TestPriorityAndCancel(t *testing.T) {
	var g *gate
	p := newPair(t, func(s *Server) {
		g = &gate{s.Source.(*memSource), make(chan struct{}), make(chan struct{}, 1)}
		s.Source = g
	})
	id, m := p.src.add(t, 1, 6, true)
	urgent := p.src.put([]byte("urgent"))
	ask(t, p.Client, Terms{}, blocksOf(id, m, 0, 6)...)
	<-g.entered // the first block is being read
	ask(t, p.Client, Terms{Priority: Urgent}, Block{Name: urgent, Size: 6})
	if err := p.Cancel([]forgeyard.Digest{m.Blocks[1].Digest, m.Blocks[4].Digest}); err != nil {
		t.Fatal(err)
	}
	ask(t, p.Client, Terms{}, Block{Name: urgent2(p), Size: 1}) // behind it, so that all before was read
	close(g.open)
	want := []forgeyard.Digest{m.Blocks[0].Digest, urgent, m.Blocks[2].Digest, m.Blocks[3].Digest, m.Blocks[5].Digest, cas.Sum([]byte("2"))}
	for i, d := range want {
		if got := p.rec.next(t); got.name != d {
			t.Fatalf("answer %d is %s, want %s", i, got.name.Short(), d.Short())
		}
	}
}

func urgent2(p *pair) forgeyard.Digest { return p.src.put([]byte("2")) }

// C19, C03: what exceeds the bound of open wants is refused, never dropped.
func TestC19MoreThanTheBound(t *testing.T) {
	var g *gate
	p := newPair(t, func(s *Server) {
		g = &gate{s.Source.(*memSource), make(chan struct{}), make(chan struct{}, 1)}
		s.Source = g
	})
	var blocks []Block
	for i := range MaxOpen + 50 {
		blocks = append(blocks, Block{Name: p.src.put([]byte{byte(i), byte(i >> 8), 1}), Size: 3})
	}
	go func() { _ = p.Ask(blocks, Terms{}) }() // the pipe takes it as the server reads
	<-g.entered
	close(g.open)
	busy, came := 0, 0
	for range blocks {
		if got := p.rec.next(t); got.reason == Busy {
			busy++
		} else if cas.Sum(got.data) == got.name {
			came++
		}
	}
	if busy+came != len(blocks) || came < MaxOpen {
		t.Fatalf("%d busy, %d came", busy, came)
	}
}

// A bucket keeps its rate, whatever the pieces, and never lets a block wait for ever.
func TestBucket(t *testing.T) {
	b := NewBucket(10 << 20)
	now, sent := forgeyard.Instant(time.Second), int64(0)
	start := now
	for range 200 {
		d := b.Take(now, cas.BlockSize)
		sent += cas.BlockSize
		now = now.Add(d)
	}
	took := now.Sub(start).Seconds()
	if rate := float64(sent-b.Burst()) / took; rate < 9.9*(1<<20) || rate > 10.6*(1<<20) {
		t.Fatalf("%.1f MiB/s over %.1fs", rate/(1<<20), took)
	}
	var none *Bucket
	if none.Take(now, 1<<30) != 0 || NewBucket(0) != nil || none.Burst() != 0 {
		t.Fatal("no bound is a bound")
	}
}

// What is paced waits its time; what is urgent does not.
func TestPaced(t *testing.T) {
	paced := make(chan struct{}, 4)
	p := newPair(t, func(s *Server) {
		s.Pace = func(int) time.Duration {
			paced <- struct{}{}
			return time.Second
		}
	})
	urgent, plain := p.src.put([]byte("urgent")), p.src.put([]byte("plain"))
	ask(t, p.Client, Terms{Priority: Urgent}, Block{Name: urgent, Size: 6})
	if g := p.rec.next(t); g.name != urgent {
		t.Fatalf("%+v", g)
	}
	ask(t, p.Client, Terms{}, Block{Name: plain, Size: 5})
	<-paced
	<-paced
	if len(p.rec.events) != 0 {
		t.Fatal("it did not wait")
	}
	p.pass(t, aliveEvery, func() bool { return len(p.rec.events) > 0 })
	if g := p.rec.next(t); g.name != plain {
		t.Fatalf("%+v", g)
	}
	if len(p.rec.alive) == 0 {
		t.Fatal("a second of waiting for a rate looked like silence")
	}
}

// hostile talks to a server as nobody should, and gives the error that ends it.
func hostile(t *testing.T, say func(c net.Conn, clk *clock.Manual)) error {
	t.Helper()
	a, b := net.Pipe()
	clk := clock.NewManual(time.UnixMilli(0))
	s := &Server{Source: &memSource{}, Parking: &Parking{}, Clock: clk, Stall: 2 * time.Second, Progress: func() int64 { return 0 }}
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), b) }()
	go func() { _, _ = io.Copy(io.Discard, a) }()
	go say(a, clk)
	for {
		select {
		case err := <-served:
			return err
		case <-time.After(time.Millisecond):
			clk.Advance(50 * time.Millisecond)
		}
	}
}

// A peer that does not keep to the protocol, or to its time, is let go with a reason.
func TestHostileClients(t *testing.T) {
	name := cas.Sum([]byte("x"))
	for what, say := range map[string]func(c net.Conn, clk *clock.Manual){
		"unknown kind":    func(c net.Conn, _ *clock.Manual) { _, _ = c.Write(head{kind: 99, size: 1}.append(nil)) },
		"a server's kind": func(c net.Conn, _ *clock.Manual) { _, _ = c.Write(head{kind: kindAlive, size: aliveSize}.append(nil)) },
		"oversized":       func(c net.Conn, _ *clock.Manual) { _, _ = c.Write(head{kind: kindWant, size: 1 << 31}.append(nil)) },
		"oversized count": func(c net.Conn, _ *clock.Manual) {
			_, _ = c.Write(Want{ID: 1, Name: name, Count: 1 << 30}.append(nil))
		},
		"count without end": func(c net.Conn, _ *clock.Manual) {
			_, _ = c.Write(Want{ID: 1, Name: name, First: 1 << 30, Count: 1}.append(nil))
		},
		"one object from its middle": func(c net.Conn, _ *clock.Manual) { _, _ = c.Write(Want{ID: 1, Name: name, First: 2}.append(nil)) },
		"nothing is named":           func(c net.Conn, _ *clock.Manual) { _, _ = c.Write(Want{ID: 1}.append(nil)) },
		"an id twice": func(c net.Conn, _ *clock.Manual) {
			w := Want{ID: 1, Name: name, Park: maxPark}.append(nil)
			_, _ = c.Write(append(w, w...))
		},
		"half a frame": func(c net.Conn, _ *clock.Manual) {
			_, _ = c.Write(Want{ID: 1, Name: name}.append(nil)[:20])
			_ = c.Close()
		},
		"slow loris": func(c net.Conn, _ *clock.Manual) { _, _ = c.Write([]byte{byte(kindWant)}) },
	} {
		t.Run(what, func(t *testing.T) {
			if err := hostile(t, say); err == nil {
				t.Fatal("it was served to the end")
			}
		})
	}
}

// A peer that takes nothing is let go within the time that a block's size allows.
func TestStalledReader(t *testing.T) {
	a, b := net.Pipe()
	clk := clock.NewManual(time.UnixMilli(0))
	src := &memSource{blocks: map[forgeyard.Digest][]byte{}, manifests: map[forgeyard.Digest]cas.Manifest{}}
	id, _ := src.add(t, 1, 2, true)
	s := &Server{Source: src, Parking: &Parking{}, Clock: clk, Stall: 2 * time.Second, Progress: func() int64 { return 0 }}
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), b) }()
	if _, err := a.Write(Want{ID: 1, Name: id, Count: 2}.append(nil)); err != nil {
		t.Fatal(err)
	}
	begun := clk.Now()
	for {
		select {
		case err := <-served:
			if forgeyard.KindOf(err) != forgeyard.Unavailable || clk.Now().Sub(begun) < 2*time.Second {
				t.Fatalf("%v after %v", err, clk.Now().Sub(begun))
			}
			return
		case <-time.After(time.Millisecond):
			clk.Advance(50 * time.Millisecond)
		}
	}
}

// hostileServer gives a client what a server may not send.
func hostileServer(t *testing.T, asked []Block, reply []byte) (*recorder, error) {
	t.Helper()
	a, b := net.Pipe()
	clk := clock.NewManual(time.UnixMilli(0))
	rec := newRecorder()
	c := NewClient(a, rec, NewPool(2), clk, 2*time.Second)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()
	go func() {
		_, _ = io.CopyN(io.Discard, b, int64(len(asked)*(headSize+wantSize)))
		_, _ = b.Write(reply)
		_ = b.Close()
	}()
	if len(asked) > 0 {
		if err := c.Ask(asked, Terms{}); err != nil {
			t.Fatal(err)
		}
	}
	return rec, <-ended
}

// C02: a server that sends more than a block has is named; what was never asked for
// ends the connection; what was taken back is dropped.
func TestC02HostileServers(t *testing.T) {
	name := cas.Sum([]byte("ab"))
	one := []Block{{Name: name, Size: 2}}
	frame := func(id, index uint32, b []byte) []byte {
		return append(head{kindBlock, id, index, uint32(len(b))}.append(nil), b...)
	}
	rec, _ := hostileServer(t, one, frame(1, 0, []byte("abc")))
	if g := rec.next(t); g.lie == "" || g.name != name {
		t.Fatalf("%+v", g)
	}
	rec, err := hostileServer(t, one, frame(7, 0, []byte("ab")))
	if forgeyard.KindOf(err) != forgeyard.Corrupt || len(rec.events) != 0 {
		t.Fatal(err)
	}
	rec, err = hostileServer(t, one, append(frame(1, 9, []byte("zz")), frame(1, 0, []byte("ab"))...))
	if g := rec.next(t); g.name != name || string(g.data) != "ab" || !errors.Is(err, io.EOF) {
		t.Fatalf("%+v %v", g, err)
	}
	if _, err = hostileServer(t, nil, Want{ID: 1, Name: name}.append(nil)); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatal(err)
	}
	if _, err = hostileServer(t, one, frame(1, 0, make([]byte, 100))[:20]); err == nil {
		t.Fatal("a torn block is no end")
	}
}

// The bytes on the wire stay what they are.
func TestGoldenFrames(t *testing.T) {
	name := forgeyard.Digest(bytes.Repeat([]byte{0xab}, 32))
	w := Want{ID: 1, Name: name, First: 2, Count: 3, Priority: Structure, Park: 1500 * time.Millisecond, Check: true}
	for what, c := range map[string]struct {
		got  []byte
		want string
	}{
		"want":   {w.append(nil), "\x01\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x2a\x00\x00\x00\x03\x40\x01\x00\x00\x05\xdc" + string(name[:])},
		"cancel": {appendCancel(nil, 1, 2, 3), "\x02\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00\x03"},
		"block":  {head{kindBlock, 1, 2, 5}.append(nil), "\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x05"},
		"refuse": {appendRefuse(nil, 1, 2, 3, Late), "\x04\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x05\x00\x00\x00\x03\x02"},
		"alive":  {appendAlive(nil, 258), "\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x01\x02"},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s is %x", what, c.got)
		}
	}
	h, err := readHead(bytes.NewReader(w.append(nil)))
	if err != nil {
		t.Fatal(err)
	}
	back, err := parseWant(h, (*[wantSize]byte)(w.append(nil)[headSize:]))
	if err != nil || back != w {
		t.Fatalf("%+v %v", back, err)
	}
}

// FuzzServer: whatever a peer sends, the server answers or lets it go; it keeps
// nothing of it.
func FuzzServer(f *testing.F) {
	name := cas.Sum([]byte("x"))
	f.Add(Want{ID: 1, Name: name, Count: 2}.append(nil))
	f.Add(appendCancel(Want{ID: 1, Name: name, Park: time.Second}.append(nil), 1, 0, 9))
	f.Add(head{kind: kindBlock, size: 3}.append(nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, b := net.Pipe()
		s := &Server{
			Source: &memSource{blocks: map[forgeyard.Digest][]byte{name: []byte("x")}}, Parking: &Parking{}, Clock: clock.System(),
			Stall: time.Second, Progress: func() int64 { return 0 },
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(t.Context(), b) }()
		go func() { _, _ = io.Copy(io.Discard, a) }()
		_, _ = a.Write(raw)
		_ = a.Close()
		<-served
		if n := s.Parking.Waiting(); n != 0 {
			t.Fatalf("%d wants are left", n)
		}
	})
}

// FuzzClient: whatever a server sends, only what was asked for is handed on, and no
// more bytes than it has.
func FuzzClient(f *testing.F) {
	name := cas.Sum([]byte("ab"))
	f.Add(append(head{kindBlock, 1, 0, 2}.append(nil), "ab"...))
	f.Add(appendRefuse(nil, 1, 0, 1<<31, Absent))
	f.Add(appendAlive(nil, 1))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, b := net.Pipe()
		rec := newRecorder()
		c := NewClient(a, rec, NewPool(2), clock.System(), time.Second)
		ended := make(chan error, 1)
		go func() { ended <- c.Run(t.Context()) }()
		go func() { _, _ = io.CopyN(io.Discard, b, headSize+wantSize); _, _ = b.Write(raw); _ = b.Close() }()
		_ = c.Ask([]Block{{Name: name, Size: 2}}, Terms{})
		<-ended
		answers := 0
		for len(rec.events) > 0 {
			if g := <-rec.events; g.name != name || len(g.data) > 2 {
				t.Fatalf("%+v", g)
			}
			answers++
		}
		if answers > 1 {
			t.Fatalf("one want was answered %d times", answers)
		}
	})
}
