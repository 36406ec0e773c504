package arch

import (
	"fmt"
	"go/ast"
	"sort"
)

// Budgets, in lines. They are what the Go code that we learned from keeps: its
// functions average 15 to 20 lines and fewer than one in twenty exceeds 70.
const (
	maxFunction = 70   // one screen
	maxFile     = 800  // one subject
	maxTestFile = 1200 // tables are long and read quickly
	maxPackage  = 2500 // one sitting, without tests
)

// An excess is one thing over its budget.
type excess struct {
	name         string // "dir: (*T).Method", "dir: Function", a file's name, or "dir/"
	lines, limit int
}

// checkBudget reports what is over its budget and has no reason, and reasons that
// are no longer needed. Reasons are keyed by the excess's name.
func checkBudget(t *tree, reasons map[string]string) []finding {
	var found []finding
	used := map[string]bool{}
	for _, e := range excesses(t) {
		if reasons[e.name] != "" {
			used[e.name] = true
			continue
		}
		found = append(found, finding{e.name, fmt.Sprintf("%d lines, the budget is %d: divide it, or give a reason in internal/arch/reasons_test.go", e.lines, e.limit)})
	}
	for name := range reasons {
		if !used[name] {
			found = append(found, finding{name, "has a reason to be over its budget and is not: remove the entry"})
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].where < found[j].where })
	return found
}

func excesses(t *tree) []excess {
	var over []excess
	add := func(name string, lines, limit int) {
		if lines > limit {
			over = append(over, excess{name, lines, limit})
		}
	}
	for _, f := range t.folders {
		total := 0
		for _, file := range f.files {
			switch {
			case file.generated:
			case file.test:
				add(file.name, file.lines, maxTestFile)
			default:
				total += file.lines
				add(file.name, file.lines, maxFile)
				for _, decl := range file.ast.Decls {
					fn, ok := decl.(*ast.FuncDecl)
					if !ok {
						continue
					}
					first, last := t.fset.Position(fn.Pos()).Line, t.fset.Position(fn.End()).Line
					add(f.dir+": "+funcName(fn), last-first+1, maxFunction)
				}
			}
		}
		add(f.dir+"/", total, maxPackage)
	}
	return over
}

// funcName writes a function as T.Method, (*T).Method or Function.
func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	typ, star := fn.Recv.List[0].Type, false
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ, star = t.X, true
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.ParenExpr:
			typ = t.X
		case *ast.Ident:
			if star {
				return "(*" + t.Name + ")." + fn.Name.Name
			}
			return t.Name + "." + fn.Name.Name
		default:
			return fn.Name.Name
		}
	}
}
