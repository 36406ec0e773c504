//go:build !amd64

package blake3

// Wide says that this machine hashes sixteen chunks at once.
func Wide() bool { return false }

func chunks(in []byte, counter uint64, out *level, at int) { chunksPlain(in, counter, out, at) }

func parents(l *level, at int) { parentsPlain(l, at) }
