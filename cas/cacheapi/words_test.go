package cacheapi_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

var hashOfA = hex.EncodeToString(func() []byte { id := sha([]byte("a")); return id.Hash[:] }())

func TestResourceNames(t *testing.T) {
	for name, want := range map[string]cacheapi.Resource{
		"blobs/" + hashOfA + "/1":                 {ID: sha([]byte("a"))},
		"a/b/blobs/" + hashOfA + "/1":             {Instance: "a/b", ID: sha([]byte("a"))},
		"uploads/u-1/blobs/" + hashOfA + "/1":     {Upload: "u-1", ID: sha([]byte("a"))},
		"compressed-blobs/zstd/" + hashOfA + "/1": {Zstd: true, ID: sha([]byte("a"))},
		"i/uploads/u/compressed-blobs/zstd/blake3/" + cas.Sum([]byte("a")).Hex() + "/1/m": {Instance: "i", Upload: "u", Zstd: true, ID: b3([]byte("a"))},
		"i/uploads/u/blobs/" + hashOfA + "/1/and/all":                                     {Instance: "i", Upload: "u", ID: sha([]byte("a"))},
		"blobs/blake3/" + cas.Sum([]byte("a")).Hex() + "/1":                               {ID: b3([]byte("a"))},
		"blobs/" + cas.Empty().Hex() + "/1":                                               {ID: cacheapi.ID{Func: cacheapi.SHA256, Hash: cas.Empty(), Size: 1}},
	} {
		if got, err := cacheapi.ParseResource(name); err != nil || got != want {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
	for _, name := range []string{
		"", "/", "blobs", "/blobs/" + hashOfA + "/1", "blobs/" + hashOfA, "blobs/" + hashOfA + "/1/more", "blobs/" + hashOfA + "/01", "blobs/" + hashOfA + "/-1",
		"blobs/" + hashOfA + "/99999999999999", "blobs/" + hashOfA[1:] + "/1", "blobs/" + strings.ToUpper(hashOfA) + "/1", "uploads/blobs/" + hashOfA + "/1",
		"a//blobs/" + hashOfA + "/1", "../blobs/" + hashOfA + "/1", "compressed-blobs/deflate/" + hashOfA + "/1", "compressed-blobs/zstd", "compressed-blobs", "compressed-blobs/" + hashOfA + "/1", "blobs/md5/" + hashOfA + "/1",
		"blobs/" + hashOfA + "/0", "uploads//blobs/" + hashOfA + "/1", strings.Repeat("a/", 600) + "blobs/" + hashOfA + "/1",
	} {
		if got, err := cacheapi.ParseResource(name); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%q: %+v %v", name, got, err)
		}
	}
}

// What is taken apart is what a client would put together.
func FuzzResourceName(f *testing.F) {
	f.Add("i/uploads/u/blobs/blake3/" + hashOfA + "/7")
	f.Add("blobs/" + hashOfA + "/1")
	f.Add("compressed-blobs/zstd/" + hashOfA + "/1")
	f.Fuzz(func(t *testing.T, name string) {
		r, err := cacheapi.ParseResource(name)
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.Invalid {
				t.Fatal(err)
			}
			return
		}
		again := ""
		if r.Instance != "" {
			again = r.Instance + "/"
		}
		if r.Upload != "" {
			again += "uploads/" + r.Upload + "/"
		}
		if r.Zstd {
			again += "compressed-blobs/zstd/"
		} else {
			again += "blobs/"
		}
		if r.ID.Func == cacheapi.BLAKE3 {
			again += "blake3/"
		}
		again += fmt.Sprintf("%x/%d", r.ID.Hash, r.ID.Size)
		if name != again && !(r.Upload != "" && strings.HasPrefix(name, again+"/")) {
			t.Fatalf("%q became %q", name, again)
		}
	})
}

