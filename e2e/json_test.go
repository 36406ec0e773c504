package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"os"

	"github.com/rogpeppe/go-internal/testscript"
)

// lookup finds what a path names in a JSON text. With more than one value in the
// text (NDJSON) they are the elements of a list.
func lookup(text, path string) (string, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var all []any
	for d.More() {
		var v any
		if err := d.Decode(&v); err != nil {
			return "", fmt.Errorf("%w in %q", err, text)
		}
		all = append(all, v)
	}
	var root any = all
	if len(all) == 1 {
		root = all[0]
	}
	found, err := walk(root, strings.Split(path, "."))
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return strings.Join(found, ","), nil
}

func walk(v any, path []string) ([]string, error) {
	if len(path) == 0 || path[0] == "" {
		return []string{show(v)}, nil
	}
	key, rest := path[0], path[1:]
	if m, ok := v.(map[string]any); ok {
		if key == "count" {
			return []string{strconv.Itoa(len(m))}, nil
		}
		next, ok := m[key]
		if !ok {
			return nil, fmt.Errorf("no key %q", key)
		}
		return walk(next, rest)
	}
	l, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%q of %s", key, show(v))
	}
	switch key {
	case "count":
		return []string{strconv.Itoa(len(l))}, nil
	case "*":
		out := []string{}
		for _, e := range l {
			found, err := walk(e, rest)
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
		}
		return out, nil
	}
	i, err := strconv.Atoi(key)
	if err == nil && i < 0 {
		i += len(l)
	}
	if err != nil || i < 0 || i >= len(l) {
		return nil, fmt.Errorf("no element %q of %d", key, len(l))
	}
	return walk(l[i], rest)
}

func show(v any) string {
	switch x := v.(type) {
	case string:
		return x
	case nil:
		return "null"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// matches compares a value with what is wanted: equal, one of a|b, `>n` for
// numbers, or `~text` for a part.
func matches(got, want string) bool {
	if part, ok := strings.CutPrefix(want, "~"); ok {
		return strings.Contains(got, part)
	}
	if bound, ok := strings.CutPrefix(want, ">"); ok {
		n, err1 := strconv.ParseFloat(got, 64)
		b, err2 := strconv.ParseFloat(bound, 64)
		return err1 == nil && err2 == nil && n > b
	}
	for w := range strings.SplitSeq(want, "|") {
		if got == w {
			return true
		}
	}
	return false
}

func TestLookup(t *testing.T) {
	const text = `{"a": {"b": [1, {"c": "x"}, {"c": null}]}, "n": 9007199254740993, "e": []}`
	for _, c := range []struct{ path, want string }{
		{"a.b.0", "1"}, {"a.b.1.c", "x"}, {"a.b.-1.c", "null"}, {"a.b.count", "3"}, {"n", "9007199254740993"}, {"e.count", "0"}, {"e.*.c", ""},
	} {
		if got, err := lookup(text, c.path); err != nil || got != c.want {
			t.Errorf("%s: %q, %v", c.path, got, err)
		}
	}
	if got, err := lookup("{\"s\": 1}\n{\"s\": 2}\n", "*.s"); err != nil || got != "1,2" {
		t.Errorf("%q %v", got, err)
	}
	for _, path := range []string{"x", "a.x", "a.b.9", "n.x"} {
		if got, err := lookup(text, path); err == nil {
			t.Errorf("%s gives %q", path, got)
		}
	}
	if _, err := lookup(`{"half": `, "half"); err == nil {
		t.Error("broken JSON has a value")
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		got, want string
		ok        bool
	}{{"a", "a", true}, {"a", "b|a", true}, {"ab", "a", false}, {"xaby", "~ab", true}, {"3", ">2", true}, {"2", ">2", false}, {"x", ">2", false}} {
		if matches(c.got, c.want) != c.ok {
			t.Errorf("%q %q", c.got, c.want)
		}
	}
}

// jsonIs checks a value in the last stdout.
func jsonIs(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: json PATH VALUE")
	}
	got, err := lookup(ts.ReadFile("stdout"), args[0])
	ts.Check(err)
	if matches(got, args[1]) == neg {
		ts.Fatalf("%s is %q, wanted %q", args[0], got, args[1])
	}
}

// keep keeps a value of the last stdout in a variable.
func keep(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: keep VAR PATH")
	}
	got, err := lookup(ts.ReadFile("stdout"), args[1])
	ts.Check(err)
	if got == "" || got == "null" {
		ts.Fatalf("%s is empty", args[1])
	}
	ts.Setenv(args[0], got)
}

// waitJSON asks until a value is there. The site changes by itself, so there is
// nothing to wait for but the answer.
func waitJSON(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 5 {
		ts.Fatalf("usage: wait-json DURATION NAME 'command' PATH VALUE")
	}
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	program := "forgeyard-node"
	if p := worldOf(ts).procs[args[1]]; p != nil {
		program = p.program
	}
	words := append([]string{"--data-dir", ts.MkAbs(args[1])}, strings.Fields(args[2])...)
	words = append(words, "-o", "json")
	var last string
	for end := time.Now().Add(limit); ; {
		cmd := exec.Command(filepath.Join(os.Getenv("FORGEYARD_BIN"), program), words...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		got := ""
		if err == nil {
			got, err = lookup(stdout.String(), args[3])
		}
		if err == nil && matches(got, args[4]) {
			return
		}
		last = fmt.Sprintf("%q (%v) %s", got, err, stderr.String())
		if time.Now().After(end) {
			ts.Logf("%s", stdout.String())
			worldOf(ts).logs(ts)
			ts.Fatalf("%s of %q is not %q after %s: %s", args[3], args[2], args[4], limit, last)
		}
		time.Sleep(100 * time.Millisecond) // between two questions; the wait itself is for the answer
	}
}

// logs shows what the daemons said, when a wait was in vain.
func (w *world) logs(ts *testscript.TestScript) {
	for name, p := range w.procs {
		ts.Logf("--- %s:\n%s", name, p.err.tail())
	}
}
