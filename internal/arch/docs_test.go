package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// TestLinks follows every link from one page of ours to another file.
func TestLinks(t *testing.T) {
	top := filepath.Join("..", "..")
	pages := 0
	err := filepath.WalkDir(top, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != top && skipped(name, entry.Name()) {
			return fs.SkipDir
		}
		if entry.IsDir() || filepath.Ext(name) != ".md" {
			return nil
		}
		pages++
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), filepath.FromSlash(m[1]))); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", filepath.ToSlash(name), m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 3 {
		t.Fatalf("found %d pages; is this the module's root?", pages)
	}
}

// TestCommands keeps the README, the Makefile and CI saying the same: the two
// commands that a newcomer types exist, and CI runs the second.
func TestCommands(t *testing.T) {
	text := map[string]string{}
	for _, name := range []string{"README.md", "Makefile", ".ci/run"} {
		b, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		text[name] = string(b)
	}
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(text["Makefile"], -1) {
		targets[m[1]] = true
	}
	for _, name := range []string{"build", "test", "check", "demo", "e2e", "sim", "bench", "fuzz", "soak", "generate"} {
		if !targets[name] {
			t.Errorf("the Makefile has no target %s", name)
		}
	}
	for _, m := range regexp.MustCompile("(?:`|^|\n)make ([a-z][a-z0-9-]*)").FindAllStringSubmatch(text["README.md"], -1) {
		if !targets[m[1]] {
			t.Errorf("README.md speaks of make %s, which the Makefile does not have", m[1])
		}
	}
	for _, want := range []string{"make demo", "make test"} {
		if !strings.Contains(text["README.md"], want) {
			t.Errorf("README.md does not name %q", want)
		}
	}
	if !strings.Contains(text[".ci/run"], "\nmake test\n") {
		t.Error(".ci/run does not run make test, the README's test command")
	}
}
