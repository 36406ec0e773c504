package main

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// nodeFlags are the flags of init, join and up that say what node.yaml says.
type nodeFlags struct {
	config, listen, gossip, http, name string
	labels                             []string
}

func (n *nodeFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&n.config, "config", "", "node.yaml of this machine (default: the one in the data dir, if any)")
	f.StringVar(&n.listen, "listen", "", "HOST:PORT of the mesh, TCP and QUIC; port 0 takes a free one (default :7444)")
	f.StringVar(&n.gossip, "gossip", "", "HOST:PORT of the membership gossip (default :7445)")
	f.StringVar(&n.http, "http", "", "HOST:PORT of the API (default 127.0.0.1:7440)")
	f.StringVar(&n.name, "name", "", "what people call this node (default: the host's name)")
	f.StringArrayVar(&n.labels, "label", nil, "k=v, a hint for placement; repeat for more")
}

// values are the flags that were given, by the key of node.yaml.
func (n *nodeFlags) values() (map[string]string, error) {
	out := map[string]string{}
	for k, v := range map[string]string{"listen": n.listen, "gossip": n.gossip, "http": n.http, "name": n.name} {
		if v != "" {
			out[k] = v
		}
	}
	labels, err := pairs("--label", n.labels)
	for k, v := range labels {
		out["labels."+strings.ReplaceAll(k, ".", `\.`)] = v
	}
	return out, err
}

// pairs reads k=v words.
func pairs(flag string, words []string) (map[string]string, error) {
	out := map[string]string{}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok || k == "" {
			return nil, forgeyard.Errorf("", forgeyard.Invalid, "%s %q is not KEY=VALUE", flag, forgeyard.Clip(w, 80))
		}
		if _, twice := out[k]; twice {
			return nil, forgeyard.Errorf("", forgeyard.Invalid, "%s gives %q twice", flag, forgeyard.Clip(k, 80))
		}
		out[k] = v
	}
	return out, nil
}

const nodeFile = "node.yaml"

// settings lays the flags over the environment over node.yaml over the defaults.
func (a *app) settings(n *nodeFlags) (sitecfg.Node, []sitecfg.Setting, error) {
	flags, err := n.values()
	if err != nil {
		return sitecfg.Node{}, nil, err
	}
	name, data, err := a.nodeYAML(n)
	if err != nil {
		return sitecfg.Node{}, nil, err
	}
	d := sitecfg.DefaultNode()
	d.DataDir, d.Name = defaultDataDir(a.Getenv), hostName()
	env := sitecfg.FromEnviron(os.Environ())
	if dir := a.Getenv("FORGEYARD_DATA_DIR"); dir != "" {
		env["data_dir"] = dir
	}
	if a.dataDir != "" {
		flags["data_dir"] = a.dataDir
	}
	out, from, err := sitecfg.Effective(sitecfg.Layers{Defaults: d, Name: name, File: data, Env: env, Flags: flags})
	if err != nil {
		return out, nil, err
	}
	if n.config == "" && data != nil && !samePath(out.DataDir, a.dir()) {
		return out, nil, forgeyard.Errorf("config", forgeyard.Invalid, "%s says data_dir %q and stands in another", name, out.DataDir)
	}
	a.dataDir = out.DataDir
	return out, from, nil
}

// nodeYAML reads the file that applies; data is nil when there is none.
func (a *app) nodeYAML(n *nodeFlags) (name string, data []byte, err error) {
	name = n.config
	if name == "" {
		name = filepath.Join(a.dir(), nodeFile)
	}
	data, err = os.ReadFile(name)
	if n.config == "" && errors.Is(err, fs.ErrNotExist) {
		return name, nil, nil
	}
	if err != nil {
		return name, nil, forgeyard.E("config", fileKind(err), err)
	}
	return name, append([]byte{}, data...), nil
}

func samePath(x, y string) bool {
	ax, err := filepath.Abs(x)
	return err == nil && ax == y
}

// keep writes what enrolment was told into the data dir's node.yaml, so that `up`
// needs no flags. Comments of a file that was given stay.
func (a *app) keep(n *nodeFlags) error {
	values, err := n.values()
	if err != nil || len(values) == 0 && n.config == "" {
		return err
	}
	_, data, err := a.nodeYAML(n)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return forgeyard.E("config", forgeyard.Invalid, err)
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		doc = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		at, key := doc.Content[0], k
		if label, ok := strings.CutPrefix(k, "labels."); ok {
			at, key = child(at, "labels"), strings.ReplaceAll(label, `\.`, ".")
		}
		set(at, key, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: values[k]})
	}
	var b bytes.Buffer
	if len(doc.Content[0].Content) > 0 {
		e := yaml.NewEncoder(&b)
		e.SetIndent(2)
		if err := errors.Join(e.Encode(&doc), e.Close()); err != nil {
			return forgeyard.E("config", forgeyard.Other, err)
		}
	}
	path := filepath.Join(a.dir(), nodeFile)
	if err := replaceFile(path, b.Bytes()); err != nil {
		return err
	}
	a.Note("the settings of this node are kept in %s", path)
	return nil
}

// child is the mapping under a key, made when it is not there.
func child(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key && m.Content[i+1].Kind == yaml.MappingNode {
			return m.Content[i+1]
		}
	}
	v := &yaml.Node{Kind: yaml.MappingNode}
	set(m, key, v)
	return v
}

func set(m *yaml.Node, key string, v *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			m.Content[i+1] = v
			return
		}
	}
	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, v)
}

// replaceFile writes a file so that a crash leaves the old one or the new one.
func replaceFile(path string, data []byte) error {
	if err := durable.WriteFile(path, data, 0o600); err != nil {
		return forgeyard.E("config", fileKind(err), err)
	}
	return nil
}

// hostName is the host's name with what a node's name may not have left out.
func hostName() string {
	h, err := os.Hostname()
	if err != nil {
		return "node"
	}
	h, _, _ = strings.Cut(h, ".")
	h = strings.Trim(strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, h), "-_")
	if h == "" {
		return "node"
	}
	return forgeyard.Clip(h, 63)
}
