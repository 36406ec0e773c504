// Package strictyaml reads our YAML files: the job file, node.yaml, site.yaml.
//
// It decides whether a document says exactly what a Go struct can hold, and
// nothing else: an unknown or repeated key, a value of another type, a second
// document, an anchor, an alias or an explicit tag is an error, never a guess.
// Every error has a position, says the value and what is allowed, and one run
// reports all of them in the order of the file.
//
// Scalars: strings are not converted (`4` where a string is expected must be
// written "4"), numbers are decimal, durations are Go's (`10m`), sizes are bytes
// or carry a unit (`2GiB`, `500MB`), CPUs are cores or thousandths (`2`, `0.5`,
// `500m`). A key without a value is an error.
//
// Anchors and aliases are refused rather than counted: none of our files needs
// them, and an alias bomb cannot exist where there is no alias.
//
// The package is pure.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/forgeyard/forgeyard-node"
)

// The bounds of one document.
const (
	MaxBytes    = 1 << 20 // a job file is a page or two; a megabyte is a mistake or an attack
	maxDepth    = 24      // our deepest key has six levels
	maxNodes    = 50_000  // keys and values together
	maxProblems = 20      // more than a screen of them helps nobody
	maxQuoted   = 60      // bytes of a value quoted in an error
)

// Doc is a parsed document: well formed, bounded, without repeated keys.
type Doc struct {
	name string
	root *yaml.Node // nil: the document is empty
	from map[*yaml.Node]string
	pos  map[string]Pos
}

// Parse reads the one document in data. The name stands in front of each error;
// it is usually the file's path as the user gave it.
func Parse(name string, data []byte) (*Doc, error) {
	d := &Doc{name: name, from: map[*yaml.Node]string{}}
	if len(data) > MaxBytes {
		return nil, fail(Problem{Pos: d.at(nil), Text: fmt.Sprintf("the file has %d bytes; at most %d are allowed", len(data), MaxBytes)})
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		d.index()
		return d, nil
	case err != nil:
		return nil, fail(syntax(name, err))
	}
	var second yaml.Node
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, fail(syntax(name, err))
	default:
		return nil, fail(Problem{Pos: d.at(&second), Text: "a second document begins here; one file holds one document"})
	}
	if len(doc.Content) > 0 && !blank(doc.Content[0]) {
		d.root = doc.Content[0]
	}
	c := checker{doc: d}
	c.check(d.root, 0)
	if len(c.problems) > 0 {
		return nil, fail(c.problems...)
	}
	d.index()
	return d, nil
}

// blank tells a document of comments only from one that says null.
func blank(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" && n.Value == "" }

var yamlLine = regexp.MustCompile(`line (\d+): `)

// syntax gives an error of the YAML scanner our shape. The scanner tells the
// line only.
func syntax(name string, err error) Problem {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if m := yamlLine.FindStringSubmatchIndex(text); m != nil {
		if n, err := strconv.Atoi(text[m[2]:m[3]]); err == nil && n > 0 {
			line = n
		}
		text = text[:m[0]] + text[m[1]:]
	}
	return Problem{Pos: Pos{Name: name, Line: line, Column: 1}, Text: "not valid YAML: " + text}
}

// checker refuses what no target could accept.
type checker struct {
	doc      *Doc
	nodes    int
	problems []Problem
}

func (c *checker) check(n *yaml.Node, depth int) {
	if n == nil || c.nodes > maxNodes {
		return
	}
	c.nodes++
	switch {
	case c.nodes > maxNodes:
		c.add(n, "the document has more than %d keys and values", maxNodes)
		return
	case depth > maxDepth:
		c.add(n, "nested more than %d levels deep", maxDepth)
		return
	case n.Kind == yaml.AliasNode:
		c.add(n, "alias *%s; anchors and aliases are not allowed: write the value out", forgeyard.Clip(n.Value, maxQuoted))
		return
	case n.Anchor != "":
		c.add(n, "anchor &%s; anchors and aliases are not allowed", forgeyard.Clip(n.Anchor, maxQuoted))
	case n.Style&yaml.TaggedStyle != 0:
		c.add(n, "tag %s; explicit tags are not allowed", forgeyard.Clip(n.Tag, maxQuoted))
	}
	if n.Kind == yaml.MappingNode {
		c.keys(n)
	}
	for _, m := range n.Content {
		c.check(m, depth+1)
	}
}

func (c *checker) keys(n *yaml.Node) {
	seen := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode || k.Tag == "!!null" {
			c.add(k, "a key must be a plain word")
			continue
		}
		if first, ok := seen[k.Value]; ok {
			c.add(k, "key %q is given twice; the first is in line %d", forgeyard.Clip(k.Value, maxQuoted), first.Line)
			continue
		}
		seen[k.Value] = k
	}
}

func (c *checker) add(n *yaml.Node, format string, args ...any) {
	c.problems = append(c.problems, Problem{Pos: c.doc.at(n), Text: fmt.Sprintf(format, args...)})
}

// Name is the name the document was parsed under.
func (d *Doc) Name() string { return d.name }

// Has reports whether the document gives a value at the path (`job.inputs[0].path`).
func (d *Doc) Has(path string) bool { _, ok := d.pos[path]; return ok }

// Pos is where the value at the path stands, else where the nearest part of the
// path stands that exists.
func (d *Doc) Pos(path string) Pos {
	for {
		if p, ok := d.pos[path]; ok {
			return p
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return d.at(d.root)
		}
		path = path[:i]
	}
}

// Problem makes an error at a path, for rules that go beyond types.
func (d *Doc) Problem(path, format string, args ...any) Problem {
	return Problem{Pos: d.Pos(path), Path: path, Text: fmt.Sprintf(format, args...)}
}

func (d *Doc) at(n *yaml.Node) Pos {
	if n == nil || n.Line == 0 {
		if o := d.from[n]; n != nil && o != "" {
			return Pos{Name: o}
		}
		return Pos{Name: d.name, Line: 1, Column: 1}
	}
	return Pos{Name: d.name, Line: n.Line, Column: max(1, n.Column)}
}

func (d *Doc) index() {
	d.pos = map[string]Pos{}
	if d.root != nil {
		d.indexNode(d.root, "")
	}
}

func (d *Doc) indexNode(n *yaml.Node, path string) {
	if path != "" {
		d.pos[path] = d.at(n)
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			d.indexNode(n.Content[i+1], join(path, n.Content[i].Value))
		}
	case yaml.SequenceNode:
		for i, m := range n.Content {
			d.indexNode(m, Index(path, i))
		}
	}
}

// Index is the path of an element: `job.inputs[0]`.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
