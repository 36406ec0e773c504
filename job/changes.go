package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ChangesTo says in words what is different in now, fact by fact, so that a person can tell
// which of a machine's abilities went or came (07§277). Empty when nothing is.
//
// The words go into the site's log state, which every voter computes for itself and whose hash
// they compare: they are part of the log's format. A fact of today keeps its words, byte for
// byte, for as long as the format that allows them; a new fact comes with a new format, or with
// words that an older program, which cannot read it, does not miss.
func (c Capabilities) ChangesTo(now Capabilities) []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, f := range []struct{ name, old, now string }{
		{"os", c.OS, now.OS},
		{"arch", c.Arch, now.Arch},
		{"cpu", fmt.Sprintf("%dm", c.MilliCPU), fmt.Sprintf("%dm", now.MilliCPU)},
		{"memory", inMiB(c.Memory), inMiB(now.Memory)},
		{"disk", inMiB(c.Disk), inMiB(now.Disk)},
		{"max_jobs", fmt.Sprint(c.MaxJobs), fmt.Sprint(now.MaxJobs)},
	} {
		if f.old != f.now {
			say("%s %s, was %s", f.name, f.now, f.old)
		}
	}
	old, later := c.named(), now.named()
	if c.Machine == nil { // it says for the first time what it always was
		delete(later, "machine")
	}
	for _, what := range slices.Sorted(maps.Keys(later)) {
		for _, x := range without(later[what], old[what]) {
			say("%s %s is new", what, x)
		}
		for _, x := range without(old[what], later[what]) {
			say("%s %s is gone", what, x)
		}
	}
	return all
}

// inMiB keeps small differences apart.
func inMiB(n int64) string {
	if n%(1<<20) != 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// named are the facts that come in lists, each as people call it. What is warm is none: it is what
// jobs used lately (decision 18), and would fill a history that is bounded.
func (c Capabilities) named() map[string][]string {
	all := map[string][]string{"sandbox": nil, "toolchain": nil, "label": nil, "device": nil, "network": nil, "gpu": nil, "machine": nil}
	add := func(what, format string, args ...any) {
		all[what] = append(all[what], fmt.Sprintf(format, args...))
	}
	for _, s := range c.Sandboxes {
		add("sandbox", "%s (%s)", s.Kind, words(append([]string{s.Version}, s.Limits...)))
	}
	for _, t := range c.Toolchains {
		how := t.Source
		if t.Verified {
			how += ", verified"
		}
		if !t.Digest.IsZero() {
			how += ", " + t.Digest.Short()
		}
		add("toolchain", "%s (%s)", words([]string{t.Name, t.Version}), how)
	}
	for k, v := range c.Labels {
		add("label", "%s=%s", k, v)
	}
	for _, d := range c.Devices {
		add("device", "%s (%s %s)", d.ID, d.Kind, words(append(pairs(d.Labels), d.Serial)))
	}
	for _, n := range c.Networks {
		add("network", "%s", n)
	}
	for _, g := range c.GPUs {
		memory := ""
		if g.Memory != 0 {
			memory = inMiB(g.Memory)
		}
		add("gpu", "%s (%s)", g.Bus, words([]string{g.Vendor, g.Model, g.Driver, memory}))
	}
	if m := c.Machine; m != nil {
		add("machine", "kernel %s", words(append([]string{m.Kernel, m.Libc}, m.CPU...)))
	}
	for _, l := range all {
		slices.Sort(l)
	}
	return all
}

// words are those that are not empty, with spaces between.
func words(all []string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), " ")
}

func pairs(m map[string]string) []string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return all
}

// without are the elements of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(x string) bool { return slices.Contains(b, x) })
}
