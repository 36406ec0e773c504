package sitecfg

import (
	"maps"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node/internal/strictyaml"
)

// Source is where a value came from; later in this list wins over earlier.
type Source string

// Sources.
const (
	FromDefault Source = "default"
	FromFile    Source = "file"
	FromEnv     Source = "env"
	FromFlag    Source = "flag"
)

// Setting is one effective value, for doctor.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source Source `json:"source"`
	Where  string `json:"where,omitempty"` // node.yaml:3:7, FORGEYARD_LISTEN, --listen
}

// Layers is everything that is said about a node's configuration.
type Layers struct {
	Defaults Node              // DefaultNode, with the platform's data dir and name
	Name     string            // the file's path as given, for errors; unused without File
	File     []byte            // node.yaml; nil: there is none
	Env      map[string]string // by dotted key; see EnvKeys
	Flags    map[string]string // by dotted key; a map's entry as `labels.bench`
}

// ParseNode reads node.yaml. Keys that it does not give have their defaults.
func ParseNode(name string, data []byte) (Node, error) {
	n, _, err := Effective(Layers{Defaults: DefaultNode(), Name: name, File: data})
	return n, err
}

// Effective lays flags over the environment over the file over the defaults, and
// tells for every value which of them it is. An error has kind Invalid and names
// the place of each wrong value.
func Effective(l Layers) (Node, []Setting, error) {
	name := l.Name
	if name == "" {
		name = "node.yaml"
	}
	doc, err := strictyaml.Parse(name, l.File)
	if err != nil {
		return Node{}, nil, err
	}
	given := map[string]Setting{}
	for _, layer := range []struct {
		values map[string]string
		source Source
		where  func(string) string
	}{{l.Env, FromEnv, EnvName}, {l.Flags, FromFlag, flagName}} {
		for _, k := range slices.Sorted(maps.Keys(layer.values)) {
			where := layer.where(k)
			if err := doc.Override(k, layer.values[k], where); err != nil {
				return Node{}, nil, err
			}
			given[k] = Setting{Source: layer.source, Where: where}
		}
	}
	n := l.Defaults
	n.Executors, n.Labels, n.Secrets = slices.Clone(n.Executors), maps.Clone(n.Labels), maps.Clone(n.Secrets)
	if err := finish(doc, &n, func() []fault { n.fill(doc); return n.faults() }); err != nil {
		return Node{}, nil, err
	}
	return n, settings(n, doc, given), nil
}

// fill sets the defaults of list elements, which no layer below can hold.
func (n *Node) fill(doc *strictyaml.Doc) {
	for i := range n.Devices {
		d, at := &n.Devices[i], strictyaml.Index("devices", i)
		if !doc.Has(at + ".baud") {
			d.Baud = defaultBaud
		}
		if !doc.Has(at + ".reset.timeout") {
			d.Reset.Timeout = defaultResetTimeout
		}
	}
}

func settings(n Node, doc *strictyaml.Doc, given map[string]Setting) []Setting {
	var out []Setting
	for _, l := range strictyaml.Leaves(n) {
		s := Setting{Key: l.Key, Value: l.Value, Source: FromDefault}
		switch g, ok := given[l.Key]; {
		case ok:
			s.Source, s.Where = g.Source, g.Where
		case doc.Has(l.Key):
			s.Source, s.Where = FromFile, doc.Pos(l.Key).String()
		}
		out = append(out, s)
	}
	return out
}

// EnvName is the variable of a dotted key: log.level is FORGEYARD_LOG_LEVEL.
func EnvName(key string) string {
	return "FORGEYARD_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

func flagName(key string) string {
	return "--" + strings.NewReplacer(".", "-", "_", "-").Replace(key)
}

// FromEnviron picks the node's settings out of an environment (`NAME=value`
// lines). Lists are separated by commas. Other variables are not looked at, also
// those that begin with FORGEYARD_: some are the command line's. An empty value is
// no value.
func FromEnviron(environ []string) map[string]string {
	names := map[string]string{}
	for _, k := range strictyaml.LeafKeys(Node{}) {
		names[EnvName(k)] = k
	}
	out := map[string]string{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if k, ok := names[name]; ok && value != "" {
			out[k] = value
		}
	}
	return out
}

// reloadable are the keys that a running node takes over on SIGHUP (07§220); all
// others name sockets, identities or running parts.
var reloadable = []string{"log.", "limits.", "cas.", "spool.", "policy.", "labels", "reconnect.", "shutdown.", "retention."}

// Reload compares a running configuration with a new one: the keys that changed
// and can be taken over, and those that need a restart (RA-359 to RA-362).
func Reload(old, now Node) (live, restart []string) {
	before := map[string]string{}
	for _, l := range strictyaml.Leaves(old) {
		before[l.Key] = l.Value
	}
	changed := map[string]bool{}
	for _, l := range strictyaml.Leaves(now) {
		if v, ok := before[l.Key]; !ok || v != l.Value {
			changed[l.Key] = true
		}
		delete(before, l.Key)
	}
	for k := range before {
		changed[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(changed)) {
		if slices.ContainsFunc(reloadable, func(p string) bool { return strings.HasPrefix(k, p) }) {
			live = append(live, k)
		} else {
			restart = append(restart, k)
		}
	}
	return live, restart
}
