package site

import (
	"io"
	"slices"
	"sort"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// Versions of a snapshot's bytes, deterministic CBOR. Every version that was ever released
// stays readable. The second is written when the log's format allows it; what the state's
// hash is taken over stays the first.
//
//	1   image
//	2   [2, packed image], see cborx.Pack: what a finished job keeps takes half the bytes
const (
	snapshotFormat = 1
	snapshotPacked = 2

	snapshotList = 0x82 // the head of a list of two; version 1 begins with that of a map
)

type image struct {
	Format      uint8                      `cbor:"1,keyasint"`
	Index       uint64                     `cbor:"2,keyasint"`
	Site        forgeyard.SiteID           `cbor:"3,keyasint"`
	Name        string                     `cbor:"4,keyasint"`
	PublicKey   []byte                     `cbor:"5,keyasint"`
	Created     forgeyard.Wall             `cbor:"6,keyasint"`
	Incarnation uint64                     `cbor:"7,keyasint"`
	Config      sitecfg.Site               `cbor:"8,keyasint"`
	Members     []Member                   `cbor:"9,keyasint"`
	Tokens      []Token                    `cbor:"10,keyasint"`
	Runs        []Run                      `cbor:"11,keyasint"`
	Events      []eventRow                 `cbor:"12,keyasint"`
	Jobs        []Job                      `cbor:"13,keyasint"`
	Devices     []devices.Device           `cbor:"14,keyasint"`
	Uplink      lease.Uplink               `cbor:"15,keyasint"`
	Central     Central                    `cbor:"16,keyasint"`
	Outbox      []Record                   `cbor:"17,keyasint"`
	Sent        uint64                     `cbor:"18,keyasint"`
	Acked       uint64                     `cbor:"19,keyasint"`
	Cursor      uint64                     `cbor:"20,keyasint"`
	Requests    []requestRow               `cbor:"21,keyasint"`
	History     []SiteEvent                `cbor:"22,keyasint"`
	Open        map[forgeyard.JobID]uint64 `cbor:"23,keyasint"`
	Ended       []endedRow                 `cbor:"24,keyasint"`
	EndedSeq    uint64                     `cbor:"25,keyasint"`
	Step        uint64                     `cbor:"26,keyasint,omitempty"` // only where it is not the index
	Log         Format                     `cbor:"27,keyasint,omitempty"`
	Recoveries  []Recovery                 `cbor:"28,keyasint,omitempty"`
	LeaseLog    []SiteEvent                `cbor:"29,keyasint,omitempty"`
	LeaseSeq    uint64                     `cbor:"30,keyasint,omitempty"`
	Ready       Ready                      `cbor:"31,keyasint,omitzero"`
	Forgotten   uint64                     `cbor:"32,keyasint,omitempty"`
	LeaseForgot uint64                     `cbor:"33,keyasint,omitempty"`
	Names       []Name                     `cbor:"34,keyasint,omitempty"`
	Secrets     []Secret                   `cbor:"35,keyasint,omitempty"`
}

type eventRow struct {
	Run   forgeyard.RunID `cbor:"1,keyasint"`
	Event job.Event       `cbor:"2,keyasint"`
}

type requestRow struct {
	ID    forgeyard.MessageID `cbor:"1,keyasint"`
	Reply requestReply        `cbor:"2,keyasint"`
}

type endedRow struct {
	Seq uint64          `cbor:"1,keyasint"`
	Job forgeyard.JobID `cbor:"2,keyasint"`
}

func values[K ~string, V any](t Table[K, V]) []V {
	out := make([]V, 0, t.Len())
	for _, v := range t.All() {
		out = append(out, v)
	}
	return out
}

func (s *State) image() image {
	im := image{
		Format: snapshotFormat, Index: s.Index, Site: s.Site, Name: s.Name, PublicKey: s.PublicKey, Created: s.Created,
		Incarnation: s.Incarnation, Config: s.Config, Members: values(s.Members), Tokens: values(s.Tokens), Runs: values(s.Runs),
		Jobs: values(s.Jobs), Devices: values(s.Devices), Uplink: s.Uplink, Central: s.Central, Outbox: values(s.Outbox),
		Sent: s.Sent, Acked: s.Acked, Cursor: s.Cursor, History: s.History, EndedSeq: s.EndedSeq, Log: s.Format, Recoveries: s.Recoveries, Open: map[forgeyard.JobID]uint64{},
		LeaseSeq: s.LeaseSeq, Forgotten: s.Forgotten, LeaseForgot: s.LeaseForgotten, Ready: s.Ready,
	}
	if s.Step != s.Index {
		im.Step = s.Step
	}
	im.Events = slices.Grow(im.Events, s.Events.Len()) // nil where there are none: those are other bytes
	for _, r := range im.Runs {
		for _, e := range s.Events.From(EventKey(r.ID)) {
			im.Events = append(im.Events, eventRow{r.ID, e})
		}
	}
	im.Requests = slices.Grow(im.Requests, s.Requests.Len())
	for id, r := range s.Requests.All() {
		im.Requests = append(im.Requests, requestRow{id, r})
	}
	for id, n := range s.Open.All() {
		im.Open[id] = n
	}
	for k, id := range s.Ended.All() {
		im.Ended = append(im.Ended, endedRow{k.number(), id})
	}
	for e := range s.LeaseLog.All() {
		im.LeaseLog = append(im.LeaseLog, *e)
	}
	for _, n := range s.Names.All() {
		im.Names = append(im.Names, n)
	}
	for _, x := range s.Secrets.All() {
		im.Secrets = append(im.Secrets, x)
	}
	return im
}

func (k Seq) number() uint64 {
	var n uint64
	for i := range len(k) {
		n = n<<8 | uint64(k[i])
	}
	return n
}

// Encode returns the state's bytes: the same state has the same bytes everywhere.
func (s *State) Encode() []byte { return cborx.Marshal(s.image()) }

// Snapshot returns the bytes that DecodeState reads, in the newest version that the log's
// format allows.
func (s *State) Snapshot() []byte {
	plain := s.Encode()
	if !s.Allows(FormatPacked) {
		return plain
	}
	return append([]byte{snapshotList, snapshotPacked}, cborx.Pack(plain)...)
}

// WriteTo writes the snapshot.
func (s *State) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(s.Snapshot())
	return int64(n), err
}

