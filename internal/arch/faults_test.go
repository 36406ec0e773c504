package arch

import (
	"fmt"
	"strings"
	"testing"
)

// small is a house of a few rooms, for the seeded faults.
var small = []line{
	{dir: ".", pure: true},
	{dir: "internal/clock"},
	{dir: "lease", pure: true},
	{dir: "cas", pure: true, context: true},
	{dir: "site", pure: true},
	{dir: "consensus/seam", only: []string{}},
	{dir: "consensus", only: []string{".", "internal/clock", "consensus/seam"}},
	{dir: "node/controllers", pure: true, never: []string{"node/agent"}},
	{dir: "node/agent", pure: true, never: []string{"node/controllers"}},
	{dir: "node"},
	{dir: "simulation/raftsim"},
}

const seamFile = "// Package seam names parts.\npackage seam\ntype Parts struct{}\n"

func all(t *tree, lines []line) []finding {
	found := checkLayers(t, lines)
	found = append(found, checkPurity(t, lines)...)
	found = append(found, checkPlatforms(t, lines)...)
	found = append(found, checkComments(t)...)
	found = append(found, checkSeam(t)...)
	found = append(found, checkSkips(t, nil)...)
	return append(found, checkWiring(t)...)
}

// leaseFile is lease/lease.go with an import and a function body.
func leaseFile(imports, body string) map[string]string {
	return map[string]string{"lease/lease.go": "// Package lease decides.\npackage lease\n" + imports + "\nfunc f() {" + body + "}\n"}
}

