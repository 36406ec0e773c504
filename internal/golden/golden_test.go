package golden

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// failing catches what a check would have failed with.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}
func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}

func said(t *testing.T, f func(testing.TB)) (text string) {
	t.Helper()
	c := &failing{TB: t}
	defer func() {
		if r := recover(); r != nil && r != any(c) {
			panic(r)
		}
		text = c.said
	}()
	f(c)
	return c.said
}

// A checker that lets a change through is worth nothing.
func TestADifferenceIsFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "v1")
	if err := os.WriteFile(file, []byte("61 62\n63\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Bytes(t, file, []byte("abc")); !bytes.Equal(got, []byte("abc")) {
		t.Fatalf("%q", got)
	}
	rows := file + ".rows"
	if err := os.WriteFile(rows, []byte("a 61\nb 62\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b, c := Row{"a", []byte("a")}, Row{"b", []byte("b")}, Row{"c", []byte("c")}
	if got := Rows(t, rows, []Row{a, b}); len(got) != 2 || got[1].Name != "b" {
		t.Fatalf("%v", got)
	}
	for name, f := range map[string]func(testing.TB){
		"otherwise":  func(t testing.TB) { Bytes(t, file, []byte("abd")) },
		"shorter":    func(t testing.TB) { Bytes(t, file, []byte("ab")) },
		"no file":    func(t testing.TB) { Bytes(t, file+".none", []byte("abc")) },
		"text":       func(t testing.TB) { Text(t, file, []byte("61 62\n63")) },
		"row value":  func(t testing.TB) { Rows(t, rows, []Row{a, {"b", []byte("x")}}) },
		"row lost":   func(t testing.TB) { Rows(t, rows, []Row{a}) },
		"row new":    func(t testing.TB) { Rows(t, rows, []Row{a, b, c}) },
		"row moved":  func(t testing.TB) { Rows(t, rows, []Row{b, a}) },
		"not a hole": func(t testing.TB) { Fill(t, struct{}{}) },
	} {
		if said(t, f) == "" {
			t.Errorf("%s: passes", name)
		}
	}
	if text := said(t, func(t testing.TB) { Bytes(t, file+".none", []byte("abc")) }); !strings.Contains(text, "616263") {
		t.Errorf("the failure does not say what the file would hold: %s", text)
	}
}

func TestFillLeavesNoHole(t *testing.T) {
	var v struct {
		N int               `cbor:"7,keyasint"`
		S []string          `cbor:"8,keyasint"`
		M map[string]int    `cbor:"9,keyasint"`
		P *struct{ A bool } `cbor:"10,keyasint"`
		B [2]byte           `cbor:"11,keyasint"`
	}
	Fill(t, &v)
	if v.N != 7 || v.S[0] != "k8" || v.M["k9"] != 9 || !v.P.A || v.B != [2]byte{11, 11} {
		t.Fatalf("%+v", v)
	}
}
