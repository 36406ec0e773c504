package cborx

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

type sample struct {
	A int               `cbor:"1,keyasint"`
	M map[string]string `cbor:"2,keyasint,omitempty"`
	D forgeyard.Digest  `cbor:"3,keyasint,omitempty"`
	T time.Duration     `cbor:"4,keyasint,omitempty"`
}

func TestSameValueSameBytes(t *testing.T) {
	v := sample{A: 1, M: map[string]string{"b": "1", "a": "2", "c": "3"}, D: forgeyard.Digest{1}, T: time.Second}
	first := Marshal(v)
	for range 50 {
		if string(Marshal(v)) != string(first) {
			t.Fatal("encoding is not deterministic")
		}
	}
	var back sample
	if err := UnmarshalCanonical(first, &back); err != nil {
		t.Fatal(err)
	}
	if back.D != v.D || back.M["c"] != "3" {
		t.Fatalf("%+v", back)
	}
}

func TestStrictness(t *testing.T) {
	for name, b := range map[string][]byte{
		"unknown key":   {0xa1, 0x09, 0x01},
		"duplicate key": {0xa2, 0x01, 0x01, 0x01, 0x02},
		"not canonical": {0xa1, 0x01, 0x18, 0x01},
		"trailing":      {0xa1, 0x01, 0x01, 0x00},
		"indefinite":    {0xbf, 0x01, 0x01, 0xff},
	} {
		var s sample
		if forgeyard.KindOf(UnmarshalCanonical(b, &s)) != forgeyard.Invalid {
			t.Errorf("%s was accepted", name)
		}
	}
}

// What a newer version wrote says what to do about it; what is no encoding at all does not
// blame versions.
func TestNewerFieldHasANextStep(t *testing.T) {
	for b, want := range map[string]bool{"\xa1\x09\x01": true, "\xa2\x01\x01\x01\x02": false, "\xff": false} {
		var s sample
		var e *forgeyard.Error
		if err := Unmarshal([]byte(b), &s); !errors.As(err, &e) || strings.Contains(e.Hint, "upgrade") != want {
			t.Errorf("%x: %v", b, err)
		}
	}
}

func FuzzUnmarshalCanonical(f *testing.F) {
	f.Add(Marshal(sample{A: 7, M: map[string]string{"x": "y"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s sample
		if UnmarshalCanonical(b, &s) == nil && string(Marshal(s)) != string(b) {
			t.Fatal("accepted bytes that it would not write")
		}
	})
}
