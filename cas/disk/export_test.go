package disk

// InlineRows counts what lies in the index.
func (s *Store) InlineRows() (n, size int64, err error) {
	err = s.rows(tInline, nil, nil, func(_, v []byte) bool { n, size = n+1, size+int64(len(v)); return true })
	return n, size, err
}
