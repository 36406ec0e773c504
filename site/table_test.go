package site

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// twin is a table beside the slow thing that it must equal.
type twin struct {
	fast Table[string, int]
	slow map[string]int
}

func (w twin) put(k string, v int) twin {
	slow := maps.Clone(w.slow)
	slow[k] = v
	return twin{w.fast.Put(k, v), slow}
}

func (w twin) delete(k string) twin {
	slow := maps.Clone(w.slow)
	delete(slow, k)
	return twin{w.fast.Delete(k), slow}
}

// check compares all that a table can be asked.
func (w twin) check(t *testing.T) {
	t.Helper()
	keys := slices.Sorted(maps.Keys(w.slow))
	if w.fast.Len() != len(keys) {
		t.Fatalf("%d entries, want %d", w.fast.Len(), len(keys))
	}
	var got []string
	for k, v := range w.fast.All() {
		if v != w.slow[k] {
			t.Fatalf("%q is %d, want %d", k, v, w.slow[k])
		}
		got = append(got, k)
	}
	if !slices.Equal(got, keys) {
		t.Fatalf("keys %q, want %q", got, keys)
	}
	for _, k := range keys {
		if v, ok := w.fast.Get(k); !ok || v != w.slow[k] {
			t.Fatalf("%q: %d %v, want %d", k, v, ok, w.slow[k])
		}
		next := k + "\x00"
		if _, ok := w.slow[next]; w.fast.Has(next) != ok {
			t.Fatalf("%q is there: %v, want %v", next, !ok, ok)
		}
	}
	w.checkReader(t, keys)
	k, _, ok := w.fast.Min()
	if ok != (len(keys) > 0) || ok && k != keys[0] {
		t.Fatalf("the lowest is %q, %v", k, ok)
	}
	if w.fast.root != nil {
		sound(t, w.fast.root)
	}
}

// checkReader asks one reader for the keys in their order, with those in between that are
// not there, and then backwards.
func (w twin) checkReader(t *testing.T, keys []string) {
	t.Helper()
	r := w.fast.Reader()
	find := func(k string) {
		v, ok := w.slow[k]
		if got := r.Find(k); (got != nil) != ok || ok && *got != v {
			t.Fatalf("a reader finds %v for %q, want %d %v", got, k, v, ok)
		}
	}
	find("")
	for i, k := range keys {
		if i%3 != 2 {
			find(k)
		}
		if i%5 == 4 {
			find(k + "\x00")
		}
	}
	for _, k := range slices.Backward(keys) {
		find(k)
	}
}

func (w twin) checkFrom(t *testing.T, prefix string) {
	t.Helper()
	var got, want []string
	for k := range w.fast.From(prefix) {
		got = append(got, k)
	}
	for _, k := range slices.Sorted(maps.Keys(w.slow)) {
		if strings.HasPrefix(k, prefix) {
			want = append(want, k)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("from %q: %q, want %q", prefix, got, want)
	}
}

// sound checks what stands at the type, and returns the depth.
func sound(t *testing.T, n *node[int]) int {
	t.Helper()
	if len(n.items)+len(n.kids) == 0 || len(n.items) > fanout || len(n.kids) > fanout || n.items != nil && n.kids != nil {
		t.Fatalf("a node of %d items and %d kids", len(n.items), len(n.kids))
	}
	if n.kids == nil {
		if n.low > n.items[0].key {
			t.Fatalf("a leaf from %q has %q", n.low, n.items[0].key)
		}
		return 1
	}
	depth := 0
	for i, kid := range n.kids {
		if d := sound(t, kid); i > 0 && d != depth {
			t.Fatalf("leaves %d and %d deep", d, depth)
		} else {
			depth = d
		}
		if i > 0 && n.kids[i-1].low >= kid.low {
			t.Fatalf("kid %q stands before %q", n.kids[i-1].low, kid.low)
		}
	}
	if n.low > n.kids[0].low {
		t.Fatalf("a branch from %q begins at %q", n.low, n.kids[0].low)
	}
	return depth + 1
}

func TestTableIsAMap(t *testing.T) {
	for _, c := range []struct {
		name string
		key  func(r *rand.Rand, i int) string
	}{
		{"rising", func(_ *rand.Rand, i int) string { return fmt.Sprintf("%06d", i) }},
		{"falling", func(_ *rand.Rand, i int) string { return fmt.Sprintf("%06d", 999_999-i) }},
		{"anywhere", func(r *rand.Rand, _ int) string { return fmt.Sprint(r.IntN(3000)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			w := twin{slow: map[string]int{}}
			w.check(t)
			for i := range 1500 {
				w = w.put(c.key(r, i), i)
			}
			w.check(t)
			w.checkFrom(t, "0001")
			w.checkFrom(t, "9")
			// What is taken away is the oldest, as with requests, or anything, as with jobs.
			for len(w.slow) > 3 {
				k, _, _ := w.fast.Min()
				if r.IntN(2) == 0 {
					k = c.key(r, r.IntN(1500))
				}
				w = w.delete(k)
				if len(w.slow)%97 == 0 {
					w.check(t)
				}
			}
			w.check(t)
		})
	}
}

// A reader keeps a table while others are made of it.
func TestTableIsImmutable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	w := twin{slow: map[string]int{}}
	var kept []twin
	for i := range 800 {
		kept = append(kept, w)
		k := fmt.Sprint(r.IntN(300))
		if w = w.put(k, i); r.IntN(3) == 0 {
			w = w.delete(fmt.Sprint(r.IntN(300)))
		}
		// Two tables made of one share no change.
		w.put("x", i)
		w.delete(k)
	}
	for _, k := range kept {
		k.check(t)
	}
}

func TestTableStaysShallow(t *testing.T) {
	var up Table[Seq, int]
	for i := range 20_000 {
		if up = up.Put(SeqKey(uint64(i)), i); up.Len() > 8192 {
			k, _, _ := up.Min()
			up = up.Delete(k)
		}
	}
	if d := sound(t, up.root); d > 4 {
		t.Errorf("8192 entries that came and went in order are %d deep", d)
	}
	allocs := testing.AllocsPerRun(100, func() { up.Put(SeqKey(1<<40), 1) })
	if allocs > 8 {
		t.Errorf("one more costs %v allocations", allocs)
	}
}

// FuzzTable does what the bytes say, to the table and to its twin.
func FuzzTable(f *testing.F) {
	f.Add([]byte("\x01a\x01b\x00a\x02a"))
	f.Add([]byte("\x01\x00\x01\x01\x01\x02\x01\x03\x01\x04\x01\x05\x01\x06\x01\x07\x01\x08\x01\x09\x01\x0a\x01\x0b\x01\x0c\x01\x0d\x01\x0e\x01\x0f\x01\x10\x01\x11\x00\x08\x00\x09"))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := twin{slow: map[string]int{}}
		if len(b) > 400 {
			b = b[:400]
		}
		for i := 0; i+1 < len(b); i += 2 {
			k := string(b[i+1 : i+2+int(b[i]>>6&1)*min(1, len(b)-i-2)])
			if b[i]&1 == 0 {
				w = w.delete(k)
			} else {
				w = w.put(k, i)
			}
		}
		w.check(t)
		if len(b) > 0 {
			w.checkFrom(t, string(b[:1]))
		}
	})
}
