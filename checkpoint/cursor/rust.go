package cursor

import (
	"bytes"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// RustBinary is a program of tests that cargo has built. Its ID is the one that nextest gives it:
// the package, and behind it what of the package it is, unless that is its library.
type RustBinary struct {
	ID, Path string
	Dir      string // of its package, where its tests run
}

// RustTest is one test of a binary, run alone by `BINARY --exact NAME`. Its ID is that of the
// binary, then `::`, then the name.
type RustTest struct {
	RustBinary
	ID, Name string
	Ignored  bool // its program runs it with `--ignored` alone; somebody asked for it
}

// Args are those of its program that run it and nothing else.
func (t RustTest) Args() []string {
	args := []string{"--exact", t.Name, "--nocapture"}
	if t.Ignored {
		args = append(args, "--ignored")
	}
	return args
}

// ParseCargo reads what `cargo test --no-run --message-format=json` prints: a message a line, of
// which those count that tell of a test program.
func ParseCargo(b []byte) ([]RustBinary, error) {
	var out []RustBinary
	for line := range bytes.Lines(b) {
		var m struct {
			Reason     string `json:"reason"`
			Package    string `json:"package_id"`
			Manifest   string `json:"manifest_path"`
			Executable string `json:"executable"`
			Target     struct {
				Kind []string `json:"kind"`
				Name string   `json:"name"`
			} `json:"target"`
			Profile struct {
				Test bool `json:"test"`
			} `json:"profile"`
		}
		if !bytes.HasPrefix(line, []byte("{")) {
			continue // what a build says for people
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, forgeyard.Errorf("cargo messages", forgeyard.Invalid, "%w", err)
		}
		if m.Reason != "compiler-artifact" || !m.Profile.Test || m.Executable == "" {
			continue
		}
		if len(m.Target.Kind) == 0 || m.Target.Name == "" || m.Manifest == "" {
			return nil, forgeyard.Errorf("cargo messages", forgeyard.Invalid, "the test program %q has no kind, name or manifest", forgeyard.Clip(m.Executable, 80))
		}
		out = append(out, RustBinary{ID: rustID(packageName(m.Package), m.Target.Kind[0], m.Target.Name), Path: m.Executable, Dir: path.Dir(m.Manifest)})
	}
	slices.SortFunc(out, func(a, b RustBinary) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// packageName is the name in a package's id, of which cargo has had three forms:
// `file:///dir/name#1.0.0`, `…#name@1.0.0` and `name 1.0.0 (…)`.
func packageName(id string) string {
	at, version, ok := strings.Cut(id, "#")
	if !ok {
		name, _, _ := strings.Cut(id, " ")
		return name
	}
	if name, _, ok := strings.Cut(version, "@"); ok {
		return name
	}
	return path.Base(at)
}

func rustID(pkg, kind, name string) string {
	switch kind {
	case "test":
		return pkg + "::" + name
	case "bin", "example", "bench":
		return pkg + "::" + kind + "/" + name
	}
	return pkg // lib and its kin, of which a package has one
}

// Tests are the tests of a binary, by what it prints for `--list --format terse`: all of them, and
// those that are ignored, which nobody runs unless they are asked for.
func (b RustBinary) Tests(all, ignored []byte) []RustTest {
	skip := map[string]bool{}
	for _, name := range terse(ignored) {
		skip[name] = true
	}
	var out []RustTest
	for _, name := range terse(all) {
		if !skip[name] {
			out = append(out, RustTest{RustBinary: b, ID: b.ID + "::" + name, Name: name})
		}
	}
	return out
}

// terse takes the names of tests out of a list that also has benchmarks.
func terse(list []byte) (names []string) {
	for line := range strings.Lines(string(list)) {
		if name, ok := strings.CutSuffix(strings.TrimRight(line, "\r\n"), ": test"); ok {
			names = append(names, name)
		}
	}
	return names
}

// ParseNextest reads `cargo nextest list --message-format json`: the tests that its filters and
// its profile would run.
func ParseNextest(b []byte) ([]RustTest, error) {
	var list struct {
		Suites map[string]struct {
			Path  string `json:"binary-path"`
			Dir   string `json:"cwd"`
			Cases map[string]struct {
				Kind    string `json:"kind"`
				Ignored bool   `json:"ignored"`
				Match   struct {
					Status string `json:"status"`
				} `json:"filter-match"`
			} `json:"testcases"`
		} `json:"rust-suites"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, forgeyard.Errorf("nextest list", forgeyard.Invalid, "%w", err)
	}
	if list.Suites == nil {
		return nil, forgeyard.Errorf("nextest list", forgeyard.Invalid, "it has no rust-suites: is it of `cargo nextest list --message-format json`?")
	}
	var out []RustTest
	for _, id := range slices.Sorted(maps.Keys(list.Suites)) {
		s := list.Suites[id]
		for _, name := range slices.Sorted(maps.Keys(s.Cases)) {
			c := s.Cases[name]
			if c.Match.Status != "matches" || c.Kind == "bench" {
				continue
			}
			if s.Path == "" || s.Dir == "" {
				return nil, forgeyard.Errorf("nextest list", forgeyard.Invalid, "%q has tests, and no binary-path or cwd", forgeyard.Clip(id, 80))
			}
			out = append(out, RustTest{RustBinary: RustBinary{ID: id, Path: s.Path, Dir: s.Dir}, ID: id + "::" + name, Name: name, Ignored: c.Ignored})
		}
	}
	return out, nil
}
