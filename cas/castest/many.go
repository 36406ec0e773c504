package castest

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// manyAtOnce holds a store that takes many at once against Put, Has and Open.
func manyAtOnce(t *testing.T, s cas.Store) {
	many, ok := s.(cas.Many)
	if !ok {
		t.Fatal("this store takes one object at a time, and a tree of small files as many commits")
	}
	ctx := context.Background()
	var objects []cas.Small
	var want []cas.Ref
	for i := range 700 { // more than one commit's worth, some of them with a file of their own
		b := Bytes(uint64(1000+i), 10+i*37)
		ref, _ := Describe(t, b)
		objects, want = append(objects, cas.Small{Digest: ref.Digest, Bytes: b}), append(want, ref)
	}
	for i := range 10 { // the same ones twice, and without a name
		objects, want = append(objects, cas.Small{Bytes: objects[i].Bytes}), append(want, want[i])
	}
	objects, want = append(objects, cas.Small{}), append(want, cas.Ref{Digest: cas.Empty()})
	Put(t, s, objects[5].Bytes)
	lacks := []int{}
	for i := range want {
		if i != 5 && i != 705 && i != 710 {
			lacks = append(lacks, i)
		}
	}
	if got := many.Lacks(ctx, want); !slices.Equal(got, lacks) {
		t.Fatalf("lacks %v", got)
	}
	bad := map[int]forgeyard.Kind{7: forgeyard.Corrupt, 300: forgeyard.Corrupt, len(objects): forgeyard.Limit}
	objects[7].Digest, objects[300].Digest = want[8].Digest, want[9].Digest
	objects, want = append(objects, cas.Small{Bytes: make([]byte, cas.BlockSize+1)}), append(want, cas.Ref{})
	many.PutMany(ctx, objects, cas.PutOptions{})
	var has []cas.Ref
	for i, o := range objects {
		if kind, ok := bad[i]; ok {
			WantKind(t, o.Err, kind)
			continue
		}
		if o.Err != nil || o.Ref != want[i] {
			t.Fatalf("object %d: %+v %v, want %+v", i, o.Ref, o.Err, want[i])
		}
		if !bytes.Equal(Read(t, s, want[i].Digest), o.Bytes) {
			t.Fatalf("object %d reads differently", i)
		}
		has = append(has, want[i])
	}
	if got := many.Lacks(ctx, has); len(got) != 0 {
		t.Fatalf("lacks %v of what was put", got)
	}
	if s.Has(ctx, want[300].Digest) {
		t.Fatal("wrong bytes left something behind")
	}
	if r, ok := s.(cas.ManyReader); ok {
		readMany(t, r, objects, want, has)
	}
	manyAgain(t, s, many, objects, want)
}

// readMany reads what is here and what is not in one pass: it gives right bytes, each once.
func readMany(t *testing.T, r cas.ManyReader, objects []cas.Small, want, has []cas.Ref) {
	t.Helper()
	var names []forgeyard.Digest
	for _, ref := range want[:700] {
		names = append(names, ref.Digest)
	}
	given := map[int]bool{}
	for _, check := range []bool{false, true} {
		clear(given)
		r.ReadMany(context.Background(), names, check, func(i int, b []byte) {
			if given[i] || !bytes.Equal(b, objects[i].Bytes) || i == 300 {
				t.Errorf("object %d: %d bytes, given before: %v", i, len(b), given[i])
			}
			given[i] = true
		})
		if len(given) < len(has)/4 {
			t.Errorf("%d of %d small objects were read in one pass", len(given), len(has))
		}
	}
}

// manyAgain puts what is here: nothing is written, and an owner holds it all the same.
func manyAgain(t *testing.T, s cas.Store, many cas.Many, objects []cas.Small, want []cas.Ref) {
	t.Helper()
	ctx := context.Background()
	before, err := s.Usage(ctx)
	must(t, err)
	was, err := s.Stat(ctx, want[1].Digest)
	must(t, err)
	again := slices.Clone(objects[:5])
	many.PutMany(ctx, again, cas.PutOptions{Owner: "attempt/9"})
	after, err := s.Usage(ctx)
	if err != nil || again[1].Err != nil || again[1].Ref != want[1] || after.Bytes != before.Bytes || after.Objects != before.Objects {
		t.Fatalf("%+v, then %+v %v, %v", before, after, err, again[1].Err)
	}
	if is, err := s.Stat(ctx, want[1].Digest); err != nil || !is.Stored.Equal(was.Stored) {
		t.Fatalf("written again: %s, then %s %v", was.Stored, is.Stored, err)
	}
	_, err = s.GC(ctx, false)
	must(t, err)
	if !s.Has(ctx, want[1].Digest) || s.Has(ctx, want[20].Digest) {
		t.Fatal("an owner holds what he put, and nothing else")
	}
	ended, end := context.WithCancel(ctx)
	end()
	one := []cas.Small{{Bytes: Bytes(1020, 40)}, {Bytes: Bytes(1021, 40)}}
	many.PutMany(ended, one, cas.PutOptions{})
	WantKind(t, one[0].Err, forgeyard.Interrupted)
	WantKind(t, one[1].Err, forgeyard.Interrupted)
	many.PutMany(ctx, one, cas.PutOptions{Owner: "no\nowner"})
	WantKind(t, one[0].Err, forgeyard.Invalid)
}
