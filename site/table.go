package site

import (
	"encoding/binary"
	"iter"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// Table is an immutable sorted map. A change gives a new table that shares what
// did not change, so a reader keeps a whole state for the price of a pointer. A
// value is never changed in place: copy, change the copy, Put.
type Table[K ~string, V any] struct{ t *iradix.Tree[V] }

// Get returns the value of k.
func (t Table[K, V]) Get(k K) (V, bool) {
	if t.t == nil {
		var zero V
		return zero, false
	}
	return t.t.Get([]byte(k))
}

// Has reports whether k is there.
func (t Table[K, V]) Has(k K) bool { _, ok := t.Get(k); return ok }

// Put returns the table with k set to v.
func (t Table[K, V]) Put(k K, v V) Table[K, V] {
	if t.t == nil {
		t.t = iradix.New[V]()
	}
	n, _, _ := t.t.Insert([]byte(k), v)
	return Table[K, V]{n}
}

// Delete returns the table without k.
func (t Table[K, V]) Delete(k K) Table[K, V] {
	if t.t == nil {
		return t
	}
	n, _, _ := t.t.Delete([]byte(k))
	return Table[K, V]{n}
}

// Len counts the entries.
func (t Table[K, V]) Len() int {
	if t.t == nil {
		return 0
	}
	return t.t.Len()
}

// All yields the entries in the order of their keys.
func (t Table[K, V]) All() iter.Seq2[K, V] { return t.From("") }

// From yields the entries whose key starts with the prefix, in order.
func (t Table[K, V]) From(prefix K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if t.t == nil {
			return
		}
		it := t.t.Root().Iterator()
		it.SeekPrefix([]byte(prefix))
		for k, v, ok := it.Next(); ok; k, v, ok = it.Next() {
			if !yield(K(k), v) {
				return
			}
		}
	}
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
