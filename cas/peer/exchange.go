package peer

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipfs/boxo/bitswap/network"
	"github.com/ipfs/boxo/bitswap/network/bsnet"
	"github.com/ipfs/boxo/bitswap/server"
	"github.com/libp2p/go-libp2p/core/host"
	libpeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Protocols are what the exchange handles on its host. The host must admit many
// streams of the first: bitswap opens one for each message, and what the resource
// manager refuses is lost without a word. MaxWindow inbound and outbound streams
// per peer and 1 GiB of memory are enough.
var Protocols = []protocol.ID{bsnet.ProtocolBitswap, Protocol}

// Config binds an Exchange. Host and Store are required.
type Config struct {
	// Host carries the streams. Who may open one is decided there.
	Host host.Host
	// Store is read to serve peers and written by fetches.
	Store cas.Store
	// Log takes what people need to know; nil is silent.
	Log *slog.Logger
	// Clock measures every deadline; nil is the system's.
	Clock clock.Clock

	// Window is how many wants are outstanding at one peer, 1 to MaxWindow; zero is
	// MaxWindow. Small values cost a round trip each window.
	Window int
	// WantTimeout is how long a peer may send no byte while something is wanted from
	// it, and how long a dial or a question may take. Zero is 2 s. Too small a value
	// gives up on far peers, a large one waits that long for each that died silently.
	WantTimeout time.Duration
	// UplinkTimeout is WantTimeout for the provider beyond the site (see Uplink), whose line
	// may be long and thin. Zero is 10 s. Below the line's round trip nothing comes over it.
	UplinkTimeout time.Duration
	// MaxServePerPeer bounds the requests of one peer on /forgeyard/cas/1 that are
	// served at once; more get Limit. Zero is 16.
	MaxServePerPeer int
	// MaxReplications bounds what we fetch for others at once; a few more wait. Zero is 4.
	MaxReplications int
	// MaxReplicateBytes bounds one replication, bytes; above it is Limit. Zero has no
	// bound but the store's.
	MaxReplicateBytes int64
	// Class is how fetched objects are written; zero is cas.Durable. Replication is
	// always durable, but an object that a fetch brought as cas.Cache before stays so:
	// a node that acknowledges replicas keeps the default.
	Class cas.Class

	// Dial and Listen open the long connections over which blocks travel between nodes
	// that both speak the bulk protocol, in one of the protocols of bulk.Protocols. Dial
	// fails with NotFound when the peer does not speak it. The text of an accepted
	// connection's remote address is the peer's id. Nil, both: streams of Host.
	Dial   func(ctx context.Context, p libpeer.ID, proto protocol.ID) (net.Conn, error)
	Listen func(proto protocol.ID) (net.Listener, error)
	// Rates bound what content may take of the lines; zero bounds nothing.
	Rates Rates
	// Uplink is the provider (see Resolve) that is asked after all others; may be empty.
	Uplink string

	// Resolve finds the peer behind a provider's name (a RunnerID, "uplink"). When
	// nil or failing, the name is tried as the text of a peer id.
	Resolve func(provider string) (libpeer.AddrInfo, error)
	// Providers names who else may have a digest: hints; may be nil. It is asked once or
	// twice a fetch.
	Providers func(ctx context.Context, d forgeyard.Digest) []string
	// Urgent says for whose sake, by a pin's owner, a replication overtakes other content
	// here; nil: for nobody's.
	Urgent func(owner string) bool
	// OnBadPeer is told of each peer that broke its word; may be nil. It must not block.
	OnBadPeer func(Event)
}

// Event says that a peer broke its word about a digest.
type Event struct {
	Peer   libpeer.ID
	Digest forgeyard.Digest // one that was wanted from it
	Reason string
}

const (
	defaultWantTimeout     = 2 * time.Second
	defaultUplinkTimeout   = 10 * time.Second
	defaultServePerPeer    = 16
	defaultReplications    = 4
	hedgeFraction          = 4 // a quarter of WantTimeout without a byte, and others may take over
	silenceChecksPerWindow = 8 // how often in WantTimeout a lane looks at its peer's silence
)

