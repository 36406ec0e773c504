package cas

import (
	"bytes"
	"crypto/md5"
	"encoding/binary"
	"math/bits"
)

// Chunking cuts bytes where their content says, so that what was inserted or removed
// changes the chunks around it and no others. It is FastCDC as its authors published it in
// 2020, with normalization level 2: cuts are rare before the average and frequent after
// it.
type Chunking struct {
	Least, Average, Most int // bytes; Average is a power of two
}

// ByContent is how successive versions of large files are cut. The paper has four times
// the average as the most; a block of ours ends at BlockSize.
var ByContent = Chunking{Least: 128 << 10, Average: 512 << 10, Most: BlockSize}

const normalization = 2

// gear turns a byte into 64 bits that look random: half the MD5 of 64 of that byte.
var gear = func() (t [256]uint64) {
	for i := range t {
		sum := md5.Sum(bytes.Repeat([]byte{byte(i)}, 64))
		t[i] = binary.BigEndian.Uint64(sum[:])
	}
	return t
}()

// cutMasks are the bits that must be zero at a cut, by the logarithm of the average; the
// paper's, from 32 bytes on.
var cutMasks = [...]uint64{
	5:  0x0000000001804110,
	6:  0x0000000001803110,
	7:  0x0000000018035100,
	8:  0x0000001800035300,
	9:  0x0000019000353000,
	10: 0x0000590003530000,
	11: 0x0000d90003530000,
	12: 0x0000d90103530000,
	13: 0x0000d90303530000,
	14: 0x0000d90313530000,
	15: 0x0000d90f03530000,
	16: 0x0000d90303537000,
	17: 0x0000d90703537000,
	18: 0x0000d90707537000,
	19: 0x0000d91707537000,
	20: 0x0000d91747537000,
	21: 0x0000d91767537000,
	22: 0x0000d93767537000,
	23: 0x0000d93777537000,
	24: 0x0000d93777577000,
	25: 0x0000db3777577000,
}

// Next returns the length of the first chunk of b, which must hold Most bytes, or all that
// is left.
func (c Chunking) Next(b []byte) int {
	if len(b) <= c.Least {
		return len(b)
	}
	b = b[:min(len(b), c.Most)]
	log := bits.Len(uint(c.Average)) - 1
	var hash uint64
	at, cut := scan(b[:min(len(b), c.Average)], &hash, c.Least, cutMasks[log+normalization])
	if !cut {
		at, cut = scan(b, &hash, at, cutMasks[log-normalization])
	}
	if !cut {
		return len(b)
	}
	return at
}

// scan rolls the hash over b from at on, two bytes a step, until the mask's bits are zero.
// Of an odd last byte nothing is asked, as in the published program.
func scan(b []byte, hash *uint64, at int, mask uint64) (int, bool) {
	h := *hash
	for ; at+1 < len(b); at += 2 {
		h = h<<2 + gear[b[at]]<<1
		if h&(mask<<1) == 0 {
			return at, true
		}
		h += gear[b[at+1]]
		if h&mask == 0 {
			return at + 1, true
		}
	}
	*hash = h
	return at, false
}
