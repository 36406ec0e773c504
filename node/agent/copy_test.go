package agent

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// A copy has all of the book and shares nothing with it; its text names every field. A
// field that is new here is one that Clone and Text must learn.
func TestCopyIsWhole(t *testing.T) {
	full := func() *Book {
		b := NewBook()
		b.leases["l"] = &entry{authority: forgeyard.Authority{Lease: "l"}, stage: held, sent: 1, left: -1}
		b.doubted["m"] = true
		b.upkeep["d"] = upkeep{token: 7}
		b.past = []forgeyard.LeaseID{"k"}
		return b
	}
	changes := []func(*Book){
		func(b *Book) { b.leases["l"].stage = running }, func(b *Book) { delete(b.doubted, "m") }, func(b *Book) { b.NotReported("d") },
		func(b *Book) { b.past[0] = "j" }, func(b *Book) { b.notice.step = 7 },
	}
	if n := reflect.TypeFor[Book]().NumField(); n != len(changes) {
		t.Fatalf("a book has %d fields, %d are tried here", n, len(changes))
	}
	for i, change := range changes {
		b := full()
		c := b.Clone()
		if !reflect.DeepEqual(c, b) || c.Text() != b.Text() {
			t.Fatalf("%+v is no copy of %+v", c, b)
		}
		change(c)
		if !reflect.DeepEqual(b, full()) || c.Text() == b.Text() {
			t.Errorf("change %d of a copy: the book is %+v, the texts are %q and %q", i, b, b.Text(), c.Text())
		}
	}
}
