package reckon

import "testing"

func FuzzDecodeSighting(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\xa4\x01\x01\x02abc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := DecodeSighting(b); err == nil && (s.Index == 0 || s.Instant <= 0) {
			t.Fatalf("%+v", s)
		}
	})
}
