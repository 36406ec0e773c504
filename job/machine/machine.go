// Package machine decides what of a machine the state of a program may depend on, and whether
// what was written on one can be gone on from on another (69§33–38).
//
// A job declares how much must be the same; a place says what it is, or that it does not
// know. What is not known is never good enough for a job that asks for it.
package machine

import (
	"fmt"
	"slices"
	"strings"
)

// Sameness is how much of the machine that wrote a checkpoint the one must have that goes on
// from it (69§34).
type Sameness string

// Degrees of it. Empty takes the default of what it is said of.
const (
	Exact      Sameness = "exact"
	Compatible Sameness = "compatible" // as good: at least what the other had, of the same family
	Class      Sameness = "class"      // of graphics processors: of the same maker
	Any        Sameness = "any"
)

// Compatibility is what of a machine a job's state depends on (69§33–37).
type Compatibility struct {
	Arch     Sameness `cbor:"1,keyasint,omitempty"` // default exact
	OS       Sameness `cbor:"2,keyasint,omitempty"` // default exact
	Baseline Sameness `cbor:"3,keyasint,omitempty"` // kernel, C library, toolchains of the host; default exact
	CPU      Sameness `cbor:"4,keyasint,omitempty"` // instruction sets; default exact
	GPU      Sameness `cbor:"5,keyasint,omitempty"` // default any: no sandbox hands one out
	Device   Sameness `cbor:"6,keyasint,omitempty"` // default any: what a device must be, its labels say
}

// IsZero reports that nothing was declared.
func (c Compatibility) IsZero() bool { return c == Compatibility{} }

func or(s, otherwise Sameness) Sameness {
	if s == "" {
		return otherwise
	}
	return s
}

// Facts is what the state of a program may depend on, of the machine that it was written on.
type Facts struct {
	Kernel string   `cbor:"1,keyasint,omitempty"` // the first two numbers of its version
	Libc   string   `cbor:"2,keyasint,omitempty"` // of the host, which the sandbox shows: "glibc 2.36"
	CPU    []string `cbor:"3,keyasint,omitempty"` // instruction sets beyond the architecture's, sorted
	GPUs   []string `cbor:"4,keyasint,omitempty"` // maker, model and driver, sorted
	Tools  []string `cbor:"5,keyasint,omitempty"` // name and version of those of the host that the job requires, sorted
	// Devices that the execution held, "name=device", sorted. Not of a runner's capabilities.
	Devices []string `cbor:"6,keyasint,omitempty"`
}

// Place is where a checkpoint was written, or where an execution would go on from it.
type Place struct {
	OS      string `cbor:"1,keyasint"`
	Arch    string `cbor:"2,keyasint"`
	Machine *Facts `cbor:"3,keyasint,omitempty"` // nil: it does not say
}

// Bounds of what a place says of itself: many times what any machine has, and little enough
// for each checkpoint of each job to keep it.
const (
	MaxFacts = 256
	MaxFact  = 256 // bytes
)

// Bounded says which bound the place breaks, or nil.
func (p Place) Bounded() error {
	texts := []string{p.OS, p.Arch}
	if f := p.Machine; f != nil {
		texts = append(texts, f.Kernel, f.Libc)
		for _, list := range [][]string{f.CPU, f.GPUs, f.Tools, f.Devices} {
			if len(list) > MaxFacts {
				return fmt.Errorf("a list of %d facts, the bound is %d", len(list), MaxFacts)
			}
			texts = append(texts, list...)
		}
	}
	for _, t := range texts {
		if len(t) > MaxFact {
			return fmt.Errorf("a fact of %d bytes, the bound is %d", len(t), MaxFact)
		}
	}
	return nil
}

// Misfit is one thing of which a place has not what it must.
type Misfit struct {
	What    string // os, arch, baseline, cpu, gpu, device
	Why     string // one line for a person
	Unknown bool   // nobody knows
}

