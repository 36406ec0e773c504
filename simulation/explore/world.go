package explore

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// maxNet bounds the messages under way at once.
const maxNet = 8

// world is one state of everything, small enough to have millions of them: what is
// large is in the tables, and stands here by its number. Two worlds are the same if and
// only if their fields are.
type world struct {
	site uint32 // the state that the log has come to
	mem  uint32 // what the leader has heard
	old  uint32 // what the leader before had heard, where it matters; zero: nobody
	seen uint32 // and the state that it saw

	node [nodes]node
	net  [maxNet]uint32 // messages under way, in the order of their numbers; zero: none

	tick, term             uint8
	used                   uint16 // silence of the uplink that the leader began to count with, in tenths of a second
	from                   uint8  // the tick from which it counts on
	marked                 uint8  // the tick at which the committed figure was read
	heard                  uint8  // the tick at which the daemon last heard the site
	last                   uint8  // number of the last record that the daemon took
	outcomes               uint8  // that the daemon took of the term that it gave
	given                  uint8  // the daemon's newest term
	cut                    bool   // the uplink
	contact                bool   // the daemon answered, and the log does not know it yet
	lost, copied, crashed  uint8
	elected, called, cuts  uint8
	beats, syncs, figured  uint8
	drained, disabled      uint8
	revoked                uint8
	gate                   uint8 // the highest token that the device's host has seen, as an epoch
	touched, cleaned       uint8 // the highest that acted on the device, the highest whose reset has begun
	closed                 bool  // the gate, to the highest token
	submitted, overflowing bool
}

type node struct {
	book       uint32
	view       uint32 // its copy of the site's state
	exec       [2]exec
	spool      uint32 // a completion that was not answered yet
	session    uint8
	registered bool
	saves      uint8 // checkpoints taken by its execution
	begun      uint8 // the newest epoch that it began
}

// exec is an execution on a node: what it began with, and how it is.
type exec struct {
	start uint32
	how   how
}

type how uint8

const (
	gone    how = iota
	alive       // it acts
	handing     // its tree is dead; a checkpoint is under way that goes on in place
	dying       // it was killed and still acts: no longer than to the next tick
)

// start is what an execution begins with.
type start struct {
	job       site.Job
	authority forgeyard.Authority
}

// key is the world as bytes, for its fingerprint: every field, at its own place.
func (w *world) key(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b[:0], w.site)
	for _, n := range [...]uint32{w.mem, w.old, w.seen} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	for i := range w.node {
		n := &w.node[i]
		for _, v := range [...]uint32{n.book, n.view, n.exec[0].start, n.exec[1].start, n.spool} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		b = append(b, byte(n.exec[0].how), byte(n.exec[1].how), n.session, bit(n.registered, 0), n.saves, n.begun)
	}
	for _, m := range w.net {
		b = binary.LittleEndian.AppendUint32(b, m)
	}
	b = binary.LittleEndian.AppendUint16(b, w.used)
	return append(b, w.tick, w.term, w.from, w.marked, w.heard, w.last, w.outcomes, w.given, w.lost, w.copied, w.crashed, w.elected, w.called, w.cuts, w.beats, w.syncs, w.figured, w.drained, w.disabled, w.revoked,
		w.gate, w.touched, w.cleaned, bit(w.cut, 0)|bit(w.closed, 1)|bit(w.submitted, 2)|bit(w.overflowing, 3)|bit(w.contact, 4))
}

func bit(b bool, at int) byte {
	if b {
		return 1 << at
	}
	return 0
}

// keyLen is the length of every key.
const keyLen = 16 + nodes*26 + maxNet*4 + 2 + 24

// fingerprint is 64 bits of a world. Two worlds out of ten million share one with a
// chance of three in a million, and then one of them is not looked at.
func fingerprint(key []byte) uint64 {
	const m1, m2 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	h := uint64(len(key)) * m1
	for len(key) >= 8 {
		h = mix(h^binary.LittleEndian.Uint64(key), m2)
		key = key[8:]
	}
	if len(key) > 0 {
		var tail [8]byte
		copy(tail[:], key)
		h = mix(h^binary.LittleEndian.Uint64(tail[:]), m1)
	}
	return mix(h, m1) | 1 // zero is an empty place
}

