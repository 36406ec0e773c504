//go:build linux

package disk

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
)

// C09: of two puts of the same bytes the one that promises nothing is committed between the
// other's last look at the index and its own commit. What the other one promised outlives a
// power cut all the same.
func TestC09DurableAfterCache(t *testing.T) {
	for name, size := range map[string]int{"in the index": 100, "a file": 40_000, "a twin": 50_000} {
		t.Run(name, func(t *testing.T) {
			l := newLossy(t, 1<<20, false)
			s, err := Open(Config{Dir: l.root, Reserve: -1, power: l, files: lossyFS{vfs.Default, l}})
			if err != nil {
				t.Fatal(err)
			}
			b := castest.Bytes(9, size)
			w := &spool{s: s, op: "cas put", ctx: t.Context()}
			defer w.discard()
			j := newJob(cas.Durable)
			f, err := w.stage(cas.Sum(b), b)
			if err != nil {
				t.Fatal(err)
			}
			if name == "a twin" {
				f = file{digest: f.digest, size: f.size}
			}
			j.files = []file{f}
			ref, err := s.Put(t.Context(), bytes.NewReader(b), cas.PutOptions{Class: cas.Cache, Owner: "cache"})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.commit(ref, j); err != nil {
				t.Fatal(err)
			}
			if broken := brokenPromises(t, l.after(t), promised{objects: map[forgeyard.Digest][]byte{ref.Digest: b}}); len(broken) > 0 {
				t.Errorf("%q", broken)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
