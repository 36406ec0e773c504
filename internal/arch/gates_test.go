package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const gatesPage = "docs/checkpoint-gates.md"

var namedTest = regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9]+)`")

// TestEachInvariantOf292HasAFaultThatIsCaught: the page of gates and invariants has each row
// once, and what it names is there: the test, and in the test's files the fault.
func TestEachInvariantOf292HasAFaultThatIsCaught(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(gatesPage)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range checkGates(string(page), testFiles(t)) {
		t.Error(f)
	}
}

// Each thing that can be wrong with the page is found.
func TestGatesThatShowNothing(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(gatesPage)))
	if err != nil {
		t.Fatal(err)
	}
	files := testFiles(t)
	for _, c := range []struct{ old, new, want string }{
		{"| CK-366 |", "| CK-000 |", "CK-366 has 0 rows"},
		{"an epoch resumes from leftovers", "an epoch resumes from nowhere", "CK-366: no file of simulation has the fault"},
		{"checkpoint.TestStoriesCatchFaults", "checkpoint.TestNobodyWrote", "checkpoint has no TestNobodyWrote"},
		{"`checkpoint.TestStories`, `node/controllers.TestMisfits`, `node/controllers.TestNearIsNotFit`", "soon", "CK-358 names no test"},
	} {
		spoilt := strings.Replace(string(page), c.old, c.new, 1)
		if got := strings.Join(checkGates(spoilt, files), "\n"); spoilt == string(page) || !strings.Contains(got, c.want) {
			t.Errorf("%s for %s: found %q, want %q", c.new, c.old, got, c.want)
		}
	}
}

// testFiles are the texts of a package's tests, by its folder.
func testFiles(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, f := range house(t).folders {
		names, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(f.dir), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil {
				t.Fatal(err)
			}
			out[f.dir] = append(out[f.dir], string(b))
		}
	}
	return out
}

func checkGates(page string, files map[string][]string) (found []string) {
	rows := map[string]int{}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || !strings.HasPrefix(strings.TrimSpace(cells[0]), "CK-") {
			continue
		}
		row, third, last := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		rows[row]++
		tests := namedTest.FindAllStringSubmatch(last, -1)
		if len(tests) == 0 {
			found = append(found, row+" names no test")
		}
		for _, m := range tests {
			if !anyHas(files[m[1]], "\nfunc "+m[2]+"(t *testing.T) {") {
				found = append(found, fmt.Sprintf("%s: %s has no %s", row, m[1], m[2]))
			}
			if row >= "CK-366" && !strings.HasPrefix(third, "none: ") && !anyHas(files[m[1]], `"`+third+`"`) {
				found = append(found, fmt.Sprintf("%s: no file of %s has the fault %q", row, m[1], third))
			}
		}
	}
	for n := 356; n <= 395; n++ {
		if row := fmt.Sprintf("CK-%d", n); rows[row] != 1 {
			found = append(found, fmt.Sprintf("%s has %d rows", row, rows[row]))
		}
	}
	return found
}

func anyHas(texts []string, what string) bool {
	for _, s := range texts {
		if strings.Contains(s, what) {
			return true
		}
	}
	return false
}
