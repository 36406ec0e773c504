// Package render writes messages of the API the way our command lines promise:
// snake_case keys, durations as Go duration strings, times in RFC 3339 UTC, sizes
// as numbers, empty lists as lists, a time that is not known as null. One place, so that every command and the HTTP
// side agree.
package render

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"math"
	"sort"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// JSON writes one message as an indented object and a newline.
func JSON(w io.Writer, m proto.Message) error {
	return write(w, func(p *printer) { p.indent = "  "; p.message(m.ProtoReflect()) })
}

// List writes messages as one indented array and a newline.
func List[M proto.Message](w io.Writer, all []M) error {
	return write(w, func(p *printer) {
		p.indent = "  "
		p.open('[')
		for i, m := range all {
			p.item(i)
			p.message(m.ProtoReflect())
		}
		p.close(']', len(all))
	})
}

// NDJSON writes one message on one line.
func NDJSON(w io.Writer, m proto.Message) error {
	return write(w, func(p *printer) { p.message(m.ProtoReflect()) })
}

func write(w io.Writer, f func(*printer)) error {
	p := &printer{w: bufio.NewWriter(w)}
	f(p)
	p.w.WriteByte('\n')
	return p.w.Flush()
}

type printer struct {
	w      *bufio.Writer // keeps its first error until Flush
	indent string        // empty: all on one line
	depth  int
}

func (p *printer) open(c byte) { p.w.WriteByte(c); p.depth++ }

func (p *printer) close(c byte, n int) {
	p.depth--
	if n > 0 {
		p.line()
	}
	p.w.WriteByte(c)
}

func (p *printer) item(i int) {
	if i > 0 {
		p.w.WriteByte(',')
	}
	p.line()
}

func (p *printer) line() {
	if p.indent == "" {
		return
	}
	p.w.WriteByte('\n')
	for range p.depth {
		p.w.WriteString(p.indent)
	}
}

func (p *printer) key(k string) {
	p.str(k)
	p.w.WriteByte(':')
	if p.indent != "" {
		p.w.WriteByte(' ')
	}
}

func (p *printer) str(s string) {
	b, err := json.Marshal(s)
	if err != nil {
		b = []byte(`""`) // strings always marshal
	}
	p.w.Write(b)
}

const (
	durationName  = "google.protobuf.Duration"
	timestampName = "google.protobuf.Timestamp"
)

func (p *printer) message(m protoreflect.Message) {
	d := m.Descriptor()
	switch d.FullName() {
	case durationName:
		p.str(DurationOf(m).String())
		return
	case timestampName:
		p.str(timeOf(m).Format(time.RFC3339Nano))
		return
	}
	p.open('{')
	n := 0
	fields := d.Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		set := !f.HasPresence() || m.Has(f)
		if !set && !isTime(f) {
			continue // a message that is not set has no key: null would be a third state
		}
		p.item(n)
		n++
		p.key(string(f.Name()))
		if !set {
			p.w.WriteString("null") // a time that is not known: programs may rely on the key
			continue
		}
		p.field(f, m.Get(f))
	}
	p.close('}', n)
}

func isTime(f protoreflect.FieldDescriptor) bool {
	return f.Message() != nil && (f.Message().FullName() == timestampName || f.Message().FullName() == durationName)
}

// DurationOf reads a google.protobuf.Duration.
func DurationOf(m protoreflect.Message) time.Duration {
	s, n := secondsNanos(m)
	return time.Duration(s)*time.Second + time.Duration(n)
}

func timeOf(m protoreflect.Message) time.Time {
	s, n := secondsNanos(m)
	return time.Unix(s, n).UTC()
}

func secondsNanos(m protoreflect.Message) (int64, int64) {
	f := m.Descriptor().Fields()
	return m.Get(f.ByName("seconds")).Int(), m.Get(f.ByName("nanos")).Int()
}

func (p *printer) field(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case f.IsMap():
		p.mapping(f, v.Map())
	case f.IsList():
		l := v.List()
		p.open('[')
		for i := range l.Len() {
			p.item(i)
			p.scalar(f, l.Get(i))
		}
		p.close(']', l.Len())
	default:
		p.scalar(f, v)
	}
}

func (p *printer) mapping(f protoreflect.FieldDescriptor, m protoreflect.Map) {
	keys := make([]string, 0, m.Len())
	vals := map[string]protoreflect.Value{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		keys = append(keys, k.String())
		vals[k.String()] = v
		return true
	})
	sort.Strings(keys)
	p.open('{')
	for i, k := range keys {
		p.item(i)
		p.key(k)
		p.scalar(f.MapValue(), vals[k])
	}
	p.close('}', len(keys))
}

func (p *printer) scalar(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		p.message(v.Message())
	case protoreflect.StringKind:
		p.str(v.String())
	case protoreflect.BytesKind:
		p.str(base64.StdEncoding.EncodeToString(v.Bytes()))
	case protoreflect.BoolKind:
		p.w.WriteString(strconv.FormatBool(v.Bool()))
	case protoreflect.EnumKind:
		p.str(string(f.Enum().Values().ByNumber(v.Enum()).Name()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		p.float(v.Float())
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		p.w.WriteString(strconv.FormatUint(v.Uint(), 10))
	default:
		p.w.WriteString(strconv.FormatInt(v.Int(), 10))
	}
}

func (p *printer) float(x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		p.w.WriteString("null")
		return
	}
	p.w.WriteString(strconv.FormatFloat(x, 'g', -1, 64))
}
