package cacheapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// member is one node of a site in this process: a real store, and a cache before it.
type member struct {
	*cacheapi.Cache
	store *disk.Store
	dir   string
	clock *clock.Manual
	peers *peers
}

const keep = 2 * time.Hour

func newMember(t *testing.T, others ...*member) *member {
	t.Helper()
	m := &member{dir: t.TempDir(), clock: clock.NewManual(time.Now()), peers: &peers{others: others}}
	m.open(t)
	m.peers.to = m
	return m
}

func (m *member) open(t *testing.T) {
	t.Helper()
	s, err := disk.Open(disk.Config{Dir: m.dir + "/cas", Clock: m.clock, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	m.store = s
	t.Cleanup(func() { _ = s.Close() }) // a test may have closed it
	m.Cache, err = cacheapi.New(cacheapi.Config{Store: s, Names: s, Peers: m.peers, Dir: m.dir + "/uploads", Keep: keep, Clock: m.clock})
	if err != nil {
		t.Fatal(err)
	}
}

// restart is what a killed process and a new one are to the data dir.
func (m *member) restart(t *testing.T) {
	t.Helper()
	if err := m.store.Close(); err != nil {
		t.Fatal(err)
	}
	m.open(t)
}

// peers reach the other members directly, and may be told to lie.
type peers struct {
	to     *member
	others []*member
	lies   []cacheapi.Claim // come before what is true
	blamed []string
	cut    bool
}

func (p *peers) Lookup(ctx context.Context, names []cas.Name) []cacheapi.Claim {
	if p.cut {
		return nil
	}
	out := append([]cacheapi.Claim(nil), p.lies...)
	for _, o := range p.others {
		bs, err := o.Claims(ctx, names)
		if err != nil {
			continue
		}
		for _, b := range bs {
			out = append(out, cacheapi.Claim{Binding: b, Provider: "honest"})
		}
	}
	return out
}

func (p *peers) Fetch(ctx context.Context, ref cas.Ref, _ string) error {
	x := castest.Direct{To: p.to.store, From: map[string]cas.Store{}}
	for i, o := range p.others {
		if !p.cut {
			x.From[fmt.Sprintf("peer-%d", i)] = o.store
		}
	}
	if ref.Size < 0 {
		ref.Size = cas.BlockSize + 1 // only the digest is known
	}
	return x.Fetch(ctx, ref, nil)
}

func (p *peers) Blame(provider, _ string) { p.blamed = append(p.blamed, provider) }

func sha(b []byte) cacheapi.ID {
	return cacheapi.ID{Func: cacheapi.SHA256, Hash: sha256.Sum256(b), Size: int64(len(b))}
}

func b3(b []byte) cacheapi.ID {
	return cacheapi.ID{Func: cacheapi.BLAKE3, Hash: cas.Sum(b), Size: int64(len(b))}
}

func put(t *testing.T, m *member, id cacheapi.ID, b []byte) {
	t.Helper()
	if err := m.Put(t.Context(), id, bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
}

func missing(t *testing.T, m *member, ids ...cacheapi.ID) int {
	t.Helper()
	out, err := m.Missing(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	return len(out)
}

func gc(t *testing.T, m *member) {
	t.Helper()
	if _, err := m.store.GC(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, m *member, id cacheapi.ID) ([]byte, error) {
	t.Helper()
	o, err := m.Open(t.Context(), id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Close() }() // only read
	return io.ReadAll(o)
}

// The same bytes by either function; what was put by one is not put again by the other.
func TestBothFunctions(t *testing.T) {
	for _, n := range []int{0, 1, 40_000, cas.BlockSize + 1} {
		b := castest.Bytes(1, n)
		m := newMember(t)
		put(t, m, sha(b), b)
		for _, id := range []cacheapi.ID{sha(b), b3(b)} {
			if got, err := read(t, m, id); err != nil || !bytes.Equal(got, b) {
				t.Fatalf("%v: %d bytes, %v", id, len(got), err)
			}
		}
		put(t, m, b3(b), b)
		for _, id := range []cacheapi.ID{{Func: cacheapi.SHA256, Hash: sha(b).Hash, Size: int64(n) + 1}, {Func: cacheapi.BLAKE3, Hash: b3(b).Hash, Size: int64(n) + 1}} {
			if missing(t, m, id) != 1 {
				t.Errorf("%v is here, and has another size", id)
			}
		}
	}
}

// C01: bytes that are not what their name says leave nothing, neither under that name nor
// under their own.
func TestC01WrongBytesLeaveNothing(t *testing.T) {
	m := newMember(t)
	b := castest.Bytes(2, 3000)
	for _, id := range []cacheapi.ID{sha([]byte("others")), b3([]byte("others"))} {
		for _, size := range []int64{int64(len(b)), 10, 5000} {
			id.Size = size
			castest.WantKind(t, m.Put(t.Context(), id, bytes.NewReader(b)), forgeyard.Invalid)
			if missing(t, m, id, sha(b), b3(b)) != 3 {
				t.Fatalf("%v: something is here", id)
			}
		}
	}
	castest.WantKind(t, m.PutAny(t.Context(), sha([]byte("others")).Hash, bytes.NewReader(b), -1), forgeyard.Invalid)
	if missing(t, m, b3(b)) != 1 {
		t.Error("something is here")
	}
}

// C08: what a client was told is here outlives a collection; when the promise has run out
// it does not, so the test can fail.
func TestC08MissingKeeps(t *testing.T) {
	m := newMember(t)
	b, other := castest.Bytes(3, 100), castest.Bytes(4, cas.BlockSize+5)
	put(t, m, sha(b), b)
	put(t, m, b3(other), other)
	m.clock.Advance(keep - time.Minute)
	if missing(t, m, sha(b)) != 0 { // touches the one and not the other
		t.Fatal("it is not here")
	}
	m.clock.Advance(keep - time.Minute)
	m.restart(t) // the promise is the node's, not the process's
	gc(t, m)
	if missing(t, m, sha(b)) != 0 || missing(t, m, b3(other)) != 1 {
		t.Fatal("what was touched is gone, or what was not is here")
	}
	m.clock.Advance(keep + 11*time.Minute) // it is kept in steps of ten
	gc(t, m)
	if missing(t, m, sha(b)) != 1 {
		t.Fatal("it is kept longer than was said")
	}
}

// A miss is filled from a member; a member that says false things is found out, named, and
// does not hide one that says true ones. C02.
func TestC02MissesAreFilledFromMembers(t *testing.T) {
	a := newMember(t)
	b, wrong := castest.Bytes(5, cas.BlockSize+77), castest.Bytes(6, cas.BlockSize+77)
	put(t, a, sha(b), b)
	put(t, a, b3(wrong), wrong)
	m := newMember(t, a)
	name := cas.Name{Space: cas.SpaceSHA256, Key: sha(b).Hash}
	m.peers.lies = []cacheapi.Claim{{Binding: cas.Binding{Name: name, Ref: cas.Ref{Digest: cas.Sum(wrong), Size: int64(len(wrong))}}, Provider: "liar"}}
	if missing(t, m, sha(b)) != 1 {
		t.Fatal("what a member has was promised")
	}
	if got, err := read(t, m, sha(b)); err != nil || !bytes.Equal(got, b) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if strings.Join(m.peers.blamed, " ") != "liar" || m.Stats.FalseClaims.Load() != 1 || m.Stats.PeerHits.Load() != 1 {
		t.Fatalf("blamed %v", m.peers.blamed)
	}
	m.peers.cut = true
	if got, err := read(t, m, sha(b)); err != nil || !bytes.Equal(got, b) {
		t.Fatalf("after the cut: %d bytes, %v", len(got), err)
	}
	_, err := read(t, m, sha([]byte("nowhere")))
	castest.WantKind(t, err, forgeyard.NotFound)
}

// result makes an action result with a file, a directory with a file in it, and stdout, all
// of which stand on m.
func result(t *testing.T, m *member) (*repb.ActionResult, map[string][]byte) {
	t.Helper()
	blobs := map[string][]byte{"file": castest.Bytes(7, 500), "inner": castest.Bytes(8, cas.BlockSize+3), "stdout": []byte("made it\n")}
	dig := func(b []byte) *repb.Digest {
		id := sha(b)
		return &repb.Digest{Hash: strings.Fields(id.String())[1][:64], SizeBytes: id.Size}
	}
	tree, err := proto.Marshal(&repb.Tree{Root: &repb.Directory{}, Children: []*repb.Directory{{Files: []*repb.FileNode{{Name: "inner", Digest: dig(blobs["inner"])}}}}})
	if err != nil {
		t.Fatal(err)
	}
	blobs["tree"] = tree
	for _, b := range blobs {
		put(t, m, sha(b), b)
	}
	return &repb.ActionResult{
		OutputFiles:       []*repb.OutputFile{{Path: "out", Digest: dig(blobs["file"])}},
		OutputDirectories: []*repb.OutputDirectory{{Path: "dir", TreeDigest: dig(tree)}},
		StdoutDigest:      dig(blobs["stdout"]),
	}, blobs
}

// C08: a result whose closure is not complete is no result, whichever part is gone; it is
// one again when a member brings the part.
func TestC08ResultNeedsItsClosure(t *testing.T) {
	for _, part := range []string{"file", "inner", "stdout", "tree"} {
		a := newMember(t)
		m := newMember(t, a)
		r, blobs := result(t, m)
		action := cacheapi.ActionKey("", sha([]byte("action")))
		if err := m.SetResult(t.Context(), action, cacheapi.SHA256, r); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Result(t.Context(), action, cacheapi.SHA256); err != nil {
			t.Fatal(err)
		}
		// All but the part are asked for while the clock runs on, and only they are kept.
		m.clock.Advance(keep - time.Minute)
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		if err != nil || missing(t, m, b3(b)) != 0 {
			t.Fatal("the result itself is not here", err)
		}
		for name, b := range blobs {
			if name != part && missing(t, m, sha(b)) != 0 {
				t.Fatal(name, "is gone")
			}
		}
		m.clock.Advance(12 * time.Minute)
		gc(t, m)
		_, err = m.Result(t.Context(), action, cacheapi.SHA256)
		castest.WantKind(t, err, forgeyard.NotFound)
		if m.Stats.Incomplete.Load() == 0 && part != "tree" {
			t.Errorf("without %s it was missed for another reason: %v", part, err)
		}
		put(t, a, sha(blobs[part]), blobs[part])
		if got, err := m.Result(t.Context(), action, cacheapi.SHA256); err != nil || !proto.Equal(got, r) {
			t.Fatalf("a member has %s: %v", part, err)
		}
	}
}

// A result that another member holds comes with all that it names, survives a restart and
// the loss of that member.
func TestResultsComeFromMembers(t *testing.T) {
	a := newMember(t)
	r, blobs := result(t, a)
	action := cacheapi.ActionKey("i", sha([]byte("action")))
	if err := a.SetResult(t.Context(), action, cacheapi.SHA256, r); err != nil {
		t.Fatal(err)
	}
	m := newMember(t, a)
	if _, err := m.Result(t.Context(), cacheapi.ActionKey("", sha([]byte("action"))), cacheapi.SHA256); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Fatalf("another instance's result: %v", err)
	}
	if got, err := m.Result(t.Context(), action, cacheapi.SHA256); err != nil || !proto.Equal(got, r) {
		t.Fatalf("%v %v", got, err)
	}
	m.peers.cut = true
	m.restart(t)
	if got, err := m.Result(t.Context(), action, cacheapi.SHA256); err != nil || !proto.Equal(got, r) {
		t.Fatalf("after a restart: %v %v", got, err)
	}
	for name, b := range blobs {
		if missing(t, m, sha(b)) != 0 {
			t.Errorf("%s did not come along", name)
		}
	}
}

// A result that names what is nowhere is refused, and says what; one from a member that is
// no result at all is blamed on it.
func TestResultsAreChecked(t *testing.T) {
	a := newMember(t)
	m := newMember(t, a)
	r, _ := result(t, m)
	r.OutputFiles = append(r.OutputFiles, &repb.OutputFile{Path: "lost", Digest: &repb.Digest{Hash: strings.Repeat("ab", 32), SizeBytes: 9}})
	action := cacheapi.ActionKey("", sha([]byte("action")))
	err := m.SetResult(t.Context(), action, cacheapi.SHA256, r)
	castest.WantKind(t, err, forgeyard.Conflict)
	if !strings.Contains(err.Error(), strings.Repeat("ab", 32)) {
		t.Error(err)
	}
	r.OutputFiles[1].Digest.Hash = "xyz"
	castest.WantKind(t, m.SetResult(t.Context(), action, cacheapi.SHA256, r), forgeyard.Invalid)

	if err := a.SetValue(t.Context(), action, strings.NewReader("\xff\xff no result"), -1); err != nil {
		t.Fatal(err)
	}
	_, err = m.Result(t.Context(), action, cacheapi.SHA256)
	castest.WantKind(t, err, forgeyard.NotFound)
	if len(m.peers.blamed) != 1 {
		t.Errorf("blamed %v", m.peers.blamed)
	}
}

// C17, RA-199: an upload that was cut goes on where it ended, also in another process, and what the
// status says is never more than what is here.
func TestC17UploadGoesOnAfterARestart(t *testing.T) {
	m := newMember(t)
	b := castest.Bytes(9, 5<<20)
	const name = "uploads/u/blobs/x"
	up, err := m.Begin(name, sha(b), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := up.Write(b[:3<<20]); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Begin(name, sha(b), 0); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Fatalf("two writers: %v", err)
	}
	up.Close()
	m.restart(t)
	n, done, err := m.Committed(t.Context(), name, sha(b))
	if err != nil || done || n != 3<<20 {
		t.Fatalf("%d %v %v", n, done, err)
	}
	_, err = m.Begin(name, sha(b), n+1)
	castest.WantKind(t, err, forgeyard.Invalid)
	if up, err = m.Begin(name, sha(b), n); err != nil {
		t.Fatal(err)
	}
	if _, err := up.Write(b[n:]); err != nil {
		t.Fatal(err)
	}
	if err := up.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	up.Close()
	if got, err := read(t, m, sha(b)); err != nil || !bytes.Equal(got, b) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if n, done, err := m.Committed(t.Context(), name, sha(b)); n != int64(len(b)) || !done || err != nil {
		t.Fatalf("%d %v %v", n, done, err)
	}
	if n, _ := m.Waiting(); n != 0 {
		t.Errorf("%d uploads wait", n)
	}
}

// What stands here from before a power cut may be wrong: then the client begins again
// instead of giving up, and nothing is left of it. Too many bytes end an upload at once.
func TestContinuedUploadThatIsWrong(t *testing.T) {
	m := newMember(t)
	b := castest.Bytes(10, 2<<20)
	up, err := m.Begin("n", sha(b), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := up.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	up.Close()
	if up, err = m.Begin("n", sha(b), 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := up.Write(b[1<<20:]); err != nil {
		t.Fatal(err)
	}
	castest.WantKind(t, up.Finish(t.Context()), forgeyard.Stale)
	up.Close()
	if n, _, err := m.Committed(t.Context(), "n", sha(b)); n != 0 || err != nil {
		t.Errorf("%d bytes are left, %v", n, err)
	}
	if up, err = m.Begin("n", sha(b), 0); err != nil {
		t.Fatal(err)
	}
	_, err = up.Write(append(b, 0))
	castest.WantKind(t, err, forgeyard.Invalid)
	up.Close()
	if n, _ := m.Waiting(); n != 0 {
		t.Errorf("%d uploads wait", n)
	}
}

// Uploads that nobody continued are forgotten, and so are names that nobody used; a name
// that was used stays.
func TestUpkeep(t *testing.T) {
	m := newMember(t)
	up, err := m.Begin("n", sha(castest.Bytes(11, 2<<20)), 0)
	if err != nil {
		t.Fatal(err)
	}
	up.Close()
	old, used := cacheapi.ValueKey("", "old"), cacheapi.ValueKey("", "used")
	for _, k := range []cas.Name{old, used} {
		if err := m.SetValue(t.Context(), k, strings.NewReader("v"), -1); err != nil {
			t.Fatal(err)
		}
	}
	m.clock.Advance(25 * time.Hour)
	if _, err := m.Value(t.Context(), used); err != nil {
		t.Fatal(err)
	}
	if err := m.Upkeep(t.Context(), m.clock.Wall().Add(-2*time.Hour), 0); err != nil {
		t.Fatal(err)
	}
	if n, _ := m.Waiting(); n != 0 {
		t.Errorf("%d uploads wait", n)
	}
	if _, err := m.Value(t.Context(), used); err != nil {
		t.Error(err)
	}
	_, err = m.Value(t.Context(), old)
	castest.WantKind(t, err, forgeyard.NotFound)
}

// A value that looks like a result keeps a result's promise; ccache's own do not look so.
func TestValues(t *testing.T) {
	m := newMember(t)
	r, _ := result(t, newMember(t)) // its blobs are elsewhere
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	k := cacheapi.ValueKey("", "ac/1")
	if err := m.SetValue(t.Context(), k, bytes.NewReader(b), int64(len(b))); err != nil {
		t.Fatal(err)
	}
	_, err = m.Value(t.Context(), k)
	castest.WantKind(t, err, forgeyard.NotFound)
	for _, v := range []string{"", "cCrS\x00\x01 ccache", "PK\x03\x04 sccache", "go1 00ff 3 4\n", string(b) + "x"} {
		if _, ok := cacheapi.LooksLikeResult([]byte(v)); ok {
			t.Errorf("%q looks like a result", v)
		}
		if err := m.SetValue(t.Context(), k, strings.NewReader(v), int64(len(v))); err != nil {
			t.Fatal(err)
		}
		o, err := m.Value(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(o); err != nil || string(got) != v {
			t.Errorf("%q, was %q, %v", got, v, err)
		}
	}
	castest.WantKind(t, m.SetValue(t.Context(), k, strings.NewReader("abc"), 4), forgeyard.Invalid)

	out := castest.Bytes(12, 30)
	put(t, m, b3(out), out)
	if b, err = proto.Marshal(&repb.ActionResult{OutputFiles: []*repb.OutputFile{{Path: "o", Digest: &repb.Digest{Hash: cas.Sum(out).Hex(), SizeBytes: 30}}}}); err != nil {
		t.Fatal(err)
	}
	if err := m.SetValue(t.Context(), k, bytes.NewReader(b), -1); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Value(t.Context(), k); err != nil {
		t.Errorf("a result in BLAKE3: %v", err)
	}
}