// A digest is refused or is written as it came.
func FuzzDigest(f *testing.F) {
	f.Add(byte(1), hashOfA, int64(1))
	f.Add(byte(2), cas.Empty().Hex(), int64(0))
	f.Fuzz(func(t *testing.T, fn byte, hash string, size int64) {
		id, err := cacheapi.ParseID(cacheapi.Function(fn), hash, size)
		if err != nil {
			return
		}
		if id.String() != fmt.Sprintf("%v %s/%d", cacheapi.Function(fn), hash, size) || size < 0 || (size == 0) != id.Empty() {
			t.Fatalf("%q %d became %v", hash, size, id)
		}
	})
}

// A result that is taken has only digests that can be, and is the same when it is written
// again.
func FuzzResult(f *testing.F) {
	f.Add([]byte{}, byte(1))
	f.Add([]byte("\x12\x48\x0a\x01o\x12\x44\x0a\x40"+hashOfA+"\x10\x01"), byte(1))
	f.Fuzz(func(t *testing.T, b []byte, fn byte) {
		r, err := cacheapi.DecodeResult(b, cacheapi.Function(fn))
		if err != nil {
			return
		}
		again, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cacheapi.DecodeResult(again, cacheapi.Function(fn)); err != nil {
			t.Fatal(err)
		}
	})
}

// Names stand in stores and are asked for by members of other versions: these never change.
func TestKeysOfVersion1(t *testing.T) {
	for want, n := range map[string]cas.Name{
		"2 f08a9f156c90a4d9e4a34945e65208d5f6e050f8aec57956f4ea4a26400994bc": cacheapi.ActionKey("", sha([]byte("a"))),
		"2 dca94a7f8ab11afa463f891e720c83dd841ed71f75632fedd6efe5f755f8a290": cacheapi.ActionKey("i", b3([]byte("a"))),
		"3 4ac063ac1f49457066e9cf1681d29369dd171456a9d99a6d9812bbd313ba4b7b": cacheapi.ValueKey("go", "ac/"+hashOfA),
	} {
		if got := fmt.Sprintf("%d %x", n.Space, n.Key); got != want {
			t.Errorf("%s, was %s", got, want)
		}
	}
}

func TestTokens(t *testing.T) {
	n := byte(0)
	text := cacheapi.NewTokens(func(b []byte) {
		for i := range b {
			b[i], n = n, n+1
		}
	})
	tokens, err := cacheapi.ParseTokens("# made by hand\n" + text)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := cacheapi.TokenOf(text, "read")
	w, _ := cacheapi.TokenOf(text, "write")
	if r == w || len(w) != 64 {
		t.Fatalf("%q", text)
	}
	basic := func(p string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte("anybody:"+p)) }
	for _, c := range []struct {
		open   bool
		header string
		want   cacheapi.Right
		wrong  bool
	}{
		{false, "", cacheapi.MayNothing, false}, {true, "", cacheapi.MayRead, false},
		{false, "Bearer " + r, cacheapi.MayRead, false}, {false, "bearer " + w, cacheapi.MayWrite, false}, {true, basic(w), cacheapi.MayWrite, false},
		{true, "Bearer " + w[1:], cacheapi.MayRead, true}, {false, "Bearer", cacheapi.MayNothing, true}, {false, "Basic !", cacheapi.MayNothing, true},
		{false, w, cacheapi.MayNothing, true}, {true, basic(""), cacheapi.MayRead, true},
	} {
		tokens.Open = c.open
		if got, wrong := tokens.Judge(c.header); got != c.want || wrong != c.wrong {
			t.Errorf("open %v, %q: %v %v", c.open, c.header, got, wrong)
		}
	}
	for _, bad := range []string{"", "read " + r, "write abc", "admin " + w, "write " + w + "0"} {
		if _, err := cacheapi.ParseTokens(bad); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzTokens(f *testing.F) {
	f.Add("write "+hashOfA, "Bearer "+hashOfA)
	f.Add("read "+hashOfA+"\nwrite "+hashOfA, "Basic Og==")
	f.Fuzz(func(t *testing.T, text, header string) {
		tokens, err := cacheapi.ParseTokens(text)
		if err != nil {
			return
		}
		if got, _ := tokens.Judge(header); got != cacheapi.MayNothing && !strings.Contains(strings.ToLower(header), "b") {
			t.Fatalf("%q may %v", header, got)
		}
	})
}