func mix(h, m uint64) uint64 {
	h *= m
	h ^= h >> 32
	h *= 0xff51afd7ed558ccd
	return h ^ h>>29
}

// put brings a message under way; a full net takes no more, and says so.
func (w *world) put(m uint32) {
	if w.net[maxNet-1] != 0 {
		w.overflowing = true
		return
	}
	i := 0
	for w.net[i] != 0 && w.net[i] < m {
		i++
	}
	copy(w.net[i+1:], w.net[i:maxNet-1])
	w.net[i] = m
}

// take removes one copy of a message; left says that another is still under way.
func (w *world) take(m uint32) (left bool) {
	i := slices.Index(w.net[:], m)
	copy(w.net[i:], w.net[i+1:])
	w.net[maxNet-1] = 0
	return slices.Contains(w.net[:], m)
}

// flying reports whether a message that fits is under way.
func (x *explorer) flying(w *world, fits func(*message) bool) bool {
	for _, id := range w.net {
		if id != 0 && fits(&x.messages.rows[id]) {
			return true
		}
	}
	return false
}

// waiting reports whether a message of one of the kinds is under way from or to a node.
func (x *explorer) waiting(w *world, by uint8, kinds ...messageKind) bool {
	return x.flying(w, func(m *message) bool { return m.node == by && slices.Contains(kinds, m.kind) })
}

// slow and fast are readings of clocks at a tick.
func slow(tick uint8) forgeyard.Instant { return boot.Add(time.Duration(tick) * slowTick) }
func fast(tick uint8) forgeyard.Instant { return boot.Add(time.Duration(tick) * fastTick) }

// leads is the reading of the leader's clock.
func (x *explorer) leads(tick uint8) forgeyard.Instant {
	if x.c.FastLeader {
		return fast(tick)
	}
	return slow(tick)
}

const tenth = 100 * time.Millisecond

// keeper is the leader's count of uplink silence.
func (x *explorer) keeper(w *world) reckon.Keeper {
	var k reckon.Keeper
	if w.contact {
		k.Heard(x.leads(w.from), uplinkTerms, 0)
	} else {
		k.Begin(time.Duration(w.used)*tenth, x.leads(w.from))
	}
	return k
}

// silence is the leader's figure of it.
func (x *explorer) silence(w *world) time.Duration {
	k := x.keeper(w)
	used, _ := k.Used(x.leads(w.tick))
	return used
}

// message is what is under way between two parties, or to the log. What it says is in
// the table of its kind.
type message struct {
	kind messageKind
	node uint8 // whose it is, or for whom; the leader and the client have numbers too
	term uint8 // of the leader who sent it, or for whom it is
	sent uint8 // tick
	try  uint8 // tells apart two requests that say the same
	says uint32
	of   uint32 // what is answered
}

type messageKind uint8

const (
	proposal  messageKind = iota + 1 // says a body
	reply                            // of the log, says a site.Reply
	heartbeat                        // says which leases to renew
	answer                           // to a heartbeat
	sync                             // to the daemon, says records
	synced                           // its answer
)

// Numbers of those who are no node.
const (
	theLeader = nodes
	theClient = nodes + 1
)

type bodyRow struct {
	body site.Body
	id   string // of a request that says so
	key  string // of a leader's proposal: one with the same key is not made twice
}

type batchRow struct {
	session forgeyard.SessionID
	batch   []controllers.Renewal
}

type syncRow struct {
	records []site.Record
	cursor  uint64
}

type syncedRow struct {
	acked  uint64
	grants []site.Delegation
}

// siteRow is a state of the site with what is asked of it in every world.
type siteRow struct {
	st     *site.State
	job    site.Job // the one job, if it is there
	known  bool
	device devices.Device
	asked  []forgeyard.MessageID // requests that are remembered, since another copy is under way
}

func rowOf(st *site.State) siteRow {
	r := siteRow{st: st}
	for _, j := range st.Jobs.All() {
		r.job, r.known = j, true
	}
	r.device, _ = st.Devices.Get(deviceID)
	for id := range st.Requests.All() {
		r.asked = append(r.asked, id)
	}
	return r
}

// certainly says that the job's last holder has stopped for certain, as the log tells it.
func (r *siteRow) certainly() bool { return r.job.Status != job.Unknown || r.job.Certain }
