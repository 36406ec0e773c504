package arch

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// impure are standard packages that a pure package may not import, each with all
// that stands below it: net/url too, for addresses of services are the shell's business.
// net/netip is left out, whose values are numbers.
var impure = map[string]string{
	"os":            "touches the machine",
	"syscall":       "touches the machine",
	"net":           "touches the network",
	"sync":          "locks; a rule has one caller at a time",
	"log":           "logs; return a reason instead",
	"math/rand":     "is random; take the value from the caller",
	"crypto/rand":   "is random; take the value from the caller",
	"io/ioutil":     "touches the machine",
	"path/filepath": "answers by platform; use path",
	"runtime":       "asks the machine",
	"plugin":        "loads code",
	"database/sql":  "does I/O",
	"testing":       "belongs in tests",
}

// lent are packages outside the standard library that a pure package may import:
// they compute. Names listed behind them read a clock or randomness and may not
// be used.
var lent = map[string][]string{
	"github.com/fxamacker/cbor/v2":         nil,
	"github.com/ipfs/go-cid":               nil,
	"github.com/multiformats/go-multihash": nil,
	"github.com/oklog/ulid/v2":             {"Make", "Now", "DefaultEntropy"},
	"github.com/zeebo/blake3":              nil,
	"go.yaml.in/yaml/v3":                   nil,
	"golang.org/x/sys/cpu":                 nil,
	"google.golang.org/protobuf/proto":     nil,
	"lukechampine.com/blake3":              nil,
	"lukechampine.com/blake3/bao":          nil,
	"lukechampine.com/blake3/guts":         nil,
}

// banned are names of standard packages that a pure package may otherwise import.
var banned = map[string][]string{
	"time": {"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker", "Local", "LoadLocation"},
	"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// checkPurity reports what a pure package may not do.
func checkPurity(t *tree, lines []line) []finding {
	pure := map[string]line{}
	for _, l := range lines {
		if l.pure {
			pure[l.dir] = l
		}
	}
	var found []finding
	for _, f := range t.folders {
		l, ok := pure[f.dir]
		if !ok {
			continue
		}
		for _, file := range f.files {
			if !file.test {
				found = append(found, pureImports(t, file, l)...)
				found = append(found, pureActs(t, file, l)...)
			}
		}
	}
	return found
}

// platformNames end the names of files that the compiler takes for one platform only, of
// those that anybody builds this for; and those of ours that say so by name.
var platformNames = []string{"linux", "darwin", "windows", "unix", "freebsd", "openbsd", "netbsd", "android", "amd64", "arm64", "386", "arm", "riscv64"}

// checkPlatforms reports what a pure package would decide on some platforms only.
func checkPlatforms(t *tree, lines []line) []finding {
	pure := map[string]bool{}
	for _, l := range lines {
		pure[l.dir] = l.pure && !l.kernel
	}
	var found []finding
	for _, f := range t.folders {
		if !pure[f.dir] {
			continue
		}
		for _, file := range f.files {
			if why := platformOf(file); why != "" && !file.test {
				found = append(found, finding{file.name, fmt.Sprintf("%s is pure and %s: what decides is the same everywhere", f.dir, why)})
			}
		}
	}
	return found
}

// platformOf says why a file is not of every platform, or nothing.
func platformOf(f file) string {
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:build ") {
				return "has a file under " + c.Text
			}
		}
	}
	stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.name), ".go"), "_test")
	if i := strings.LastIndex(stem, "_"); i >= 0 && slices.Contains(platformNames, stem[i+1:]) {
		return "has a file for " + stem[i+1:]
	}
	return ""
}

func pureImports(t *tree, f file, l line) []finding {
	var found []finding
	for _, spec := range f.ast.Imports {
		p := importPath(spec)
		if spec.Name != nil && spec.Name.Name == "." {
			found = append(found, finding{t.at(spec.Pos()), fmt.Sprintf("%s is pure and imports %s with a dot, which hides what it uses", l.dir, p)})
		}
		if why := whyImpure(p, l); why != "" {
			found = append(found, finding{t.at(spec.Pos()), fmt.Sprintf("%s is pure and imports %s, which %s", l.dir, p, why)})
		}
	}
	return found
}

// whyImpure says why a pure package may not import p, or nothing.
func whyImpure(p string, l line) string {
	if _, own := ours(p); own {
		return "" // The layers check knows which of ours are pure.
	}
	first, _, _ := strings.Cut(p, "/")
	if strings.Contains(first, ".") {
		if _, ok := lent[p]; !ok {
			return "is not among the libraries lent to pure packages (internal/arch/purity.go)"
		}
		return ""
	}
	if p == "context" && !l.context {
		return "carries deadlines and waiting"
	}
	if p == "net/netip" {
		return ""
	}
	for above := p; above != "."; above = path.Dir(above) {
		if why, ok := impure[above]; ok {
			return why
		}
	}
	if strings.HasPrefix(p, "math/rand") {
		return impure["math/rand"]
	}
	return ""
}

// pureActs finds goroutines, selects and uses of banned names.
func pureActs(t *tree, f file, l line) []finding {
	names := bannedNames(f)
	var found []finding
	report := func(n ast.Node, what string) {
		found = append(found, finding{t.at(n.Pos()), fmt.Sprintf("%s is pure and %s", l.dir, what)})
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report(n, "starts a goroutine")
		case *ast.SelectStmt:
			report(n, "selects; which case is ready first is chance")
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok && !local(pkg) && slices.Contains(names[pkg.Name], n.Sel.Name) {
				report(n, "uses "+pkg.Name+"."+n.Sel.Name+"; take it from the caller")
			}
		}
		return true
	})
	return found
}

// bannedNames maps each name under which f knows a package to what is banned of it.
func bannedNames(f file) map[string][]string {
	names := map[string][]string{}
	for _, spec := range f.ast.Imports {
		p := importPath(spec)
		list := append(slices.Clone(banned[p]), lent[p]...)
		if len(list) == 0 {
			continue
		}
		name := baseName(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = list
	}
	return names
}

// baseName is the package name that an import path is known by.
func baseName(p string) string {
	base := path.Base(p)
	if version, ok := strings.CutPrefix(base, "v"); ok {
		if _, err := strconv.Atoi(version); err == nil {
			base = path.Base(path.Dir(p))
		}
	}
	return base
}

// local says that an identifier was declared in its own file, so that it is not
// the name of a package. The parser resolves just that much.
func local(id *ast.Ident) bool {
	return id.Obj != nil
}
