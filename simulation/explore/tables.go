package explore

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// table gives each different value a number, from 1 on. The key stands for the value:
// its canonical bytes, their digest, or the value itself.
type table[K comparable, T any] struct {
	ids  map[K]uint32
	rows []T
}

func newTable[K comparable, T any]() table[K, T] {
	return table[K, T]{ids: map[K]uint32{}, rows: make([]T, 1)}
}

func (t *table[K, T]) id(key K, row T) uint32 {
	id, ok := t.ids[key]
	if !ok {
		id = uint32(len(t.rows))
		t.ids[key] = id
		t.rows = append(t.rows, row)
	}
	return id
}

// question is what a rule is asked with: the numbers of its inputs.
type question [2]uint64

func ask(a, b uint32, rest ...uint8) question {
	q := question{uint64(a)<<32 | uint64(b)}
	for _, r := range rest {
		q[1] = q[1]<<8 | uint64(r)
	}
	return q
}

// answers is what one rule was asked before, and said. Rules are pure: what one of them
// answered once, it answers always.
type answers[T any] map[question]T

// counters tell how much was asked of the rules, and how much of it they were called for.
type counters struct{ questions, calls uint64 }

// recall answers a question from the table, or calls the rule.
func recall[T any](x *explorer, t answers[T], q question, rule func() T) T {
	x.count.questions++
	if v, ok := t[q]; ok && !x.forgetful {
		return v
	}
	x.count.calls++
	v := rule()
	t[q] = v
	return v
}

// known is recall for what is no rule's decision: it is not counted.
func known[T any](t answers[T], q question, find func() T) T {
	v, ok := t[q]
	if !ok {
		v = find()
		t[q] = v
	}
	return v
}

// says is what kind of thing is said, where a body follows from a number.
type says uint8

const (
	saysDone says = iota
	saysCancelled
	saysYield
	saysInterrupted
	saysSaved
	saysRegister
	saysCancel
	saysDrain
	saysBan
	saysRevoke
)

// body is the number of a command that follows from the number of something else.
func (x *explorer) body(s says, about uint64, make func() site.Body) uint32 {
	return known(x.said, question{uint64(s), about}, func() uint32 { return x.bodyID(make(), "") })
}

// tables hold every value that worlds name by its number, and what the rules answered.
type tables struct {
	sites    table[forgeyard.Digest, siteRow]
	books    table[string, *agent.Book]
	mems     table[string, *controllers.Memory]
	messages table[message, message]
	bodies   table[string, bodyRow]
	replies  table[string, site.Reply]
	batches  table[string, batchRow]
	renewals table[string, []controllers.RenewalAnswer]
	syncs    table[string, syncRow]
	synceds  table[string, syncedRow]
	starts   table[string, start]

	applied answers[applied]
	stepped answers[stepped]
	noted   answers[uint32] // books that were told something
	batched answers[uint32]
	led     answers[led]
	renewed answers[renewed]
	settled answers[uint32]
	records answers[uint32]
	said    answers[uint32]
	figured answers[uint32]
	follows answers[[]uint32]
	synced  answers[uint32]
}

type applied struct {
	site, reply uint32
	broken      *Violation
}

type stepped struct {
	book    uint32
	effects []agentEffect
}

// agentEffect is a wish of an agent, with what it says to the log or what it starts
// already in the tables.
type agentEffect struct {
	effect agent.Effect
	body   uint32
	start  uint32
}

type led struct {
	mem    uint32
	bodies []uint32
}

type renewed struct{ mem, says uint32 }

