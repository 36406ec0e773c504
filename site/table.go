package site

import (
	"encoding/binary"
	"iter"
	"slices"
	"strings"
)

// Table is an immutable sorted map. A change gives a new table that shares what
// did not change, so a reader keeps a whole state for the price of a pointer. A
// value is never changed in place: copy, change the copy, Put.
//
// It is a B+ tree whose nodes are never changed once they are in a table. A change
// copies the nodes from the root to one leaf, one allocation each and none larger than
// 200 bytes: what every voter pays for each entry of the log is mostly this.
type Table[K ~string, V any] struct {
	root *node[V] // nil: empty
	size int
}

// fanout is how many a node holds. Twice as many would save a level for ten thousand
// entries and copy twice as much of each.
const fanout = 16

// A node is a leaf, which has items, or a branch, which has kids; never both, and never
// none. All leaves are equally deep.
type node[V any] struct {
	low   string // at most the lowest key below
	items []*item[V]
	kids  []*node[V]
}

type item[V any] struct {
	key string
	val V
}

// leaf makes a leaf.
func leaf[V any](low string, items ...*item[V]) *node[V] {
	n, room := blank[V, *item[V]](len(items))
	n.low, n.items = low, append(room, items...)
	return n
}

// branch makes a branch.
func branch[V any](kids ...*node[V]) *node[V] {
	n, room := blank[V, *node[V]](len(kids))
	n.low, n.kids = kids[0].low, append(room, kids...)
	return n
}

// blank makes a node with room for so many and for one more, up to fanout, in one piece:
// most of what a change takes is its nodes, and roots are seldom full.
func blank[V, T any](k int) (*node[V], []T) {
	switch {
	case k < fanout/4:
		m := &struct {
			node[V]
			room [fanout / 4]T
		}{}
		return &m.node, m.room[:0]
	case k < fanout/2:
		m := &struct {
			node[V]
			room [fanout / 2]T
		}{}
		return &m.node, m.room[:0]
	}
	m := &struct {
		node[V]
		room [fanout]T
	}{}
	return &m.node, m.room[:0]
}

// search returns where key is or belongs in a leaf.
func (n *node[V]) search(key string) (int, bool) {
	lo, hi := 0, len(n.items)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if n.items[mid].key < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(n.items) && n.items[lo].key == key
}

