package strictyaml

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/forgeyard/forgeyard-node"
)

// Refuser is a struct that knows keys which exist elsewhere and which this
// version does not honour: they are refused by name, with the note, instead of as
// a typing error.
type Refuser interface {
	RefusedKeys() map[string]string
}

// Worded is a struct that one word may stand for.
type Worded interface {
	SetWord(word string) error
}

// Decode fills the struct that v points to. Keys that the document does not give
// keep the value that v already has, so that defaults are filled in before.
//
// Field tags: `yaml:"key"` names the key (fields without it are not read),
// `strict:"required"` makes its absence an error, `enum:"a|b"` lists the values
// of a string, and `later:"c|d"` those that a later version may take.
func (d *Doc) Decode(v any) error {
	return Fail(d.Problems(v))
}

// Problems is Decode for callers that have rules of their own to add before
// they call Fail.
func (d *Doc) Problems(v any) []Problem {
	x := decoder{doc: d}
	rv := reflect.ValueOf(v).Elem()
	if d.root == nil {
		x.missing(nil, rv, nil, "")
		return x.problems
	}
	x.value(d.root, rv, rule{}, "")
	return x.problems
}

type rule struct {
	enum, later []string
}

type decoder struct {
	doc      *Doc
	problems []Problem
}

func (x *decoder) add(n *yaml.Node, path, format string, args ...any) {
	x.problems = append(x.problems, Problem{Pos: x.doc.at(n), Path: path, Text: fmt.Sprintf(format, args...)})
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[Size]()
	cpuType      = reflect.TypeFor[MilliCPU]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (x *decoder) value(n *yaml.Node, v reflect.Value, r rule, path string) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" && !x.text(n) {
		x.add(n, path, "has no value; give one or remove the key")
		return
	}
	if v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		x.value(n, p.Elem(), r, path)
		v.Set(p)
		return
	}
	if isScalar(v.Type()) {
		if n.Kind != yaml.ScalarNode {
			x.add(n, path, "%s; %s is expected", describe(n), expected(v.Type()))
			return
		}
		x.scalar(n, v, r, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		x.structure(n, v, path)
	case reflect.Map:
		x.mapping(n, v, r, path)
	case reflect.Slice:
		x.sequence(n, v, r, path)
	default:
		panic("strictyaml: no YAML form for " + v.Type().String())
	}
}

func isScalar(t reflect.Type) bool {
	if reflect.PointerTo(t).Implements(textType) {
		return true
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice:
		return false
	}
	return true
}

// text reports whether the node is an override, whose value has no type yet.
func (x *decoder) text(n *yaml.Node) bool { return x.doc.from[n] != "" }

func (x *decoder) structure(n *yaml.Node, v reflect.Value, path string) {
	if w, ok := v.Addr().Interface().(Worded); ok && n.Kind == yaml.ScalarNode {
		if err := w.SetWord(n.Value); err != nil {
			x.add(n, path, "%v", err)
		}
		return
	}
	if n.Kind != yaml.MappingNode {
		x.add(n, path, "%s; a mapping is expected with %s", describe(n), quoteAll(keysOf(v.Type())))
		return
	}
	fields := fieldsOf(v.Type())
	given := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, val := n.Content[i], n.Content[i+1]
		f, ok := fields[k.Value]
		if !ok {
			x.unknown(k, v, path)
			continue
		}
		given[k.Value] = true
		x.value(val, v.Field(f.index), f.rule, join(path, k.Value))
	}
	x.missing(n, v, given, path)
}

func (x *decoder) unknown(k *yaml.Node, v reflect.Value, path string) {
	where := ""
	if path != "" {
		where = " in " + path
	}
	if r, ok := v.Addr().Interface().(Refuser); ok {
		if note, ok := r.RefusedKeys()[k.Value]; ok {
			x.add(k, "", "key %q%s is not supported by this version: %s", k.Value, where, note)
			return
		}
	}
	keys := keysOf(v.Type())
	x.add(k, "", "unknown key %q%s; allowed: %s%s", forgeyard.Clip(k.Value, maxQuoted), where, quoteAll(keys), didYouMean(k.Value, keys))
}

func (x *decoder) missing(n *yaml.Node, v reflect.Value, given map[string]bool, path string) {
	fields := fieldsOf(v.Type())
	for _, key := range keysOf(v.Type()) {
		if fields[key].required && !given[key] {
			x.add(n, join(path, key), "is missing")
		}
	}
}

func (x *decoder) mapping(n *yaml.Node, v reflect.Value, r rule, path string) {
	if n.Kind != yaml.MappingNode {
		x.add(n, path, "%s; a mapping is expected", describe(n))
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		e := reflect.New(v.Type().Elem()).Elem()
		x.value(n.Content[i+1], e, r, join(path, n.Content[i].Value))
		m.SetMapIndex(reflect.ValueOf(n.Content[i].Value).Convert(v.Type().Key()), e)
	}
	v.Set(m)
}

