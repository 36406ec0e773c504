package blake3

import "golang.org/x/sys/cpu"

// Wide says that this machine hashes sixteen chunks at once.
func Wide() bool { return cpu.X86.HasAVX512F }

// chunksWide is chunksPlain by AVX-512.
//
//go:noescape
func chunksWide(in *byte, counter uint64, out *uint32, stride uintptr)

// parentsWide is parentsPlain by AVX-512.
//
//go:noescape
func parentsWide(in *uint32, inStride uintptr, out *uint32, outStride uintptr)

func chunks(in []byte, counter uint64, out *level, at int) {
	if !Wide() {
		chunksPlain(in, counter, out, at)
		return
	}
	_, _ = in[unit-1], out[7][at+lanes-1] // what is touched is there
	chunksWide(&in[0], counter, &out[0][at], levelStride)
}

func parents(l *level, at int) {
	if !Wide() {
		parentsPlain(l, at)
		return
	}
	_ = l[7][2*at+2*lanes-1]
	parentsWide(&l[0][2*at], levelStride, &l[0][at], levelStride)
}