// Hash names the state: voters that applied the same index have the same hash.
func (s *State) Hash() forgeyard.Digest { return cas.Sum(s.Encode()) }

// DecodeState reads a snapshot.
func DecodeState(b []byte) (*State, error) {
	plain, err := unpacked(b)
	if err != nil {
		return nil, err
	}
	var im image
	if err := cborx.UnmarshalKept(plain, &im); err != nil {
		return nil, forgeyard.E("snapshot", forgeyard.Corrupt, err)
	}
	if im.Format != snapshotFormat {
		return nil, forgeyard.Errorf("snapshot", forgeyard.Invalid, "format %d is not known, this version reads up to %d", im.Format, snapshotPacked)
	}
	s := &State{
		Index: im.Index, Site: im.Site, Name: im.Name, PublicKey: im.PublicKey, Created: im.Created, Incarnation: im.Incarnation,
		Config: im.Config, Uplink: im.Uplink, Central: im.Central, Sent: im.Sent, Acked: im.Acked, Cursor: im.Cursor, History: im.History, EndedSeq: im.EndedSeq,
		Format: im.Log, Recoveries: im.Recoveries,
		LeaseSeq: im.LeaseSeq, Forgotten: im.Forgotten, LeaseForgotten: im.LeaseForgot, Ready: im.Ready,
	}
	if err := s.Readable(); err != nil {
		return nil, err
	}
	s.Step = max(im.Index, im.Step)
	s.fill(im)
	return s, nil
}

// unpacked returns the image of a snapshot, whichever version it is.
func unpacked(b []byte) ([]byte, error) {
	if len(b) == 0 || b[0] != snapshotList {
		return b, nil
	}
	// The packed image has tags, which no decoder of ours takes: only the version is read
	// here, the rest by Unpack.
	switch {
	case len(b) < 2:
		return nil, forgeyard.Errorf("snapshot", forgeyard.Corrupt, "it ends after its first byte")
	case b[1] != snapshotPacked:
		return nil, forgeyard.Errorf("snapshot", forgeyard.Invalid, "format %d is not known, this version reads up to %d", b[1], snapshotPacked)
	}
	plain, err := cborx.Unpack(b[2:])
	if err != nil {
		return nil, forgeyard.E("snapshot", forgeyard.Corrupt, err)
	}
	return plain, nil
}

func (s *State) fill(im image) {
	for _, m := range im.Members {
		s.Members = s.Members.Put(m.Runner, m)
	}
	for _, t := range im.Tokens {
		s.Tokens = s.Tokens.Put(t.ID, t)
	}
	for _, r := range im.Runs {
		s.Runs = s.Runs.Put(r.ID, r)
		if r.Key != "" {
			s.Keys = s.Keys.Put(r.Key, r.ID)
		}
	}
	for _, e := range im.Events {
		s.Events = s.Events.Put(eventKey(string(e.Run), e.Event.Seq), e.Event)
	}
	for _, j := range im.Jobs {
		s.Jobs = s.Jobs.Put(j.ID, j)
	}
	for _, d := range im.Devices {
		s.Devices = s.Devices.Put(d.ID, d)
	}
	for _, r := range im.Outbox {
		s.Outbox = s.Outbox.Put(SeqKey(r.Seq), r)
	}
	sort.Slice(im.Requests, func(i, k int) bool { return im.Requests[i].Reply.Index < im.Requests[k].Reply.Index })
	for _, r := range im.Requests {
		s.Requests = s.Requests.Put(r.ID, r.Reply)
		s.Order = s.Order.Push(r.ID)
	}
	for id, n := range im.Open {
		s.Open = s.Open.Put(id, n)
	}
	for _, e := range im.LeaseLog {
		s.LeaseLog = s.LeaseLog.Push(&e)
	}
	for _, n := range im.Names {
		s.Names = s.Names.Put(n.Name, n)
	}
	for _, x := range im.Secrets {
		s.Secrets = s.Secrets.Put(x.Name, x)
	}
	for _, e := range im.Ended {
		s.Ended = s.Ended.Put(SeqKey(e.Seq), e.Job)
	}
}

// RunEvents returns the events of a run after the given number, in order.
func (s *State) RunEvents(run forgeyard.RunID, after uint64) []job.Event {
	var out []job.Event
	for _, e := range s.Events.From(EventKey(run)) {
		if e.Seq > after {
			out = append(out, e)
		}
	}
	return out
}
