package gocache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// node is a node's build cache, over HTTP. The go command's entries stand in an instance of
// their own.
type node struct {
	base   string // http://HOST:PORT
	token  string // empty: only read
	client *http.Client
	wait   time.Duration // for an answer
	failed atomic.Int32  // in a row
}

// Bounds of a node that does not answer.
const (
	dialTimeout   = 500 * time.Millisecond
	answerTimeout = 20 * time.Second // a miss may first be fetched from a member
	leastRate     = 256 << 10        // bytes a second; slower is as good as stuck
	giveUpAfter   = 3
	instance      = "go"
)

func newNode(addr, token string, wait time.Duration) *node {
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: uploadsAtOnce + 8,
	}
	return &node{base: "http://" + addr, token: token, client: &http.Client{Transport: t}, wait: wait}
}

// within bounds a call that moves size bytes, its body included: a node that takes a call
// and then stands still must not hold a build.
func (n *node) within(ctx context.Context, size int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, n.wait+time.Duration(size)*time.Second/leastRate)
}

// asked reports whether the node is still worth a question.
func (n *node) asked() bool { return n != nil && n.failed.Load() < giveUpAfter }

// do makes a request. NotFound is an answer; other trouble counts against the node.
func (n *node) do(ctx context.Context, method, path string, body io.Reader, size int64) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, n.base+"/"+path, body)
	if err != nil {
		return nil, forgeyard.E("gocache", forgeyard.Invalid, err)
	}
	if body != nil {
		q.ContentLength = size
		if size == 0 {
			q.Body = http.NoBody
		}
	}
	if n.token != "" {
		q.Header.Set("Authorization", "Bearer "+n.token)
	}
	r, err := n.client.Do(q)
	if err != nil {
		n.failed.Add(1)
		return nil, forgeyard.E("gocache", forgeyard.Unavailable, err)
	}
	switch {
	case r.StatusCode < 300:
		n.failed.Store(0)
		return r, nil
	case r.StatusCode == http.StatusNotFound:
		n.failed.Store(0)
		return nil, refused(r, forgeyard.NotFound)
	case r.StatusCode == http.StatusUnauthorized, r.StatusCode == http.StatusForbidden:
		return nil, refused(r, forgeyard.Denied)
	}
	n.failed.Add(1)
	return nil, refused(r, forgeyard.Unavailable)
}

func refused(r *http.Response, k forgeyard.Kind) error {
	defer func() { _ = r.Body.Close() }()           // only read
	b, _ := io.ReadAll(io.LimitReader(r.Body, 512)) // the status says enough without it
	return forgeyard.Errorf("gocache", k, "%s: %s", r.Status, bytes.TrimSpace(b))
}

// entry asks for what an action made.
func (n *node) entry(ctx context.Context, action []byte) (entry, error) {
	ctx, cancel := n.within(ctx, maxEntry)
	defer cancel()
	r, err := n.do(ctx, http.MethodGet, entryPath(action), nil, 0)
	if err != nil {
		return entry{}, err
	}
	defer func() { _ = r.Body.Close() }() // only read
	b, err := io.ReadAll(io.LimitReader(r.Body, maxEntry+1))
	if err != nil {
		return entry{}, forgeyard.E("gocache", forgeyard.Unavailable, err)
	}
	return parseEntry(b)
}

// entryPath names an action at a node, where keys are 64 hex digits.
func entryPath(action []byte) string {
	if len(action) != sha256.Size {
		sum := sha256.Sum256(action)
		action = sum[:]
	}
	return instance + "/ac/" + hex.EncodeToString(action)
}

// shareable reports whether an output can be told from another by its id alone.
func (e entry) shareable() bool { return len(e.output) == sha256.Size }

// output brings the bytes of an output, verified.
func (n *node) output(ctx context.Context, e entry, w io.Writer) error {
	ctx, cancel := n.within(ctx, e.size)
	defer cancel()
	r, err := n.do(ctx, http.MethodGet, "cas/"+hex.EncodeToString(e.output), nil, 0)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }() // only read
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(w, h), r.Body)
	if err != nil {
		return forgeyard.E("gocache", forgeyard.Unavailable, err)
	}
	if size != e.size || !bytes.Equal(h.Sum(nil), e.output) {
		return forgeyard.Errorf("gocache", forgeyard.Corrupt, "the node's %d bytes are not output %x of %d", size, e.output, e.size)
	}
	return nil
}

// put gives the node an output and then what it is the output of.
func (n *node) put(ctx context.Context, action []byte, e entry, path string) error {
	ctx, cancel := n.within(ctx, e.size)
	defer cancel()
	f, err := os.Open(path)
	if err != nil {
		return forgeyard.E("gocache", forgeyard.Other, err)
	}
	defer func() { _ = f.Close() }() // only read
	for _, x := range []struct {
		path string
		body io.Reader
		size int64
	}{
		{"cas/" + hex.EncodeToString(e.output), f, e.size},
		{entryPath(action), bytes.NewReader(e.encode()), int64(len(e.encode()))},
	} {
		r, err := n.do(ctx, http.MethodPut, x.path, x.body, x.size)
		if err != nil {
			return fmt.Errorf("%s: %w", x.path, err)
		}
		_, _ = io.Copy(io.Discard, r.Body) // so that the connection is used again
		_ = r.Body.Close()
	}
	return nil
}
