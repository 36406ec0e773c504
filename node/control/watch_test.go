package control

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// pipes is a listener whose connections hold no byte: what the reader does not read, its
// writer waits with.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// watched is a node that has a copy of the log and serves its events; nothing else of a
// Node is asked for. Each look of the server at the state is told in looks.
type watched struct {
	Node
	t     *testing.T
	r     *replica.Replica
	looks chan uint64 // the step of the state; full: nobody counts any more
	api   forgeyardv1connect.SiteServiceClient
	term  uint64
}

func (w *watched) Wall() time.Time          { return time.UnixMilli(1_800_000_000_000) }
func (w *watched) Changed() <-chan struct{} { return w.r.Changed() }
func (w *watched) Site() *site.State {
	s := w.r.State()
	select {
	case w.looks <- s.Step:
	default:
	}
	return s
}

func newWatched(t *testing.T) *watched {
	w := &watched{t: t, r: replica.New(), looks: make(chan uint64, 64), term: 1}
	l := newPipes()
	srv := httptest.NewUnstartedServer(Handler(w, ReadOnly))
	if err := srv.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	srv.Listener = l
	srv.Start()
	h := &http.Client{Transport: &http.Transport{DialContext: l.dial}}
	t.Cleanup(func() {
		h.CloseIdleConnections()
		srv.CloseClientConnections()
		srv.Close()
	})
	w.api = forgeyardv1connect.NewSiteServiceClient(h, "http://node", connect.WithInterceptors(wire.Interceptor{}))
	return w
}

func entry(index, term uint64, b site.Body) consensus.Entry {
	return consensus.Entry{Index: index, Term: term, Live: true, Data: site.Command{ID: forgeyard.MessageID(fmt.Sprint("r", index)), At: 1_800_000_000_000, By: "ana", Body: b}.Encode()}
}

// found makes the site, in format 2.
func (w *watched) found() {
	w.apply(1, site.Init{Site: "01HF000000000000000000000S", Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: "p1"})
	w.apply(2, site.Register{Runner: "R1", Session: "one", Formats: site.Formats})
	w.apply(3, site.FormatRaise{To: 2, Voters: []forgeyard.RunnerID{"R1"}})
}

func (w *watched) apply(index uint64, b site.Body) {
	w.t.Helper()
	if r, _ := w.r.Apply(entry(index, w.term, b)).(site.Reply); r.Err() != nil {
		w.t.Fatal(r.Err())
	}
}

// upTo applies commands that make one event each.
func (w *watched) upTo(index uint64) {
	w.t.Helper()
	for i := w.r.State().Step + 1; i <= index; i++ {
		w.apply(i, site.ConfigSet{Key: "voters", Value: "5"})
	}
}

// awaitLook waits until the server has the state of that step before it.
func (w *watched) awaitLook(step uint64) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	for {
		select {
		case at := <-w.looks:
			if at == step {
				return
			}
		case <-ctx.Done():
			w.t.Fatal("the watch never looked")
		}
	}
}

type watch struct {
	t   *testing.T
	in  *connect.ServerStreamForClient[forgeyardv1.SiteEvent]
	end context.CancelFunc
}

func (w *watched) follow(after uint64, kind string) *watch {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	w.t.Cleanup(cancel)
	in, err := w.api.Events(ctx, connect.NewRequest(&forgeyardv1.SiteEventsRequest{Follow: true, After: after, Kind: kind}))
	if err != nil {
		w.t.Fatal(err)
	}
	return &watch{t: w.t, in: in, end: cancel}
}

func (x *watch) next() *forgeyardv1.SiteEvent {
	x.t.Helper()
	if !x.in.Receive() {
		x.t.Fatalf("the watch ended: %v", x.in.Err())
	}
	return x.in.Msg()
}

// all reads the events with these indexes, one each, in order.
func (x *watch) all(from, to uint64) {
	x.t.Helper()
	for i := from; i <= to; i++ {
		if e := x.next(); e.Index != i || e.Kind == "gap" {
			x.t.Fatalf("event %d (%s: %s), want %d", e.Index, e.Kind, e.Text, i)
		}
	}
}

// gap reads one, and returns where what follows is whole again.
func (x *watch) gap() uint64 {
	x.t.Helper()
	e := x.next()
	if e.Kind != "gap" || e.Text != fmt.Sprintf("events up to %d are no longer all kept; after %d none is missing", e.Index, e.Index) {
		x.t.Fatalf("no gap but %d %s: %s", e.Index, e.Kind, e.Text)
	}
	return e.Index
}