// Exchange brings content from peers and serves it to them. It is safe for
// concurrent use.
type Exchange struct {
	cfg   Config
	key   uint64 // of this node, for the division among siblings
	net   network.BitSwapNetwork
	bulk  bulk.Server
	lines transport

	progress atomic.Int64 // grows with the content that comes in, over bulk connections
	pool     *bulk.Pool
	paces    paces
	server   *server.Server
	stats    counters

	// Goroutines: boxo's server and network; one handler per inbound stream of ours;
	// what a caller's Fetch starts and waits for. Close ends the first two, cancels
	// the third by ctx and waits in wg.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	links     map[libpeer.ID]*link
	sessions  map[forgeyard.Digest]map[*session]struct{} // by what they bring in
	served    map[libpeer.ID]int                         // bulk connections
	scores    map[libpeer.ID]score
	serving   map[libpeer.ID]int
	inbound   map[libpeer.ID]*inboundRoom        // of who is connected
	claims    map[forgeyard.Digest]chan struct{} // large blobs being fetched, closed at the end
	replicate chan struct{}                      // a token for each replication that runs
	waiting   atomic.Int32                       // replications that wait for a token
}

var _ cas.Exchange = (*Exchange)(nil)

// New starts to serve and to fetch. Connections that exist already are used.
func New(cfg Config) (*Exchange, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if !hasherRegistered() {
		cfg.Log.Warn("bitswap hashes with its slow default; call peer.RegisterHasher before the first host is made")
	}
	x := &Exchange{
		cfg:       cfg,
		links:     map[libpeer.ID]*link{},
		sessions:  map[forgeyard.Digest]map[*session]struct{}{},
		served:    map[libpeer.ID]int{},
		key:       keyOf(cfg.Host.ID()),
		pool:      bulk.NewPool(buffers),
		scores:    map[libpeer.ID]score{},
		serving:   map[libpeer.ID]int{},
		inbound:   map[libpeer.ID]*inboundRoom{},
		claims:    map[forgeyard.Digest]chan struct{}{},
		replicate: make(chan struct{}, cfg.MaxReplications),
	}
	var err error
	if x.lines, err = newTransport(cfg); err != nil {
		return nil, err
	}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	x.net = bsnet.NewFromIpfsHost(countingHost{Host: cfg.Host, x: x}, bsnet.SupportedProtocols([]protocol.ID{bsnet.ProtocolBitswap}))
	x.server = server.New(x.ctx, x.net, blocksOf{store: cfg.Store, log: cfg.Log},
		server.MaxOutstandingBytesPerPeer(outstandingBytes),
		server.WithTargetMessageSize(targetMessage),
		server.MaxQueuedWantlistEntriesPerPeer(queuedWants),
		server.TaskWorkerCount(sendWorkers),
	)
	x.paces = newPaces(cfg.Rates)
	x.bulk = bulk.Server{Source: bulkSource{cfg.Store}, Parking: &bulk.Parking{}, Clock: cfg.Clock, Stall: cfg.WantTimeout, Progress: x.progress.Load, Sent: x.stats.sent, Refused: x.stats.refused}
	x.net.Start((*receiver)(x))
	x.lines.serve(x.serveBulk)
	cfg.Host.SetStreamHandler(Protocol, x.handle)
	return x, nil
}

