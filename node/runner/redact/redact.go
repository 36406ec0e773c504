// Package redact takes the values of secrets out of text on its way into a log.
//
// It finds a value as it is, in base64 (wherever in a longer text it begins, and broken into
// lines as base64 and openssl write them), in hex, as a part of a URL and inside JSON, and long
// lines of a value of several lines. It finds no
// value that a program has changed otherwise, and none that is shorter than MinValue: logs
// stay sensitive (07§78).
//
// It keeps the values in memory until Wipe. It reads no clock and does no I/O but to the
// writer that it is given.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
)

const (
	// MinValue is the shortest value that is looked for: shorter ones stand in any log by
	// chance, and would make it unreadable.
	MinValue = 6
	// minPart is the shortest spelling or line of a value that is looked for apart.
	minPart = 8
	// minLine is the shortest end of base64 in lines that is looked for: the ends of all keys
	// look alike.
	minLine = 16
	// piece: every line as long as the shorter width has one whole piece of this length.
	piece = 32
)

// widths at which programs break base64 into lines: coreutils and MIME; openssl and PEM.
var widths = []int{76, 64}

// Set is the values to take out. The zero Set takes out nothing. It may be read by many at
// once, until Wipe.
type Set struct {
	needles []needle // longest first
	// Most places of a text are passed over by a look at the next four bytes: a filter of
	// their hashes, then those that begin so.
	filter *[1 << 16]bool
	byKey  map[uint32][]*needle // longest first
}

// needle is one spelling of one value.
type needle struct {
	text []byte
	word []byte // what stands in its place
}

// Value is a secret and its name.
type Value struct {
	Name  string
	Bytes []byte
}

// New makes the spellings of values. It keeps copies.
func New(values ...Value) *Set {
	s := &Set{}
	for _, v := range values {
		word := []byte("[redacted " + v.Name + "]")
		for _, t := range spellings(v.Bytes) {
			s.needles = append(s.needles, needle{text: t, word: word})
		}
	}
	slices.SortStableFunc(s.needles, func(a, b needle) int { return len(b.text) - len(a.text) })
	s.filter, s.byKey = new([1 << 16]bool), map[uint32][]*needle{}
	for i := range s.needles {
		n := &s.needles[i]
		k := binary.LittleEndian.Uint32(n.text)
		s.filter[hash(k)] = true
		s.byKey[k] = append(s.byKey[k], n)
	}
	return s
}

func hash(k uint32) uint16 { return uint16(k * 2654435761 >> 16) }

func spellings(b []byte) [][]byte {
	v := bytes.TrimRight(b, "\r\n")
	if len(v) < MinValue {
		return nil
	}
	out := [][]byte{bytes.Clone(v)}
	add := func(text string) {
		if len(text) >= minPart && text != string(v) {
			out = append(out, []byte(text))
		}
	}
	add(hex.EncodeToString(v))
	add(strings.ToUpper(hex.EncodeToString(v)))
	add(url.QueryEscape(string(v)))
	add(url.PathEscape(string(v)))
	if j, err := json.Marshal(string(v)); err == nil {
		add(string(j[1 : len(j)-1]))
	}
	for _, whole := range [][]byte{v, b} { // with the line end that a file has and a variable has not
		add(base64.StdEncoding.EncodeToString(whole))
		add(base64.URLEncoding.EncodeToString(whole))
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 { // bytes of other text in the group where it begins
			add(within(enc, v, before))
		}
	}
	for _, text := range broken(v, b) {
		add(text)
	}
	if lines := bytes.Split(v, []byte("\n")); len(lines) > 1 {
		for _, l := range lines {
			add(string(bytes.TrimRight(l, "\r")))
		}
	}
	return out
}

// broken are pieces of a value's base64 as it stands in lines. Each is looked for alone, so it
// does not matter what ends a line.
func broken(v, b []byte) (out []string) {
	cut := func(text string, width int) {
		for from := 0; len(text) > width && from < len(text); from += width {
			if end := min(from+width, len(text)); end-from >= minLine {
				out = append(out, text[from:end])
			}
		}
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		for _, width := range widths { // the value alone was encoded: lines break here and here
			cut(enc.EncodeToString(v), width)
			cut(enc.EncodeToString(b), width)
		}
		for before := range 3 { // in the midst of other text they break anywhere, and a line holds two pieces, less a character
			cut(within(enc.WithPadding(base64.NoPadding), v, before), piece)
		}
	}
	return out
}

