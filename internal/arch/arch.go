// Package arch decides whether the source tree keeps the rules of the house.
//
// It reads every Go file of the module as text and answers with findings. The
// rules:
//
//	layers   a package names only packages that stand above its own line in the
//	         table, and every folder with Go code has a line
//	purity   a pure package does nothing but decide: no I/O, no clock, no
//	         goroutine, no randomness, no lock, no log
//	platform what decides is the same source everywhere
//	comments every package says what it is for
//	wiring   no init function, no blank import: main wires everything
//	seam     only tests and the simulation take a guard of the log out
//	budget   functions, files and packages that fit a sitting, or a reason
//	rooms    each part of a runner has its package, and what is one package's
//	         business is done nowhere else
//
// Every check is a function from a tree to findings, so that the tests can show
// each of them a small broken tree before they trust it with the real one.
//
// It does not type-check: a rule that a name can hide from (a clock handed in as
// a func value, a lock inside a library type) is left to the reader. The build
// tags of a file are ignored, so that no platform hides anything.
package arch

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Module is the import path of the tree's root.
const Module = "github.com/forgeyard/forgeyard-node"

// root is how the table writes the folder of go.mod.
const root = "."

// A finding is one broken rule, said so that a person can mend it.
type finding struct {
	where string // file:line, or a folder
	what  string
}

func (f finding) String() string { return f.where + ": " + f.what }

// A file is one parsed Go file.
type file struct {
	name      string // slash-separated, relative to the root
	ast       *ast.File
	lines     int
	test      bool
	generated bool
}

// A folder is all Go files of one directory, its tests included.
type folder struct {
	dir   string // slash-separated, relative to the root; "." is the root
	files []file
}

// A tree is the module's folders that hold Go files, in the order of their names.
type tree struct {
	fset    *token.FileSet
	folders []folder
}

// neverBuilt are build tags of files that are part of no program.
var neverBuilt = []string{"ignore"}

// load reads the tree below dir. It leaves out what the go command leaves out:
// testdata, hidden and underscored folders, and modules of their own.
func load(dir string) (*tree, error) {
	sources := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if rel != root && skipped(name, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasPrefix(entry.Name(), ".") || strings.HasPrefix(entry.Name(), "_") {
			return nil
		}
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // An editor's file that is gone again.
		}
		if err != nil {
			return err
		}
		sources[filepath.ToSlash(rel)] = string(text)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the tree below %s: %w", dir, err)
	}
	return parse(sources)
}

func skipped(name, base string) bool {
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(name, "go.mod"))
	return err == nil
}

// parse makes a tree of files, given as name → text.
func parse(sources map[string]string) (*tree, error) {
	t := &tree{fset: token.NewFileSet()}
	byDir := map[string][]file{}
	for name, text := range sources {
		parsed, err := parser.ParseFile(t.fset, name, text, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("parse: %w", err)
		}
		if isNeverBuilt(parsed) {
			continue
		}
		dir := path.Dir(name)
		byDir[dir] = append(byDir[dir], file{
			name:      name,
			ast:       parsed,
			lines:     strings.Count(text, "\n"),
			test:      strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(parsed),
		})
	}
	for dir, files := range byDir {
		sort.Slice(files, func(i, j int) bool { return files[i].name < files[j].name })
		t.folders = append(t.folders, folder{dir: dir, files: files})
	}
	sort.Slice(t.folders, func(i, j int) bool { return t.folders[i].dir < t.folders[j].dir })
	return t, nil
}

func isNeverBuilt(f *ast.File) bool {
	for _, group := range f.Comments {
		if group.Pos() > f.Package {
			break
		}
		for _, comment := range group.List {
			for _, tag := range neverBuilt {
				if comment.Text == "//go:build "+tag {
					return true
				}
			}
		}
	}
	return false
}

// at tells where a node stands, as file:line.
func (t *tree) at(pos token.Pos) string {
	p := t.fset.Position(pos)
	return p.Filename + ":" + strconv.Itoa(p.Line)
}

// importPath is the path that an import names.
func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value // The parser has refused such a file already.
	}
	return p
}

// ours returns the folder of an import of this module.
func ours(importPath string) (dir string, ok bool) {
	if importPath == Module {
		return root, true
	}
	return strings.CutPrefix(importPath, Module+"/")
}
