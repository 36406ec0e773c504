package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

func testApp(t *testing.T) (*app, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	out, errs := &bytes.Buffer{}, &bytes.Buffer{}
	dir := t.TempDir()
	s := &cli.Shell{Program: "forgeyard-node", In: strings.NewReader(""), Out: out, Err: errs, Getenv: func(k string) string {
		return map[string]string{"FORGEYARD_DATA_DIR": dir}[k]
	}}
	return &app{Shell: s, stop: func() {}}, out, errs
}

// TestHelp: each command's help has an example and the exit codes that it uses, and
// shell completion is there.
func TestHelp(t *testing.T) {
	a, _, _ := testApp(t)
	leaves := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.HasSubCommands() {
			return
		}
		leaves++
		if c.Example == "" || !strings.Contains(c.Example, "forgeyard-node") {
			t.Errorf("%s: no example", c.CommandPath())
		}
		if !strings.Contains(c.Long, "Exit codes: 0 done") || !strings.Contains(c.Long, "2 usage or invalid file") {
			t.Errorf("%s: no exit codes in %q", c.CommandPath(), c.Long)
		}
	}
	walk(a.root())
	if leaves < 50 {
		t.Errorf("%d commands", leaves)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		a, out, _ := testApp(t)
		if code := a.Execute(context.Background(), a.root(), []string{"completion", shell}); code != 0 || out.Len() == 0 {
			t.Errorf("completion %s: %d", shell, code)
		}
	}
}

// TestUsage: a wrong command line is exit 2, nobody there is exit 5, each with one line.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		line string
		code int
		text string
	}{
		{"nothing", 2, `"nothing" is no command`},
		{"stat", 2, `did you mean "status"?`},
		{"job nothing", 2, "is no command of forgeyard-node job"},
		{"job show", 2, "show ID: accepts 1 arguments, received 0"},
		{"status extra", 2, "unknown command"},
		{"status --nothing", 2, "unknown flag"},
		{"status -o xml", 2, "is not text or json"},
		{"token create --ttl x", 2, "invalid argument"},
		{"up --init", 2, "--init needs --site NAME"},
		{"up --init --site a --join b", 2, "exclude each other"},
		{"up --site a", 2, "belong to --init"},
		{"up", 3, "belongs to no site"},
		{"init --site lab --label bench", 2, "is not KEY=VALUE"},
		{"init --site lab --listen nowhere", 2, "HOST:PORT is expected"},
		{"init --site lab --site-config nowhere.yaml", 3, "nowhere.yaml"},
		{"join nonsense", 2, "token"},
		{"submit nowhere.yaml", 3, "nowhere.yaml"},
		{"submit - --set x", 2, "is not KEY=VALUE"},
		{"cas get b3:nonsense", 2, "is not a digest"},
		{"status", 5, "no daemon answers in"},
		{"--addr 127.0.0.1:1 status", 5, "no daemon answers at 127.0.0.1:1"},
	} {
		a, out, errs := testApp(t)
		code := a.Execute(context.Background(), a.root(), strings.Fields(c.line))
		if code != c.code || !strings.Contains(errs.String(), c.text) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
			t.Errorf("%s: exit %d, not %d, stdout %q, stderr %q", c.line, code, c.code, out, errs)
		}
	}
}

// TestKeep: what enrolment was told is what `up` finds, and a file's comments stay.
func TestKeep(t *testing.T) {
	a, _, _ := testApp(t)
	a.root()
	n := &nodeFlags{config: filepath.Join(t.TempDir(), "given.yaml"), listen: "127.0.0.1:9", labels: []string{"a.b=c"}}
	if err := os.WriteFile(n.config, []byte("# mine\nlimits: {max_jobs: 7} # few\nlabels: {x: y}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.keep(n); err != nil {
		t.Fatal(err)
	}
	s, from, err := a.settings(&nodeFlags{http: "127.0.0.1:8"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Listen != "127.0.0.1:9" || s.HTTP != "127.0.0.1:8" || s.Limits.MaxJobs != 7 || s.Labels["a.b"] != "c" || s.Labels["x"] != "y" {
		t.Errorf("%+v", s)
	}
	sources := map[string]sitecfg.Source{}
	for _, f := range from {
		sources[f.Key] = f.Source
	}
	if sources["listen"] != sitecfg.FromFile || sources["http"] != sitecfg.FromFlag || sources["gossip"] != sitecfg.FromDefault {
		t.Errorf("%v", sources)
	}
	b, err := os.ReadFile(filepath.Join(a.dir(), nodeFile))
	if err != nil || !strings.Contains(string(b), "# mine") || !strings.Contains(string(b), "# few") {
		t.Errorf("%q %v", b, err)
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{"a/b-c": "a/b-c", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'"} {
		if got := shellWord(in); got != want {
			t.Errorf("%q: %s, not %s", in, got, want)
		}
	}
}

// A runner that a person took out of service is shown as such, heard or not.
func TestWorkOfSilentRunners(t *testing.T) {
	for want, m := range map[string]*forgeyardv1.Member{
		"disabled": {State: "dead", Disabled: true},
		"draining": {State: "dead", Draining: true},
		"-":        {State: "dead"},
		"takes":    {State: "alive"},
	} {
		if got := work(m); got != want {
			t.Errorf("%v: %q, want %q", m, got, want)
		}
	}
}