// TestSeededFaults shows each rule a tree that breaks it. A checker that passes
// here without a finding would pass over the same fault in the real tree.
func TestSeededFaults(t *testing.T) {
	const mod = `"` + Module
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"upward import": {leaseFile(`import _ `+mod+`/node"`, ""),
			"lease (line 3) imports node (line 10): a package may import only what stands above its line"},
		"import of itself through the root": {map[string]string{"a.go": "// Package forgeyard x.\npackage forgeyard\nimport l " + mod + "/lease\"\nvar _ = l.X"},
			". (line 1) imports lease (line 3)"},
		"unplaced folder": {map[string]string{"util/util.go": "// Package util helps.\npackage util"},
			"util: has Go files and no line in the table"},
		"unplaced folder of tests": {map[string]string{"util/a_test.go": "// Package util helps.\npackage util"},
			"util: has Go files and no line in the table"},
		"import of an unplaced package": {leaseFile(`import u `+mod+`/util"`, "u.F()"),
			"lease imports util, which has no line in the table"},
		"agent knows controllers": {map[string]string{"node/agent/a.go": "// Package agent decides.\npackage agent\nimport c " + mod + "/node/controllers\"\nvar _ = c.X"},
			"node/agent never imports node/controllers"},
		"controllers know agent": {map[string]string{"node/controllers/a.go": "// Package controllers decides.\npackage controllers\nimport c " + mod + "/node/agent\"\nvar _ = c.X"},
			"node/controllers never imports node/agent"},
		"the log knows leases": {map[string]string{"consensus/a.go": "// Package consensus orders.\npackage consensus\nimport l " + mod + "/lease\"\nvar _ = l.X"},
			"consensus imports lease, but of ours only [. internal/clock consensus/seam]"},
		"pure imports impure of ours": {leaseFile(`import c `+mod+`/internal/clock"`, "c.X()"),
			"lease is pure and imports internal/clock, which is not"},

		"time.Now in pure":         {leaseFile(`import "time"`, "_ = time.Now()"), "uses time.Now"},
		"time.Now as a value":      {leaseFile(`import "time"`, "now := time.Now; _ = now"), "uses time.Now"},
		"time.Since, renamed":      {leaseFile(`import clock "time"`, "_ = clock.Since"), "uses clock.Since"},
		"dot import":               {leaseFile(`import . "time"`, "_ = Now()"), "imports time with a dot"},
		"timer in pure":            {leaseFile(`import "time"`, "time.AfterFunc(1, nil)"), "uses time.AfterFunc"},
		"goroutine in pure":        {leaseFile("", "go f()"), "starts a goroutine"},
		"goroutine in a closure":   {leaseFile("", "_ = func() { go f() }"), "starts a goroutine"},
		"select in pure":           {leaseFile("", "select {}"), "selects"},
		"os in pure":               {leaseFile(`import "os"`, "os.Exit(1)"), "imports os, which touches the machine"},
		"os/exec in pure":          {leaseFile(`import "os/exec"`, "exec.Command(``)"), "imports os/exec"},
		"net/http in pure":         {leaseFile(`import "net/http"`, "http.Get(``)"), "imports net/http"},
		"sync in pure":             {leaseFile(`import "sync/atomic"`, "_ = atomic.AddInt64"), "imports sync/atomic"},
		"slog in pure":             {leaseFile(`import "log/slog"`, "slog.Info(``)"), "imports log/slog"},
		"math/rand/v2 in pure":     {leaseFile(`import "math/rand/v2"`, "rand.Int()"), "imports math/rand/v2, which is random"},
		"crypto/rand in pure":      {leaseFile(`import "crypto/rand"`, "rand.Text()"), "imports crypto/rand, which is random"},
		"filepath in pure":         {leaseFile(`import "path/filepath"`, "filepath.Walk(``, nil)"), "imports path/filepath"},
		"x/sys in pure":            {leaseFile(`import "golang.org/x/sys/unix"`, "unix.Getpid()"), "imports golang.org/x/sys/unix, which is not among"},
		"raft in pure":             {leaseFile(`import "github.com/hashicorp/raft"`, "raft.DefaultConfig()"), "imports github.com/hashicorp/raft"},
		"ulid.Make in pure":        {leaseFile(`import "github.com/oklog/ulid/v2"`, "ulid.Make()"), "uses ulid.Make"},
		"printing in pure":         {leaseFile(`import "fmt"`, "fmt.Println()"), "uses fmt.Println"},
		"context outside contract": {leaseFile(`import "context"`, "context.Background()"), "imports context"},

		"no package comment":  {map[string]string{"node/a.go": "package node"}, `node: no package comment that starts with "Package node "`},
		"comment of another":  {map[string]string{"node/a.go": "// Package other is.\npackage node"}, `starts with "Package node "`},
		"comment in the test": {map[string]string{"node/a.go": "package node", "node/a_test.go": "// Package node is.\npackage node"}, `starts with "Package node "`},
		"command unnamed":     {map[string]string{"node/a.go": "// Package main is.\npackage main"}, `starts with "Command node "`},
		"init function":       {map[string]string{"node/a.go": "// Package node is.\npackage node\nfunc init() {}"}, "init function"},
		"blank import":        {map[string]string{"node/a.go": "// Package node is.\npackage node\nimport _ \"net/http/pprof\""}, "blank import of net/http/pprof"},
		"the product imports the seam": {map[string]string{"node/a.go": "// Package node acts.\npackage node\nimport s " + mod + "/consensus/seam\"\nvar _ = s.Parts{}", "consensus/seam/seam.go": seamFile},
			"imports consensus/seam: only tests and the simulation"},
		"the product sets the seam":  {map[string]string{"node/a.go": "// Package node acts.\npackage node\nvar _ = c.Config{Seam: given()}"}, "sets Seam: only tests and the simulation"},
		"the product assigns a seam": {map[string]string{"node/a.go": "// Package node acts.\npackage node\nfunc f() { cfg.Seam = given() }"}, "sets Seam: only tests and the simulation"},
		"the product lends a seam":   {map[string]string{"node/a.go": "// Package node acts.\npackage node\nfunc f() { fill(&cfg.Seam) }"}, "sets Seam: only tests and the simulation"},
		"the log fills its own seam": {map[string]string{"consensus/a.go": "// Package consensus orders.\npackage consensus\nfunc f(c *Config) { c.Seam = nil }"}, "sets Seam: only tests and the simulation"},
		"a test skips silently": {map[string]string{"node/a.go": "// Package node acts.\npackage node", "node/a_test.go": "package node\nfunc TestA(t *testing.T) { if f() { t.Skip() } }"},
			"TestA skips: say what it lacks with needs.Lacking"},
		"a test skips without root": {map[string]string{"node/a.go": "// Package node acts.\npackage node", "node/a_test.go": "package node\nfunc TestA(t *testing.T) { t.Run(``, func(t *testing.T) { t.Skipf(`no root`) }) }"},
			"TestA skips: say what it lacks with needs.Lacking"},
		"a decision for one platform": {map[string]string{"lease/a_windows.go": "// Package lease is.\npackage lease"},
			"lease is pure and has a file for windows"},
		"a decision under a tag": {map[string]string{"lease/a.go": "//go:build !linux\n\n// Package lease is.\npackage lease"},
			"lease is pure and has a file under //go:build !linux"},
		"fault for one platform": {map[string]string{"lease/a_windows.go": "//go:build windows\n\n// Package lease is.\npackage lease\nimport \"os\"\nvar _ = os.Args"},
			"imports os"},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := parse(c.files)
			if err != nil {
				t.Fatal(err)
			}
			found := all(tr, small)
			for _, f := range found {
				if strings.Contains(f.String(), c.want) {
					return
				}
			}
			t.Fatalf("the fault passed: want %q, found %v", c.want, found)
		})
	}
}

