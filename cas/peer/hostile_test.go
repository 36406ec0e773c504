package peer

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ipfs/boxo/bitswap/message"
	pb "github.com/ipfs/boxo/bitswap/message/pb"
	"github.com/ipfs/boxo/bitswap/network/bsnet"
	"github.com/ipfs/go-cid"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"
	mh "github.com/multiformats/go-multihash"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// framed puts a length before a message.
func framed(m []byte) []byte { return append(binary.AppendUvarint(nil, uint64(len(m))), m...) }

func field(to []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, num, protowire.BytesType), v)
}

// wants lists n names of a few bytes each: three of them, hashed by identity.
func wants(n int) []byte {
	var list []byte
	for i := range n {
		list = field(list, fieldEntries, field(nil, 1, []byte{1, cid.Raw, 0, 3, byte(i), byte(i >> 8), byte(i >> 16)}))
	}
	return field(nil, fieldWantlist, list)
}

// say sends bytes to the node over bitswap and waits until they were worked on. It gives
// whether the node took them as messages.
func say(t testing.TB, from host.Host, n *testNode, raw []byte) (taken bool) {
	t.Helper()
	st, err := from.NewStream(t.Context(), n.host.ID(), bsnet.ProtocolBitswap)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Reset() }()
	if err := st.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = st.Write(raw) // it may be refused before its end
	_ = st.CloseWrite()
	_, err = io.Copy(io.Discard, st)
	return err == nil
}

// free fails unless nothing of what a peer sent is still held.
func (n *testNode) free(t testing.TB, p libpeer.ID) {
	t.Helper()
	room := n.inboundRoom(p)
	if !room.bytes.TryAcquire(inboundBytes) || !room.entries.TryAcquire(maxEntries) {
		t.Fatal("room for messages is held by none")
	}
	room.bytes.Release(inboundBytes)
	room.entries.Release(maxEntries)
}

// mostHeap runs f and gives by how much the heap grew meanwhile.
func mostHeap(f func()) int64 {
	before, stop := heap(), make(chan struct{})
	var most int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, int64(m.HeapAlloc))
			}
		}
	})
	f()
	close(stop)
	wg.Wait()
	return most - before
}

