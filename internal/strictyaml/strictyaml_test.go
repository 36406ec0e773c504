package strictyaml

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

type target struct {
	Title string            `yaml:"title" strict:"required"`
	Mode  string            `yaml:"mode" enum:"none|application" later:"framework"`
	On    bool              `yaml:"on"`
	Count int               `yaml:"count"`
	Small uint8             `yaml:"small"`
	Drift float64           `yaml:"drift"`
	For   time.Duration     `yaml:"for"`
	Mem   Size              `yaml:"mem"`
	CPU   MilliCPU          `yaml:"cpu"`
	Env   map[string]string `yaml:"env"`
	Argv  []string          `yaml:"argv"`
	Opt   *bool             `yaml:"opt"`
	Dig   forgeyard.Digest  `yaml:"digest"`
	Items []item            `yaml:"items"`
	Sub   refusing          `yaml:"sub"`
	Unset string
}

type item struct {
	Path string `yaml:"path" strict:"required"`
	Size Size   `yaml:"size"`
}

type refusing struct {
	Keep int `yaml:"keep"`
}

func (refusing) RefusedKeys() map[string]string {
	return map[string]string{"triggers": "all triggers are always on"}
}

func decode(text string) (target, error) {
	var v target
	d, err := Parse("f.yaml", []byte(text))
	if err == nil {
		err = d.Decode(&v)
	}
	return v, err
}

func TestDecodeEverything(t *testing.T) {
	dig := "b3:" + strings.Repeat("ab", 32)
	v, err := decode(`
title: "4"
mode: application
on: true
count: -7
small: 255
drift: 0.01
for: 1h30m
mem: 2GiB
cpu: 0.5
env: {BOARD: rev4, "B": "1"}
argv: [make, "-C", x]
opt: false
digest: ` + dig + `
items:
  - path: a
  - {path: b, size: 1.5KiB}
sub: {keep: 3}
`)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(v.Title, v.Mode, v.On, v.Count, v.Small, v.Drift, v.For, int64(v.Mem), int64(v.CPU), v.Env, v.Argv, *v.Opt, v.Dig, v.Items[1].Path, int64(v.Items[1].Size), v.Sub.Keep)
	want := "4 application true -7 255 0.01 1h30m0s 2147483648 500 map[B:1 BOARD:rev4] [make -C x] false " + dig + " b 1536 3"
	if strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Fatalf("\n%s\n%s", got, want)
	}
}

