package cborx

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

const anID = "01JD0000000000000000000001"

// many has what the packed form treats in its own ways: identifiers that occur once, some
// times and nearly so, more shared strings than have a short reference, long ones, other
// numbers and values.
func many() []any {
	v := []any{true, nil, -1, 1 << 40, 1.5, "", "a", strings.Repeat("x", maxShared+1), strings.Repeat("x", maxShared+1), []byte{1}, anID, strings.ToLower(anID), "81JD0000000000000000000001", anID + "0"}
	for i := range 40 {
		v = append(v, fmt.Sprint("word ", i), map[string]any{"a key that repeats": fmt.Sprint("word ", i)}, []byte(fmt.Sprint("word ", i)), fmt.Sprintf("01JD00000000000000000001%02d", i/2))
	}
	return v
}

func TestPacked(t *testing.T) {
	plain := Marshal(many())
	packed := Pack(plain)
	if back, err := Unpack(packed); err != nil || !bytes.Equal(back, plain) {
		t.Fatalf("%v\n%x\n%x", err, back, plain)
	}
	if len(packed) > len(plain)*3/4 {
		t.Errorf("%d bytes are packed into %d", len(plain), len(packed))
	}
	if !bytes.Equal(packed, Pack(plain)) {
		t.Error("the same bytes are packed in two ways")
	}
	if bytes.Count(packed, []byte("word 7")) != 2 || bytes.Count(packed, []byte(anID)) != 1 { // in what is one letter too long
		t.Errorf("nothing was shared:\n%q", packed)
	}
	was := golden.Bytes(t, "testdata/packed-v1.hex", packed)
	if back, err := Unpack(was); err != nil || !bytes.Equal(back, plain) {
		t.Fatalf("what an earlier program packed: %v", err)
	}
}

func TestPackedIsRefused(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":                {},
		"not a list":             {0xa0},
		"no shared strings":      {0x82, 0x01, 0x01},
		"more than there are":    {0x82, 0x9a, 0xff, 0xff, 0xff, 0xff},
		"a shared number":        {0x82, 0x81, 0x01, 0x01},
		"a shared reference":     {0x82, 0x82, 0x62, 'a', 'b', 0xe0, 0x01},
		"a long shared string":   append([]byte{0x82, 0x81, 0x59, 1, 0}, make([]byte, 256)...),
		"a short reference":      {0x82, 0x81, 0x62, 'a', 'b', 0xe1},
		"a long reference":       {0x82, 0x80, 0xc6, 0x00},
		"a reference to nowhere": {0x82, 0x80, 0xc6},
		"a reference to a text":  {0x82, 0x80, 0xc6, 0x61, 'a'},
		"a short identifier":     {0x82, 0x80, 0xc7, 0x41, 1},
		"another tag":            {0x82, 0x80, 0xc1, 0x01},
		"an early end":           {0x82, 0x80, 0x19, 0x01},
		"a string cut off":       {0x82, 0x80, 0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"without a length":       {0x82, 0x80, 0x9f, 0xff},
	} {
		if plain, err := Unpack(b); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s was unpacked to %x: %v", name, plain, err)
		}
	}
}

// FuzzPack: what was packed is unpacked to the same bytes.
func FuzzPack(f *testing.F) {
	f.Add(Marshal(many()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v any
		if Unmarshal(b, &v) != nil {
			return
		}
		plain := Marshal(v)
		if back, err := Unpack(Pack(plain)); err != nil || !bytes.Equal(back, plain) {
			t.Fatalf("%v\n%x\n%x", err, back, plain)
		}
	})
}

// FuzzUnpack: whatever is read, it unfolds to no more than is allowed, or is refused.
func FuzzUnpack(f *testing.F) {
	f.Add(Pack(Marshal(many())))
	f.Add([]byte{0x82, 0x81, 0x62, 'a', 'b', 0xe0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if plain, err := Unpack(b); err == nil && len(plain) > (maxShared+2)*len(b) {
			t.Fatalf("%d bytes unfold to %d", len(b), len(plain))
		}
	})
}
