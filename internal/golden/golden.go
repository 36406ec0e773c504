// Package golden holds formats still: bytes that an earlier build wrote are kept in
// testdata, must be what today's code writes for the same value, and are handed back to
// be read.
//
// There is no flag that writes the files anew. What differs is a new version of the
// format, which gets a file of its own beside the old one; the failure prints its bytes.
//
// It is for tests. It reads files and decides nothing.
package golden

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Row is one named value of a file with several.
type Row struct {
	Name  string
	Bytes []byte
}

// Bytes compares today's bytes with those of the file, hex digits with blanks and line
// ends anywhere, and returns the file's.
func Bytes(t testing.TB, file string, today []byte) []byte {
	t.Helper()
	text := read(t, file, wrap(today))
	was, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if !bytes.Equal(was, today) {
		t.Fatalf("%s: the same value is written otherwise today:\n%s", file, wrap(today))
	}
	return was
}

// Text is Bytes for a format of text, which stands in the file as it is.
func Text(t testing.TB, file string, today []byte) []byte {
	t.Helper()
	was := read(t, file, string(today))
	if was != string(today) {
		t.Fatalf("%s: the same value is written otherwise today:\n%s", file, today)
	}
	return []byte(was)
}

// Rows is Bytes for a file with one named value in each line. What the file has and
// today's code does not write is lost to those who have it on disk, so it fails too.
func Rows(t testing.TB, file string, today []Row) []Row {
	t.Helper()
	var all strings.Builder
	for _, r := range today {
		fmt.Fprintf(&all, "%s %x\n", r.Name, r.Bytes)
	}
	var was []Row
	for line := range strings.Lines(read(t, file, all.String())) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatalf("%s: %s: %v", file, name, err)
		}
		was = append(was, Row{name, b})
	}
	for i := range max(len(was), len(today)) {
		switch {
		case i >= len(was):
			t.Fatalf("%s: has no line for what is new:\n%s %x", file, today[i].Name, today[i].Bytes)
		case i >= len(today) || was[i].Name != today[i].Name:
			t.Fatalf("%s: line %d is of %s, which is not written today at that place", file, i+1, was[i].Name)
		case !bytes.Equal(was[i].Bytes, today[i].Bytes):
			t.Fatalf("%s: the same value is written otherwise today:\n%s %x", file, today[i].Name, today[i].Bytes)
		}
	}
	return was
}

func read(t testing.TB, file, today string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; today it would hold:\n%s", err, today)
	}
	return string(b)
}

// wrap is hex in lines that a person can compare.
func wrap(b []byte) string {
	const width = 64 // bytes a line
	var out strings.Builder
	for len(b) > 0 {
		n := min(width, len(b))
		fmt.Fprintf(&out, "%x\n", b[:n])
		b = b[n:]
	}
	return out.String()
}
