package demo

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/forgeyard/forgeyard-node/job"
)

func TestReport(t *testing.T) {
	names := []string{"a", "b", "c"}
	for _, c := range []struct {
		name, report string
		first        int
		wrong        string
	}{
		{"as it should be", "1 a\n1 b\n2 c\n", 2, ""},
		{"all in the second epoch", "2 a\n2 b\n2 c\n", 0, ""},
		{"twice", "1 a\n1 b\n2 a\n", 2, "a was finished twice"},
		{"one is missing", "1 a\n2 b\n", 1, "2 of 3 packages are in the report"},
		{"not asked for", "1 a\n2 x\n2 c\n", 1, "x was not asked for"},
		{"an epoch that cannot be", "1 a\n3 b\n2 c\n", 1, "b was finished in epoch 3, not in 2"},
		{"back to the first", "1 a\n2 b\n1 c\n", 1, "c was finished in epoch 1, not in 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, err := parseReport(c.report)
			if err != nil {
				t.Fatal(err)
			}
			if got := checkReport(all, names, c.first); got != c.wrong {
				t.Errorf("got %q, want %q", got, c.wrong)
			}
		})
	}
	for _, bad := range []string{"1\n", "x a\n", "\n", "1 \n"} {
		if _, err := parseReport(bad); err == nil {
			t.Errorf("%q is a report", bad)
		}
	}
}

func TestStartedAndRepeated(t *testing.T) {
	log := "start path\nok  path 0.1s\nstart errors\n--- FAIL start\n"
	got := started(log)
	if !slices.Equal(got, []string{"path", "errors"}) {
		t.Fatalf("%q", got)
	}
	if r := repeated(got, []done{{1, "errors"}, {1, "html"}}); !slices.Equal(r, []string{"errors"}) {
		t.Errorf("%q", r)
	}
}

func TestInOrder(t *testing.T) {
	texts := []string{"connected to hq", "drill: cut=true by x", "grace after 1s", "offline_authorized after 2s", "drill: cut=false by x", "reconciling after 0s", "reconciled: every record is acknowledged"}
	if !inOrder(texts, "drill: cut=true", "grace", "offline_authorized") || inOrder(texts, "offline_authorized", "grace") || inOrder(texts, "exhausted") {
		t.Error("the order of events is read wrongly")
	}
	if got := afterRestore(texts); !slices.Equal(got, []string{"reconciling", "reconciled"}) {
		t.Errorf("%q", got)
	}
	if got := afterRestore(texts[:4]); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// A claim that was not seen is in the table and among the missing.
func TestTable(t *testing.T) {
	var p proofs
	p.add(true, "one", "seen %d", 1)
	p.add(false, "two", "not seen")
	if got := p.missing(); !slices.Equal(got, []string{"two"}) {
		t.Errorf("%q", got)
	}
	var b bytes.Buffer
	if err := p.print(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "ok  one") || !strings.Contains(b.String(), "NO  two") {
		t.Errorf("%s", b.String())
	}
}

// The job files are what people write: the parser takes them, and the shell their scripts.
func TestJobFiles(t *testing.T) {
	for name, j := range map[string]m{
		"verify": verifyJob("/src", "/usr/local/go", 2), "board": boardJob(), "late": lateJob("/gate/open"),
	} {
		b, err := yaml.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		f, err := job.ParseFile(name+".yaml", b, nil)
		if err != nil {
			t.Errorf("%v\n%s", err, b)
			continue
		}
		for _, s := range f.Job.Steps {
			if out, err := exec.Command("/bin/sh", "-n", "-c", s.Sh).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", name, err, out)
			}
		}
	}
}

func TestBoard(t *testing.T) {
	var b board
	for _, c := range []struct{ ask, answer string }{
		{"MEASURE", "1: 3.30 V"}, {"MEASURE", "2: 3.30 V"}, {"RESET", "READY 1"}, {"MEASURE", "1: 3.30 V"},
		{"ID", "rev4 board, 1 channel"}, {"", ""}, {"HELLO", "? HELLO"}, {"RESET", "READY 2"},
	} {
		if got := b.answer(c.ask); got != c.answer {
			t.Errorf("%s: got %q, want %q", c.ask, got, c.answer)
		}
	}
}

func TestCopyLibrary(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "src")
	for name, text := range map[string]string{
		"a/a.go": "package a", "a/testdata/x": "1", "a/a_test.go": "package a", "cmd/go/main.go": "package main", "go.mod": "module std",
		"path/path_test.go": "package path", "path/filepath/x_test.go": "no", "path/testdata/deep/x": "1",
	} {
		p := filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := copyLibrary(t.Context(), from, to)
	if c.err != nil || c.files != 4 || c.bytes != 32 {
		t.Fatalf("%+v", c)
	}
	if _, err := os.Stat(filepath.Join(to, "cmd")); !os.IsNotExist(err) {
		t.Errorf("the commands were copied: %v", err)
	}
	if _, err := os.Stat(filepath.Join(to, "a/testdata")); !os.IsNotExist(err) {
		t.Errorf("test data of a package that is not tested was copied: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(to, "a/a.go")); err != nil || string(b) != "package a" {
		t.Errorf("%q %v", b, err)
	}
}

func TestWordAfter(t *testing.T) {
	if got := wordAfter("run   01A\njob   01B\n", "job"); got != "01B" {
		t.Errorf("%q", got)
	}
	if got := wordAfter("the job is 1\n", "job"); got != "" {
		t.Errorf("%q", got)
	}
}