// within is what v alone says in the encoding of a text in which it begins after so many bytes
// of a group.
func within(enc *base64.Encoding, v []byte, before int) string {
	text := enc.EncodeToString(append(make([]byte, before), v...))
	return text[(before*8+5)/6 : (before+len(v))*8/6]
}

// IsZero says that there is nothing to take out.
func (s *Set) IsZero() bool { return s == nil || len(s.needles) == 0 }

// Wipe forgets the values. What still writes through the set then takes out nothing.
func (s *Set) Wipe() {
	for _, n := range s.needles {
		clear(n.text)
	}
	s.needles, s.filter, s.byKey = nil, nil, nil
}

// Text takes the values out of a text that is whole.
func (s *Set) Text(t string) string {
	if s.IsZero() {
		return t
	}
	out, rest := s.take(nil, []byte(t), true)
	return string(append(out, rest...))
}

// mayBegin is false where no needle begins.
func (s *Set) mayBegin(b []byte) bool {
	return len(b) < 4 || s.filter[hash(binary.LittleEndian.Uint32(b))]
}

// at is the longest needle that begins b, and whether b could be the beginning of a longer one.
func (s *Set) at(b []byte) (found *needle, begins bool) {
	if len(b) < 4 {
		for i := range s.needles {
			if bytes.HasPrefix(s.needles[i].text, b) {
				return nil, true
			}
		}
		return nil, false
	}
	for _, n := range s.byKey[binary.LittleEndian.Uint32(b)] {
		switch {
		case len(n.text) > len(b):
			begins = begins || bytes.HasPrefix(n.text, b)
		case bytes.HasPrefix(b, n.text):
			return n, begins
		}
	}
	return nil, begins
}

// take appends b to out without values, and returns what of b has to wait for more. At the
// end nothing waits.
func (s *Set) take(out, b []byte, end bool) (done, rest []byte) {
	if s.IsZero() {
		return append(out, b...), nil
	}
	from := 0
	for i := 0; i < len(b); {
		if !s.mayBegin(b[i:]) {
			i++
			continue
		}
		n, begins := s.at(b[i:])
		switch {
		case begins && !end:
			return append(out, b[from:i]...), b[i:]
		case n != nil:
			out = append(append(out, b[from:i]...), n.word...)
			i += len(n.text)
			from = i
		default:
			i++
		}
	}
	return append(out, b[from:]...), nil
}

// Writer passes on what is written, without values. What may be the beginning of one waits:
// less than the longest spelling, and only while it still may be one. It is safe for
// concurrent use.
type Writer struct {
	w   io.Writer
	set *Set

	mu   sync.Mutex // guards all below
	tail []byte
	out  []byte
}

// NewWriter writes to w. The writer is to be flushed when nothing more comes.
func NewWriter(w io.Writer, s *Set) *Writer { return &Writer{w: w, set: s} }

// Write takes all of b, or none where w fails.
func (w *Writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set.IsZero() && len(w.tail) == 0 {
		return w.w.Write(b)
	}
	if err := w.pass(b, false); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Flush passes on what waits: nothing more follows it.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pass(nil, true)
}

func (w *Writer) pass(b []byte, end bool) error {
	all := append(w.tail, b...)
	done, rest := w.set.take(w.out[:0], all, end)
	w.out, w.tail = done, bytes.Clone(rest)
	clear(all)
	if len(done) == 0 {
		return nil
	}
	_, err := w.w.Write(done)
	return err
}

// In says whether a value stands in what r gives, as it is, and whose it is.
func (s *Set) In(r io.Reader) (name string, err error) {
	if s.IsZero() {
		return "", nil
	}
	found := ""
	w := NewWriter(io.Discard, s)
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && found == "" {
			found = w.seen(buf[:n])
		}
		if found != "" || err != nil {
			if err == io.EOF {
				err = nil
			}
			if found == "" {
				found = w.seenAtEnd()
			}
			return found, err
		}
	}
}

// seen is the first value in what came so far, and keeps what may be the beginning of one.
func (w *Writer) seen(b []byte) string {
	all := append(w.tail, b...)
	name, rest := w.set.find(all, false)
	w.tail = bytes.Clone(rest)
	return name
}

func (w *Writer) seenAtEnd() string {
	name, _ := w.set.find(w.tail, true)
	return name
}

func (s *Set) find(b []byte, end bool) (name string, rest []byte) {
	for i := range b {
		if !s.mayBegin(b[i:]) {
			continue
		}
		n, begins := s.at(b[i:])
		if n != nil {
			return strings.TrimSuffix(strings.TrimPrefix(string(n.word), "[redacted "), "]"), nil
		}
		if begins && !end {
			return "", b[i:]
		}
	}
	return "", nil
}