func newTables() tables {
	return tables{
		sites: newTable[forgeyard.Digest, siteRow](), books: newTable[string, *agent.Book](), mems: newTable[string, *controllers.Memory](),
		messages: newTable[message, message](), bodies: newTable[string, bodyRow](), replies: newTable[string, site.Reply](), batches: newTable[string, batchRow](),
		renewals: newTable[string, []controllers.RenewalAnswer](), syncs: newTable[string, syncRow](), synceds: newTable[string, syncedRow](), starts: newTable[string, start](),
		applied: answers[applied]{}, stepped: answers[stepped]{}, noted: answers[uint32]{}, batched: answers[uint32]{}, led: answers[led]{},
		renewed: answers[renewed]{}, settled: answers[uint32]{}, records: answers[uint32]{}, said: answers[uint32]{}, figured: answers[uint32]{}, follows: answers[[]uint32]{}, synced: answers[uint32]{},
	}
}

func (t *tables) siteID(st *site.State) uint32 { return t.sites.id(cas.Sum(st.Encode()), rowOf(st)) }

func (t *tables) bookID(b *agent.Book) uint32 { return t.books.id(b.Text(), b) }

func (t *tables) memID(m *controllers.Memory) uint32 { return t.mems.id(m.Text(), m) }

func (t *tables) messageID(m message) uint32 { return t.messages.id(m, m) }

func (t *tables) bodyID(b site.Body, key string) uint32 {
	raw := append([]byte(key), site.Command{ID: "-", Body: b}.Encode()...)
	return t.bodies.id(string(raw), bodyRow{b, cas.Sum(raw).Hex()[:16], key})
}

func (t *tables) replyID(r site.Reply) uint32 { return t.replies.id(string(cborx.Marshal(r)), r) }

func (t *tables) batchID(r batchRow) uint32 { return t.batches.id(fmt.Sprintf("%+v", r), r) }

func (t *tables) renewalsID(a []controllers.RenewalAnswer) uint32 {
	return t.renewals.id(fmt.Sprintf("%+v", a), a)
}

func (t *tables) syncID(r syncRow) uint32 {
	return t.syncs.id(fmt.Sprintf("%d %x", r.cursor, cborx.Marshal(r.records)), r)
}

func (t *tables) syncedID(r syncedRow) uint32 {
	return t.synceds.id(fmt.Sprintf("%d %x", r.acked, cborx.Marshal(r.grants)), r)
}

func (t *tables) startID(j site.Job, a forgeyard.Authority) uint32 {
	return t.starts.id(fmt.Sprintf("%+v %s %+v", a, j.ResumeFrom.Hex(), j.Devices), start{j, a})
}

// strip takes out of a state what no rule reads again: events, histories, evidence, the
// numbers of entries. drop is the request that cannot be repeated any more, since no
// other copy of it is under way; its id may be used again.
func strip(st *site.State, drop forgeyard.MessageID) *site.State {
	next := *st
	next.Index, next.Step, next.History, next.EndedSeq = 0, 0, nil, 0
	next.Events, next.Ended, next.Order = site.Table[site.EventKey, job.Event]{}, site.Table[site.Seq, forgeyard.JobID]{}, site.Queue[forgeyard.MessageID]{}
	next.Requests = next.Requests.Delete(drop)
	for id, r := range st.Runs.All() {
		r.LastSeq, r.Summary, r.Error = 0, "", ""
		next.Runs = next.Runs.Put(id, r)
	}
	for id, j := range st.Jobs.All() {
		j.History, j.Late, j.Log = nil, nil, nil
		next.Jobs = next.Jobs.Put(id, j)
	}
	next.Uplink.Contacts, next.Uplink.Marked, next.Uplink.MarkedAt = 1, 0, 0
	return &next
}

// indexOf is the number of the entry that a command becomes. The log's numbers only
// rise; here they follow from what is decided, so that two ways to the same state give
// the same names and tokens: a hundred for each epoch granted, and more within it.
func indexOf(st *site.State, b site.Body) uint64 {
	row := uint64(0)
	for _, j := range st.Jobs.All() {
		row = j.Epoch
	}
	switch b.(type) {
	case site.Offer, site.Checkpoint:
		return 100 * (row + 2)
	case site.Submit, site.Delegate:
		return 60 + uint64(st.Runs.Len())
	case site.Register:
		return 100*(row+1) + 50
	}
	return 100*(row+1) + 20
}
