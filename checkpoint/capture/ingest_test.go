//go:build unix

package capture_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
)

const attempt = forgeyard.AttemptID("01J0000000000000000000000A")

const secret = "hunter2-correct-horse" // of no system: only looked for

func expect(t testing.TB) capture.Expect {
	c, err := checkpoint.NewContract(job.Resume{Mode: job.ResumeApplication, Checkpoint: job.CheckpointDecl{Files: []string{"state/", "cursor"}, MaxBytes: 8 << 20}}, checkpoint.Limits{MaxFiles: 20})
	if err != nil {
		t.Fatal(err)
	}
	return capture.Expect{
		Authority: forgeyard.Authority{Job: "01J0000000000000000000000J", Attempt: attempt, Spec: cas.Sum([]byte("spec")), Runner: "01J0000000000000000000000R", Fence: forgeyard.Fence{Incarnation: 1, Epoch: 2}},
		Contract:  c, Secrets: [][]byte{[]byte(secret + "\n"), []byte("abc")},
	}
}

// slot is a sealed directory as a program makes it.
type slot struct {
	t      *testing.T
	dir    string
	marker checkpoint.Marker
}

func newSlot(t *testing.T, files map[string]string) *slot {
	s := &slot{t: t, dir: filepath.Join(t.TempDir(), "000005"), marker: checkpoint.Marker{
		V: 1, Attempt: attempt, Epoch: 2, Seq: 5, Mode: job.ResumeApplication, Consistency: checkpoint.Application, Quiesced: true,
	}}
	must(t, os.Mkdir(s.dir, 0o755))
	for p, content := range files {
		s.write(p, content)
		s.marker.Files = append(s.marker.Files, checkpoint.File{Path: p, Size: int64(len(content)), BLAKE3: cas.Sum([]byte(content)), Mode: 0o644})
	}
	s.seal()
	return s
}

func (s *slot) seal() { s.write(checkpoint.MarkerName, string(s.marker.Encode())) }

func (s *slot) write(p, content string) {
	p = filepath.Join(s.dir, p)
	must(s.t, os.MkdirAll(filepath.Dir(p), 0o755))
	must(s.t, os.WriteFile(p, []byte(content), 0o644))
}

