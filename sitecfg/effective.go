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
// others name sockets, identities or running parts. TakeOver copies just these.
var reloadable = []string{
	"labels", "toolchains", "limits.max_jobs", "limits.cpu", "limits.memory", "limits.disk", "limits.share_cpu", "limits.reserve.", "cas.limit", "cas.reserve", "cas.scrub_",
	"spool.", "policy.", "reconnect.", "shutdown.", "retention.", "log.level",
}

// TakeOver is what a running node goes on with: its old configuration with what is
// reloadable of the new one. It may be refused as a whole although both were valid:
// more jobs than there are users, say.
func TakeOver(old, now Node) (Node, error) {
	out := old
	out.Labels, out.Toolchains = maps.Clone(now.Labels), slices.Clone(now.Toolchains)
	out.Limits, out.Limits.Layers = now.Limits, old.Limits.Layers
	out.CAS.Limit, out.CAS.Reserve = now.CAS.Limit, now.CAS.Reserve
	out.CAS.ScrubEvery, out.CAS.ScrubRate = now.CAS.ScrubEvery, now.CAS.ScrubRate
	out.Spool, out.Policy, out.Reconnect, out.Shutdown = now.Spool, now.Policy, now.Reconnect, now.Shutdown
	out.Policy.Ingest, out.Policy.SiteNetworks = slices.Clone(now.Policy.Ingest), slices.Clone(now.Policy.SiteNetworks)
	out.Retention = now.Retention
	out.Log.Level = now.Log.Level
	return out, out.Validate()
}

// InForce are the settings of what TakeOver gave: of each value that the new layers say the new
// source, of the others the old one.
func InForce(n Node, old, now []Setting) []Setting {
	by := map[string]Setting{}
	for _, s := range old {
		by[s.Key] = s
	}
	news := map[string]Setting{}
	for _, s := range now {
		news[s.Key] = s
	}
	var out []Setting
	for _, l := range strictyaml.Leaves(n) {
		s, ok := news[l.Key]
		if !ok || s.Value != l.Value {
			s = by[l.Key]
		}
		s.Key, s.Value = l.Key, l.Value
		out = append(out, s)
	}
	return out
}

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
	keys := slices.Sorted(maps.Keys(changed))
	for _, k := range keys {
		within := func(o string) bool { return strings.HasPrefix(o, k+".") || strings.HasPrefix(o, k+"[") }
		if slices.ContainsFunc(keys, within) {
			continue // a map or list that was empty is a key of its own: what came into it says more
		}
		if slices.ContainsFunc(reloadable, func(p string) bool { return strings.HasPrefix(k, p) }) {
			live = append(live, k)
		} else {
			restart = append(restart, k)
		}
	}
	return live, restart
}
