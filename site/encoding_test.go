package site

import (
	"reflect"
	"strings"
	"testing"
)

// The name follows the shape of the state and nothing else.
func TestEncodingNamesTheShape(t *testing.T) {
	first, again := Encoding(), Encoding()
	if first != again || first == "" {
		t.Fatalf("one program has one name, not %q and %q", first, again)
	}
	of := func(v any) string {
		var b strings.Builder
		shape(&b, reflect.TypeOf(v), map[reflect.Type]bool{})
		return b.String()
	}
	type inner struct {
		A int `cbor:"1,keyasint"`
	}
	type other struct {
		A int `cbor:"2,keyasint"`
	}
	type holds[T any] struct{ All map[string][]*T }
	if strings.ReplaceAll(of(holds[inner]{}), "inner", "x") == strings.ReplaceAll(of(holds[other]{}), "other", "x") {
		t.Fatal("a changed key deep inside changes the name")
	}
}
