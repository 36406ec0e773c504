package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	blockLine = regexp.MustCompile(`^\t(\S+)`)
	docsRow   = regexp.MustCompile("(?m)^\\| `([^`]+\\.[^`]+/[^`]+)` \\| (.+) \\|$")
)

// directOf reads the modules and tools that a go.mod names directly.
func directOf(gomod string) map[string]bool {
	direct := map[string]bool{}
	inBlock := false
	for line := range strings.Lines(gomod) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "require (" || line == "tool (":
			inBlock = true
		case line == ")":
			inBlock = false
		case inBlock && !strings.HasSuffix(line, "// indirect"):
			if m := blockLine.FindStringSubmatch(line); m != nil {
				direct[m[1]] = true
			}
		}
	}
	return direct
}

// checkDependencies compares go.mod with the page that says why.
func checkDependencies(gomod, page string) []finding {
	var found []finding
	direct, explained := directOf(gomod), map[string]bool{}
	for _, m := range docsRow.FindAllStringSubmatch(page, -1) {
		explained[m[1]] = true
		if !direct[m[1]] {
			found = append(found, finding{m[1], "has a line in docs/dependencies.md and is no direct dependency in go.mod"})
		}
	}
	for name := range direct {
		if !explained[name] {
			found = append(found, finding{name, "is a direct dependency without a line of why in docs/dependencies.md"})
		}
	}
	return found
}

func TestDependencies(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	gomod := read("go.mod")
	if len(directOf(gomod)) < 3 {
		t.Fatal("go.mod names hardly anything; is it read right?")
	}
	none(t, checkDependencies(gomod, read("docs/dependencies.md")))
}

func TestDependenciesSeeded(t *testing.T) {
	const gomod = "module x\n\nrequire (\n\texample.com/a v1.0.0\n\texample.com/c v1.0.0 // indirect\n)\n\ntool (\n\texample.com/t/cmd/t\n)\n"
	const rowA, rowT, rowB = "| `example.com/a` | a |\n", "| `example.com/t/cmd/t` | t |\n", "| `example.com/b` | b |\n"
	for name, c := range map[string]struct{ page, want string }{
		"sound":         {rowA + rowT, ""},
		"no line":       {rowT, "example.com/a: is a direct"},
		"no tool":       {rowA, "example.com/t/cmd/t: is a direct"},
		"not in go.mod": {rowA + rowB + rowT, "example.com/b: has a line"},
		"empty reason":  {"| `example.com/a` |  |\n" + rowT, "example.com/a: is a direct"},
	} {
		found := checkDependencies(gomod, c.page)
		if c.want == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || c.want == "" || !strings.HasPrefix(found[0].String(), c.want) {
			t.Errorf("%s: found %v, want %q", name, found, c.want)
		}
	}
}
