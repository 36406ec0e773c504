package arch

import (
	"fmt"
	"slices"
)

// checkLayers reports folders without a line and imports that point the wrong
// way. Tests may import what they need to set a scene; programs may not.
func checkLayers(t *tree, lines []line) []finding {
	place := map[string]int{}
	var found []finding
	for i, l := range lines {
		if _, twice := place[l.dir]; twice {
			found = append(found, finding{l.dir, "has two lines in the table"})
		}
		place[l.dir] = i
	}
	for _, f := range t.folders {
		mine, placed := place[f.dir]
		if !placed {
			found = append(found, finding{f.dir, "has Go files and no line in the table (internal/arch/table.go): place it as high as its imports allow"})
			continue
		}
		for _, file := range f.files {
			if file.test {
				continue
			}
			for _, spec := range file.ast.Imports {
				dir, own := ours(importPath(spec))
				if !own {
					continue
				}
				if complaint := judgeImport(lines, place, mine, dir); complaint != "" {
					found = append(found, finding{t.at(spec.Pos()), complaint})
				}
			}
		}
	}
	return found
}

// judgeImport says what is wrong when the package at line mine imports dir.
func judgeImport(lines []line, place map[string]int, mine int, dir string) string {
	me := lines[mine]
	other, placed := place[dir]
	switch {
	case !placed:
		return fmt.Sprintf("%s imports %s, which has no line in the table", me.dir, dir)
	case slices.Contains(me.never, dir):
		return fmt.Sprintf("%s never imports %s, says the table", me.dir, dir)
	case me.only != nil && !slices.Contains(me.only, dir):
		return fmt.Sprintf("%s imports %s, but of ours only %v", me.dir, dir, me.only)
	case other >= mine:
		return fmt.Sprintf("%s (line %d) imports %s (line %d): a package may import only what stands above its line", me.dir, mine+1, dir, other+1)
	case me.pure && !lines[other].pure:
		return fmt.Sprintf("%s is pure and imports %s, which is not", me.dir, dir)
	}
	return ""
}
