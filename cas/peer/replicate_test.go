package peer

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

func TestAskGivesARealNo(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	small, large := a.store.put(t, []byte("small")), a.store.put(t, noise(1, 3*cas.BlockSize))
	enc, _ := a.store.Block(t.Context(), large.Manifest)
	m, err := cas.DecodeManifest(enc)
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Ask(t.Context(), a.name(), []forgeyard.Digest{small.Digest, large.Digest, m.Blocks[1].Digest, large.Manifest, cas.Sum([]byte("no")), cas.Empty()})
	if err != nil {
		t.Fatal(err)
	}
	want := []Answer{
		{Have: true, Size: 5}, {Have: true, Size: large.Size, Manifest: large.Manifest}, {Have: true, Size: cas.BlockSize},
		{Have: true, Size: int64(len(enc))}, {}, {Have: true},
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%+v\nwant\n%+v", got, want)
	}
	part, err := a.store.Partial(t.Context(), cas.Manifest{Size: m.Size, Whole: cas.Sum([]byte("part")), Blocks: m.Blocks})
	if err != nil {
		t.Fatal(err)
	}
	if err := part.PutBlock(0, noise(1, 3*cas.BlockSize)[:cas.BlockSize]); err != nil {
		t.Fatal(err)
	}
	got, err = b.Ask(t.Context(), a.name(), []forgeyard.Digest{cas.Sum([]byte("part"))})
	if err != nil || got[0].Have || got[0].Partial != cas.BlockSize {
		t.Fatalf("%+v %v", got, err)
	}
}

func TestAskIsBounded(t *testing.T) {
	a, b := newNode(t), newNode(t)
	_, err := b.Ask(t.Context(), a.name(), make([]forgeyard.Digest, maxAsk+1))
	isKind(t, err, forgeyard.Limit)
	_, err = b.Ask(t.Context(), a.name(), nil)
	isKind(t, err, forgeyard.Limit)
	_, err = b.Ask(t.Context(), "nobody", []forgeyard.Digest{cas.Empty()})
	isKind(t, err, forgeyard.Unavailable, "nobody")
	b.meet(a.host)
	if err := a.host.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = b.Ask(t.Context(), a.name(), []forgeyard.Digest{cas.Empty()})
	isKind(t, err, forgeyard.Unavailable, a.name())
}

