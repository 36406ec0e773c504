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

var (
	decisionNamed  = regexp.MustCompile(`\bdecisions? ((?:\d+[a-z]?(?:, | and )?)+)`)
	decisionNumber = regexp.MustCompile(`\d+`)
	sourceRef      = regexp.MustCompile(`\d+§\d+`)
	decisionPoint  = regexp.MustCompile(`(?m)^(\d+)\. `)
)

// TestDecisions follows each decision that a comment names: one or two digits are a point
// of the design's list, four are a page.
func TestDecisions(t *testing.T) {
	top := filepath.Join("..", "..")
	known := map[string]bool{}
	list, err := os.ReadFile(filepath.Join(top, "docs", "decisions", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range decisionPoint.FindAllStringSubmatch(string(list), -1) {
		known[m[1]] = true
	}
	pages, err := filepath.Glob(filepath.Join(top, "docs", "decisions", "0*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		known[filepath.Base(p)[:4]] = true
	}
	named := 0
	for _, f := range house(t).folders {
		for _, file := range f.files {
			text, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(file.name)))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range decisionNamed.FindAllStringSubmatch(sourceRef.ReplaceAllString(string(text), ""), -1) {
				for _, n := range decisionNumber.FindAllString(m[1], -1) {
					if named++; !known[n] {
						t.Errorf("%s names decision %s, which is neither a point of docs/decisions/design.md nor a page", file.name, n)
					}
				}
			}
		}
	}
	if named < 50 {
		t.Fatalf("found %d decisions named; does the pattern still match?", named)
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
