package site

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// line is a queue beside the slow thing that it must equal.
type line struct {
	fast Queue[int]
	slow []int
}

func (w line) push(v int) line { return line{w.fast.Push(v), append(slices.Clip(w.slow), v)} }

func (w line) pop() line { return line{w.fast.Pop(), w.slow[min(1, len(w.slow)):]} }

func (w line) check(t *testing.T) {
	t.Helper()
	if got := slices.Collect(w.fast.All()); !slices.Equal(got, w.slow) || w.fast.Len() != len(w.slow) {
		t.Fatalf("%d values %v, want %d: %v", w.fast.Len(), got, len(w.slow), w.slow)
	}
	if v, ok := w.fast.First(); ok != (len(w.slow) > 0) || ok && v != w.slow[0] {
		t.Fatalf("the oldest is %d, %v, of %v", v, ok, w.slow)
	}
}

// A reader keeps a queue while others are made of it, and two that are made of one share no
// change.
func TestQueueIsImmutable(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var w line
	var kept []line
	for i := range 1500 {
		grows := i/300%2 == 0 // up to some spans, down to nothing, and again
		if r.IntN(10) < 7 == grows {
			w = w.push(i)
		} else {
			w = w.pop()
		}
		w.push(-1)
		w.pop().push(-2)
		kept = append(kept, w)
		if r.IntN(50) == 0 {
			w = kept[r.IntN(len(kept))] // on from one of before
		}
	}
	for _, k := range kept {
		k.check(t)
	}
}

// Readers of any age are not touched by what is made of what they read: the race detector
// looks on.
func TestVersionsAreReadWhileOthersAreMade(t *testing.T) {
	const size = 200
	var q Queue[int]
	var m Table[Seq, int]
	for i := range size {
		q, m = q.Push(i), m.Put(SeqKey(uint64(i)), i)
	}
	var readers sync.WaitGroup
	for i := range 400 {
		if i%8 == 0 {
			q, m := q, m
			readers.Go(func() {
				n, k := i, i
				for v := range q.All() {
					if v != n {
						t.Errorf("the queue has %d, want %d", v, n)
					}
					n++
				}
				for _, v := range m.All() {
					if v != k {
						t.Errorf("the table has %d, want %d", v, k)
					}
					k++
				}
				if n != i+size || k != i+size {
					t.Errorf("%d and %d values, want %d", n-i, k-i, size)
				}
			})
		}
		q, m = q.Push(i+size).Pop(), m.Put(SeqKey(uint64(i+size)), i+size).Delete(SeqKey(uint64(i)))
	}
	readers.Wait()
}

// FuzzQueue does what the bytes say, to the queue and to its twin.
func FuzzQueue(f *testing.F) {
	f.Add([]byte{40, 0x80 | 33, 5, 0x80 | 90, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var w line
		for i, c := range b[:min(len(b), 100)] {
			for range c & 0x7f {
				if c&0x80 == 0 {
					w = w.push(i)
				} else {
					w = w.pop()
				}
			}
		}
		w.check(t)
	})
}