// place is where a test restores to; what is read-only there is removed at its end.
func place(t *testing.T) string {
	dst := filepath.Join(t.TempDir(), "restore")
	t.Cleanup(func() { must(t, tree.Remove(dst)) })
	return dst
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var large = strings.Repeat("0123456789abcdef", 3<<16) // 3 MiB: more than one block

func payload() map[string]string {
	return map[string]string{"a": "alpha", "d/e/b": "beta", "d/large": large, "empty": ""}
}

// From a sealed directory to the same files elsewhere (CK-009): payload, marker and manifest are
// objects of the store by their digests, and the log needs no more than those (CK-052, CK-085,
// CK-086, CK-087). Where it is restored nobody writes, and nothing is mixed into what is there.
func TestSealedRoundTrip(t *testing.T) {
	s, store := newSlot(t, payload()), newMemory()
	must(t, os.Chmod(filepath.Join(s.dir, "a"), 0o755))
	s.marker.Files = nil
	for p, c := range payload() {
		mode := checkpoint.FileMode(0o644)
		if p == "a" {
			mode = 0o755
		}
		s.marker.Files = append(s.marker.Files, checkpoint.File{Path: p, Size: int64(len(c)), BLAKE3: cas.Sum([]byte(c)), Mode: mode})
	}
	s.seal()
	must(t, os.Mkdir(filepath.Join(s.dir, "hollow"), 0o755))
	g, err := capture.IngestSealed(t.Context(), store, s.dir, expect(t))
	must(t, err)
	if g.Manifest.Files != 4 || g.Manifest.Bytes != int64(9+len(large)) || g.Manifest.Epoch != 2 || g.Manifest.Seq != 5 || len(g.Blobs) != 2 || len(g.Trees) != 1 {
		t.Fatalf("%+v", g)
	}
	if p := store.pins[g.Owner]; len(p.Trees) != 1 || p.Trees[0] != g.Payload || len(p.Roots) != 2 {
		t.Fatalf("pin %+v", p)
	}
	// The same again is the same checkpoint: nothing of time or chance is in it.
	again, err := capture.IngestSealed(t.Context(), newMemory(), s.dir, expect(t))
	must(t, err)
	if again.ID != g.ID {
		t.Fatalf("one payload, two identities: %s and %s", g.ID, again.ID)
	}
	m, err := capture.LoadManifest(t.Context(), store, g.ID)
	must(t, err)
	dst := place(t)
	must(t, capture.Restore(t.Context(), store, m, dst))
	for p, want := range payload() {
		b, err := os.ReadFile(filepath.Join(dst, p))
		if err != nil || string(b) != want {
			t.Errorf("%s: %d bytes, %v", p, len(b), err)
		}
	}
	for p, want := range map[string]fs.FileMode{".": 0o555, "a": 0o555, "d/e/b": 0o444, "hollow": 0o555} {
		if info, err := os.Stat(filepath.Join(dst, p)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v, %v", p, info.Mode(), want, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dst, checkpoint.MarkerName)); err == nil {
		t.Error("the marker was restored into the payload")
	}
	if err := capture.Restore(t.Context(), store, m, dst); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("a second restore over the first: %v", err)
	}
}

// Each is one thing wrong with a sealed directory. What is not whole, or not what was promised, is
// no checkpoint (CK-088, CK-294, CK-295, CK-329), and nothing of it is kept.
func TestSealedRefuses(t *testing.T) {
	type in struct {
		edit func(t *testing.T, s *slot, e *capture.Expect)
		want checkpoint.Code
	}
	at := func(s *slot, p string) string { return filepath.Join(s.dir, p) }
	remark := func(f func(m *checkpoint.Marker)) func(*testing.T, *slot, *capture.Expect) {
		return func(_ *testing.T, s *slot, _ *capture.Expect) { f(&s.marker); s.seal() }
	}
	for name, c := range map[string]in{
		"K04 extra file":  {func(_ *testing.T, s *slot, _ *capture.Expect) { s.write("d/old", "of an abandoned upload") }, checkpoint.CodeExtra},
		"K04 slot reused": {func(_ *testing.T, _ *slot, e *capture.Expect) { e.LastSeq = 5 }, checkpoint.CodeSlot},
		"no marker":       {func(t *testing.T, s *slot, _ *capture.Expect) { must(t, os.Remove(at(s, checkpoint.MarkerName))) }, checkpoint.CodeNoMarker},
		"broken marker":   {func(_ *testing.T, s *slot, _ *capture.Expect) { s.write(checkpoint.MarkerName, "{") }, checkpoint.CodeBadMarker},
		"missing file":    {func(t *testing.T, s *slot, _ *capture.Expect) { must(t, os.Remove(at(s, "a"))) }, checkpoint.CodeMissing},
		"shorter":         {func(t *testing.T, s *slot, _ *capture.Expect) { s.write("a", "alph") }, checkpoint.CodeSize},
		"other bytes":     {func(t *testing.T, s *slot, _ *capture.Expect) { s.write("a", "alphA") }, checkpoint.CodeDigest},
		"older epoch":     {remark(func(m *checkpoint.Marker) { m.Epoch = 1 }), checkpoint.CodeStaleEpoch},
		"other attempt":   {remark(func(m *checkpoint.Marker) { m.Attempt = "01J0000000000000000000001A" }), checkpoint.CodeAttempt},
		"other slot":      {remark(func(m *checkpoint.Marker) { m.Seq = 6 }), checkpoint.CodeWrongSlot},
		"not quiesced":    {remark(func(m *checkpoint.Marker) { m.Quiesced, m.Consistency = false, checkpoint.Crash }), checkpoint.CodeConsistency},
		"effects open":    {remark(func(m *checkpoint.Marker) { m.EffectsOpen = []string{"publish"} }), checkpoint.CodeEffects},
		"too many bytes":  {func(_ *testing.T, _ *slot, e *capture.Expect) { e.Contract.MaxBytes = 1 << 20 }, checkpoint.CodeBytes},
		"too many files":  {func(_ *testing.T, _ *slot, e *capture.Expect) { e.Contract.MaxFiles = 3 }, checkpoint.CodeFiles},
		"symlink":         {func(t *testing.T, s *slot, _ *capture.Expect) { must(t, os.Symlink("a", at(s, "l"))) }, checkpoint.CodeIrregular},
		"symlink for a file": {func(t *testing.T, s *slot, _ *capture.Expect) {
			must(t, os.Remove(at(s, "a")))
			must(t, os.Symlink("/etc/passwd", at(s, "a")))
		}, checkpoint.CodeIrregular},
		"symlink for a dir": {func(t *testing.T, s *slot, _ *capture.Expect) {
			must(t, os.RemoveAll(at(s, "d")))
			must(t, os.Symlink("/etc", at(s, "d")))
		}, checkpoint.CodeIrregular},
		"symlink for marker": {func(t *testing.T, s *slot, _ *capture.Expect) {
			must(t, os.Rename(at(s, checkpoint.MarkerName), at(s, "../m")))
			must(t, os.Symlink("../m", at(s, checkpoint.MarkerName)))
		}, checkpoint.CodeIrregular},
		"symlink for slot": {func(t *testing.T, s *slot, _ *capture.Expect) {
			must(t, os.Rename(s.dir, s.dir+"x"))
			must(t, os.Symlink(s.dir+"x", s.dir))
		}, checkpoint.CodeIrregular},
		"hard link": {func(t *testing.T, s *slot, _ *capture.Expect) { must(t, os.Link(at(s, "a"), at(s, "../outside"))) }, checkpoint.CodeIrregular},
		"pipe":      {func(t *testing.T, s *slot, _ *capture.Expect) { must(t, syscall.Mkfifo(at(s, "p"), 0o644)) }, checkpoint.CodeIrregular},
		"pipe for marker": {func(t *testing.T, s *slot, _ *capture.Expect) {
			must(t, os.Remove(at(s, checkpoint.MarkerName)))
			must(t, syscall.Mkfifo(at(s, checkpoint.MarkerName), 0o644))
		}, checkpoint.CodeIrregular},
		"name not UTF-8":       {func(_ *testing.T, s *slot, _ *capture.Expect) { s.write("\xff", "") }, checkpoint.CodeIrregular},
		"K16 secret in a file": {func(_ *testing.T, s *slot, _ *capture.Expect) { s.put("conf", "token="+secret+"\n") }, checkpoint.CodeSecret},
		"K16 across two reads": {func(_ *testing.T, s *slot, _ *capture.Expect) {
			s.put("big", strings.Repeat("x", 32<<10-4)+secret+strings.Repeat("y", 100))
		}, checkpoint.CodeSecret},
		"K16 secret in a name":  {func(_ *testing.T, s *slot, _ *capture.Expect) { s.put(secret, "x") }, checkpoint.CodeSecret},
		"K16 dir with a secret": {func(t *testing.T, s *slot, _ *capture.Expect) { must(t, os.Mkdir(at(s, secret), 0o755)) }, checkpoint.CodeSecret},
		"K16 in the marker":     {remark(func(m *checkpoint.Marker) { m.Progress.Unit = secret }), checkpoint.CodeSecret},
	} {
		t.Run(name, func(t *testing.T) {
			s, store, e := newSlot(t, payload()), newMemory(), expect(t)
			c.edit(t, s, &e)
			g, err := capture.IngestSealed(t.Context(), store, s.dir, e)
			f, ok := checkpoint.FindingOf(err)
			if !ok || f.Code != c.want || f.Verdict.Usable() {
				t.Fatalf("finding %v, want %q; error %v; %v", f, c.want, err, g.ID)
			}
			if len(store.pins)+len(store.held) != 0 {
				t.Errorf("something stayed pinned: %v %v", store.pins, store.held)
			}
			if store.contains(secret) || strings.Contains(err.Error(), secret) {
				t.Error("the secret is in the store or in the error")
			}
		})
	}
}

// put adds a file to the payload and to the marker.
func (s *slot) put(p, content string) {
	s.write(p, content)
	s.marker.Files = append(s.marker.Files, checkpoint.File{Path: p, Size: int64(len(content)), BLAKE3: cas.Sum([]byte(content)), Mode: 0o644})
	s.seal()
}

// TestSealedChangesUnderway: a program that goes on writing while its slot is read gets
// either what the marker says, or a refusal; never another payload.
func TestSealedChangesUnderway(t *testing.T) {
	for name, attack := range map[string]func(t *testing.T, dir string){
		"rewrite": func(t *testing.T, dir string) { must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("ALPHA"), 0o644)) },
		"grow": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("alphaalpha"), 0o644))
		},
		"replace": func(t *testing.T, dir string) {
			swap(t, dir, func(p string) error { return os.WriteFile(p, []byte("alpha"), 0o644) })
		},
		"pipe": func(t *testing.T, dir string) { swap(t, dir, func(p string) error { return syscall.Mkfifo(p, 0o644) }) },
		"link outside": func(t *testing.T, dir string) {
			swap(t, dir, func(p string) error { return os.Symlink("/etc/hostname", p) })
		},
		"gone": func(t *testing.T, dir string) { swap(t, dir, func(string) error { return nil }) },
		"remark": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, checkpoint.MarkerName), []byte("{}"), 0o644))
		},
		"extra": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "late"), []byte("late"), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, store := newSlot(t, map[string]string{"a": "alpha"}), newMemory()
			done := false
			store.onPut = func() {
				if !done {
					done = true
					attack(t, s.dir)
				}
			}
			g, err := capture.IngestSealed(t.Context(), store, s.dir, expect(t))
			if err != nil {
				if f, ok := checkpoint.FindingOf(err); !ok {
					t.Fatalf("no finding: %v (%v)", err, f)
				}
				return
			}
			dst := place(t)
			must(t, capture.Restore(t.Context(), store, g.Manifest, dst))
			if b, _ := os.ReadFile(filepath.Join(dst, "a")); string(b) != "alpha" {
				t.Fatalf("accepted %q", b)
			}
			if names, _ := filepath.Glob(dst + "/*"); len(names) != 1 {
				t.Fatalf("accepted %v", names)
			}
		})
	}
}

