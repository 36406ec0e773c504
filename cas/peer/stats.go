package peer

import (
	"sync/atomic"

	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// Stats counts since the start. BytesIn and BytesOut are what bitswap's streams and
// bulk connections carried of blocks; the rest is counted in pieces.
type Stats struct {
	BytesIn, BytesOut    int64
	BlocksIn, BlocksOut  int64
	DuplicateBlocks      int64 // came although already here or taken back
	BadPeers             int64 // times a peer broke its word
	SilentPeers          int64 // times a peer was given up for its silence
	Refusals             int64 // wants answered with "don't have"
	Repeated             int64 // wants asked for again at a peer that had fallen silent
	Hedged               int64 // wants sent to a second peer because the first was silent
	Fetches, Failed      int64
	Questions, Answered  int64 // who-has asked by us, answered by us
	Replicated, Replicas int64 // acknowledged to us, made by us for others
	Outstanding          int64 // wants at peers now
	MostOutstanding      int64 // most wants at one peer ever, never above Window
	BulkIn, BulkOut      int64 // blocks over bulk connections, of BlocksIn and BlocksOut
	BulkPeers            int64 // bulk connections that are open, of both directions
	Parked               int64 // wants of peers that wait here now
	Late                 int64 // wants that waited at a sibling in vain
	Doubted              int64 // wrong blocks that a peer was asked for once more, to be read with care
}

type counters struct {
	bytesIn, bytesOut, blocksIn, duplicates, badPeers, silent, refusals, hedged, repeated atomic.Int64
	fetches, failed, questions, answered, replicated, replicas                            atomic.Int64
	bulkIn, bulkOut, bulkPeers, late, turnedAway, doubted                                 atomic.Int64
	outstanding, mostOutstanding                                                          atomic.Int64
}

// Stats gives the counters of now.
func (x *Exchange) Stats() Stats {
	c := &x.stats
	s := Stats{
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
		BlocksIn: c.blocksIn.Load(), DuplicateBlocks: c.duplicates.Load(),
		BadPeers: c.badPeers.Load(), SilentPeers: c.silent.Load(),
		Refusals: c.refusals.Load(), Repeated: c.repeated.Load(), Hedged: c.hedged.Load(),
		Fetches: c.fetches.Load(), Failed: c.failed.Load(),
		Questions: c.questions.Load(), Answered: c.answered.Load(),
		Replicated: c.replicated.Load(), Replicas: c.replicas.Load(),
		Outstanding: c.outstanding.Load(), MostOutstanding: c.mostOutstanding.Load(),
	}
	s.BulkIn, s.BulkOut, s.BulkPeers, s.Late = c.bulkIn.Load(), c.bulkOut.Load(), c.bulkPeers.Load(), c.late.Load()
	s.Doubted = c.doubted.Load()
	s.Parked = int64(x.bulk.Parking.Waiting())
	s.BlocksOut = s.BulkOut
	if sent, err := x.server.Stat(); err == nil {
		s.BlocksOut += int64(sent.BlocksSent)
	}
	return s
}

// sent and refused are told by the bulk server.
func (c *counters) sent(n int) {
	c.bulkOut.Add(1)
	c.bytesOut.Add(int64(n))
}

func (c *counters) refused(bulk.Reason) { c.turnedAway.Add(1) }

// raise sets a to at least v.
func raise(a *atomic.Int64, v int64) {
	for {
		old := a.Load()
		if old >= v || a.CompareAndSwap(old, v) {
			return
		}
	}
}