// Misfits says why what was written in one place does not go on in another, under a
// declaration; nothing: it does. It is a hard filter (69§38).
func (c Compatibility) Misfits(made, here Place) []Misfit {
	var out []Misfit
	add := func(what, format string, args ...any) {
		out = append(out, Misfit{What: what, Why: fmt.Sprintf(format, args...)})
	}
	if or(c.OS, Exact) != Any && made.OS != here.OS {
		add("os", "taken on %s, this is %s", made.OS, here.OS)
	}
	if or(c.Arch, Exact) != Any && made.Arch != here.Arch {
		add("arch", "taken on %s, this is %s", made.Arch, here.Arch)
	}
	if made.Machine == nil {
		return append(out, c.unsaid()...)
	}
	if here.Machine == nil {
		if c.looks() {
			out = append(out, Misfit{What: "baseline", Why: "this runner does not say what machine it is", Unknown: true})
		}
		return out
	}
	m, h := *made.Machine, *here.Machine
	for _, why := range baseline(or(c.Baseline, Exact), m, h) {
		add("baseline", "%s", why)
	}
	switch or(c.CPU, Exact) {
	case Exact:
		if !slices.Equal(m.CPU, h.CPU) {
			add("cpu", "taken with other instruction sets: %s", differ(m.CPU, h.CPU))
		}
	case Compatible:
		if lacks := without(m.CPU, h.CPU); len(lacks) > 0 {
			add("cpu", "taken with %s, which this has not", few(lacks))
		}
	}
	switch or(c.GPU, Any) {
	case Exact:
		if !slices.Equal(m.GPUs, h.GPUs) {
			add("gpu", "taken with graphics %s, this has %s", few(m.GPUs), few(h.GPUs))
		}
	case Class, Compatible:
		if !slices.Equal(makers(m.GPUs), makers(h.GPUs)) {
			add("gpu", "taken with graphics of %s, this has %s", few(makers(m.GPUs)), few(makers(h.GPUs)))
		}
	}
	if or(c.Device, Any) == Exact && h.Devices != nil && !slices.Equal(m.Devices, h.Devices) {
		add("device", "taken with %s, this has %s", few(m.Devices), few(h.Devices))
	}
	return out
}

// looks reports that more than the platform is compared.
func (c Compatibility) looks() bool {
	return or(c.Baseline, Exact) != Any || or(c.CPU, Exact) != Any || or(c.GPU, Any) != Any || or(c.Device, Any) != Any
}

// unsaid is what is missing of a checkpoint that only says its platform: those of a version
// before promised no more, and a job that declares more cannot be told that it has it.
func (c Compatibility) unsaid() []Misfit {
	for _, f := range []struct {
		what string
		is   Sameness
	}{{"baseline", c.Baseline}, {"cpu", c.CPU}, {"gpu", c.GPU}, {"device", c.Device}} {
		if f.is != "" && f.is != Any {
			return []Misfit{{What: f.what, Why: fmt.Sprintf("the job asks for %s %s, and it does not say on what machine it was taken", f.what, f.is), Unknown: true}}
		}
	}
	return nil
}

func baseline(want Sameness, made, here Facts) []string {
	var why []string
	for _, f := range []struct {
		what, made, here string
	}{{"kernel", made.Kernel, here.Kernel}, {"C library", made.Libc, here.Libc}} {
		if (want == Exact && f.made != f.here) || (want == Compatible && !atLeast(f.here, f.made)) {
			why = append(why, fmt.Sprintf("taken with %s %s, this has %s", f.what, named(f.made), named(f.here)))
		}
	}
	if want == Exact && !slices.Equal(made.Tools, here.Tools) {
		why = append(why, fmt.Sprintf("taken with toolchains %s, this has %s", few(made.Tools), few(here.Tools)))
	}
	if lacks := without(firstWords(made.Tools), firstWords(here.Tools)); want == Compatible && len(lacks) > 0 {
		why = append(why, fmt.Sprintf("taken with toolchains %s, this has %s", few(made.Tools), few(here.Tools)))
	}
	return why
}

// atLeast compares "name 2.36" with "name 2.31": the same name, and no older.
func atLeast(here, made string) bool {
	hn, hv := nameVersion(here)
	mn, mv := nameVersion(made)
	return hn == mn && slices.Compare(hv, mv) >= 0
}

func nameVersion(s string) (name string, version []int) {
	name, text := "", s
	if i := strings.LastIndexByte(s, ' '); i >= 0 {
		name, text = s[:i], s[i+1:]
	}
	for part := range strings.SplitSeq(text, ".") {
		n := 0
		for _, r := range part {
			if r < '0' || r > '9' || n > 1<<20 {
				return name + " " + text, nil // not a version: compared as it is
			}
			n = n*10 + int(r-'0')
		}
		version = append(version, n)
	}
	return name, version
}

func firstWords(all []string) []string {
	var out []string
	for _, s := range all {
		w, _, _ := strings.Cut(s, " ")
		out = append(out, w)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func makers(gpus []string) []string { return firstWords(gpus) }

func named(s string) string {
	if s == "" {
		return "(not known)"
	}
	return s
}

// few are at most four of the words.
func few(all []string) string {
	switch {
	case len(all) == 0:
		return "none"
	case len(all) > 4:
		return strings.Join(all[:4], ", ") + fmt.Sprintf(" and %d more", len(all)-4)
	}
	return strings.Join(all, ", ")
}

func differ(made, here []string) string {
	var parts []string
	if l := without(made, here); len(l) > 0 {
		parts = append(parts, "without "+few(l))
	}
	if l := without(here, made); len(l) > 0 {
		parts = append(parts, "here also "+few(l))
	}
	return strings.Join(parts, "; ")
}

// without are the elements of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(x string) bool { return slices.Contains(b, x) })
}
