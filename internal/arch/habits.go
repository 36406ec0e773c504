package arch

import (
	"fmt"
	"go/ast"
	"strings"
)

// checkComments reports packages whose files do not say what the package is for.
// A package of generated files alone is described by what it was generated from.
func checkComments(t *tree) []finding {
	var found []finding
	for _, f := range t.folders {
		written, described, name := false, false, ""
		onlyTests := true
		for _, file := range f.files {
			onlyTests = onlyTests && file.test
		}
		for _, file := range f.files {
			if file.generated || file.test && !onlyTests {
				continue
			}
			written, name = true, file.ast.Name.Name
			described = described || describes(file.ast, f.dir)
		}
		if written && !described {
			found = append(found, finding{f.dir, fmt.Sprintf("no package comment that starts with %q", opening(name, f.dir))})
		}
	}
	return found
}

func describes(f *ast.File, dir string) bool {
	return f.Doc != nil && strings.HasPrefix(f.Doc.Text(), opening(f.Name.Name, dir))
}

// opening is how the comment of a package begins.
func opening(name, dir string) string {
	if name == "main" {
		return "Command " + baseName(dir) + " "
	}
	return "Package " + name + " "
}

// checkWiring reports init functions and blank imports: what happens at start-up
// is to be read in main.
func checkWiring(t *tree) []finding {
	var found []finding
	for _, f := range t.folders {
		for _, file := range f.files {
			if file.generated {
				continue
			}
			for _, spec := range file.ast.Imports {
				if spec.Name != nil && spec.Name.Name == "_" && importPath(spec) != "embed" {
					found = append(found, finding{t.at(spec.Pos()), "blank import of " + importPath(spec) + ": wire it by hand"})
				}
			}
			for _, decl := range file.ast.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					found = append(found, finding{t.at(fn.Pos()), "init function: call it from main"})
				}
			}
		}
	}
	return found
}
