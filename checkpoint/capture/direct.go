package capture

import (
	"bytes"
	"errors"
	"os"
	"unsafe"
)

const (
	directFrom  = 8 << 20 // smaller files are written the usual way
	directBytes = 1 << 20 // at a time, which is as long as the zeros that are looked for
	directAlign = 4096    // of memory and places in the file, as far as any disk asks
)

// direct writes a large file from its begin past the kernel's cache, as the store does with
// what comes in (docs/decisions/0047): taking a page for each 4 KiB costs more than the disk.
// Where there are only zeros it leaves a hole: the state may be far larger than any disk.
type direct struct {
	f, past *os.File // past: nil where the filesystem has no such way
	buf     []byte
	n       int
	at      int64
	hole    bool // before at nothing was written, which leaves the file shorter
}

func newDirect(f *os.File) *direct {
	b := make([]byte, directBytes+directAlign)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (directAlign - 1))
	return &direct{f: f, past: openDirect(f.Name()), buf: b[skip : skip+directBytes]}
}

func (d *direct) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		k := copy(d.buf[d.n:], p)
		d.n, n, p = d.n+k, n+k, p[k:]
		if d.n == len(d.buf) {
			if err := d.put(d.past); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// put writes what is gathered.
func (d *direct) put(to *os.File) error {
	if bytes.Equal(d.buf[:d.n], zeros().bytes[:d.n]) {
		d.at, d.n, d.hole = d.at+int64(d.n), 0, d.n > 0 || d.hole
		return nil
	}
	d.hole = false
	if to == nil {
		to = d.f
	}
	_, err := to.WriteAt(d.buf[:d.n], d.at)
	if err != nil && to != d.f { // a filesystem that opens so may still not write so
		_, err = d.f.WriteAt(d.buf[:d.n], d.at)
	}
	d.at, d.n = d.at+int64(d.n), 0
	return err
}

// end writes the rest, which fills no page of its own, and lets go of the second way in.
func (d *direct) end() error {
	err := d.put(nil)
	if d.hole {
		err = errors.Join(err, d.f.Truncate(d.at))
	}
	if d.past != nil {
		err = errors.Join(err, d.past.Close())
	}
	return err
}
