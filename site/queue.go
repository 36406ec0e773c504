package site

import "iter"

// Queue is an immutable sequence: what comes in is the newest, what goes out the oldest. A
// change gives a new queue that shares what did not change, as with Table, for a third of
// what a Table of rising keys takes: nothing is ever looked for in the middle.
//
// All but the newest values are in spans, which are full and never change; a value that
// comes in copies the newest alone, and the list of spans once a span.
type Queue[V any] struct {
	spans []*[span]V
	gone  int // so many of the first span went out; of the newest, they are cut off
	new   []V // less than a span
}

// span is how many values are together: half of them are copied with each that comes in,
// and the list of all spans with each span.
const span = 32

// Len counts the values.
func (q Queue[V]) Len() int { return span*len(q.spans) - q.gone + len(q.new) }

// Push returns the queue with one more value.
func (q Queue[V]) Push(v V) Queue[V] {
	rows := make([]V, len(q.new)+1)
	copy(rows, q.new)
	rows[len(q.new)] = v
	if q.new = rows; len(rows) < span {
		return q
	}
	spans := make([]*[span]V, len(q.spans)+1)
	copy(spans, q.spans)
	spans[len(q.spans)] = (*[span]V)(rows)
	q.spans, q.new = spans, nil
	return q
}

// First returns the oldest value.
func (q Queue[V]) First() (V, bool) {
	for v := range q.All() {
		return v, true
	}
	var zero V
	return zero, false
}

// Pop returns the queue without its oldest value; an empty one is what it was.
func (q Queue[V]) Pop() Queue[V] {
	switch {
	case len(q.spans) > 0:
		if q.gone++; q.gone == span {
			q.spans, q.gone = q.spans[1:], 0
		}
	case len(q.new) > 0:
		q.new = q.new[1:]
	}
	return q
}

// All yields the values, oldest first.
func (q Queue[V]) All() iter.Seq[V] {
	return func(yield func(V) bool) {
		from := q.gone
		for _, s := range q.spans {
			for _, v := range s[from:] {
				if !yield(v) {
					return
				}
			}
			from = 0
		}
		for _, v := range q.new {
			if !yield(v) {
				return
			}
		}
	}
}

// Newest yields the values, newest first.
func (q Queue[V]) Newest() iter.Seq[V] {
	return func(yield func(V) bool) {
		for i := len(q.new) - 1; i >= 0; i-- {
			if !yield(q.new[i]) {
				return
			}
		}
		for k := len(q.spans) - 1; k >= 0; k-- {
			from := 0
			if k == 0 {
				from = q.gone
			}
			for i := span - 1; i >= from; i-- {
				if !yield(q.spans[k][i]) {
					return
				}
			}
		}
	}
}
