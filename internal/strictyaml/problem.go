package strictyaml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// Pos is a place in a file, counted from 1, or, with no line, the origin of an
// override: `--set job.title`.
type Pos struct {
	Name         string
	Line, Column int
}

func (p Pos) String() string {
	if p.Line == 0 {
		return p.Name
	}
	return fmt.Sprintf("%s:%d:%d", p.Name, p.Line, p.Column)
}

// Problem is one thing that is wrong with a document.
type Problem struct {
	Pos  Pos
	Path string // dotted; empty where the text says it all
	Text string
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Pos.String() + ": " + p.Text
	}
	return p.Pos.String() + ": " + p.Path + ": " + p.Text
}

// Problems is all that is wrong, in the order of the file.
type Problems []Problem

func (ps Problems) Error() string {
	var b strings.Builder
	for i, p := range ps {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == maxProblems {
			fmt.Fprintf(&b, "… and %d more", len(ps)-i)
			break
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// Fail turns problems into one error of kind Invalid, one line a problem, sorted
// by place; nil for none.
func Fail(ps []Problem) error {
	if len(ps) == 0 {
		return nil
	}
	return fail(ps...)
}

func fail(ps ...Problem) error {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(unplaced(a), unplaced(b)), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Column, b.Pos.Column))
	})
	return forgeyard.E("", forgeyard.Invalid, Problems(ps))
}

// unplaced sorts overrides behind what stands in the file.
func unplaced(p Problem) int {
	if p.Pos.Line == 0 {
		return 1
	}
	return 0
}

// nearest returns the word that was probably meant, or "".
func nearest(word string, words []string) string {
	best, at := "", 3 // two slips are a typing error, three are another word
	for _, w := range words {
		d := distance(strings.ToLower(word), w)
		if d < at && d < len(w) && d < len(word) {
			best, at = w, d
		}
	}
	return best
}

// distance counts the insertions, deletions, substitutions and swaps of
// neighbours that make a from b.
func distance(a, b string) int {
	if abs(len(a)-len(b)) > 2 {
		return 3
	}
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, prev, cur := rows[(i+2)%3], rows[i%3], rows[(i+1)%3]
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
	}
	return rows[(len(a)+1)%3][len(b)]
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

func quoteAll(words []string) string { return strings.Join(words, ", ") }

func didYouMean(word string, words []string) string {
	if w := nearest(word, words); w != "" {
		return fmt.Sprintf(" (did you mean %q?)", w)
	}
	return ""
}