func (c *Config) complete() error {
	const op = "cas peer"
	if c.Host == nil || c.Store == nil {
		return forgeyard.Errorf(op, forgeyard.Invalid, "a host and a store are required")
	}
	if c.Window < 0 || c.Window > MaxWindow {
		return forgeyard.Errorf(op, forgeyard.Invalid, "window %d is not in [1, %d]", c.Window, MaxWindow)
	}
	if c.WantTimeout < 0 || c.UplinkTimeout < 0 || c.MaxServePerPeer < 0 || c.MaxReplications < 0 || c.MaxReplicateBytes < 0 {
		return forgeyard.Errorf(op, forgeyard.Invalid, "a bound is negative")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if err := c.Rates.validate(); err != nil {
		return err
	}
	if (c.Dial == nil) != (c.Listen == nil) {
		return forgeyard.Errorf(op, forgeyard.Invalid, "only one of Dial and Listen is set")
	}
	c.Window = orDefault(c.Window, MaxWindow)
	c.WantTimeout = orDefault(c.WantTimeout, defaultWantTimeout)
	c.UplinkTimeout = orDefault(c.UplinkTimeout, defaultUplinkTimeout)
	c.MaxServePerPeer = orDefault(c.MaxServePerPeer, defaultServePerPeer)
	c.MaxReplications = orDefault(c.MaxReplications, defaultReplications)
	return nil
}

func orDefault[T int | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}

// Close stops serving, cancels every fetch and waits for them. The host stays
// open. Repeating it does nothing.
func (x *Exchange) Close() error {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil
	}
	x.closed = true
	links := x.links
	x.links = map[libpeer.ID]*link{}
	x.mu.Unlock()
	for _, p := range Protocols {
		x.cfg.Host.RemoveStreamHandler(p)
	}
	x.lines.close()
	x.cancel()
	for _, l := range links {
		l.fail()
	}
	x.wg.Wait()
	x.net.Stop()
	x.server.Close()
	return nil
}

// begin admits one unit of work, whose end the returned function tells.
func (x *Exchange) begin() (end func(), err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, forgeyard.Errorf("cas peer", forgeyard.Unavailable, "the exchange is closed")
	}
	x.wg.Add(1)
	return x.wg.Done, nil
}

// join gives a context that also ends with the exchange.
func (x *Exchange) join(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(x.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

var errTimeout = errors.New("no answer in time")

// within gives a context that ends after d by the exchange's clock, with errTimeout as cause.
func (x *Exchange) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := x.cfg.Clock.After(d)
	go func() {
		select {
		case <-timer:
			cancel(errTimeout)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// score is how far a peer is to be trusted.
type score struct {
	lies  int
	until forgeyard.Instant // asked last until then
}

// penalise makes a peer be asked last for a while.
func (x *Exchange) penalise(p libpeer.ID, lied bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, now := x.scores[p], x.cfg.Clock.Now()
	pause := silencePenalty
	if lied {
		pause = min(penaltyBase<<min(s.lies, 8), penaltyMax)
		s.lies++
	}
	s.until = max(s.until, now.Add(pause))
	x.scores[p] = s
	for id, old := range x.scores {
		if now.Sub(old.until) > penaltyMax {
			delete(x.scores, id) // bounded by the peers that misbehaved lately
		}
	}
}

func (x *Exchange) penalised(p libpeer.ID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.scores[p]
	return ok && x.cfg.Clock.Now() < s.until
}

// blame records that a peer broke its word.
func (x *Exchange) blame(p libpeer.ID, d forgeyard.Digest, reason string) {
	x.stats.badPeers.Add(1)
	x.penalise(p, true)
	x.cfg.Log.Warn("a peer broke its word", "peer", p, "digest", d, "reason", reason)
	if x.cfg.OnBadPeer != nil {
		x.cfg.OnBadPeer(Event{Peer: p, Digest: d, Reason: reason})
	}
}

// Liar is a peer that broke its word and is asked last for a while.
type Liar struct {
	Peer  libpeer.ID
	Times int
	For   time.Duration // from now on
}

// Liars are the peers that are avoided now because they broke their word.
func (x *Exchange) Liars() (out []Liar) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.cfg.Clock.Now()
	for p, s := range x.scores {
		if s.lies > 0 && now < s.until {
			out = append(out, Liar{Peer: p, Times: s.lies, For: s.until.Sub(now)})
		}
	}
	return out
}
