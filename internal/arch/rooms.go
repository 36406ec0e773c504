package arch

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

// A role is one part of a runner as 07§5 names them, and where it is done here.
type role struct {
	name  string
	parts []part
}

// A part of a role is a package and what it declares for it: Name, or Type.Method.
type part struct {
	dir      string
	declares []string
}

// A charge keeps an act to the packages whose business it is.
type charge struct {
	what string
	in   []string // where it is forbidden: folders, and all below them
	but  []string // except in these folders
	// imports are paths that may not be imported; a module of others stands for all its packages.
	imports []string
	// uses are selectors that may not be written, as package.Name, or .Name of anything.
	uses []string
}

// checkRoles reports roles that nobody plays: a folder that is not there, or has no line in
// the table, or does not declare what the role is made of.
func checkRoles(t *tree, lines []line, roles []role) []finding {
	declared := map[string]map[string]bool{}
	for _, f := range t.folders {
		declared[f.dir] = declarations(f)
	}
	var found []finding
	for _, r := range roles {
		for _, p := range r.parts {
			if !slices.ContainsFunc(lines, func(l line) bool { return l.dir == p.dir }) {
				found = append(found, finding{p.dir, r.name + " has no line in the table"})
			}
			for _, name := range p.declares {
				if !declared[p.dir][name] {
					found = append(found, finding{p.dir, fmt.Sprintf("%s needs %s, which is not declared there", r.name, name)})
				}
			}
		}
	}
	return found
}

// declarations are the names at the top level of a folder's programs, methods as Type.Method.
func declarations(f folder) map[string]bool {
	names := map[string]bool{}
	for _, file := range f.files {
		if file.test {
			continue
		}
		for _, d := range file.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[declaredAs(d)] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						names[s.Name.Name] = true
						methods(names, s)
					}
				}
			}
		}
	}
	return names
}

// methods adds those of an interface.
func methods(names map[string]bool, s *ast.TypeSpec) {
	i, ok := s.Type.(*ast.InterfaceType)
	if !ok {
		return
	}
	for _, m := range i.Methods.List {
		for _, n := range m.Names {
			names[s.Name.Name+"."+n.Name] = true
		}
	}
}

// declaredAs is the name of a function, with its receiver's type before it.
func declaredAs(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	of := d.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "." + d.Name.Name
	}
	return d.Name.Name
}

// checkCharges reports what is done where it is nobody's business.
func checkCharges(t *tree, charges []charge) []finding {
	var found []finding
	for _, c := range charges {
		reached := false
		for _, f := range t.folders {
			if !within(f.dir, c.in) || slices.Contains(c.but, f.dir) {
				continue
			}
			for _, file := range f.files {
				if !file.test {
					reached = true
					found = append(found, charged(t, f.dir, file, c)...)
				}
			}
		}
		if !reached {
			found = append(found, finding{strings.Join(c.in, ", "), "is not there, so nothing keeps the rule that it must not " + c.what})
		}
	}
	return found
}

func charged(t *tree, dir string, f file, c charge) []finding {
	var found []finding
	for _, spec := range f.ast.Imports {
		p := importPath(spec)
		if slices.ContainsFunc(c.imports, func(no string) bool {
			return p == no || p == Module+"/"+no || strings.Contains(no, ".") && strings.HasPrefix(p, no+"/")
		}) {
			found = append(found, finding{t.at(spec.Pos()), fmt.Sprintf("%s imports %s: it must not %s", dir, p, c.what)})
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		of := ""
		if x, ok := s.X.(*ast.Ident); ok {
			of = x.Name
		}
		if slices.Contains(c.uses, "."+s.Sel.Name) || slices.Contains(c.uses, of+"."+s.Sel.Name) {
			found = append(found, finding{t.at(s.Pos()), fmt.Sprintf("%s uses %s.%s: it must not %s", dir, of, s.Sel.Name, c.what)})
		}
		return true
	})
	return found
}

func within(dir string, in []string) bool {
	return slices.ContainsFunc(in, func(top string) bool {
		return top == root || dir == top || strings.HasPrefix(dir, top+"/")
	})
}

// checkPlatformFiles reports what a folder asks of the operating system outside of its files
// platform_*.go: files of one platform under other names, and imports that touch the system.
func checkPlatformFiles(t *tree, dir string) []finding {
	var found []finding
	for _, f := range t.folders {
		for _, file := range f.files {
			if f.dir != dir || file.test || strings.HasPrefix(path.Base(file.name), "platform_") {
				continue
			}
			if why := platformOf(file); why != "" {
				found = append(found, finding{file.name, why + ": what differs by platform is in platform_*.go"})
			}
			for _, spec := range file.ast.Imports {
				if p := importPath(spec); p == "syscall" || strings.HasPrefix(p, "golang.org/x/sys/") {
					found = append(found, finding{t.at(spec.Pos()), dir + " imports " + p + ": it asks its platform, in platform_*.go"})
				}
			}
		}
	}
	return found
}

// receivers are the types of a folder that have a method of their own, sorted.
func receivers(t *tree, dir, method string) []string {
	var types []string
	for _, f := range t.folders {
		if f.dir != dir {
			continue
		}
		for _, file := range f.files {
			for _, d := range file.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && !file.test && fn.Recv != nil {
					if of, ok := strings.CutSuffix(declaredAs(fn), "."+method); ok {
						types = append(types, of)
					}
				}
			}
		}
	}
	slices.Sort(types)
	return types
}