// A reader that does not read delays no Apply. What it missed while the history was
// long enough it gets, each event once and in order.
func TestStalledReaderMissesNothing(t *testing.T) {
	w := newWatched(t)
	w.found()
	x := w.follow(0, "")
	x.all(1, 3)
	w.upTo(4)
	w.awaitLook(4) // from here on the server waits with event 4
	w.upTo(500)    // comes back although nobody reads
	x.all(4, 500)
	w.upTo(510)
	x.all(501, 510)
}

// A reader that stalls for longer than the history reaches is told where to go on: one
// line, after which nothing is missing. So is a reader that comes back too late.
func TestStalledReaderGetsOneGap(t *testing.T) {
	w := newWatched(t)
	w.found()
	x := w.follow(0, "")
	x.all(1, 3)
	w.upTo(4)
	w.awaitLook(4)
	w.upTo(2000)
	x.all(4, 4)
	lost := x.gap()
	if lost != w.r.State().Forgotten || lost < 1000 {
		t.Fatalf("the gap ends at %d, forgotten is up to %d", lost, w.r.State().Forgotten)
	}
	x.all(lost+1, 2000)
	w.upTo(2001)
	x.all(2001, 2001)

	late := w.follow(4, "")
	if n := late.gap(); n != lost+1 {
		t.Fatalf("the gap ends at %d", n)
	}
	late.all(lost+2, 2001)
	w.follow(lost+1, "").all(lost+2, 2001) // it goes on where it was told to
}

// What became of leases has a bound of its own, and a gap of its own: only readers of it
// hear of that.
func TestGapOfLeaseEvents(t *testing.T) {
	w := newWatched(t)
	w.found()
	x := w.follow(3, site.KindLease)
	w.awaitLook(3)
	w.apply(4, site.Silence{Runner: "R1", Session: "one", Silent: true})
	x.all(4, 4)
	w.apply(5, site.Silence{Runner: "R1", Session: "one"})
	w.awaitLook(5)
	for i := uint64(6); i <= 1500; i++ {
		w.apply(i, site.Silence{Runner: "R1", Session: "one", Silent: i%2 == 0})
	}
	x.all(5, 5)
	lost := x.gap()
	if lost != w.r.State().LeaseForgotten || lost < 100 {
		t.Fatalf("the gap ends at %d, forgotten is up to %d", lost, w.r.State().LeaseForgotten)
	}
	x.all(lost+1, 1500)
	other := w.follow(3, "config")
	w.apply(1501, site.ConfigSet{Key: "voters", Value: "5"})
	other.all(1501, 1501)
}

// Whoever comes back with the number of the last event that it has gets the next, and none
// twice: here, and on a node whose copy is behind, which says nothing until it has more.
func TestWatchGoesOnElsewhere(t *testing.T) {
	a, b := newWatched(t), newWatched(t)
	a.found()
	b.found()
	a.upTo(20)
	x := a.follow(0, "")
	x.all(1, 12)
	x.end()
	a.follow(12, "").all(13, 20)

	b.upTo(7)
	y := b.follow(12, "")
	b.awaitLook(7)
	b.upTo(15)
	y.all(13, 15)
}

// A follower's watch takes whatever is applied: who leads, and how often that changes, is
// nothing to it. An index that the log used for itself is no gap.
func TestWatchOutlivesLeaders(t *testing.T) {
	w := newWatched(t)
	w.found()
	x := w.follow(0, "")
	x.all(1, 3)
	for i := uint64(0); i < 20; i++ {
		w.term++
		w.apply(5+2*i, site.ConfigSet{Key: "voters", Value: "5"}) // the new leader's own entry is before it
		x.all(5+2*i, 5+2*i)
	}
}

// A snapshot that is installed on the node under watch replaces its state: the watch goes on
// with every event that the snapshot has, and with a gap where that is not all.
func TestWatchOutlivesASnapshot(t *testing.T) {
	for name, to := range map[string]uint64{"all is in it": 300, "some is not": 1300} {
		t.Run(name, func(t *testing.T) {
			from, w := newWatched(t), newWatched(t)
			from.found()
			from.upTo(to)
			w.found()
			w.upTo(10)
			x := w.follow(0, "")
			x.all(1, 10)
			var image bytes.Buffer
			if _, err := from.r.State().WriteTo(&image); err != nil {
				t.Fatal(err)
			}
			if err := w.r.Restore(&image, to); err != nil {
				t.Fatal(err)
			}
			have := uint64(10)
			if to > 1000 {
				have = x.gap()
			}
			x.all(have+1, to)
			w.upTo(to + 1)
			x.all(to+1, to+1)
		})
	}
}
