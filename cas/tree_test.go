package cas_test

import (
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

func file(name, content string) cas.Entry {
	return cas.Entry{Name: name, Kind: cas.File, Size: int64(len(content)), Digest: cas.Sum([]byte(content))}
}

func TestTreeRoundTripIsCanonical(t *testing.T) {
	tr := cas.Tree{Entries: []cas.Entry{
		file("b", "x"), file("a", ""), file("é", "yy"), file("B", "z"),
		{Name: "run.sh", Kind: cas.File, Exec: true, Size: 2, Digest: cas.Sum([]byte("#!"))},
		{Name: "big", Kind: cas.File, Size: cas.BlockSize + 1, Digest: cas.Sum([]byte("w")), Manifest: cas.Sum([]byte("m"))},
		{Name: "dir", Kind: cas.Dir, Size: 30, Digest: cas.Sum([]byte("t"))},
		{Name: "link", Kind: cas.Symlink, Target: "../x"},
	}}
	tr.Sort()
	enc, err := tr.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := cas.DecodeTree(enc)
	if err != nil {
		t.Fatal(err)
	}
	again, err := got.Encode()
	if err != nil || string(again) != string(enc) {
		t.Fatalf("%v: not the same bytes again", err)
	}
	if got.Entries[0].Name != "B" || got.Entries[len(got.Entries)-1].Name != "é" {
		t.Fatalf("order is not by bytes: %v", got.Entries)
	}
	empty, err := cas.Tree{}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cas.DecodeTree(empty); err != nil {
		t.Fatalf("the empty directory: %v", err)
	}
}

// The encoding is a promise: these names must never change.
func TestTreeAndManifestNamesAreFixed(t *testing.T) {
	enc, err := cas.Tree{Entries: []cas.Entry{file("a", "x"), {Name: "l", Kind: cas.Symlink, Target: "a"}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cas.Sum(enc).String(), "b3:3f9689a396d039198a86ef16cfd214d5069b92e27e389ec3c0c29e1f1507967a"; got != want {
		t.Errorf("tree is named %s, was %s", got, want)
	}
	b := cas.NewManifestBuilder()
	if _, err := b.Write(make([]byte, 2*cas.BlockSize+5)); err != nil {
		t.Fatal(err)
	}
	ref, _, _, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ref.Manifest.String(), "b3:9a81961172d8b8f5ec8abc08724b6c915705b37029ddee2ff1886a2f368a6a66"; got != want {
		t.Errorf("manifest is named %s, was %s", got, want)
	}
}

func TestTreeRefuses(t *testing.T) {
	ok := file("a", "x")
	with := func(f func(*cas.Entry)) []cas.Entry { e := ok; f(&e); return []cas.Entry{e} }
	for name, es := range map[string][]cas.Entry{
		"dot":                with(func(e *cas.Entry) { e.Name = "." }),
		"dotdot":             with(func(e *cas.Entry) { e.Name = ".." }),
		"empty name":         with(func(e *cas.Entry) { e.Name = "" }),
		"slash":              with(func(e *cas.Entry) { e.Name = "a/b" }),
		"NUL":                with(func(e *cas.Entry) { e.Name = "a\x00" }),
		"not UTF-8":          with(func(e *cas.Entry) { e.Name = "a\xff" }),
		"long name":          with(func(e *cas.Entry) { e.Name = strings.Repeat("n", 256) }),
		"no digest":          with(func(e *cas.Entry) { e.Digest = forgeyard.Digest{} }),
		"negative size":      with(func(e *cas.Entry) { e.Size = -1 }),
		"zero, not empty":    with(func(e *cas.Entry) { e.Size = 0 }),
		"large, no manifest": with(func(e *cas.Entry) { e.Size = cas.BlockSize + 1 }),
		"small, manifest":    with(func(e *cas.Entry) { e.Manifest = ok.Digest }),
		"file with target":   with(func(e *cas.Entry) { e.Target = "b" }),
		"unknown kind":       with(func(e *cas.Entry) { e.Kind = 9 }),
		"exec dir":           with(func(e *cas.Entry) { e.Kind, e.Exec = cas.Dir, true }),
		"link with size":     with(func(e *cas.Entry) { e.Kind, e.Target = cas.Symlink, "b" }),
		"twice":              {ok, ok},
		"out of order":       {file("b", "x"), ok},
	} {
		if _, err := (cas.Tree{Entries: es}).Encode(); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (cas.Tree{Entries: make([]cas.Entry, cas.MaxTreeEntries+1)}).Encode(); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("too many: %v", err)
	}
}

func TestValidateTarget(t *testing.T) {
	for _, c := range []struct {
		dir, target string
		ok          bool
	}{
		{"", "a", true}, {"", "a/b", true}, {"", ".", true}, {"", "./a//b/", true},
		{"", "..", false}, {"", "../a", false}, {"a", "../b", true}, {"a", "../..", false},
		{"a/b", "../../c", true}, {"a/b", "./../../c", true}, {"a/b", "../../../c", false},
		{"", "/etc/passwd", false}, {"", "", false}, {"", "a\x00b", false}, {"", "a\xffb", false},
		// d may be a link to a less deep place, so what follows it cannot be judged.
		{"a/b", "c/../d", false}, {"a/b", "../c/..", false},
		{"a", "..a/...", true}, {"a", strings.Repeat("x/", 3000), false},
	} {
		err := cas.ValidateTarget(c.dir, c.target)
		if (err == nil) != c.ok || (err != nil && forgeyard.KindOf(err) != forgeyard.Invalid) {
			t.Errorf("in %q to %q: %v", c.dir, forgeyard.Clip(c.target, 20), err)
		}
	}
}

func FuzzDecodeTree(f *testing.F) {
	tr := cas.Tree{Entries: []cas.Entry{file("a", "x"), {Name: "l", Kind: cas.Symlink, Target: "a"}}}
	enc, _ := tr.Encode()
	f.Add(enc)
	f.Add([]byte{0xa2, 0, 0x60, 1, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := cas.DecodeTree(b)
		if err != nil {
			if k := forgeyard.KindOf(err); k != forgeyard.Invalid && k != forgeyard.Limit {
				t.Fatalf("kind %v: %v", k, err)
			}
			return
		}
		again, err := got.Encode()
		if err != nil || string(again) != string(b) {
			t.Fatalf("decoded, yet encodes otherwise: %v", err)
		}
	})
}
