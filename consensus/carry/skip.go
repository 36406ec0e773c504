package carry

// skip passes over a value of any kind: a field that a newer program writes.
func (r *reader) skip(depth int) error {
	if depth == 0 {
		return corrupt("a value goes deeper than %d", maxDepth)
	}
	b, err := r.ReadByte()
	if err != nil {
		return err
	}
	values, bytes, err := r.extent(b)
	if err != nil {
		return err
	}
	if bytes > maxRaw || values > 2*maxEntries {
		return corrupt("a value of %d bytes and %d parts, at most %d and %d are passed over", bytes, values, maxRaw, 2*maxEntries)
	}
	if _, err := r.Discard(bytes); err != nil {
		return err
	}
	for range values {
		if err := r.skip(depth - 1); err != nil {
			return err
		}
	}
	return nil
}

// extent is what follows a first byte: so many values after so many bytes.
func (r *reader) extent(b byte) (values, bytes int, err error) {
	switch {
	case b < msgFixMap, b >= msgNegative, b == msgNil, b == msgFalse, b == msgTrue:
	case b&0xf0 == msgFixMap:
		values = 2 * int(b&0x0f)
	case b&0xf0 == msgFixArray:
		values = int(b & 0x0f)
	case b&0xe0 == msgFixRaw:
		bytes = int(b & 0x1f)
	case b >= msgBin8 && b <= msgBin32:
		bytes, err = r.length(1 << (b - msgBin8))
	case b >= msgExt8 && b <= msgExt32:
		bytes, err = r.length(1 << (b - msgExt8))
		bytes++ // its type
	case b == msgFloat32, b == msgFloat64:
		bytes = 4 << (b - msgFloat32)
	case b >= msgUint8 && b <= msgUint64:
		bytes = 1 << (b - msgUint8)
	case b >= msgInt8 && b <= msgInt64:
		bytes = 1 << (b - msgInt8)
	case b >= msgFixExt && b < msgStr8:
		bytes = 1 + 1<<(b-msgFixExt)
	case b >= msgStr8 && b <= msgRaw32:
		bytes, err = r.length(1 << (b - msgStr8))
	case b == msgArray16, b == msgArray32:
		values, err = r.length(2 << (b - msgArray16))
	case b == msgMap16, b == msgMap32:
		values, err = r.length(2 << (b - msgMap16))
		values = 2 * min(values, 2*maxEntries)
	default:
		err = corrupt("%#x begins no value", b)
	}
	return values, bytes, err
}