func swap(t *testing.T, dir string, f func(string) error) {
	p := filepath.Join(dir, "a")
	must(t, os.Remove(p))
	must(t, f(p))
}

// TestIngestFaultIsOurs: a full disk or a cancelled call says nothing of the checkpoint, and
// what was stored of it by then is kept by nothing (CK-090).
func TestIngestFaultIsOurs(t *testing.T) {
	s, store := newSlot(t, payload()), newMemory()
	store.fail = forgeyard.Errorf("put", forgeyard.NoSpace, "0 bytes are free")
	_, err := capture.IngestSealed(t.Context(), store, s.dir, expect(t))
	if f, ok := checkpoint.FindingOf(err); ok || f.Verdict != checkpoint.Unknown || forgeyard.KindOf(err) != forgeyard.NoSpace {
		t.Errorf("%v, %v", f, err)
	}
	store.fail = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = capture.IngestSealed(ctx, store, s.dir, expect(t)); !errors.Is(err, context.Canceled) || len(store.held) != 0 {
		t.Errorf("%v, held %v", err, store.held)
	}
	if _, err = capture.IngestSealed(t.Context(), store, s.dir, expect(t)); err != nil {
		t.Errorf("the same call, made again: %v", err)
	}
}

// A program that ended for its checkpoint: its declared files, and not the one beside them
// that has a secret; a secret in what is declared refuses it (CK-186).
func TestExit(t *testing.T) {
	build, store, e := t.TempDir(), newMemory(), expect(t)
	for p, c := range map[string]string{"state/x": "one", "state/sub/y": large, "cursor": "7", "not-declared": secret} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(build, p)), 0o755))
		must(t, os.WriteFile(filepath.Join(build, p), []byte(c), 0o644))
	}
	e.LastSeq, e.Progress = 3, checkpoint.Progress{Done: 7, Total: 9}
	g, err := capture.IngestExit(t.Context(), store, build, e)
	must(t, err)
	if g.Marker.Seq != 4 || !g.Marker.Quiesced || g.Marker.Consistency != checkpoint.Application || g.Manifest.Files != 3 || g.Manifest.Progress.Done != 7 {
		t.Fatalf("%+v", g.Marker)
	}
	if store.contains(secret) {
		t.Error("a file that was not declared was taken")
	}
	dst := place(t)
	must(t, capture.Restore(t.Context(), store, g.Manifest, dst))
	if b, err := os.ReadFile(filepath.Join(dst, "state/sub/y")); err != nil || string(b) != large {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	for name, c := range map[string]struct {
		edit func()
		want checkpoint.Code
	}{
		"K16":     {func() { must(t, os.WriteFile(filepath.Join(build, "state/x"), []byte(secret), 0o644)) }, checkpoint.CodeSecret},
		"link":    {func() { must(t, os.Symlink("/etc/passwd", filepath.Join(build, "state/l"))) }, checkpoint.CodeIrregular},
		"missing": {func() { must(t, os.Remove(filepath.Join(build, "cursor"))) }, checkpoint.CodeMissing},
		"state is a link": {func() {
			must(t, os.RemoveAll(filepath.Join(build, "state")))
			must(t, os.Symlink("/etc", filepath.Join(build, "state")))
			must(t, os.WriteFile(filepath.Join(build, "cursor"), []byte("7"), 0o644))
		}, checkpoint.CodeIrregular},
		"empty": {func() {
			must(t, os.Remove(filepath.Join(build, "state")))
			must(t, os.Mkdir(filepath.Join(build, "state"), 0o755))
			must(t, os.Remove(filepath.Join(build, "cursor")))
			must(t, os.Mkdir(filepath.Join(build, "cursor"), 0o755))
		}, checkpoint.CodeEmpty},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, os.RemoveAll(filepath.Join(build, "state")))
			must(t, os.RemoveAll(filepath.Join(build, "cursor")))
			must(t, os.Mkdir(filepath.Join(build, "state"), 0o755))
			must(t, os.WriteFile(filepath.Join(build, "cursor"), []byte("7"), 0o644))
			c.edit()
			if _, err := capture.IngestExit(t.Context(), store, build, e); err == nil {
				t.Fatal("accepted")
			} else if f, ok := checkpoint.FindingOf(err); !ok || f.Code != c.want {
				t.Fatalf("%v, want %s (%v)", f, c.want, err)
			}
		})
	}
}

