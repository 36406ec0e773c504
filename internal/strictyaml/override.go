package strictyaml

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/forgeyard/forgeyard-node"
)

// Override puts a value at a dotted path, as `--set job.env.BOARD=rev4` asks: it
// replaces what is there, makes the mappings that are missing, and reaches into
// lists that exist (`job.inputs.0.digest`). A dot in a key is written `\.`. The
// origin stands in front of errors about this value, which has no line; it must
// not be empty. The value's type is that of its target.
func (d *Doc) Override(path, value, origin string) error {
	keys, err := splitPath(path)
	if err != nil {
		return fail(Problem{Pos: Pos{Name: origin}, Text: err.Error()})
	}
	if d.root == nil {
		d.root = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: 1, Column: 1}
	}
	leaf := &yaml.Node{Kind: yaml.ScalarNode, Value: value}
	d.from[leaf] = origin
	if err := d.put(d.root, keys, leaf, origin); err != nil {
		return fail(Problem{Pos: Pos{Name: origin}, Text: err.Error()})
	}
	d.index()
	return nil
}

func (d *Doc) put(n *yaml.Node, keys []string, leaf *yaml.Node, origin string) error {
	for i, key := range keys {
		slot, err := d.slot(n, key, origin)
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(keys[:i+1], "."), err)
		}
		if i == len(keys)-1 {
			*slot = leaf
			return nil
		}
		if *slot == nil || (*slot).Kind == yaml.ScalarNode {
			m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			d.from[m] = origin
			*slot = m
		}
		n = *slot
	}
	return nil
}

// slot finds or makes the place of a key in a node.
func (d *Doc) slot(n *yaml.Node, key, origin string) (**yaml.Node, error) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return &n.Content[i+1], nil
			}
		}
		k := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}
		d.from[k] = origin
		n.Content = append(n.Content, k, nil)
		return &n.Content[len(n.Content)-1], nil
	case yaml.SequenceNode:
		i, err := strconv.Atoi(key)
		if err != nil || i < 0 || i >= len(n.Content) {
			return nil, fmt.Errorf("%q is not the place of an element; the list has %d, counted from 0", forgeyard.Clip(key, maxQuoted), len(n.Content))
		}
		return &n.Content[i], nil
	}
	return nil, fmt.Errorf("there is a plain value above it")
}

func splitPath(path string) ([]string, error) {
	var keys []string
	var cur strings.Builder
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '\\' && i+1 < len(path) && path[i+1] == '.':
			cur.WriteByte('.')
			i++
		case c == '.':
			keys = append(keys, cur.String())
			cur.Reset()
		default:
			cur.WriteByte(c)
		}
	}
	keys = append(keys, cur.String())
	for _, k := range keys {
		if k == "" {
			return nil, fmt.Errorf("%q is not a dotted path such as job.env.BOARD", forgeyard.Clip(path, maxQuoted))
		}
	}
	if len(keys) > maxDepth {
		return nil, fmt.Errorf("the path has %d parts; at most %d are allowed", len(keys), maxDepth)
	}
	return keys, nil
}