func TestEveryErrorHasAPlaceAValueAndABound(t *testing.T) {
	cases := []struct{ in, want string }{
		{"titel: x", "f.yaml:1:1: unknown key \"titel\"; allowed: title, mode, on, count, small, drift, for, mem, cpu, env, argv, opt, digest, items, sub (did you mean \"title\"?)\nf.yaml:1:1: title: is missing"},
		{"title: x\nxyzzyx: 1", "f.yaml:2:1: unknown key \"xyzzyx\"; allowed: title, mode, on, count, small, drift, for, mem, cpu, env, argv, opt, digest, items, sub"},
		{"title: x\ntitle: y", "f.yaml:2:1: key \"title\" is given twice; the first is in line 1"},
		{"title: 4", "f.yaml:1:8: title: 4 is a number; a string is expected (quote it: \"4\")"},
		{"title: true", "f.yaml:1:8: title: true is a truth value; a string is expected (quote it: \"true\")"},
		{"title: 2026-01-02", "f.yaml:1:8: title: 2026-01-02 is a date; a string is expected (quote it: \"2026-01-02\")"},
		{"title:", "f.yaml:1:7: title: has no value; give one or remove the key"},
		{"title: [a]", "f.yaml:1:8: title: a list is given; a string is expected"},
		{"title: x\nmode: framework", "f.yaml:2:7: mode: \"framework\" is not supported by this version; allowed: none, application"},
		{"title: x\nmode: aplication", "f.yaml:2:7: mode: \"aplication\" is unknown; allowed: none, application (did you mean \"application\"?)"},
		{"title: x\non: yes", "f.yaml:2:5: on: \"yes\" is a string; true or false is expected"},
		{"title: x\ncount: 010", "f.yaml:2:8: count: \"010\" is not a whole number; allowed: decimal digits"},
		{"title: x\nsmall: 256", "f.yaml:2:8: small: \"256\" is not a whole number in range; allowed: 0 to 255"},
		{"title: x\nfor: 10", "f.yaml:2:6: for: 10 is a number; a duration such as 30s or 10m is expected"},
		{"title: x\nfor: -10s", "f.yaml:2:6: for: \"-10s\" is not a duration; allowed: a number with a unit: 30s, 10m, 1h30m"},
		{"title: x\nmem: 2G", "f.yaml:2:6: mem: \"2G\" is not a size; allowed: bytes as a number, or with a unit: KiB MiB GiB TiB, kB MB GB TB"},
		{"title: x\nmem: 99999999TiB", "f.yaml:2:6: mem: \"99999999TiB\" is not a size; allowed: bytes as a number, or with a unit: KiB MiB GiB TiB, kB MB GB TB"},
		{"title: x\ncpu: 0.0001", "f.yaml:2:6: cpu: \"0.0001\" is not a number of CPUs; allowed: cores (2, 0.5) or thousandths (500m)"},
		{"title: x\nargv: a b", "f.yaml:2:7: argv: \"a b\" is a string; a list is expected"},
		{"title: x\nenv: [a]", "f.yaml:2:6: env: a list is given; a mapping is expected"},
		{"title: x\nenv: {A: 1}", "f.yaml:2:10: env.A: 1 is a number; a string is expected (quote it: \"1\")"},
		{"title: x\nitems: [{size: 1}]", "f.yaml:2:9: items[0].path: is missing"},
		{"title: x\nsub: {triggers: [a]}", "f.yaml:2:7: key \"triggers\" in sub is not supported by this version: all triggers are always on"},
		{"title: &a x\nmode: *a", "f.yaml:1:8: anchor &a; anchors and aliases are not allowed\nf.yaml:2:7: alias *a; anchors and aliases are not allowed: write the value out"},
		{"title: !!str x", "f.yaml:1:8: tag !!str; explicit tags are not allowed"},
		{"title: x\n---\ntitle: y", "f.yaml:2:1: a second document begins here; one file holds one document"},
		{"? [a]\n: b\ntitle: x", "f.yaml:1:3: a key must be a plain word"},
		{"title: x\n  mode: y", "f.yaml:2:1: not valid YAML: mapping values are not allowed in this context"},
		{"- a", "f.yaml:1:1: a list is given; a mapping is expected with title, mode, on, count, small, drift, for, mem, cpu, env, argv, opt, digest, items, sub"},
		{"", "f.yaml:1:1: title: is missing"},
		{"# only a comment\n", "f.yaml:1:1: title: is missing"},
	}
	for _, c := range cases {
		_, err := decode(c.in)
		if forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%q: kind of %v", c.in, err)
			continue
		}
		if err.Error() != c.want {
			t.Errorf("%q\n got: %v\nwant: %s", c.in, err, c.want)
		}
	}
}

