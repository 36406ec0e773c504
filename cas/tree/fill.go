package tree

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

const (
	// rangeStep is how much the kernel copies at once: what lies between two looks at
	// whether the caller still waits.
	rangeStep = 64 << 20
	// copyStep is how much is read at once where the kernel does not copy, and zeroStep
	// how many zeros in a row become a hole.
	copyStep = 1 << 20
	zeroStep = 64 << 10
)

// fill brings the bytes into a new file and tells how many there were.
//
//	small        read, held against its name, written
//	else         clone ──refused──▶ copy_file_range ──refused──▶ read and write
//
// Each step is tried anew for every file: one that cannot be cloned, for how it was
// written or where it lies, costs the others nothing. Holes stay holes on every way, and
// runs of zeros become some where they are read here.
func (m *maker) fill(f *os.File, e cas.Entry) (int64, error) {
	if e.Size <= smallFile {
		return m.fillSmall(f, e)
	}
	src, release, err := m.s.Path(m.ctx, e.Digest)
	if err != nil {
		return 0, err
	}
	defer release()
	in, err := os.Open(src)
	if err != nil {
		return 0, err
	}
	defer closeQuiet(in)
	st, err := in.Stat()
	if err != nil {
		return 0, err
	}
	if st.Size() != e.Size {
		return st.Size(), nil // the caller says so
	}
	if clone(f, in) == nil {
		m.cloned.Add(1)
		m.shared.Add(e.Size)
		return e.Size, nil
	}
	return e.Size, m.extents(f, in, st)
}

func (m *maker) fillSmall(f *os.File, e cas.Entry) (int64, error) {
	if e.Size == 0 {
		m.copied.Add(1)
		return 0, nil
	}
	b, err := m.s.Block(m.ctx, e.Digest)
	if err != nil {
		return 0, err
	}
	return m.write(f, b, e)
}

// write fills a file with bytes that match their name.
func (m *maker) write(f *os.File, b []byte, e cas.Entry) (int64, error) {
	m.copied.Add(1)
	if int64(len(b)) == e.Size && isZero(b) {
		return e.Size, f.Truncate(e.Size)
	}
	n, err := f.Write(b)
	return int64(n), err
}

// extents copies what is not a hole, and then sets the size, which makes the last hole.
func (m *maker) extents(dst, src *os.File, st os.FileInfo) error {
	size, byHand := st.Size(), false
	for at := int64(0); at < size; {
		from, to := at, size
		if sparse(st) {
			from, to = nextData(src, at, size)
		}
		hand, err := copyExtent(m.ctx, dst, src, from, to, byHand)
		if err != nil {
			return err
		}
		byHand, at = byHand || hand, to
	}
	if byHand {
		m.copied.Add(1)
	} else {
		m.ranged.Add(1)
	}
	return dst.Truncate(size)
}

// copyExtent copies one run of data and reports whether it had to read any of it itself.
func copyExtent(ctx context.Context, dst, src *os.File, from, to int64, byHand bool) (bool, error) {
	for from < to {
		if err := ctx.Err(); err != nil {
			return byHand, err
		}
		if !byHand {
			n, err := copyRange(dst, src, from, min(to-from, rangeStep))
			if isNoSpace(err) {
				return false, err
			}
			from += n
			byHand = err != nil || n == 0 // nothing where the size promised something: read it, which tells why
			continue
		}
		n, err := copyByHand(dst, src, from, min(to-from, copyStep))
		if err != nil {
			return true, err
		}
		from += n
	}
	return byHand, nil
}

// copyByHand reads and writes one piece and leaves out what is zero: dst is new, so it
// reads as zeros where nothing was written.
func copyByHand(dst, src *os.File, at, n int64) (int64, error) {
	buf := make([]byte, n)
	if _, err := src.ReadAt(buf, at); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, forgeyard.Errorf(opMaterialise, forgeyard.Corrupt, "the stored file ends before byte %d", at+n)
		}
		return 0, err
	}
	for off := int64(0); off < n; off += zeroStep {
		piece := buf[off:min(off+zeroStep, n)]
		if isZero(piece) {
			continue
		}
		if _, err := dst.WriteAt(piece, at+off); err != nil {
			return 0, err
		}
	}
	return n, nil
}

var zeros [zeroStep]byte

// isZero reports whether all bytes are zero.
func isZero(b []byte) bool {
	for len(b) > zeroStep {
		if !bytes.Equal(b[:zeroStep], zeros[:]) {
			return false
		}
		b = b[zeroStep:]
	}
	return bytes.Equal(b, zeros[:len(b)])
}
