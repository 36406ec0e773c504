package mesh

import "time"

// Bounds, each with its reason.
const (
	// maxHelloFrame: a hello is a credential (~250 bytes) and three short fields.
	maxHelloFrame = 4 << 10
	// maxJoinFrame: a join request is labels; a reply is keys and the addresses of at most MaxPeers members.
	maxJoinFrame = 64 << 10
	// maxTokenText: a token names at most maxTokenPeers peers; people paste it into a shell.
	maxTokenText  = 4 << 10
	maxTokenPeers = 8
	// MaxPeers and maxAddrs bound what an enrolment or a gossip record can put into the peerstore.
	MaxPeers = 64
	maxAddrs = 16
	// maxAddrText: a multiaddr with a DNS name of full length fits.
	maxAddrText = 300
	maxName     = 64
	maxLabels   = 64
	maxLabel    = 128
	maxRoles    = 8
	// maxFileBytes: the largest enrolment file that is read.
	maxFileBytes = 256 << 10

	// strangerGrace is how long a connection may stay without a valid hello, unless a join is running on it.
	strangerGrace = 10 * time.Second
	// maxStrangers bounds connections of peers that have shown nothing; members are not counted.
	maxStrangers = 64
	// maxStrangerStreams and maxStrikes: hello, join and identify need three streams; a stranger with more, or
	// with this many refused ones, is probing.
	maxStrangerStreams = 16
	maxStrikes         = 16
	// maxGateWaiters: streams of one peer that may wait for its hello to end.
	maxGateWaiters = 32
	// maxHellos: hellos answered at once, over all peers.
	maxHellos = 64
	// maxJoins: joins answered at once; each is a log entry. More get a Limit error.
	maxJoins = 8
	// maxAccepting: TCP connections whose first byte or TLS handshake has not come yet.
	maxAccepting = 256
	// maxDirectPerPeer: direct connections of one peer; raft keeps 3 and calls a handful.
	maxDirectPerPeer = 128
	// acceptBacklog: streams that wait for a listener's Accept.
	acceptBacklog = 128

	// helloTimeout ends a hello; also how long an early stream waits for it.
	helloTimeout = 5 * time.Second
	// joinTimeout ends a join, including the admit function's log entry.
	joinTimeout = 30 * time.Second
	// firstByteTimeout and tlsTimeout end a connection that says nothing.
	firstByteTimeout = 5 * time.Second
	tlsTimeout       = 5 * time.Second
	// dialTimeout ends one attempt to reach one peer.
	dialTimeout = 10 * time.Second
	// directDialTimeout: after it, a stream over libp2p is tried; directRetry: how long a failed way is not tried again.
	directDialTimeout = 2 * time.Second
	directRetry       = 30 * time.Second
	// dialStagger is the head start of each address over the next.
	dialStagger = 100 * time.Millisecond
	// sweepEvery: expiry and strangers are looked at so often.
	sweepEvery = time.Second

	// redialMin and redialMax bound the wait between attempts to reach a kept peer. It never gives up:
	// a link that was cut for a night must heal by itself within a minute.
	redialMin = 250 * time.Millisecond
	redialMax = 30 * time.Second

	// DefaultRejoin: memberlist forgets dead nodes and nobody redials them (decision 27).
	DefaultRejoin = 10 * time.Second
	// probeInterval: a dead node is noticed in about 5 s at 3 to 50 nodes.
	probeInterval = time.Second
	// gossipLeave bounds the goodbye at Close.
	gossipLeave = time.Second
)

// Protocol versions this build speaks: N and N-1 (07§206). There is no version 0.
const (
	versionMin = 1
	versionMax = 1
)
