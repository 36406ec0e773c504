package arch

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var realTree = sync.OnceValues(func() (*tree, error) { return load(filepath.Join("..", "..")) })

// house loads the tree that this test stands in.
func house(t *testing.T) *tree {
	t.Helper()
	h, err := realTree()
	if err != nil {
		t.Fatal(err)
	}
	// A checker that reads nothing finds nothing.
	if len(h.folders) < 3 {
		t.Fatalf("found %d folders with Go files; is this the module's root?", len(h.folders))
	}
	return h
}

func none(t *testing.T, found []finding) {
	t.Helper()
	for _, f := range found {
		t.Error(f)
	}
}

func TestModule(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(text), "module "+Module+"\n") {
		t.Fatalf("go.mod does not open with module %s", Module)
	}
}

// RA-548: the agent has no placement rule in reach; what it may import says so.
func TestLayers(t *testing.T) { none(t, checkLayers(house(t), table)) }
func TestPurity(t *testing.T) { none(t, checkPurity(house(t), table)) }

// RA-032, RA-064, RA-460, RA-527, RA-568: what decides is the same source on every platform, the agent
// and the rules of leases among it: what differs by platform is in the packages that act.
// scripts/check-cross.sh compiles both for the platforms where no test runs.
func TestDecisionsKnowNoPlatform(t *testing.T) { none(t, checkPlatforms(house(t), table)) }

// RA-382, RA-383: an adapter for darwin and for windows is compiled with each change, and the
// tests with it. What they have of their own platforms is not more than that.
func TestOtherPlatforms(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join("..", "..", "scripts", "check-cross.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for text, lines := range map[string][]string{
		string(makefile): {"PLATFORMS ?= linux/arm64 darwin/arm64 windows/amd64\n", "\tscripts/check-cross.sh $(PLATFORMS)\n"},
		string(script):   {"\n  go build ./...\n", "\n  go vet $("},
	} {
		for _, line := range lines {
			if !strings.Contains(text, line) {
				t.Errorf("%q does not stand there any more", line)
			}
		}
	}
	for _, name := range []string{"capability/totals_darwin.go", "capability/totals_windows.go", "platform_windows.go", "platform_unix.go"} {
		if _, err := os.Stat(filepath.Join("..", "..", "node", name)); err != nil {
			t.Error(err)
		}
	}
}

func TestComments(t *testing.T) { none(t, checkComments(house(t))) }
func TestWiring(t *testing.T)   { none(t, checkWiring(house(t))) }
func TestSeam(t *testing.T)     { none(t, checkSeam(house(t))) }
func TestSkips(t *testing.T)    { none(t, checkSkips(house(t), skipReasons)) }
func TestBudget(t *testing.T)   { none(t, checkBudget(house(t), reasons)) }

// The table speaks only of packages that it places, and a purity that the layers
// could not keep is a mistake in the table itself.
func TestTable(t *testing.T) {
	placed := map[string]line{}
	for _, l := range table {
		placed[l.dir] = l
	}
	for _, l := range table {
		for _, dir := range append(append([]string{}, l.only...), l.never...) {
			if _, ok := placed[dir]; !ok {
				t.Errorf("%s speaks of %s, which has no line", l.dir, dir)
			}
		}
		if l.context && !l.pure {
			t.Errorf("%s: context is for pure packages; any other may import it anyway", l.dir)
		}
	}
}
