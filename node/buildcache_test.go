package node

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

// A member's answer binds nothing that was not asked, whatever is in it.
func FuzzCacheClaims(f *testing.F) {
	asked := cas.Name{Space: cas.SpaceSHA256, Key: cas.Sum([]byte("asked"))}
	good := &forgeyardv1.CacheNamesResponse{Bindings: []*forgeyardv1.CacheBinding{
		{Name: &forgeyardv1.CacheName{Space: 1, Key: asked.Key[:]}, Digest: cas.Sum([]byte("x")).String(), Size: 1},
		{Name: &forgeyardv1.CacheName{Space: 2, Key: asked.Key[:]}, Digest: cas.Sum([]byte("x")).String(), Size: 1},
		{Name: &forgeyardv1.CacheName{Space: 257, Key: asked.Key[:3]}, Digest: "b3:", Size: -1, Manifest: "?"},
	}}
	b, err := proto.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &forgeyardv1.CacheNamesResponse{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		all := claimsOf(m, "n2", []cas.Name{asked})
		if len(all) > 1 {
			t.Fatalf("%d answers to one question", len(all))
		}
		for _, cl := range all {
			if cl.Name != asked || cl.Ref.Digest.IsZero() || cl.Ref.Size < 0 || cl.Ref.Size > cas.MaxBlobSize {
				t.Fatalf("%+v", cl)
			}
		}
	})
}

// A member that did not answer is left alone for a while, and then asked again.
func TestSilentMembersAreLeftAlone(t *testing.T) {
	p := &cachePeers{}
	all := []forgeyard.RunnerID{"a", "b"}
	p.silent("a", 100)
	for now, want := range map[forgeyard.Instant]int{101: 1, forgeyard.Instant(100).Add(cacheQuiet) - 1: 1} {
		if got := p.asked(all, now); len(got) != want || got[0] != "b" {
			t.Errorf("at %d: %v", now, got)
		}
	}
	if got := p.asked(all, forgeyard.Instant(100).Add(cacheQuiet)); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// Tokens are made once, for this account alone, and whoever asks first makes them.
func TestCacheTokensAreMadeOnce(t *testing.T) {
	dir := t.TempDir()
	first, err := CacheTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := CacheTokens(dir)
	if err != nil || again != first {
		t.Fatalf("%q, was %q, %v", again, first, err)
	}
	if _, err := cacheapi.ParseTokens(first); err != nil {
		t.Error(err)
	}
	st, err := os.Stat(filepath.Join(dir, "cache-tokens"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	if other, err := CacheTokens(t.TempDir()); err != nil || other == first {
		t.Errorf("two nodes have one token: %v", err)
	}
	if _, err := CacheAddress(dir); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Error(err)
	}
}

// A page that a person visits reaches a cache on loopback under its own name only, and is
// refused.
func TestCacheRefusesOtherHostNames(t *testing.T) {
	h := onlyLoopback(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{"127.0.0.1:7446": http.StatusOK, "localhost:7446": http.StatusOK, "[::1]:7446": http.StatusOK, "evil.example:7446": http.StatusForbidden, "10.0.0.1": http.StatusForbidden} {
		r := httptest.NewRequest(http.MethodGet, "http://"+host+"/kv/a", nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d, want %d", host, w.Code, want)
		}
	}
}

// A cache that others than this machine reach asks for a token, to read as well as to write,
// and the token to read does not write.
func TestCacheBeyondLoopbackAsksForATokenToRead(t *testing.T) {
	p := makeSite(t, 1, func(c *Config) { c.Settings.CacheAPI.Listen = "0.0.0.0:0" })[0]
	text, err := CacheTokens(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	read, ok := cacheapi.TokenOf(text, "read")
	write, ok2 := cacheapi.TokenOf(text, "write")
	if !ok || !ok2 {
		t.Fatalf("%q", text)
	}
	addr, err := CacheAddress(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	do := func(method, token string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:"+port+"/kv/a", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Body.Close() // the status is all
		return w.StatusCode
	}
	for _, c := range []struct {
		method, token string
		refused       bool
	}{
		{http.MethodGet, "", true}, {http.MethodPut, "", true}, {http.MethodGet, "another", true},
		{http.MethodPut, read, true}, {http.MethodPut, write, false}, {http.MethodGet, read, false},
	} {
		code := do(c.method, c.token)
		if refused := code == http.StatusUnauthorized || code == http.StatusForbidden; refused != c.refused || !refused && code >= 300 {
			t.Errorf("%s with token %q: %d", c.method, c.token, code)
		}
	}
}
