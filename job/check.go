package job

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node"
)

// fault is one thing that is wrong, under the key that the job file has for it.
type fault struct{ path, text string }

// check gathers faults.
type check struct{ faults []fault }

func (c *check) add(path, format string, args ...any) {
	c.faults = append(c.faults, fault{path, fmt.Sprintf(format, args...)})
}

func explain(op string, faults []fault) error {
	if len(faults) == 0 {
		return nil
	}
	var b strings.Builder
	for i, f := range faults {
		if i > 0 {
			b.WriteString("; ")
		}
		if i == MaxExplained {
			fmt.Fprintf(&b, "and %d more", len(faults)-i)
			break
		}
		b.WriteString(f.path + ": " + f.text)
	}
	return forgeyard.Errorf(op, forgeyard.Invalid, "%s", b.String())
}

var (
	nameRule   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._+-]*$`)
	envRule    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	labelRule  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
	deviceRule = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
	fileRule   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
)

// envReserved is the prefix of what the runner tells the workload (FYCP/1 §2).
const envReserved = "FORGEYARD_"

// CheckName says why s cannot name a step, an input or a tool, or nil.
func CheckName(s string) error { return pattern(s, nameRule, "letters, digits, space and . _ + -") }

// CheckWord says why s cannot be a device's name or kind, or nil. It is safe as
// a file name and in a variable's name.
func CheckWord(s string) error {
	return pattern(s, deviceRule, "lower-case letters, digits, - and _, a letter first")
}

// CheckEnvName says why s cannot name a variable that a job sets, or nil.
func CheckEnvName(s string) error {
	if err := pattern(s, envRule, "letters, digits and _, no digit first"); err != nil {
		return err
	}
	if strings.HasPrefix(s, envReserved) {
		return forgeyard.Errorf("", forgeyard.Invalid, "%q: names that begin with %s are the runner's", s, envReserved)
	}
	return nil
}

// CheckLabels says why m cannot be labels, or nil.
func CheckLabels(m map[string]string) error {
	var c check
	c.labels("labels", m)
	return explain("", c.faults)
}

func pattern(s string, rule *regexp.Regexp, allowed string) error {
	switch {
	case s == "":
		return forgeyard.Errorf("", forgeyard.Invalid, "is empty")
	case len(s) > MaxName:
		return forgeyard.Errorf("", forgeyard.Invalid, "%q has %d bytes; at most %d are allowed", forgeyard.Clip(s, 40), len(s), MaxName)
	case !rule.MatchString(s):
		return forgeyard.Errorf("", forgeyard.Invalid, "%q; allowed: %s", s, allowed)
	}
	return nil
}

func (c *check) err(at string, err error) {
	if err != nil {
		c.add(at, "%v", err)
	}
}

func (c *check) name(at, s string) { c.err(at, CheckName(s)) }
func (c *check) word(at, s string) { c.err(at, CheckWord(s)) }

func (c *check) unique(at, s string, seen map[string]bool) {
	if s != "" && seen[s] {
		c.add(at, "%q is given twice", forgeyard.Clip(s, MaxName))
	}
	seen[s] = true
}

func (c *check) oneOf(at, s string, allowed ...string) {
	if !slices.Contains(allowed, s) {
		c.add(at, "%q is unknown; allowed: %s", forgeyard.Clip(s, MaxName), strings.Join(slices.DeleteFunc(allowed, func(a string) bool { return a == "" }), ", "))
	}
}

func (c *check) count(at string, n, limit int) {
	if n > limit {
		c.add(at, "%d are given; at most %d are allowed", n, limit)
	}
}

// between checks lo <= n <= hi.
func (c *check) between(at string, n, lo, hi int64) {
	if n < lo || n > hi {
		c.add(at, "%d is not in [%d, %d]", n, lo, hi)
	}
}

// span checks 0 < d <= hi.
func (c *check) span(at string, d, hi time.Duration) {
	if d <= 0 || d > hi {
		c.add(at, "%v is not in (0s, %v]", d, hi)
	}
}

// text checks a string that goes to people or programs as it is. A NUL would
// end it early in a C program, and bytes that are not UTF-8 have no canonical form.
func (c *check) text(at, s string, limit int) {
	switch {
	case len(s) > limit:
		c.add(at, "has %d bytes; at most %d are allowed", len(s), limit)
	case !utf8.ValidString(s):
		c.add(at, "%q is not UTF-8", forgeyard.Clip(s, 40))
	case strings.ContainsRune(s, 0):
		c.add(at, "%q holds a NUL byte", forgeyard.Clip(s, 40))
	}
}

// relative checks a path below some root: clean, relative, and never above it
// (E18, RA-220). Nothing here follows links; who opens the path does.
func (c *check) relative(at, p string) bool {
	bad := ""
	switch {
	case p == "":
		bad = "is empty"
	case len(p) > MaxPath:
		bad = fmt.Sprintf("has %d bytes; at most %d are allowed", len(p), MaxPath)
	case !utf8.ValidString(p) || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		bad = fmt.Sprintf("%q holds control characters", forgeyard.Clip(p, 80))
	case strings.Contains(p, `\`):
		bad = fmt.Sprintf("%q holds a backslash; separate with /", forgeyard.Clip(p, 80))
	case path.IsAbs(p):
		bad = fmt.Sprintf("%q is absolute; a relative path is expected", forgeyard.Clip(p, 80))
	case p == ".." || strings.HasPrefix(p, "../") || strings.Contains(p, "/../") || strings.HasSuffix(p, "/.."):
		bad = fmt.Sprintf("%q leaves the workspace; .. is not allowed", forgeyard.Clip(p, 80))
	case path.Clean(p) != p:
		bad = fmt.Sprintf("%q is not clean; write %q", forgeyard.Clip(p, 80), forgeyard.Clip(path.Clean(p), 80))
	default:
		return true
	}
	c.add(at, "%s", bad)
	return false
}

// rooted checks a path below /work that begins with source, build, or another that is named.
// The words are those that programs have which know no other: what Apply refuses is told in
// the state of the site, and has to be the same on all its members.
func (c *check) rooted(at, p string, other ...string) {
	if !c.relative(at, p) {
		return
	}
	if first, _, _ := strings.Cut(p, "/"); first != "source" && first != "build" && !slices.Contains(other, first) {
		c.add(at, "%q; a path below source or build is expected", forgeyard.Clip(p, 80))
	}
}

// below checks a path inside /work/build that is not /work/build itself.
func (c *check) below(at, p string) {
	if c.relative(at, p) && p == "." {
		c.add(at, "%q is the whole of /work/build; name a file or directory in it", p)
	}
}

// env checks variables; the order of the faults is that of the names.
func (c *check) env(at string, m map[string]string) {
	c.count(at, len(m), MaxEnv)
	total := 0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		c.err(at+"."+k, CheckEnvName(k))
		c.text(at+"."+k, m[k], MaxEnvBytes)
		total += len(k) + len(m[k]) + 2
	}
	if total > MaxEnvBytes {
		c.add(at, "the variables have %d bytes together; at most %d are allowed", total, MaxEnvBytes)
	}
}

func (c *check) labels(at string, m map[string]string) {
	c.count(at, len(m), MaxLabels)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		c.err(at+"."+k, pattern(k, labelRule, "letters, digits and . _ / -"))
		c.text(at+"."+k, m[k], MaxValue)
	}
}
