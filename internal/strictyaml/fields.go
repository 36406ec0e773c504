package strictyaml

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"
)

type fieldInfo struct {
	index    int
	required bool
	rule     rule
}

func fieldsOf(t reflect.Type) map[string]fieldInfo {
	out := make(map[string]fieldInfo, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("yaml")
		if key == "" {
			continue
		}
		info := fieldInfo{index: i, required: f.Tag.Get("strict") == "required"}
		if e := f.Tag.Get("enum"); e != "" {
			info.rule.enum = strings.Split(e, "|")
		}
		if l := f.Tag.Get("later"); l != "" {
			info.rule.later = strings.Split(l, "|")
		}
		out[key] = info
	}
	return out
}

// keysOf lists the keys in the order of the struct, as an error prints them.
func keysOf(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		if k := t.Field(i).Tag.Get("yaml"); k != "" {
			out = append(out, k)
		}
	}
	return out
}

// Leaf is one value of a struct under its dotted key, in the form that the file
// would have.
type Leaf struct {
	Key, Value string
}

// Leaves lists all values of the struct v, in the order of its fields; maps are
// listed by key. An empty map or list is one leaf, so that it can be shown.
func Leaves(v any) []Leaf {
	var out []Leaf
	leaves(reflect.Indirect(reflect.ValueOf(v)), "", &out)
	return out
}

func leaves(v reflect.Value, path string, out *[]Leaf) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			*out = append(*out, Leaf{path, ""})
			return
		}
		v = v.Elem()
	}
	if isScalar(v.Type()) {
		*out = append(*out, Leaf{path, format(v)})
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if k := v.Type().Field(i).Tag.Get("yaml"); k != "" {
				leaves(v.Field(i), join(path, k), out)
			}
		}
	case reflect.Map:
		keys := v.MapKeys()
		sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
		if len(keys) == 0 {
			*out = append(*out, Leaf{path, "{}"})
		}
		for _, k := range keys {
			leaves(v.MapIndex(k), join(path, k.String()), out)
		}
	case reflect.Slice:
		sliceLeaves(v, path, out)
	}
}

func sliceLeaves(v reflect.Value, path string, out *[]Leaf) {
	if v.Len() > 0 && !isScalar(v.Type().Elem()) {
		for i := range v.Len() {
			leaves(v.Index(i), Index(path, i), out)
		}
		return
	}
	parts := make([]string, v.Len())
	for i := range parts {
		parts[i] = format(v.Index(i))
	}
	*out = append(*out, Leaf{path, "[" + strings.Join(parts, ", ") + "]"})
}

func format(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case Size:
		return x.String()
	case MilliCPU:
		return x.String()
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	return fmt.Sprint(v.Interface())
}

// LeafKeys lists the dotted keys of a struct type that name one scalar or one
// list of scalars: those that a flag or a variable can give.
func LeafKeys(v any) []string {
	var out []string
	leafKeys(reflect.Indirect(reflect.ValueOf(v)).Type(), "", &out)
	slices.Sort(out)
	return out
}

func leafKeys(t reflect.Type, path string, out *[]string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case isScalar(t), t.Kind() == reflect.Slice && isScalar(t.Elem()):
		*out = append(*out, path)
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			if k := t.Field(i).Tag.Get("yaml"); k != "" {
				leafKeys(t.Field(i).Type, join(path, k), out)
			}
		}
	}
}
