package arch

import (
	"go/ast"
	"strings"
)

// The seam replaces parts of the log's machinery and takes guards out. Who may do so:
// tests, and the simulation. The package that reads it declares it.
const (
	seamDir     = "consensus/seam"
	seamReader  = "consensus"
	seamField   = "Seam"
	simulations = "simulation/"
)

// checkSeam reports where the product could run without a guard: where a file that is no
// test imports the seam, or names the field that carries it.
func checkSeam(t *tree) []finding {
	var found []finding
	for _, f := range t.folders {
		if f.dir == seamDir || strings.HasPrefix(f.dir+"/", simulations) {
			continue
		}
		for _, file := range f.files {
			if file.test {
				continue
			}
			if f.dir == seamReader {
				found = append(found, seamWrites(t, file)...)
				continue
			}
			found = append(found, seamNames(t, file)...)
		}
	}
	return found
}

const seamRule = ": only tests and the simulation replace parts of the log"

// seamNames finds what has no business outside consensus: the import, and the field
// wherever a value of it can be put.
func seamNames(t *tree, f file) []finding {
	var found []finding
	for _, spec := range f.ast.Imports {
		if dir, own := ours(importPath(spec)); own && dir == seamDir {
			found = append(found, finding{t.at(spec.Pos()), "imports " + seamDir + seamRule})
		}
	}
	return append(found, seamWrites(t, f)...)
}

// seamWrites finds literals and assignments that set the field. Consensus itself may read
// it, and must not fill it in where the caller left it nil.
func seamWrites(t *tree, f file) []finding {
	var found []finding
	report := func(n ast.Node) {
		found = append(found, finding{t.at(n.Pos()), "sets " + seamField + seamRule})
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == seamField {
				report(n)
			}
		case *ast.AssignStmt:
			for _, to := range n.Lhs {
				if s, ok := to.(*ast.SelectorExpr); ok && s.Sel.Name == seamField {
					report(n)
				}
			}
		case *ast.UnaryExpr:
			if s, ok := n.X.(*ast.SelectorExpr); ok && n.Op.String() == "&" && s.Sel.Name == seamField {
				report(n)
			}
		}
		return true
	})
	return found
}
