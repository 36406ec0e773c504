// Package httpapi speaks HTTP for a build cache, to clients that know GET and PUT:
//
//	[/INSTANCE]/cas/HASH   bytes by their SHA-256 or BLAKE3
//	[/INSTANCE]/ac/HASH    a value by 64 hex digits that the client chose: Bazel, ccache
//	/kv/PATH               a value by any path: ccache, sccache (WebDAV)
//
// GET and HEAD read, PUT writes, DELETE forgets a value on this node. For clients that
// believe in folders, MKCOL succeeds and PROPFIND finds what is there. A value that is an
// action result to the last bit is given only while all that it names is here.
//
// It decides what a path means and which status a refusal has. It caches nothing itself.
package httpapi

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

// Kind says what a path is about.
type Kind uint8

// Kinds of paths. Zero is none.
const (
	Content Kind = 1 // a hash
	Value   Kind = 2 // a client's key
)

// Target is a path, taken apart.
type Target struct {
	Kind Kind
	Hash [32]byte // of Content
	Key  [32]byte // of a Value, derived from all of its path
	name cas.Name // of a Value
	dir  bool     // the path ends as a folder's does
}

// ParsePath reads the path of a URL.
func ParsePath(path string) (Target, error) {
	if len(path) > cacheapi.MaxName {
		return Target{}, forgeyard.Errorf("path", forgeyard.Invalid, "%d characters are more than %d", len(path), cacheapi.MaxName)
	}
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return Target{}, badPath(path)
	}
	if key, ok := strings.CutPrefix(rest, "kv/"); ok {
		return parseKey(key)
	}
	parts := strings.Split(rest, "/")
	if len(parts) < 2 {
		return Target{}, badPath(path)
	}
	n := len(parts) - 2
	instance := strings.Join(parts[:n], "/")
	if err := cacheapi.CheckInstance(instance); err != nil || n > 0 && instance == "" {
		return Target{}, badPath(path)
	}
	h, err := cacheapi.ParseHash(parts[n+1])
	if err != nil {
		return Target{}, err
	}
	switch parts[n] {
	case "cas":
		return Target{Kind: Content, Hash: h}, nil
	case "ac":
		return value(instance, "ac/"+parts[n+1]), nil
	}
	return Target{}, badPath(path)
}

// parseKey takes any path whose parts are parts, so that no proxy on the way sees another
// in it.
func parseKey(key string) (Target, error) {
	trimmed, dir := strings.CutSuffix(key, "/")
	if trimmed == "" && dir || key == "" {
		return Target{Kind: Value, dir: true}, nil
	}
	for p := range strings.SplitSeq(trimmed, "/") {
		if p == "" || p == "." || p == ".." || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return Target{}, forgeyard.Errorf("path", forgeyard.Invalid, "the key %q has a part that is empty, a dot, or unprintable", forgeyard.Clip(key, 80))
		}
	}
	t := value("", "kv/"+trimmed)
	t.dir = dir
	return t, nil
}

func value(instance, path string) Target {
	n := cacheapi.ValueKey(instance, path)
	return Target{Kind: Value, name: n, Key: n.Key}
}

func badPath(path string) error {
	return forgeyard.Errorf("path", forgeyard.Invalid, "%q is not [/INSTANCE]/cas/HASH, [/INSTANCE]/ac/HASH or /kv/PATH", forgeyard.Clip(path, 120))
}

// Server answers HTTP.
type Server struct {
	cache  *cacheapi.Cache
	tokens cacheapi.Tokens
}

// New returns the handler.
func New(cache *cacheapi.Cache, tokens cacheapi.Tokens) *Server {
	return &Server{cache: cache, tokens: tokens}
}

// needs is the right that a method needs.
func needs(method string) (cacheapi.Right, bool) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, "PROPFIND":
		return cacheapi.MayRead, true
	case http.MethodPut, http.MethodDelete, "MKCOL":
		return cacheapi.MayWrite, true
	}
	return cacheapi.MayNothing, false
}

const methods = "OPTIONS, GET, HEAD, PUT, DELETE, MKCOL, PROPFIND"

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	need, known := needs(r.Method)
	if !known {
		w.Header().Set("Allow", methods)
		http.Error(w, "the methods are "+methods, http.StatusMethodNotAllowed)
		return
	}
	if !s.may(w, r, need) {
		return
	}
	t, err := ParsePath(r.URL.Path)
	if err != nil && r.Method != http.MethodOptions {
		fail(w, err)
		return
	}
	switch r.Method {
	case http.MethodOptions:
		w.Header().Set("Allow", methods)
		w.Header().Set("DAV", "1")
		w.WriteHeader(http.StatusNoContent)
	case http.MethodGet, http.MethodHead:
		s.get(w, r, t)
	case http.MethodPut:
		s.put(w, r, t)
	case http.MethodDelete:
		s.forget(w, r, t)
	case "MKCOL":
		w.WriteHeader(http.StatusCreated)
	case "PROPFIND":
		s.propfind(w, r, t)
	}
}