// way returns which kid of a branch key is below, if it is anywhere.
func (n *node[V]) way(key string) int {
	lo, hi := 1, len(n.kids) // whatever is lower than all goes to the first
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if n.kids[mid].low <= key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// find returns the leaf that key is in, and where; nil if it is nowhere below n, which may
// be nil.
func (n *node[V]) find(key string) (*node[V], int) {
	if n == nil {
		return nil, 0
	}
	for n.kids != nil {
		n = n.kids[n.way(key)]
	}
	if i, ok := n.search(key); ok {
		return n, i
	}
	return nil, 0
}

// Get returns the value of k.
func (t Table[K, V]) Get(k K) (V, bool) {
	if n, i := t.root.find(string(k)); n != nil {
		return n.items[i].val, true
	}
	var zero V
	return zero, false
}

// Has reports whether k is there.
func (t Table[K, V]) Has(k K) bool {
	n, _ := t.root.find(string(k))
	return n != nil
}

// Reader finds values where they are, for who asks for thousands: a Get copies its value,
// and begins at the root. It is of one goroutine.
type Reader[K ~string, V any] struct {
	root, leaf *node[V] // leaf: of what was found last
	next       int
}

// Reader returns one that has found nothing yet.
func (t Table[K, V]) Reader() Reader[K, V] { return Reader[K, V]{root: t.root} }

// Find returns the value of k, nil if there is none. It is part of the table: nobody may
// change it. Quickest is the key that follows the one that was found last.
func (r *Reader[K, V]) Find(k K) *V {
	if n := r.leaf; n == nil || r.next == len(n.items) || n.items[r.next].key != string(k) {
		n, i := r.root.find(string(k))
		if n == nil {
			return nil
		}
		r.leaf, r.next = n, i
	}
	r.next++
	return &r.leaf.items[r.next-1].val
}

// Same reports whether two tables share all that they hold: true is certain, and false says
// only that a Put or Delete lies between them.
func (t Table[K, V]) Same(o Table[K, V]) bool { return t.root == o.root }

// Put returns the table with k set to v.
func (t Table[K, V]) Put(k K, v V) Table[K, V] {
	it := &item[V]{string(k), v}
	if t.root == nil {
		return Table[K, V]{leaf(it.key, it), 1}
	}
	left, right, added := t.root.put(it)
	if right != nil {
		left = branch(left, right)
	}
	return Table[K, V]{left, t.size + added}
}

// put returns the node with the item in it, and what did not fit any more.
func (n *node[V]) put(it *item[V]) (left, right *node[V], added int) {
	if n.kids == nil {
		return n.putItem(it)
	}
	i := n.way(it.key)
	kid, more, added := n.kids[i].put(it)
	left = branch(n.kids...)
	left.kids[i], left.low = kid, min(left.low, kid.low)
	if more == nil {
		return left, nil, added
	}
	if i++; len(left.kids) < fanout {
		left.kids = slices.Insert(left.kids, i, more)
		return left, nil, added
	}
	at := cut(i)
	right = branch(left.kids[at:]...)
	clear(left.kids[at:])
	left.kids = left.kids[:at]
	if i < at {
		left.kids = slices.Insert(left.kids, i, more)
	} else {
		right.kids = slices.Insert(right.kids, i-at, more)
		right.low = right.kids[0].low
	}
	return left, right, added
}

func (n *node[V]) putItem(it *item[V]) (left, right *node[V], added int) {
	i, found := n.search(it.key)
	if !found && i == fanout {
		return n, leaf(it.key, it), 1
	}
	left = leaf(min(n.low, it.key), n.items...)
	if found {
		left.items[i] = it
		return left, nil, 0
	}
	if len(left.items) < fanout {
		left.items = slices.Insert(left.items, i, it)
		return left, nil, 1
	}
	at := cut(i)
	right = leaf(n.items[at].key, n.items[at:]...)
	clear(left.items[at:])
	left.items = left.items[:at]
	if i < at {
		left.items = slices.Insert(left.items, i, it)
	} else {
		right.items = slices.Insert(right.items, i-at, it)
		right.low = right.items[0].key
	}
	return left, right, 1
}

// cut returns where a full node is cut for what goes in at i. Keys mostly rise, so what
// goes in at the end leaves a full node behind it, as it does in a leaf.
func cut(i int) int {
	if i == fanout {
		return fanout - 1
	}
	return fanout / 2
}

// Delete returns the table without k.
func (t Table[K, V]) Delete(k K) Table[K, V] {
	if !t.Has(k) {
		return t
	}
	root := t.root.without(string(k))
	for root != nil && len(root.kids) == 1 {
		root = root.kids[0]
	}
	return Table[K, V]{root, t.size - 1}
}

// without returns the node without a key that is in it; nil if nothing is left.
func (n *node[V]) without(key string) *node[V] {
	if n.kids == nil {
		if len(n.items) == 1 {
			return nil
		}
		i, _ := n.search(key)
		c := leaf(n.low, n.items...)
		c.items = slices.Delete(c.items, i, i+1)
		return c
	}
	i := n.way(key)
	kid := n.kids[i].without(key)
	if kid == nil && len(n.kids) == 1 {
		return nil
	}
	c := branch(n.kids...)
	if kid == nil {
		c.kids = slices.Delete(c.kids, i, i+1)
		c.low = c.kids[0].low
		return c
	}
	c.kids[i] = kid
	c.join(max(i, 1))
	return c
}

// join makes one of kid i and the one before it, if that leaves room for more.
func (n *node[V]) join(i int) {
	if i >= len(n.kids) {
		return
	}
	a, b := n.kids[i-1], n.kids[i]
	if len(a.items)+len(b.items)+len(a.kids)+len(b.kids) > fanout/2 {
		return
	}
	if a.kids == nil {
		n.kids[i-1] = leaf(a.low, append(slices.Clip(a.items), b.items...)...)
	} else {
		n.kids[i-1] = branch(append(slices.Clip(a.kids), b.kids...)...)
	}
	n.kids = slices.Delete(n.kids, i, i+1)
}

// Len counts the entries.
func (t Table[K, V]) Len() int { return t.size }

// All yields the entries in the order of their keys.
func (t Table[K, V]) All() iter.Seq2[K, V] { return t.From("") }

// From yields the entries whose key starts with the prefix, in order.
func (t Table[K, V]) From(prefix K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if t.root != nil {
			t.root.walk(string(prefix), func(it *item[V]) bool {
				return strings.HasPrefix(it.key, string(prefix)) && yield(K(it.key), it.val)
			})
		}
	}
}

// walk visits the items from a key on, in order, until visit says no.
func (n *node[V]) walk(from string, visit func(*item[V]) bool) bool {
	if n.kids == nil {
		i, _ := n.search(from)
		for _, it := range n.items[i:] {
			if !visit(it) {
				return false
			}
		}
		return true
	}
	for _, kid := range n.kids[n.way(from):] {
		if !kid.walk(from, visit) {
			return false
		}
	}
	return true
}

// Min returns the entry with the lowest key.
func (t Table[K, V]) Min() (K, V, bool) {
	for k, v := range t.All() {
		return k, v, true
	}
	var zero V
	return "", zero, false
}

// Seq is a key that sorts by number.
type Seq string

// SeqKey makes the key of a number.
func SeqKey(n uint64) Seq { return Seq(binary.BigEndian.AppendUint64(nil, n)) }

// EventKey is the key of one event of a run: the run's id, then its number.
type EventKey string

func eventKey(run string, seq uint64) EventKey {
	return EventKey(binary.BigEndian.AppendUint64([]byte(run), seq))
}
