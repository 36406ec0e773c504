package capture

import (
	"bytes"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Memory is how one execution's large files were cut when they were last taken. Where the
// whole's hash shows that a piece has the bytes of then, it is neither cut nor named again.
// Of a file's times, size and number it believes nothing.
//
// What was looked up is verified all the same: a piece that the store lacks by now is stored
// from the bytes at hand. Nothing of it outlives the process. Its zero value is ready.
type Memory struct {
	mu    sync.Mutex
	files map[string]cuts
}

// maxRemembered bounds the marks and pieces of all files, at 40 bytes each: of 64 GiB and more.
const maxRemembered = 1 << 19

// cuts are of one file.
type cuts struct {
	marks  []cas.Mark
	pieces []piece
}

type piece struct {
	at   int64
	size int
	name forgeyard.Digest
}

func total(ps []piece) (n int) {
	for _, p := range ps {
		n += p.size
	}
	return n
}

func (m *Memory) of(path string) cuts {
	if m == nil {
		return cuts{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.files[path]
}

// replace forgets all that is not in files.
func (m *Memory) replace(files map[string]cuts) {
	if m == nil {
		return
	}
	n := 0
	for path, c := range files {
		if n += len(c.marks) + len(c.pieces); n > maxRemembered {
			delete(files, path)
			n -= len(c.marks) + len(c.pieces)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = files
}

// cutter cuts one file, with its memory.
type cutter struct {
	old, now cuts
	next     int   // of old.pieces: the first that does not begin before at
	at       int64 // where the next piece begins
	marked   int64 // how far there are marks, in both
	changed  []run // of what is marked, in order; those before at are let go
	apart    bool  // the marks of both are of different runs from here on
}

type run struct{ from, to int64 }

// cut takes whole pieces from the begin of have, which begins at c.at.
func (c *cutter) cut(have []byte, marks []cas.Mark, last bool) []piece {
	c.compare(marks)
	from := len(c.now.pieces)
	for len(have) >= pieceRoom || last && len(have) > 0 {
		p, ok := c.known(len(have))
		if !ok {
			p = named(have, c.at)
		}
		c.now.pieces = append(c.now.pieces, p)
		c.at, have = c.at+int64(p.size), have[p.size:]
	}
	return c.now.pieces[from:]
}

// named cuts and names the first piece of have.
func named(have []byte, at int64) piece {
	if z := zeros(); len(have) >= cas.ByContent.Most && bytes.Equal(have[:cas.ByContent.Most], z.bytes) {
		return piece{at: at, size: z.cut, name: z.name}
	}
	k := cas.ByContent.Next(have)
	return piece{at: at, size: k, name: cas.Sum(have[:k])}
}

// compare finds out which of the marked runs are not as they were.
func (c *cutter) compare(marks []cas.Mark) {
	for _, m := range marks {
		i := len(c.now.marks)
		c.now.marks = append(c.now.marks, m)
		r := run{c.marked, c.marked + int64(m.Bytes)}
		c.marked = r.to
		c.apart = c.apart || i >= len(c.old.marks) || c.old.marks[i].Bytes != m.Bytes
		if c.apart || c.old.marks[i] != m {
			c.changed = append(c.changed, r)
		}
	}
}

// known is the piece of before that begins where the next one does, if its bytes are the same.
func (c *cutter) known(have int) (piece, bool) {
	for c.next < len(c.old.pieces) && c.old.pieces[c.next].at < c.at {
		c.next++
	}
	for len(c.changed) > 0 && c.changed[0].to <= c.at {
		c.changed = c.changed[1:]
	}
	if c.next == len(c.old.pieces) {
		return piece{}, false
	}
	p := c.old.pieces[c.next]
	end := p.at + int64(p.size)
	if p.at != c.at || p.size > have || end > c.marked || len(c.changed) > 0 && c.changed[0].from < end {
		return piece{}, false
	}
	return p, true
}

// hole is a piece of nothing but zeros, of which sparse files have many.
type hole struct {
	bytes []byte
	cut   int
	name  forgeyard.Digest
}

var zeros = sync.OnceValue(func() hole {
	h := hole{bytes: make([]byte, cas.ByContent.Most)}
	h.cut = cas.ByContent.Next(h.bytes)
	h.name = cas.Sum(h.bytes[:h.cut])
	return h
})
