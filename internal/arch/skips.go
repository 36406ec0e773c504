package arch

import (
	"go/ast"
)

// skipDir is the package that tests a machine for what a test needs. It alone skips one.
const skipDir = "internal/needs"

// checkSkips reports tests that skip by themselves. What the machine lacks is for package
// needs, which fails in CI; other reasons stand in may, by the place of the test.
func checkSkips(t *tree, may map[string]string) []finding {
	var found []finding
	used := map[string]bool{}
	for _, f := range t.folders {
		if f.dir == skipDir {
			continue
		}
		for _, file := range f.files {
			ast.Inspect(file.ast, func(n ast.Node) bool {
				fn, ok := n.(*ast.FuncDecl)
				if !ok {
					return true
				}
				place := f.dir + ": " + fn.Name.Name
				if skips(fn) {
					used[place] = true
					if may[place] == "" {
						found = append(found, finding{t.at(fn.Pos()), fn.Name.Name + " skips: say what it lacks with needs.Lacking, which fails in CI"})
					}
				}
				return false
			})
		}
	}
	for place := range may {
		if !used[place] {
			found = append(found, finding{place, "skips nothing any more: take its reason out"})
		}
	}
	return found
}

func skips(fn *ast.FuncDecl) (yes bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if s, ok := c.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Skip" || s.Sel.Name == "Skipf" || s.Sel.Name == "SkipNow") {
				yes = true
			}
		}
		return !yes
	})
	return yes
}
