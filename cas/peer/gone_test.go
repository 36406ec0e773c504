package peer

import (
	"context"
	"io"
	"runtime"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// slowStore begins to store a blob only after something happened.
type slowStore struct {
	*memStore
	before func(forgeyard.Digest)
}

func (s slowStore) Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	s.before(o.Expect)
	return s.memStore.Put(ctx, r, o)
}

// E24: the only holder loses its power while the last block that it sent is being
// stored. All is here, so the fetch succeeds; there is nobody to ask, and nothing to ask for.
func TestE24HolderGoesWhileItsBlockIsStored(t *testing.T) {
	holder := newNode(t)
	data := noise(1, 1000)
	ref := holder.store.put(t, data)
	var c *testNode
	c = newNode(t, func(cfg *Config) {
		cfg.Store = slowStore{cfg.Store.(*memStore), func(d forgeyard.Digest) {
			if err := holder.host.Close(); err != nil {
				t.Error(err)
			}
			c.awaitNoHolder(d)
		}}
	})
	c.meet(holder.host)
	if err := c.Fetch(t.Context(), ref, []string{holder.name()}); err != nil {
		t.Fatal(err)
	}
	c.holds(t, ref, data)
}

// awaitNoHolder returns when those who bring d in have lost every holder, and have seen it.
func (n *testNode) awaitNoHolder(d forgeyard.Digest) {
	n.Exchange.mu.Lock()
	var all []*session
	for s := range n.sessions[d] {
		all = append(all, s)
	}
	n.Exchange.mu.Unlock()
	for _, s := range all {
		for {
			s.mu.Lock()
			s.stage = stageNone // nobody else to look for either
			there, changed := false, s.changed
			for _, h := range s.holders {
				there = there || !h.gone
			}
			s.mu.Unlock()
			if !there {
				break
			}
			<-changed
		}
	}
	for range 10_000 {
		runtime.Gosched() // the session was woken; let it look
	}
}
