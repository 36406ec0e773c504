package simulation

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
	machine "github.com/forgeyard/forgeyard-node/internal/needs"
)

var renew = flag.Bool("renew", false, "write testdata/digests anew")

const digestFile = "testdata/digests"

// digestSeeds are the sites whose traces are kept: the first ones, and some that are
// recovered by force, upgraded, or lose the power of their machines.
var digestSeeds = []uint64{1, 2, 3, 4, 5, 6, 13, 17, 28, 43}

// decides are the packages whose code a trace is made of.
var decides = []string{
	".", "internal/cborx", "job", "lease", "checkpoint", "devices", "sitecfg", "site", "node/agent", "node/controllers", "uplink/reckon", "simulation", "simulation/scenario",
}

// TestDigests plays some seeds and compares their traces with those of another machine,
// perhaps of another architecture: a seed replays byte for byte wherever it is played.
// When the rules or the models change, traces change with them; then the file is renewed.
func TestDigests(t *testing.T) {
	is := digests(t)
	if *renew {
		if err := os.WriteFile(digestFile, []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(digestFile)
	if err != nil {
		t.Fatal(err)
	}
	was := string(b)
	if seedLines(was) == seedLines(is) {
		return
	}
	const again = "if that is meant: make sim-digests RENEW=1"
	if sourceLine(was) == sourceLine(is) {
		t.Fatalf("the same sources give other traces on this machine (%s/%s, %s): a seed does not replay here\n%s\nwas\n%s", runtime.GOOS, runtime.GOARCH, runtime.Version(), is, was)
	}
	machine.Lacking(t, "the rules or models changed since %s was written, and with them the traces: nothing to compare with; %s", digestFile, again)
}

func digests(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "# What `make sim SEED=n` ends with, to be compared on other machines; see TestDigests.\nsources %s\n", sources(t))
	for _, seed := range digestSeeds {
		r := Run(seed, Options{})
		fmt.Fprintf(&b, "seed %d %s %d lines\n", seed, r.Trace, r.Lines)
	}
	return b.String()
}

// sources is the digest of the code that traces are made of.
func sources(t *testing.T) forgeyard.Digest {
	t.Helper()
	h := blake3.New()
	for _, dir := range decides {
		names, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatal(dir, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(h, "%s %d\n%s", filepath.ToSlash(name), len(text), text)
		}
	}
	var sum forgeyard.Digest
	if _, err := h.Digest().Read(sum[:]); err != nil {
		t.Fatal(err)
	}
	return sum
}

func sourceLine(file string) string {
	_, after, _ := strings.Cut(file, "\nsources ")
	line, _, _ := strings.Cut(after, "\n")
	return line
}

func seedLines(file string) string {
	_, after, _ := strings.Cut(file, "\nseed ")
	return after
}