// C19: what a peer says over bitswap costs a bounded memory: messages that are announced
// and never come, on many streams, and many whose entries are a few bytes each. Others are
// served beside it.
func TestC19HostileMessagesAreBounded(t *testing.T) {
	srv, bad := newNode(t), newHost(t)
	ref := srv.store.put(t, noise(1, 1000))
	if err := bad.Connect(t.Context(), libpeer.AddrInfo{ID: srv.host.ID(), Addrs: srv.host.Addrs()}); err != nil {
		t.Fatal(err)
	}
	const most = 160 << 20
	list := framed(wants(maxEntries - 1))
	if grown := mostHeap(func() {
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if !say(t, bad, srv, list) {
					t.Error("a list within its bound was refused")
				}
			})
		}
		wg.Wait()
	}); grown > most {
		t.Errorf("16 messages of %d KiB took %d MiB", len(list)>>10, grown>>20)
	}
	if n := len(srv.server.WantlistForPeer(bad.ID())); n > queuedWants {
		t.Errorf("%d wants of one peer are remembered, the bound is %d", n, queuedWants)
	}
	if grown := mostHeap(func() {
		for range 300 {
			st, err := bad.NewStream(t.Context(), srv.host.ID(), bsnet.ProtocolBitswap)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = st.Write(binary.AppendUvarint(nil, network.MessageSizeMax))
		}
		c := newNode(t)
		c.meet(srv.host)
		if err := c.Fetch(t.Context(), ref, []string{srv.name()}); err != nil {
			t.Error(err)
		}
	}); grown > most {
		t.Errorf("300 announced messages took %d MiB", grown>>20)
	}
	if err := bad.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the end of its streams", func() {
		for srv.keepsRoom(bad.ID()) {
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// keepsRoom reports whether there is room for messages of a peer.
func (n *testNode) keepsRoom(p libpeer.ID) bool {
	n.Exchange.mu.Lock()
	defer n.Exchange.mu.Unlock()
	return n.inbound[p] != nil
}

// What is no message, or too much of one, ends its stream and nothing else: it is counted,
// and names that mean nothing here are answered.
func TestHostileMessages(t *testing.T) {
	srv, bad := newNode(t), newHost(t)
	ref := srv.store.put(t, noise(1, 1000))
	if err := bad.Connect(t.Context(), libpeer.AddrInfo{ID: srv.host.ID(), Addrs: srv.host.Addrs()}); err != nil {
		t.Fatal(err)
	}
	entry := func(c []byte, priority uint64) []byte {
		e := protowire.AppendVarint(protowire.AppendTag(field(nil, 1, c), 2, protowire.VarintType), priority)
		return framed(field(nil, fieldWantlist, field(nil, fieldEntries, e)))
	}
	sha, err := mh.Sum([]byte("x"), mh.SHA2_256, -1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		raw   []byte
		taken bool
	}{
		{"nothing", nil, true},
		{"an empty message", []byte{0}, true},
		{"a name of another kind", entry(cid.NewCidV1(cid.Raw, sha).Bytes(), 1), true},
		{"a name of version 0", entry(cid.NewCidV0(sha).Bytes(), 1), true},
		{"an absent block, and a priority below zero", entry(toCID(cas.Sum([]byte("absent"))).Bytes(), 1<<63), true},
		{"the same block many times", framed(field(nil, fieldWantlist, bytes.Repeat(field(nil, fieldEntries, field(nil, 1, toCID(ref.Digest).Bytes())), 30_000))), true},
		{"too many entries", framed(wants(maxEntries)), false},
		{"too many blocks", framed(bytes.Repeat(field(nil, 2, nil), maxEntries+1)), false},
		{"too many presences", framed(bytes.Repeat(field(nil, 4, nil), maxEntries+1)), false},
		{"a length beyond the bound", binary.AppendUvarint(nil, network.MessageSizeMax+1), false},
		{"a length without end", bytes.Repeat([]byte{0xff}, 20), false},
		{"half a length", []byte{0xff}, false},
		{"half a message", framed(make([]byte, 100))[:50], false},
		{"no protobuf", framed([]byte{0xff, 0xff, 0xff}), false},
		{"an entry without a name", framed(field(nil, fieldWantlist, field(nil, fieldEntries, nil))), false},
		{"a name that is none", entry([]byte{1, 2, 3}, 1), false},
	} {
		if taken := say(t, bad, srv, c.raw); taken != c.taken {
			t.Errorf("%s: taken %v", c.what, taken)
		}
		srv.free(t, bad.ID())
	}
	if n := srv.Stats().BadPeers; n != 6 {
		t.Errorf("%d messages were refused before they were read, want 6", n)
	}
	c := newNode(t)
	c.meet(srv.host)
	if err := c.Fetch(t.Context(), ref, []string{srv.name()}); err != nil {
		t.Fatal(err)
	}
}

// The kinds of what ends a stream.
func TestEntriesAreCounted(t *testing.T) {
	two := wants(2)
	if n, err := entriesOf(append(two, field(nil, 3, []byte("block"))...)); err != nil || n != 4 {
		t.Fatalf("%d entries: %v", n, err)
	}
	_, err := entriesOf([]byte{0x0a})
	isKind(t, err, forgeyard.Invalid)
	_, err = entriesOf(wants(maxEntries))
	isKind(t, err, forgeyard.Limit, "65536")
}

// FuzzServe: whatever a peer sends over bitswap, it has a bounded list of wants afterwards,
// and nothing of it is held.
func FuzzServe(f *testing.F) {
	srv, bad := newNode(f), newHost(f)
	if err := bad.Connect(f.Context(), libpeer.AddrInfo{ID: srv.host.ID(), Addrs: srv.host.Addrs()}); err != nil {
		f.Fatal(err)
	}
	have := srv.store.put(f, []byte("here"))
	m := message.New(true)
	m.AddEntry(toCID(have.Digest), 1, pb.Message_Wantlist_Have, true)
	m.AddEntry(toCID(cas.Sum([]byte("absent"))), -1, pb.Message_Wantlist_Block, true)
	m.Cancel(toCID(cas.Empty()))
	for _, m := range []message.BitSwapMessage{m, blockMessage([]byte("unasked"))} {
		var b strings.Builder
		if err := m.ToNetV1(&b); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(b.String()))
		f.Add([]byte(b.String() + b.String()[:5]))
	}
	f.Add(framed(wants(2000)))
	f.Add(binary.AppendUvarint(nil, network.MessageSizeMax+1))
	f.Fuzz(func(t *testing.T, raw []byte) {
		say(t, bad, srv, raw)
		srv.free(t, bad.ID())
		if n := len(srv.server.WantlistForPeer(bad.ID())); n > queuedWants {
			t.Fatalf("%d wants are remembered, the bound is %d", n, queuedWants)
		}
	})
}
