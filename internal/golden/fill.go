package golden

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Fill sets every exported field below v, which is a pointer, to a value that follows
// from the field's own key in the encoding: a key that is changed, dropped or used twice
// changes the bytes, and the order of fields in the source does not. A slice, map or
// pointer gets one element. Such a value keeps no rule but that of its type. Fields named
// in later, as Type.Field, came after the version that is held still: they stay zero.
func Fill(t testing.TB, v any, later ...string) {
	t.Helper()
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		t.Fatalf("golden: %T is no pointer to fill through", v)
	}
	filler{t, later}.fill(p.Elem(), "1")
}

type filler struct {
	t     testing.TB
	later []string
}

// number is what stands for a key: itself, or for a key of letters how many they are.
func number(key string) int {
	if n, err := strconv.Atoi(key); err == nil {
		return n
	}
	return len(key)
}

func keyOf(f reflect.StructField) string {
	if tag := f.Tag.Get("cbor"); tag != "" {
		name, _, _ := strings.Cut(tag, ",")
		return name
	}
	return f.Name
}

func (l filler) fill(v reflect.Value, key string) {
	l.t.Helper()
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(number(key)))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(number(key)))
	case reflect.String:
		v.SetString("k" + key)
	case reflect.Array:
		for i := range v.Len() {
			l.fill(v.Index(i), key)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		l.fill(v.Index(0), key)
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		l.fill(k, key)
		l.fill(e, key)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		l.fill(v.Elem(), key)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.UnixMilli(1_800_000_000_000).UTC()))
			return
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !slices.Contains(l.later, v.Type().Name()+"."+f.Name) {
				l.fill(v.Field(i), keyOf(f))
			}
		}
	default:
		l.t.Fatalf("golden: a field of kind %s cannot be filled", v.Kind())
	}
}