// One peer's requests are served a few at a time; more get Limit, others are served.
func TestServingIsBoundedPerPeer(t *testing.T) {
	a, b, c := newNode(t, func(c *Config) { c.MaxServePerPeer = 2 }), newNode(t), newNode(t)
	b.dial(t, a.host)
	c.dial(t, a.host)
	for range 2 {
		st, err := b.host.NewStream(t.Context(), a.host.ID(), Protocol)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Write([]byte{0}); err != nil { // a request that never ends
			t.Fatal(err)
		}
		defer func() { _ = st.Reset() }()
	}
	for a.served(b) < 2 {
		time.Sleep(time.Millisecond)
	}
	_, err := b.Ask(t.Context(), a.name(), []forgeyard.Digest{cas.Empty()})
	isKind(t, err, forgeyard.Limit)
	if _, err := c.Ask(t.Context(), a.name(), []forgeyard.Digest{cas.Empty()}); err != nil {
		t.Fatal(err)
	}
	for a.served(b) > 0 { // an unfinished request is given up after WantTimeout
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := b.Ask(t.Context(), a.name(), []forgeyard.Digest{cas.Empty()}); err != nil {
		t.Fatal(err)
	}
}

func (n *testNode) served(other *testNode) int {
	n.Exchange.mu.Lock()
	defer n.Exchange.mu.Unlock()
	return n.serving[other.host.ID()]
}

func TestReplicateKeepsAndPins(t *testing.T) {
	a, b := newNode(t), newNode(t)
	a.dial(t, b.host)
	root, _ := sourceTree(t, a.store)
	blob, large := a.store.put(t, []byte("log")), a.store.put(t, noise(8, 3*cas.BlockSize))
	roots := []Root{
		{Blob, blob}, {Blob, large}, {Tree, root}, {Tree, cas.Ref{Digest: root.Digest}},
		{Blob, cas.Ref{Digest: large.Digest, Size: large.Size}}, {Blob, cas.Ref{Digest: cas.Empty()}},
	}
	until := time.UnixMilli(2_000_000_000_000).UTC()
	if err := a.Replicate(t.Context(), b.name(), roots, "checkpoint/1", until); err != nil {
		t.Fatal(err)
	}
	if n := closureMissing(t, b.store, root.Digest); n != 0 || !b.store.Has(t.Context(), blob.Digest) || !b.store.Has(t.Context(), large.Digest) {
		t.Fatalf("%d objects are missing", n)
	}
	pin := b.store.pins["checkpoint/1"]
	if !pin.Expires.Equal(until) || !slices.Contains(pin.Trees, root.Digest) || !slices.Contains(pin.Roots, large.Digest) || len(b.store.pins) != 1 {
		t.Fatalf("%+v", b.store.pins)
	}
	writes := b.store.writes()
	if err := a.Replicate(t.Context(), b.name(), roots, "checkpoint/1", time.Time{}); err != nil || b.store.writes() != writes {
		t.Fatal(err)
	}
	if !b.store.pins["checkpoint/1"].Expires.IsZero() || a.Stats().Replicated != 2 || b.Stats().Replicas != 2 {
		t.Fatalf("%+v", b.store.pins)
	}
}

func TestReplicateRefusalsAreTyped(t *testing.T) {
	a := newNode(t)
	b := newNode(t, func(c *Config) { c.MaxReplicateBytes = 1 << 20 })
	a.dial(t, b.host)
	small := a.store.put(t, []byte("small"))
	big := a.store.put(t, noise(1, 2<<20))
	over, _ := a.store.tree(t, file("big", big))
	absent := cas.Ref{Digest: cas.Sum([]byte("absent")), Size: 6}
	for name, c := range map[string]struct {
		target string
		roots  []Root
		owner  string
		kind   forgeyard.Kind
	}{
		"too many roots": {b.name(), make([]Root, maxRoots+1), "o", forgeyard.Limit},
		"no roots":       {b.name(), nil, "o", forgeyard.Limit},
		"no owner":       {b.name(), []Root{{Blob, small}}, "", forgeyard.Invalid},
		"unknown kind":   {b.name(), []Root{{9, small}}, "o", forgeyard.Invalid},
		"oversized blob": {b.name(), []Root{{Blob, big}}, "o", forgeyard.Limit},
		"oversized tree": {b.name(), []Root{{Tree, over}}, "o", forgeyard.Limit},
		"not here":       {b.name(), []Root{{Blob, absent}}, "o", forgeyard.NotFound},
		"ourselves":      {a.name(), []Root{{Blob, small}}, "o", forgeyard.Invalid},
		"nobody":         {"nobody", []Root{{Blob, small}}, "o", forgeyard.Unavailable},
	} {
		if err := a.Replicate(t.Context(), c.target, c.roots, c.owner, time.Time{}); forgeyard.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
	b.store.full = true
	isKind(t, a.Replicate(t.Context(), b.name(), []Root{{Blob, small}}, "o", time.Time{}), forgeyard.NoSpace, b.name())
	for _, o := range b.store.owners() {
		if !strings.HasPrefix(o, "replicate/") { // the guard, which expires, is what may stay
			t.Fatalf("%s is pinned", o)
		}
	}
}

// At most MaxReplications run; a few wait, more are refused; all that waited are done.
func TestReplicationsAreBounded(t *testing.T) {
	a := newNode(t)
	b := newNode(t, func(c *Config) { c.MaxReplications, c.MaxServePerPeer = 1, 100 })
	a.dial(t, b.host)
	gate := make(chan struct{})
	entered := make(chan struct{}, 100)
	b.store.stored = func(int) { entered <- struct{}{}; <-gate }
	results := make(chan error, 100)
	push := func(i int) {
		ref := a.store.put(t, noise(uint64(i), 100))
		go func() { results <- a.Replicate(t.Context(), b.name(), []Root{{Blob, ref}}, "o", time.Time{}) }()
	}
	push(0)
	<-entered // the one place is taken
	for i := range replicateQueue {
		push(i + 1)
	}
	for b.waiting.Load() < replicateQueue {
		time.Sleep(time.Millisecond)
	}
	push(1000)
	isKind(t, <-results, forgeyard.Limit, "wait here already")
	close(gate)
	for range replicateQueue + 1 {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
}

// When whoever asked is gone, the target stops fetching for it.
func TestReplicationEndsWithItsAsker(t *testing.T) {
	a, b := newNode(t), newNode(t)
	a.dial(t, b.host)
	gate, entered := make(chan struct{}), make(chan struct{}, 100)
	b.store.stored = func(int) { entered <- struct{}{}; <-gate }
	ref := a.store.put(t, []byte("x"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Replicate(ctx, b.name(), []Root{{Blob, ref}}, "o", time.Time{}) }()
	<-entered
	cancel()
	isKind(t, <-done, forgeyard.Interrupted)
	close(gate)
	for b.served(a) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}

// A target that falls silent is Unavailable, by the exchange's own clock.
func TestReplicateToASilentTarget(t *testing.T) {
	a := newNode(t)
	silent := mute(t, true)
	a.dial(t, silent)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	isKind(t, a.Replicate(ctx, silent.ID().String(), []Root{{Blob, a.store.put(t, []byte("x"))}}, "o", time.Time{}), forgeyard.Unavailable)
}

func FuzzWire(f *testing.F) {
	for _, v := range []any{
		request{Kind: kindAsk, Digests: []forgeyard.Digest{cas.Empty()}},
		request{Kind: kindReplicate, Roots: []Root{{Tree, cas.Ref{Digest: cas.Empty()}}}, Owner: "o", Expires: 5},
		response{Done: true, Answers: []Answer{{Have: true, Size: 5}}},
		response{Error: &refusal{Kind: "limit", Text: "why"}},
	} {
		var b strings.Builder
		if err := writeFrame(&b, v); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(b.String()))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var q request
		if err := readFrame(strings.NewReader(string(b)), &q); err == nil {
			if q.validate() == nil && (len(q.Digests) > maxAsk || len(q.Roots) > maxRoots || len(q.Owner) > cas.MaxOwnerBytes) {
				t.Fatal("a request beyond its bounds is valid")
			}
			if err := writeFrame(io.Discard, q); err != nil {
				t.Fatal(err)
			}
		}
		var r response
		if err := readFrame(strings.NewReader(string(b)), &r); err == nil && r.Error != nil {
			_ = r.Error.err("op", "peer").Error()
		}
	})
}

// For whose sake it is decides whether a replication waits for a rate.
func TestReplicaOfACheckpointIsUrgent(t *testing.T) {
	a := newNode(t)
	b := newNode(t, func(c *Config) {
		c.Rates.PeersIn = 4 << 20
		c.Urgent = func(owner string) bool { return owner == "checkpoint" }
	})
	a.dial(t, b.host)
	took := map[string]time.Duration{}
	for i, owner := range []string{"output", "checkpoint"} {
		ref := a.store.put(t, noise(uint64(i), 6*cas.BlockSize))
		start := time.Now()
		if err := a.Replicate(t.Context(), b.name(), []Root{{Blob, ref}}, owner, time.Time{}); err != nil {
			t.Fatal(err)
		}
		took[owner] = time.Since(start)
	}
	if took["output"] < time.Second || took["checkpoint"] > took["output"] {
		t.Fatalf("%v", took)
	}
}
