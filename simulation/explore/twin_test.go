package explore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

// everything collects all worlds of a company to a depth, each as text that says what it
// is and not by which numbers.
func everything(x *explorer, depth int) map[string]bool {
	out := map[string]bool{}
	seen := map[world]bool{}
	level := []world{x.root()}
	seen[level[0]] = true
	for range depth + 1 {
		var next []world
		for i := range level {
			out[x.text(&level[i])] = true
			for _, a := range x.actions(&level[i], nil) {
				if w := *x.step(&level[i], a); !seen[w] && !w.overflowing {
					seen[w] = true
					next = append(next, w)
				}
			}
		}
		level = next
	}
	return out
}

// text is all that anybody can ever see of a world: which tables a number came from, and
// how a request is told from another that says the same, is left out.
func (x *explorer) text(w *world) string {
	n := *w
	var b bytes.Buffer
	site := func(id uint32) {
		st := *strip(x.sites.rows[id].st, "")
		for id := range st.Requests.All() {
			st.Requests = st.Requests.Delete(id)
		}
		fmt.Fprintln(&b, st.Hash())
	}
	site(w.site)
	fmt.Fprintln(&b, x.mems.rows[w.mem].Text())
	if w.old != 0 {
		site(w.seen)
		fmt.Fprintln(&b, x.mems.rows[w.old].Text())
	}
	n.site, n.mem, n.old, n.seen, n.net = 0, 0, 0, 0, [maxNet]uint32{}
	for i := range n.node {
		nd := &n.node[i]
		site(nd.view)
		fmt.Fprintln(&b, x.books.rows[nd.book].Text(), x.bodies.rows[nd.spool].id)
		for slot := range nd.exec {
			fmt.Fprintf(&b, "%+v\n", x.starts.rows[nd.exec[slot].start].authority)
			nd.exec[slot].start = 0
		}
		nd.view, nd.book, nd.spool = 0, 0, 0
	}
	var net []string
	for _, id := range w.net {
		if id != 0 {
			net = append(net, x.saidBy(id))
		}
	}
	slices.Sort(net)
	fmt.Fprintf(&b, "%q %+v", net, n)
	return b.String()
}

// saidBy is one message as text.
func (x *explorer) saidBy(id uint32) string {
	m := x.messages.rows[id]
	head := fmt.Sprintf("%d %d %d %d ", m.kind, m.node, m.term, m.sent)
	switch m.kind {
	case proposal:
		return head + x.bodies.rows[m.says].id
	case reply:
		return head + fmt.Sprintf("%+v to %s", x.replies.rows[m.says], x.saidBy(m.of))
	case heartbeat:
		return head + fmt.Sprintf("%+v", x.batches.rows[m.says])
	case answer:
		return head + fmt.Sprintf("%+v to %+v", x.renewals.rows[m.says], x.batches.rows[m.of])
	case sync:
		return head + fmt.Sprintf("%d %x", x.syncs.rows[m.says].cursor, cborx.Marshal(x.syncs.rows[m.says].records))
	}
	return head + fmt.Sprintf("%d %x", x.synceds.rows[m.says].acked, cborx.Marshal(x.synceds.rows[m.says].grants))
}

func same(t *testing.T, fast, slow map[string]bool) {
	t.Helper()
	for k := range slow {
		if !fast[k] {
			t.Fatalf("only the slow twin sees\n%s", k)
		}
	}
	if len(fast) != len(slow) || len(slow) < 100 {
		t.Fatalf("%d worlds, the slow twin sees %d", len(fast), len(slow))
	}
}

// The tables answer what the rules answer: a twin that calls the rules for every question
// sees the same worlds.
func TestTablesLoseNothing(t *testing.T) {
	for _, c := range Companies() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			slow := newExplorer(c, Honest())
			slow.forgetful = true
			same(t, everything(newExplorer(c, Honest()), 3), everything(slow, 3))
		})
	}
}

// What is left out of a state is read by no rule: a twin that keeps histories, events and
// every request that was ever made sees the same worlds, once they are stripped.
func TestStrippingLosesNothing(t *testing.T) {
	for _, c := range Companies() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			slow := newExplorer(c, Honest())
			slow.whole = true
			same(t, everything(newExplorer(c, Honest()), 4), everything(slow, 4))
		})
	}
}

// The fingerprints lose nothing either: a search that keeps whole worlds finds as many.
func TestFingerprintsLoseNothing(t *testing.T) {
	for _, c := range Companies() {
		x := newExplorer(c, Honest())
		worlds := map[world]bool{x.root(): true}
		level := []world{x.root()}
		for range 5 {
			var next []world
			for i := range level {
				for _, a := range x.actions(&level[i], nil) {
					if w := *x.step(&level[i], a); !worlds[w] && !w.overflowing {
						worlds[w] = true
						next = append(next, w)
					}
				}
			}
			level = next
		}
		if r := Run(c, Honest(), Limits{Depth: 5}, stopwatch()); r.States != len(worlds) {
			t.Errorf("%s: %d fingerprints of %d worlds", c.Name, r.States, len(worlds))
		}
	}
}

// FuzzKey: two worlds have the same key if and only if they are the same. The slow twin
// compares them field by field.
func FuzzKey(f *testing.F) {
	f.Add([]byte{1, 2, 3}, []byte{1, 2, 4})
	f.Add(bytes.Repeat([]byte{255}, 300), bytes.Repeat([]byte{255}, 299))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		v, w := worldOf(a), worldOf(b)
		if len(v.key(nil)) != keyLen {
			t.Fatalf("a key of %d bytes, %d are due", len(v.key(nil)), keyLen)
		}
		if (v == w) != bytes.Equal(v.key(nil), w.key(nil)) {
			t.Fatalf("%+v\n%+v\nhave the keys\n%x\n%x", v, w, v.key(nil), w.key(nil))
		}
	})
}

// TestKeyHasEveryField changes one field after the other.
func TestKeyHasEveryField(t *testing.T) {
	zero := worldOf(nil)
	var w world
	n := 0
	for i := range 1000 {
		data := make([]byte, 1000)
		data[i] = 1
		if w = worldOf(data); w == zero {
			continue
		}
		if n++; bytes.Equal(w.key(nil), zero.key(nil)) {
			t.Errorf("the key does not have the field of byte %d: %+v", i, w)
		}
	}
	if n < 60 {
		t.Fatalf("only %d fields were changed", n)
	}
}

// worldOf fills a world's fields one after the other from bytes.
func worldOf(data []byte) world {
	var w world
	next := func(size int) uint64 {
		var b [8]byte
		k := copy(b[:size], data)
		data = data[k:]
		return binary.LittleEndian.Uint64(b[:])
	}
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		case reflect.Bool:
			v.SetBool(next(1)&1 == 1)
		default:
			v.SetUint(next(int(v.Type().Size())))
		}
	}
	fill(reflect.ValueOf(&w).Elem())
	return w
}