func (x *decoder) sequence(n *yaml.Node, v reflect.Value, r rule, path string) {
	items := n.Content
	switch {
	case n.Kind == yaml.SequenceNode:
	case x.text(n) && isScalar(v.Type().Elem()):
		items = x.split(n)
	default:
		x.add(n, path, "%s; a list is expected", describe(n))
		return
	}
	s := reflect.MakeSlice(v.Type(), len(items), len(items))
	for i, m := range items {
		x.value(m, s.Index(i), r, Index(path, i))
	}
	v.Set(s)
}

// split reads the text of an override as a list: `sandbox,process`.
func (x *decoder) split(n *yaml.Node) []*yaml.Node {
	if n.Value == "" {
		return nil
	}
	var out []*yaml.Node
	for _, part := range strings.Split(n.Value, ",") {
		m := &yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSpace(part)}
		x.doc.from[m] = x.doc.from[n]
		out = append(out, m)
	}
	return out
}

func (x *decoder) scalar(n *yaml.Node, v reflect.Value, r rule, path string) {
	if err := x.set(n, v); err != nil {
		x.add(n, path, "%v", err)
		return
	}
	if len(r.enum) == 0 || v.Kind() != reflect.String {
		return
	}
	switch s := v.String(); {
	case slices.Contains(r.enum, s):
	case slices.Contains(r.later, s):
		x.add(n, path, "%q is not supported by this version; allowed: %s", s, quoteAll(r.enum))
	default:
		x.add(n, path, "%q is unknown; allowed: %s%s", forgeyard.Clip(s, maxQuoted), quoteAll(r.enum), didYouMean(s, r.enum))
	}
}

// set converts by the type of the target. The type that YAML gave the scalar
// must agree, except for an override, which has none.
func (x *decoder) set(n *yaml.Node, v reflect.Value) error {
	t, s := v.Type(), n.Value
	if !x.text(n) && !agrees(n, t) {
		hint := ""
		if n.Tag != "!!str" && t.Kind() == reflect.String {
			hint = fmt.Sprintf(" (quote it: %q)", forgeyard.Clip(s, maxQuoted))
		}
		return fmt.Errorf("%s; %s is expected%s", describe(n), expected(t), hint)
	}
	var err error
	switch {
	case t == durationType:
		return assign(v, s, func(s string) (int64, error) { d, err := ParseDuration(s); return int64(d), err })
	case t == sizeType:
		return assign(v, s, func(s string) (int64, error) { n, err := ParseSize(s); return int64(n), err })
	case t == cpuType:
		return assign(v, s, func(s string) (int64, error) { n, err := ParseMilliCPU(s); return int64(n), err })
	case reflect.PointerTo(t).Implements(textType):
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		var b bool
		if b, err = parseBool(s); err == nil {
			v.SetBool(b)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return assign(v, s, func(s string) (int64, error) { return parseInt(s, t.Bits()) })
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		var u uint64
		if u, err = parseUint(s, t.Bits()); err == nil {
			v.SetUint(u)
		}
	case reflect.Float64:
		var f float64
		if f, err = parseFloat(s); err == nil {
			v.SetFloat(f)
		}
	default:
		panic("strictyaml: no YAML form for " + t.String())
	}
	return err
}

func assign(v reflect.Value, s string, parse func(string) (int64, error)) error {
	n, err := parse(s)
	if err == nil {
		v.SetInt(n)
	}
	return err
}

// agrees reports whether YAML's own reading of a scalar fits the target. A
// duration is a string in YAML, and so is `500m`; a size may also be a number.
func agrees(n *yaml.Node, t reflect.Type) bool {
	tag := n.Tag
	switch {
	case t == durationType:
		return tag == "!!str" || n.Value == "0"
	case t == sizeType, t == cpuType, reflect.PointerTo(t).Implements(textType):
		return tag == "!!str" || tag == "!!int" || tag == "!!float"
	}
	switch t.Kind() {
	case reflect.String:
		return tag == "!!str"
	case reflect.Bool:
		return tag == "!!bool"
	case reflect.Float64:
		return tag == "!!float" || tag == "!!int"
	}
	return tag == "!!int"
}

// describe says what a node is, in words.
func describe(n *yaml.Node) string {
	v := forgeyard.Clip(n.Value, maxQuoted)
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping is given"
	case yaml.SequenceNode:
		return "a list is given"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return v + " is a number"
	case "!!bool":
		return v + " is a truth value"
	case "!!timestamp":
		return v + " is a date"
	}
	return fmt.Sprintf("%q is a string", v)
}

func expected(t reflect.Type) string {
	switch {
	case t == durationType:
		return "a duration such as 30s or 10m"
	case t == sizeType:
		return "a size such as 500MB or 2GiB"
	case t == cpuType:
		return "a number of CPUs such as 2, 0.5 or 500m"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	case reflect.Array:
		return "a string"
	}
	return "a whole number"
}