// TestAliasBomb: the laugh that grows by nine per line is refused at its first anchor.
func TestAliasBomb(t *testing.T) {
	b := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'z'; c++ {
		b += fmt.Sprintf("%c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 8), c-1)
	}
	start := time.Now()
	_, err := decode(b)
	if forgeyard.KindOf(err) != forgeyard.Invalid || time.Since(start) > 5*time.Second {
		t.Fatal(err)
	}
	if n := strings.Count(err.Error(), "\n"); n != maxProblems {
		t.Fatalf("%d lines of errors", n)
	}
	if !strings.HasSuffix(err.Error(), "more") {
		t.Fatal(err)
	}
}

func TestBounds(t *testing.T) {
	for name, in := range map[string]string{
		"bytes": strings.Repeat("#", MaxBytes+1),
		"depth": "title: " + strings.Repeat("[", maxDepth+5) + strings.Repeat("]", maxDepth+5),
		"nodes": "argv: [" + strings.Repeat("a,", maxNodes+5) + "a]",
	} {
		if _, err := decode(in); forgeyard.KindOf(err) != forgeyard.Invalid || !strings.Contains(err.Error(), "f.yaml:1:") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOverride(t *testing.T) {
	d, err := Parse("f.yaml", []byte("title: old\nitems: [{path: a}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range [][2]string{{"title", "7"}, {"count", "5"}, {"env.A", "1"}, {`env.a\.b`, "x"}, {"items.0.size", "1KiB"}, {"argv", "a, b"}, {"sub.keep", "2"}} {
		if err := d.Override(kv[0], kv[1], "--set "+kv[0]); err != nil {
			t.Fatal(err)
		}
	}
	var v target
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(v.Title, v.Count, v.Env, v.Items, v.Argv, v.Sub)
	if want := fmt.Sprint("7", 5, map[string]string{"A": "1", "a.b": "x"}, []item{{"a", 1024}}, []string{"a", "b"}, refusing{2}); got != want {
		t.Fatalf("\n%s\n%s", got, want)
	}
	for path, want := range map[string]string{
		"items.1.path": `--set: items.1: "1" is not the place of an element; the list has 1, counted from 0`,
		"a..b":         `--set: "a..b" is not a dotted path such as job.env.BOARD`,
	} {
		if err := d.Override(path, "x", "--set"); err == nil || err.Error() != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := d.Override("coumt", "x", "--set coumt"); err != nil {
		t.Fatal(err)
	}
	if err := d.Decode(&v); err == nil || !strings.HasPrefix(err.Error(), `--set coumt: unknown key "coumt"`) {
		t.Fatal(err)
	}
	if d.Pos("items[0].path").String() != "f.yaml:2:16" || d.Pos("items[0].nope").String() != "f.yaml:2:9" || d.Has("nope") {
		t.Fatal("positions")
	}
}

func TestLeaves(t *testing.T) {
	v := target{Title: "x", Mem: 3 << 30, CPU: 1500, For: time.Minute, Env: map[string]string{"b": "2", "a": "1"}, Items: []item{{Path: "p"}}}
	var b strings.Builder
	for _, l := range Leaves(&v) {
		fmt.Fprintf(&b, "%s=%s ", l.Key, l.Value)
	}
	want := "title=x mode= on=false count=0 small=0 drift=0 for=1m0s mem=3GiB cpu=1500m env.a=1 env.b=2 argv=[] opt= digest= items[0].path=p items[0].size=0 sub.keep=0 "
	if b.String() != want {
		t.Fatalf("\n%s\n%s", b.String(), want)
	}
	if got := strings.Join(LeafKeys(&v), " "); got != "argv count cpu digest drift for mem mode on opt small sub.keep title" {
		t.Fatal(got)
	}
}

func TestSizesSurviveTheirText(t *testing.T) {
	for _, n := range []Size{0, 1, 1023, 1024, 1500, 1 << 20, 3<<30 + 1, 1<<63 - 1} {
		if back, err := ParseSize(n.String()); err != nil || back != n {
			t.Errorf("%d: %v %v", n, back, err)
		}
	}
	for _, n := range []MilliCPU{0, 1, 500, 1000, 64000} {
		if back, err := ParseMilliCPU(n.String()); err != nil || back != n {
			t.Errorf("%d: %v %v", n, back, err)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"steps", "step", 1}, {"resuorces", "resources", 1}, {"abc", "xyz", 3}, {"abcd", "a", 3}, {"kind", "knid", 1}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%s %s: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"title: x", "title: x\nitems:\n  - path: a\n    size: 2GiB\n", "a: &a [*a]", "? {a: b}\n: c", "---\n...\n---\n", "title: >\n  x\n", "\"\\x", "{a: b, c: [d"} {
		f.Add(s, "env.A", "1")
	}
	f.Fuzz(func(t *testing.T, text, path, value string) {
		d, err := Parse("f", []byte(text))
		var v target
		if err == nil && path != "" {
			_ = d.Override(path, value, "--set")
		}
		if err == nil {
			err = d.Decode(&v)
		}
		if err == nil {
			return
		}
		var ps Problems
		if forgeyard.KindOf(err) != forgeyard.Invalid || !errors.As(err, &ps) || len(ps) == 0 {
			t.Fatalf("%T %v", err, err)
		}
		for _, p := range ps {
			if p.Pos.Name == "" || p.Text == "" || (p.Pos.Line > 0) != (p.Pos.Column > 0) {
				t.Fatalf("a problem without a place: %+v", p)
			}
		}
	})
}