// TestRestoreK01: a flipped byte gives Corrupt and no directory at all, and the history
// then leads to the checkpoint before. What is selected is validated, byte for byte, before
// it is materialised (CK-137, CK-138, CK-141).
func TestRestoreK01(t *testing.T) {
	store, e := newMemory(), expect(t)
	var history []checkpoint.Commit
	var last capture.Ingested
	for seq := range 2 {
		build := t.TempDir()
		must(t, os.Mkdir(filepath.Join(build, "state"), 0o755))
		must(t, os.WriteFile(filepath.Join(build, "state/x"), bytes.Repeat([]byte{byte('0' + seq)}, 2<<20), 0o644))
		must(t, os.WriteFile(filepath.Join(build, "cursor"), []byte("same"), 0o644))
		e.LastSeq = seq
		g, err := capture.IngestExit(t.Context(), store, build, e)
		must(t, err)
		history, err = checkpoint.Record(history, g.Commit(1, nil))
		must(t, err)
		last = g
	}
	for _, f := range last.Marker.Files {
		if f.Path == "state/x" {
			store.flip(t, f.BLAKE3)
		}
	}
	dst := place(t)
	dir := filepath.Dir(dst)
	tries := 0
	for best, ok, _ := checkpoint.Select(history); ok; best, ok, _ = checkpoint.Select(history) {
		if tries++; tries > 2 {
			t.Fatal("more than one try of each")
		}
		m, err := capture.LoadManifest(t.Context(), store, best.Manifest)
		must(t, err)
		err = capture.Restore(t.Context(), store, m, dst)
		if err == nil {
			break
		}
		if left, _ := os.ReadDir(dir); forgeyard.KindOf(err) != forgeyard.Corrupt || len(left) != 0 {
			t.Fatalf("%v; left behind: %v", err, left)
		}
		history, err = checkpoint.Quarantine(history, best.Manifest, err.Error())
		must(t, err)
	}
	if b, err := os.ReadFile(filepath.Join(dst, "state/x")); err != nil || b[0] != '0' || tries != 2 {
		t.Fatalf("restored %q after %d tries, %v", b[:1], tries, err)
	}
}