// may answers a caller who may not.
func (s *Server) may(w http.ResponseWriter, r *http.Request, need cacheapi.Right) bool {
	header := r.Header.Get("Authorization")
	has, wrong := s.tokens.Judge(header)
	switch {
	case !wrong && has >= need:
		return true
	case wrong || header == "":
		w.Header().Set("WWW-Authenticate", `Bearer realm="build cache"`)
		http.Error(w, "this needs a token, as Bearer or as the password of Basic; `forgeyard-node cache token` on the node prints it", http.StatusUnauthorized)
	default:
		http.Error(w, "this token may read; writing needs another", http.StatusForbidden)
	}
	return false
}

func (s *Server) open(r *http.Request, t Target) (cas.Object, error) {
	if t.Kind == Content {
		return s.cache.OpenAny(r.Context(), t.Hash)
	}
	if t.dir {
		return nil, forgeyard.Errorf("path", forgeyard.NotFound, "a folder has no bytes")
	}
	return s.cache.Value(r.Context(), t.name)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, t Target) {
	o, err := s.open(r, t)
	if err != nil {
		fail(w, err)
		return
	}
	defer func() { _ = o.Close() }() // only read
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(o.Ref().Size, 10))
	if r.Method == http.MethodHead {
		return
	}
	n, err := io.Copy(w, o)
	s.cache.Stats.BytesRead.Add(n)
	if err != nil {
		panic(http.ErrAbortHandler) // the client must not take what came for the whole
	}
}

// unboundedValue is what a PUT without a length may bring.
const unboundedValue = 1 << 30

func (s *Server) put(w http.ResponseWriter, r *http.Request, t Target) {
	if t.dir {
		fail(w, forgeyard.Errorf("path", forgeyard.Invalid, "a folder takes no bytes"))
		return
	}
	body := io.Reader(r.Body)
	if r.ContentLength < 0 {
		body = http.MaxBytesReader(w, r.Body, unboundedValue)
	}
	var err error
	if t.Kind == Content {
		err = s.cache.PutAny(r.Context(), t.Hash, body, r.ContentLength)
	} else {
		err = s.cache.SetValue(r.Context(), t.name, body, r.ContentLength)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (s *Server) forget(w http.ResponseWriter, r *http.Request, t Target) {
	if t.Kind != Value || t.dir {
		fail(w, forgeyard.Errorf("delete", forgeyard.Invalid, "content goes when nothing keeps it; only values can be forgotten"))
		return
	}
	if err := s.cache.Forget(r.Context(), t.name); err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// propfind tells a WebDAV client of one resource: a value that is here, or a folder, which
// every prefix is.
func (s *Server) propfind(w http.ResponseWriter, r *http.Request, t Target) {
	what := "<D:resourcetype><D:collection/></D:resourcetype>"
	if !t.dir {
		o, err := s.open(r, t)
		if err != nil {
			fail(w, err)
			return
		}
		size := o.Ref().Size
		_ = o.Close() // nothing was read
		what = fmt.Sprintf("<D:resourcetype/><D:getcontentlength>%d</D:getcontentlength>", size)
	}
	w.Header().Set("Content-Type", "application/xml; charset=utf-8")
	w.WriteHeader(http.StatusMultiStatus)
	_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="utf-8"?><D:multistatus xmlns:D="DAV:"><D:response><D:href>%s</D:href><D:propstat><D:prop>%s<D:getlastmodified>Thu, 01 Jan 1970 00:00:00 GMT</D:getlastmodified></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>`, // the caller may have gone
		html.EscapeString(r.URL.EscapedPath()), what)
}

var statuses = map[forgeyard.Kind]int{
	forgeyard.Invalid: http.StatusBadRequest, forgeyard.NotFound: http.StatusNotFound, forgeyard.Conflict: http.StatusConflict,
	forgeyard.Denied: http.StatusForbidden, forgeyard.Limit: http.StatusRequestEntityTooLarge, forgeyard.NoSpace: http.StatusInsufficientStorage,
	forgeyard.Unavailable: http.StatusServiceUnavailable, forgeyard.Interrupted: http.StatusServiceUnavailable, forgeyard.Stale: http.StatusConflict,
}

func fail(w http.ResponseWriter, err error) {
	code, ok := statuses[forgeyard.KindOf(err)]
	if !ok {
		code = http.StatusInternalServerError
	}
	http.Error(w, err.Error(), code)
}
