package site

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/forgeyard/forgeyard-node/cas"
)

// Encoding names how this program writes a state: the shape of all that is in it. Two
// programs with different names may give the same state different bytes, so their hashes
// must not be held against each other.
func Encoding() string {
	var b strings.Builder
	shape(&b, reflect.TypeOf(image{}), map[reflect.Type]bool{})
	return cas.Sum([]byte(b.String())).Short()
}

// shape writes a type with its fields, their names, types and encoding keys, each once.
func shape(b *strings.Builder, t reflect.Type, seen map[reflect.Type]bool) {
	fmt.Fprintf(b, "%s ", t)
	if seen[t] {
		return
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		shape(b, t.Elem(), seen)
	case reflect.Map:
		shape(b, t.Key(), seen)
		shape(b, t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			fmt.Fprintf(b, "%s %q ", f.Name, f.Tag.Get("cbor"))
			shape(b, f.Type, seen)
		}
	}
}
