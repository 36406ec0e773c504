//go:build linux

package keeper_test

import (
	"bytes"
	"sync"
)

// lines collects what a tree writes.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(b) }

func (l *lines) text() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }
