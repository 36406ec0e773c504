package httpapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi/httpapi"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

var readToken, writeToken = strings.Repeat("11", 32), strings.Repeat("22", 32)

type site struct {
	t   *testing.T
	url string
}

func serve(t *testing.T, open bool, limit int64) site {
	t.Helper()
	return serveOn(t, open, t.TempDir(), disk.Config{Limit: limit})
}

// serveOn serves a store in dir.
func serveOn(t *testing.T, open bool, dir string, cfg disk.Config) site {
	t.Helper()
	cfg.Dir, cfg.NoSync = filepath.Join(dir, "cas"), true
	s, err := disk.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // nothing of it is kept
	c, err := cacheapi.New(cacheapi.Config{Store: s, Names: s, Dir: filepath.Join(dir, "uploads"), Keep: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := cacheapi.ParseTokens("read " + readToken + "\nwrite " + writeToken)
	if err != nil {
		t.Fatal(err)
	}
	tokens.Open = open
	srv := httptest.NewServer(httpapi.New(c, tokens))
	t.Cleanup(srv.Close)
	return site{t, srv.URL}
}

// do makes a request and wants a status; it gives the body.
func (s site) do(method, path, authorization string, body io.Reader, want int) string {
	s.t.Helper()
	q, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if authorization != "" {
		q.Header.Set("Authorization", authorization)
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	_ = r.Body.Close() // read to its end
	if err != nil || r.StatusCode != want {
		s.t.Errorf("%s %s: %s %q %v, want %d", method, path, r.Status, b, err, want)
	}
	return string(b)
}

func sha(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:]) }

func TestContent(t *testing.T) {
	s := serve(t, true, 0)
	w := "Bearer " + writeToken
	for i, n := range []int{0, 7, cas.BlockSize + 3} {
		b := castest.Bytes(uint64(i), n)
		for _, name := range []string{sha(b), cas.Sum(b).Hex()} {
			s.do("PUT", "/cas/"+name, w, bytes.NewReader(b), http.StatusCreated)
			if got := s.do("GET", "/an/instance/cas/"+name, "", nil, http.StatusOK); got != string(b) {
				t.Errorf("%d bytes, were %d", len(got), n)
			}
		}
		s.do("HEAD", "/cas/"+sha(b), "", nil, http.StatusOK)
	}
	// Without a length, as a stream.
	b := castest.Bytes(9, 100_000)
	s.do("PUT", "/cas/"+sha(b), w, struct{ io.Reader }{bytes.NewReader(b)}, http.StatusCreated)
	s.do("PUT", "/cas/"+sha([]byte("others")), w, bytes.NewReader(b), http.StatusBadRequest)
	s.do("GET", "/cas/"+sha([]byte("others")), "", nil, http.StatusNotFound)
	s.do("HEAD", "/cas/"+sha([]byte("others")), "", nil, http.StatusNotFound)
	s.do("DELETE", "/cas/"+sha(b), w, nil, http.StatusBadRequest)
	s.do("GET", "/cas/"+sha(b)[1:], "", nil, http.StatusBadRequest)
	s.do("POST", "/cas/"+sha(b), w, nil, http.StatusMethodNotAllowed)
}

func TestValues(t *testing.T) {
	s := serve(t, true, 0)
	w := "Basic " + base64.StdEncoding.EncodeToString([]byte("ccache:"+writeToken))
	key := sha([]byte("key"))
	paths := []string{"/ac/" + key, "/other/ac/" + key, "/kv/" + key, "/kv/a/b/c"}
	for _, p := range paths {
		s.do("GET", p, "", nil, http.StatusNotFound)
	}
	for _, p := range paths {
		s.do("PUT", p, w, strings.NewReader("value of "+p), http.StatusCreated)
	}
	for _, p := range paths {
		if got := s.do("GET", p, "", nil, http.StatusOK); got != "value of "+p {
			t.Errorf("%s: %q", p, got)
		}
	}
	s.do("PUT", paths[0], w, strings.NewReader("another"), http.StatusCreated)
	if got := s.do("GET", paths[0], "", nil, http.StatusOK); got != "another" {
		t.Errorf("%q", got)
	}
	s.do("DELETE", paths[0], w, nil, http.StatusNoContent)
	s.do("GET", paths[0], "", nil, http.StatusNotFound)
	s.do("GET", paths[1], "", nil, http.StatusOK)
}

// What a WebDAV client does before and after its PUT.
func TestFolders(t *testing.T) {
	s := serve(t, true, 0)
	w := "Bearer " + writeToken
	s.do("OPTIONS", "/kv/", "", nil, http.StatusNoContent)
	s.do("PROPFIND", "/kv/a/b/", "", nil, http.StatusMultiStatus)
	s.do("MKCOL", "/kv/a/b/", w, nil, http.StatusCreated)
	s.do("PROPFIND", "/kv/a/b/c", "", nil, http.StatusNotFound)
	s.do("PUT", "/kv/a/b/c", w, strings.NewReader("12345"), http.StatusCreated)
	if got := s.do("PROPFIND", "/kv/a/b/c", "", nil, http.StatusMultiStatus); !strings.Contains(got, "<D:getcontentlength>5<") || strings.Contains(got, "collection") {
		t.Error(got)
	}
	if got := s.do("PROPFIND", "/kv/a&b/", "", nil, http.StatusMultiStatus); !strings.Contains(got, "<D:href>/kv/a&amp;b/</D:href>") {
		t.Error(got)
	}
	s.do("GET", "/kv/a/b/", "", nil, http.StatusNotFound)
	s.do("PUT", "/kv/a/b/", w, strings.NewReader("1"), http.StatusBadRequest)
	s.do("MKCOL", "/kv/x/", "", nil, http.StatusUnauthorized)
}

func TestRights(t *testing.T) {
	for open, reads := range map[bool]int{true: http.StatusNotFound, false: http.StatusUnauthorized} {
		s := serve(t, open, 0)
		s.do("GET", "/kv/a", "", nil, reads)
		s.do("GET", "/kv/a", "Bearer "+readToken, nil, http.StatusNotFound)
		s.do("GET", "/kv/a", "Bearer nonsense", nil, http.StatusUnauthorized)
		s.do("PUT", "/kv/a", "", strings.NewReader("x"), http.StatusUnauthorized)
		s.do("PUT", "/kv/a", "Bearer "+readToken, strings.NewReader("x"), http.StatusForbidden)
		s.do("DELETE", "/kv/a", "Bearer "+readToken, nil, http.StatusForbidden)
		s.do("GET", "/kv/a", "Bearer "+writeToken, nil, http.StatusNotFound)
	}
}

func TestFullStore(t *testing.T) {
	s := serve(t, true, 1<<20)
	s.do("PUT", "/kv/a", "Bearer "+writeToken, bytes.NewReader(castest.Bytes(1, 2<<20)), http.StatusInsufficientStorage)
	s.do("PUT", "/kv/a", "Bearer "+writeToken, strings.NewReader("x"), http.StatusCreated)
}

func TestPathsThatAreRefused(t *testing.T) {
	key := sha([]byte("key"))
	for _, p := range []string{"", "/", "cas/" + key, "/cas", "/cas/", "/ac/" + strings.ToUpper(key), "//cas/" + key, "/a/../cas/" + key, "/uploads/cas/" + key,
		"/kv", "/kv/a//b", "/kv/./b", "/kv/../b", "/kv/a\x00", "/zz/" + key, "/cas/" + key + "/", "/kv/" + strings.Repeat("x", 2000)} {
		if _, err := httpapi.ParsePath(p); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%q: %v", p, err)
		}
	}
}

// Two paths never mean one value, and a path that is taken has no part that leads elsewhere.
func FuzzPath(f *testing.F) {
	key := sha([]byte("key"))
	for _, p := range []string{"/cas/" + key, "/i/ac/" + key, "/kv/a/b", "/kv/a/b/", "/ac/" + key, "/kv/ac/" + key} {
		f.Add(p, p+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, err := httpapi.ParsePath(a)
		if err != nil {
			return
		}
		for part := range strings.SplitSeq(a, "/") {
			if part == ".." || part == "." {
				t.Fatalf("%q is taken", a)
			}
		}
		y, err := httpapi.ParsePath(b)
		if err == nil && x.Kind == httpapi.Value && y.Kind == httpapi.Value && x.Key == y.Key && strings.TrimSuffix(a, "/") != strings.TrimSuffix(b, "/") {
			t.Fatalf("%q and %q are one", a, b)
		}
	})
}