// misnaming gives one object for another, as a store whose index is wrong.
type misnaming struct {
	*memory
	is map[forgeyard.Digest]forgeyard.Digest
}

func (s misnaming) Open(ctx context.Context, d forgeyard.Digest) (cas.Object, error) {
	if other, ok := s.is[d]; ok {
		d = other
	}
	return s.memory.Open(ctx, d)
}

// CK-097: a manifest is read by its digest, and one that has another, or does not verify, is none.
func TestManifestIsThatOfItsName(t *testing.T) {
	s, store := newSlot(t, payload()), newMemory()
	g, err := capture.IngestSealed(t.Context(), store, s.dir, expect(t))
	must(t, err)
	s.marker.Progress.Done++
	s.seal()
	other, err := capture.IngestSealed(t.Context(), store, s.dir, expect(t))
	must(t, err)
	if _, err := capture.LoadManifest(t.Context(), misnaming{store, map[forgeyard.Digest]forgeyard.Digest{g.ID: other.ID}}, g.ID); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("another manifest: %v", err)
	}
	store.flip(t, g.ID)
	if _, err := capture.LoadManifest(t.Context(), store, g.ID); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("a flipped byte: %v", err)
	}
}

// TestRestoreRefusesLies (CK-098): a manifest that understates its payload, or a payload with a
// link in it, fills no disk and leads nowhere.
func TestRestoreRefusesLies(t *testing.T) {
	s, store := newSlot(t, payload()), newMemory()
	g, err := capture.IngestSealed(t.Context(), store, s.dir, expect(t))
	must(t, err)
	lies := cas.Tree{Entries: []cas.Entry{{Name: "l", Kind: cas.Symlink, Target: "x"}}}
	b, err := lies.Encode()
	must(t, err)
	ref, err := store.Put(t.Context(), bytes.NewReader(b), cas.PutOptions{})
	must(t, err)
	for name, edit := range map[string]func(m *checkpoint.Manifest){
		"fewer bytes": func(m *checkpoint.Manifest) { m.Bytes-- },
		"more bytes":  func(m *checkpoint.Manifest) { m.Bytes++ },
		"fewer files": func(m *checkpoint.Manifest) { m.Files-- },
		"more files":  func(m *checkpoint.Manifest) { m.Files++ },
		"a link":      func(m *checkpoint.Manifest) { m.Payload = ref.Digest },
		"no tree":     func(m *checkpoint.Manifest) { m.Payload = m.Marker },
	} {
		m := g.Manifest
		edit(&m)
		dir := t.TempDir()
		err := capture.Restore(t.Context(), store, m, filepath.Join(dir, "r"))
		if left, _ := os.ReadDir(dir); forgeyard.KindOf(err) != forgeyard.Corrupt || len(left) != 0 {
			t.Errorf("%s: %v; left behind: %v", name, err, left)
		}
	}
}

// CK-379: what the store gets has no secret's value in it.
func TestSecretsAreLookedFor(t *testing.T) {
	const named = "the values that were resolved are forgotten"
	kept := func(fault bool) bool {
		store, e := newMemory(), expect(t)
		if fault {
			e.Secrets = nil
		}
		_, err := capture.IngestSealed(t.Context(), store, newSlot(t, map[string]string{"state": "token=" + secret}).dir, e)
		if (err == nil) != fault {
			t.Errorf("with the fault %v: %v", fault, err)
		}
		return store.contains(secret)
	}
	if kept(false) {
		t.Error("the store has the secret")
	}
	// Of a large file nothing is stored before all of it was looked through.
	store, e := newMemory(), expect(t)
	e.Pieces = true
	s := newSlot(t, map[string]string{"state": "begins so" + strings.Repeat("0123456789", 1<<20) + secret})
	if _, err := capture.IngestSealed(t.Context(), store, s.dir, e); err == nil || store.contains("begins so") {
		t.Errorf("%v, and the store has a part of it: %v", err, store.contains("begins so"))
	}
	if !kept(true) {
		t.Errorf("it is not seen that %s", named)
	}
}
