// Package registry is a small registry of files, as an example of an outside system that a
// job publishes to. A name has one content for ever, and each change carries the token of the
// execution that makes it: a lower one than was seen before is refused. So a holder that was
// paused between its intent and its act can do nothing once the next epoch has looked.
//
//	PUT  /NAME   Fence-Token: N   201 stored · 200 it was there, with the same bytes · 409 other bytes are there · 412 a higher token was seen
//	HEAD /NAME   Fence-Token: N   200 · 404, and lower tokens are refused from now on
//	GET  /NAME                    the bytes; Content-Digest is their sha256
//
// It keeps everything in memory, and asks nobody who they are: it is no product.
package registry

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// MaxBytes bounds one file.
const MaxBytes = 1 << 20

// Registry is the server. The zero Registry is empty and ready to use.
type Registry struct {
	// Hook, if set, is called at each point of a change: "received", "stored", before the
	// answer. It may block.
	Hook func(point, name string)

	mu     sync.Mutex
	files  map[string][]byte
	stored map[string]int // how often each was stored
	token  uint64         // the highest that was seen
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name := strings.TrimPrefix(req.URL.Path, "/")
	switch req.Method {
	case http.MethodPut:
		r.put(w, req, name)
	case http.MethodHead, http.MethodGet:
		r.get(w, req, name)
	default:
		http.Error(w, "PUT, HEAD or GET", http.StatusMethodNotAllowed)
	}
}

// fenced takes the token of a request; false: a higher one was seen. The caller holds mu.
func (r *Registry) fenced(w http.ResponseWriter, req *http.Request) bool {
	text := req.Header.Get("Fence-Token")
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		http.Error(w, fmt.Sprintf("Fence-Token %q is no number", text), http.StatusBadRequest)
		return false
	}
	if n < r.token {
		http.Error(w, fmt.Sprintf("token %d is below %d: another execution has begun", n, r.token), http.StatusPreconditionFailed)
		return false
	}
	r.token = n
	return true
}

func (r *Registry) put(w http.ResponseWriter, req *http.Request, name string) {
	b, err := io.ReadAll(http.MaxBytesReader(w, req.Body, MaxBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.at("received", name)
	code, why := r.store(w, req, name, b)
	r.at("stored", name)
	if code != 0 {
		http.Error(w, why, code)
	}
}

// store answers 0 where the refusal is written already.
func (r *Registry) store(w http.ResponseWriter, req *http.Request, name string, b []byte) (int, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.fenced(w, req) {
		return 0, ""
	}
	if r.files == nil {
		r.files, r.stored = map[string][]byte{}, map[string]int{}
	}
	if was, ok := r.files[name]; ok {
		if string(was) != string(b) {
			return http.StatusConflict, "other bytes are there"
		}
		return http.StatusOK, "it was there"
	}
	r.files[name] = b
	r.stored[name]++
	return http.StatusCreated, Digest(b)
}

func (r *Registry) get(w http.ResponseWriter, req *http.Request, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.Header.Get("Fence-Token") != "" && !r.fenced(w, req) {
		return
	}
	b, ok := r.files[name]
	if !ok {
		http.Error(w, "not here", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Digest", Digest(b))
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if req.Method == http.MethodGet {
		_, _ = w.Write(b) // whoever asked may be gone
	}
}

func (r *Registry) at(point, name string) {
	if r.Hook != nil {
		r.Hook(point, name)
	}
}

// Stored tells how often each name was stored.
func (r *Registry) Stored() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]int{}
	for k, n := range r.stored {
		out[k] = n
	}
	return out
}

// Preset puts a file there as somebody else would.
func (r *Registry) Preset(name string, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files == nil {
		r.files, r.stored = map[string][]byte{}, map[string]int{}
	}
	r.files[name] = b
}

// Digest is how the registry names content.
func Digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