// TestSound shows the rules a tree that keeps them all, with what looks like a
// fault and is none.
func TestSound(t *testing.T) {
	tr, err := parse(map[string]string{
		"lease/lease.go": `// Package lease decides.
package lease

import (
	"fmt"
	"io"
	"time"

	"github.com/fxamacker/cbor/v2"
	"` + Module + `"
)

type clock struct{ Now time.Duration }

func f(time clock) any { return time.Now } // a parameter that is called time

func g(d time.Duration) string { return fmt.Sprint(d, io.EOF, cbor.Marshal, forgeyard.X) }
`,
		"lease/lease_test.go":           "package lease\n\nimport (\n\t\"os\"\n\t\"time\"\n)\n\nvar _, _ = os.Args, time.Now\n",
		"cas/cas.go":                    "// Package cas decides.\npackage cas\n\nimport \"context\"\n\ntype Store interface{ Get(context.Context) }\n",
		"node/node.go":                  "// Package node acts.\npackage node\n\nimport (\n\t_ \"embed\"\n\t\"os\"\n)\n\nfunc f() { go f(); _ = os.Args }\n",
		"node/x.pb.go":                  "// Code generated by x. DO NOT EDIT.\n\npackage node\n\nfunc init() {}\n",
		"consensus/seam/seam.go":        seamFile,
		"consensus/consensus.go":        "// Package consensus orders.\npackage consensus\n\nimport \"" + Module + "/consensus/seam\"\n\ntype Config struct{ Seam *seam.Parts }\n\nfunc (c Config) fit() bool { return c.Seam != nil }\n",
		"consensus/consensus_test.go":   "package consensus\n\nvar _ = Config{Seam: nil}\n",
		"simulation/raftsim/machine.go": "// Package raftsim plays.\npackage raftsim\n\nimport (\n\t\"" + Module + "/consensus\"\n\t\"" + Module + "/consensus/seam\"\n)\n\nvar _ = consensus.Config{Seam: &seam.Parts{}}\n",
		"probe.go":                      "//go:build ignore\n\npackage forgeyard\n\nimport _ \"os\"\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	none(t, all(tr, small))
	none(t, checkBudget(tr, nil))
}

func function(name string, lines int) string {
	return fmt.Sprintf("func %s() {%s}\n", name, strings.Repeat("\n", lines-1))
}

func TestSeededBudget(t *testing.T) {
	const open = "// Package node acts.\npackage node\n"
	for name, c := range map[string]struct {
		files   map[string]string
		reasons map[string]string
		want    []string
	}{
		"all at their limits": {files: map[string]string{"node/a.go": open + function("f", 70)}},
		"a long function":     {files: map[string]string{"node/a.go": open + function("f", 71)}, want: []string{"node: f: 71 lines, the budget is 70"}},
		"a long method": {files: map[string]string{"node/a.go": open + function("(t *T[K, V]) M", 71)},
			want: []string{"node: (*T).M: 71 lines"}},
		"a long method of a value": {files: map[string]string{"node/a.go": open + function("(t T) M", 71)}, want: []string{"node: T.M: 71 lines"}},
		"a reason": {files: map[string]string{"node/a.go": open + function("f", 99)},
			reasons: map[string]string{"node: f": "one table"}},
		"an empty reason": {files: map[string]string{"node/a.go": open + function("f", 99)},
			reasons: map[string]string{"node: f": ""}, want: []string{"node: f: 99 lines", "node: f: has a reason"}},
		"a stale reason": {files: map[string]string{"node/a.go": open + function("f", 9)},
			reasons: map[string]string{"node: f": "was long once"}, want: []string{"node: f: has a reason to be over its budget and is not"}},
		"a long file":      {files: map[string]string{"node/a.go": open + strings.Repeat("\n", 799)}, want: []string{"node/a.go: 801 lines, the budget is 800"}},
		"a long test":      {files: map[string]string{"node/a_test.go": open + strings.Repeat("\n", 1199)}, want: []string{"node/a_test.go: 1201 lines, the budget is 1200"}},
		"a long test func": {files: map[string]string{"node/a_test.go": open + function("f", 200)}},
		"a large package": {files: map[string]string{
			"node/a.go": open + strings.Repeat("\n", 750), "node/b.go": open + strings.Repeat("\n", 750),
			"node/c.go": open + strings.Repeat("\n", 750), "node/d.go": open + strings.Repeat("\n", 750),
		}, want: []string{"node/: 3008 lines, the budget is 2500"}},
		"generated": {files: map[string]string{"node/a.pb.go": "// Code generated by x. DO NOT EDIT.\n\n" + open + function("f", 3000)}},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := parse(c.files)
			if err != nil {
				t.Fatal(err)
			}
			found := checkBudget(tr, c.reasons)
			if len(found) != len(c.want) {
				t.Fatalf("found %v, want %q", found, c.want)
			}
			for i, want := range c.want {
				if !strings.HasPrefix(found[i].String(), want) {
					t.Errorf("found %q, want %q", found[i], want)
				}
			}
		})
	}
}
