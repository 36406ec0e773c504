package peer

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

// diskNode is an exchange over the real store.
func diskNode(t *testing.T, dir string) (*Exchange, *disk.Store, host.Host) {
	t.Helper()
	st, err := disk.Open(disk.Config{Dir: dir, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	x, err := New(Config{Host: h, Store: st})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = x.Close()
		_ = st.Close()
	})
	return x, st, h
}

func putDisk(t *testing.T, s cas.Store, b []byte) cas.Ref {
	t.Helper()
	ref, err := s.Put(t.Context(), bytes.NewReader(b), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func readDisk(t *testing.T, s cas.Store, ref cas.Ref) []byte {
	t.Helper()
	o, err := s.Open(t.Context(), ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }()
	b, err := io.ReadAll(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Over the real store: a tree moves, is replicated and pinned, and a copy that
// rotted on one holder's disk is not sent as if it were good: it comes from the other.
func TestOnTheRealStore(t *testing.T) {
	a, as, ah := diskNode(t, t.TempDir())
	_, bs, bh := diskNode(t, t.TempDir())
	c, cs, ch := diskNode(t, t.TempDir())
	for _, h := range []host.Host{ah, bh} {
		if err := ch.Connect(t.Context(), libpeer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()}); err != nil {
			t.Fatal(err)
		}
	}
	big := noise(1, 5*cas.BlockSize+9)
	ref := putDisk(t, as, big)
	tr := cas.Tree{Entries: []cas.Entry{file("big", ref), file("small", putDisk(t, as, []byte("small")))}}
	enc, err := tr.Encode()
	if err != nil {
		t.Fatal(err)
	}
	root := putDisk(t, as, enc)
	putDisk(t, bs, big)

	path, release, err := as.Path(t.Context(), ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	release()
	rot(t, path)
	if err := c.FetchTree(t.Context(), root.Digest, []string{ah.ID().String()}); err != nil {
		t.Fatal(err)
	}
	if got := readDisk(t, cs, ref); !bytes.Equal(got, big) {
		t.Fatal("other bytes came")
	}
	// The holder whose copy rotted lacks it now; who fetched it can give it back.
	if err := a.Fetch(t.Context(), ref, []string{ch.ID().String()}); err != nil {
		t.Fatal(err)
	}
	if err := c.Replicate(t.Context(), bh.ID().String(), []Root{{Tree, root}}, "checkpoint/9", time.Time{}); err != nil {
		t.Fatal(err)
	}
	pins, err := bs.Pins(t.Context())
	if err != nil || len(pins) != 1 || pins[0].Owner != "checkpoint/9" || len(pins[0].Trees) != 1 {
		t.Fatalf("%+v %v", pins, err)
	}
	if _, err := bs.GC(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	for _, e := range tr.Entries {
		if !bs.Has(t.Context(), e.Digest) {
			t.Fatalf("%s was collected although it is pinned", e.Name)
		}
	}
}

// RA-024, RA-516: what a result names reaches another node as that or not at all. An output
// that rotted between its capture and its delivery is found by its digest: the delivery fails,
// and nobody holds, pins or acknowledges it.
func TestDamagedOutputReachesNobody(t *testing.T) {
	a, as, ah := diskNode(t, t.TempDir())
	_, bs, bh := diskNode(t, t.TempDir())
	if err := ah.Connect(t.Context(), libpeer.AddrInfo{ID: bh.ID(), Addrs: bh.Addrs()}); err != nil {
		t.Fatal(err)
	}
	out, other := putDisk(t, as, noise(1, 2*cas.BlockSize+9)), putDisk(t, as, noise(2, cas.BlockSize))
	path, release, err := as.Path(t.Context(), out.Digest)
	if err != nil {
		t.Fatal(err)
	}
	release()
	rot(t, path)
	if err := a.Replicate(t.Context(), bh.ID().String(), []Root{{Blob, other}, {Blob, out}}, "attempt/1", time.Time{}); err == nil {
		t.Fatal("it was acknowledged")
	}
	pins, err := bs.Pins(t.Context())
	if err != nil || bs.Has(t.Context(), out.Digest) {
		t.Fatalf("the other node has it; %v", err)
	}
	for _, p := range pins {
		if p.Owner == "attempt/1" {
			t.Errorf("%+v", p)
		}
	}
	if err := a.Replicate(t.Context(), bh.ID().String(), []Root{{Blob, other}}, "attempt/1", time.Time{}); err != nil {
		t.Errorf("what is sound goes: %v", err)
	}
}

// C02 for many small files at once, which go to the store together: of two holders one
// has some wrong bytes. It is named, its right ones count, and all files come.
func TestC02WrongOnesAmongMany(t *testing.T) {
	bad, good := newNode(t), newNode(t)
	x, st, h := diskNode(t, t.TempDir())
	var entries []cas.Entry
	for i := range 3000 {
		b := noise(uint64(i), 100+i)
		ref := bad.store.put(t, b)
		good.store.put(t, b)
		bad.store.corrupt[ref.Digest] = i%500 == 7
		entries = append(entries, file(nameOf(i), ref))
	}
	root, _ := bad.store.tree(t, entries...)
	good.store.tree(t, entries...)
	if err := h.Connect(t.Context(), libpeer.AddrInfo{ID: bad.host.ID(), Addrs: bad.host.Addrs()}); err != nil {
		t.Fatal(err)
	}
	err := x.FetchTree(t.Context(), root.Digest, []string{bad.name()})
	isKind(t, err, forgeyard.Corrupt, bad.name())
	here := 0
	for _, e := range entries {
		if st.Has(t.Context(), e.Digest) {
			here++
		}
	}
	if here == 0 || here > len(entries)-6 {
		t.Fatalf("%d files were kept", here)
	}
	if err := h.Connect(t.Context(), libpeer.AddrInfo{ID: good.host.ID(), Addrs: good.host.Addrs()}); err != nil {
		t.Fatal(err)
	}
	if err := x.FetchTree(t.Context(), root.Digest, []string{bad.name(), good.name()}); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !st.Has(t.Context(), e.Digest) {
			t.Fatalf("%s is not here", e.Name)
		}
	}
	if s := x.Stats(); s.BadPeers != 1 {
		t.Fatalf("%+v", s)
	}
}

// rot overwrites the middle of a file that is read-only.
func rot(t *testing.T, path string) {
	t.Helper()
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 4096), 2*cas.BlockSize); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

const childEnv = "CAS_PEER_TEST_CHILD"

// C05: SIGKILL in the middle of a fetch; the restarted node reuses at least 95 % of
// what was verified, and trusts nothing that was not.
func TestC05KilledInTheMiddle(t *testing.T) {
	if spec := os.Getenv(childEnv); spec != "" {
		fetchUntilKilled(t, spec)
		return
	}
	_, as, ah := diskNode(t, t.TempDir())
	const blocks = 256
	data := noise(1, blocks*cas.BlockSize)
	ref := putDisk(t, as, data)
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestC05KilledInTheMiddle$")
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{dir, ah.ID().String(), ah.Addrs()[0].String(), ref.Digest.String()}, " "))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reached := filepath.Join(dir, "half")
	for i := 0; ; i++ {
		if _, err := os.Stat(reached); err == nil {
			break
		}
		if i > 3000 {
			_ = cmd.Process.Kill()
			t.Fatalf("the child never came to the half: %s", out.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	c, cs, ch := diskNode(t, dir)
	if cs.Has(t.Context(), ref.Digest) {
		t.Fatal("the fetch was over before the kill")
	}
	info, err := cs.Stat(t.Context(), ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	ch.Peerstore().AddAddrs(ah.ID(), ah.Addrs(), time.Hour)
	if err := c.FetchAny(t.Context(), ref.Digest, []string{ah.ID().String()}); err != nil {
		t.Fatal(err)
	}
	if got := readDisk(t, cs, ref); !bytes.Equal(got, data) {
		t.Fatal("other bytes came")
	}
	// What was not marked as safe yet was found by hashing the file.
	came, marked := c.Stats().BlocksIn, info.Have/cas.BlockSize
	if reused := blocks - came; marked == 0 || reused < blocks/2*95/100 {
		t.Fatalf("of %d blocks at least %d were verified before the kill; %d were marked and %d came again", blocks, blocks/2, marked, came)
	}
}

// halfStore tells when half of the blocks were verified.
type halfStore struct {
	cas.Store
	dir string
}

type halfPartial struct {
	cas.Partial
	s *halfStore
}

func (s *halfStore) Partial(ctx context.Context, m cas.Manifest) (cas.Partial, error) {
	p, err := s.Store.Partial(ctx, m)
	return halfPartial{p, s}, err
}

func (p halfPartial) PutBlock(i int, b []byte) error {
	err := p.Partial.PutBlock(i, b)
	if len(p.Missing()) < 128 {
		// Several blocks come at once, so no one of them need see the very half.
		_ = os.WriteFile(filepath.Join(p.s.dir, "half"), nil, 0o600)
		select {} // until the kill
	}
	return err
}

func fetchUntilKilled(t *testing.T, spec string) {
	f := strings.Fields(spec)
	st, err := disk.Open(disk.Config{Dir: f[0], Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	info, err := libpeer.AddrInfoFromString(f[2] + "/p2p/" + f[1])
	if err != nil {
		t.Fatal(err)
	}
	d, err := forgeyard.ParseDigest(f[3])
	if err != nil {
		t.Fatal(err)
	}
	x, err := New(Config{Host: h, Store: &halfStore{st, f[0]}, Resolve: func(string) (libpeer.AddrInfo, error) { return *info, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Fatal("it ended: ", x.FetchAny(t.Context(), d, []string{f[1]}))
}
