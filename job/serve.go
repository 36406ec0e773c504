package job

import (
	"fmt"
	"maps"
	"slices"
)

// Lacks says what keeps a machine from serving a spec, whatever else it does: empty when
// it can enforce all that is asked (07§30), and the site lets it. given is what the site says
// of it, and stands before the machine's own hints. Placement and the runner's own check both
// ask here, so that they cannot differ (07§226).
func (c Capabilities) Lacks(s Spec, given Assignment) []string {
	why := given.Lacks(s)
	no := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if s.Requires.OS != "" && s.Requires.OS != c.OS {
		no("os is %s, the job requires %s", c.OS, s.Requires.OS)
	}
	if s.Requires.Arch != "" && s.Requires.Arch != c.Arch {
		no("arch is %s, the job requires %s", c.Arch, s.Requires.Arch)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Requires.Labels)) {
		got, ok := given.Labels[k]
		if !ok {
			got = c.Labels[k]
		}
		if got != s.Requires.Labels[k] {
			no("label %s is %q, the job requires %q", k, got, s.Requires.Labels[k])
		}
	}
	why = append(why, c.cannotHold(s)...)
	for _, t := range s.Requires.Toolchains {
		i := slices.IndexFunc(c.Toolchains, func(k Toolchain) bool { return k.Name == t })
		switch {
		case i < 0:
			no("toolchain %q is not there", t)
		case c.Toolchains[i].Source == ToolchainStore && s.Sandbox != SandboxStrict:
			no("toolchain %q comes from the store, and only sandbox %q shows it", t, SandboxStrict)
		}
	}
	return why
}

// cannotHold compares what must hold the workload with what was seen to hold here.
func (c Capabilities) cannotHold(s Spec) []string {
	if s.Own() {
		return nil // it needs no sandbox: the program is the node's
	}
	i := slices.IndexFunc(c.Sandboxes, func(k SandboxCapability) bool { return k.Kind == s.Sandbox })
	if i < 0 {
		return []string{fmt.Sprintf("it cannot enforce sandbox %q", s.Sandbox)}
	}
	var why []string
	for _, l := range []struct {
		name  string
		asked int64
	}{{"cpu", s.Resources.MilliCPU}, {"memory", s.Resources.Memory}, {"pids", s.Resources.Pids}} {
		if l.asked > 0 && !slices.Contains(c.Sandboxes[i].Limits, l.name) {
			why = append(why, fmt.Sprintf("its sandbox %q cannot enforce a limit of %s here", s.Sandbox, l.name))
		}
	}
	if s.Network != NetworkNone && !slices.Contains(c.Networks, s.Network) {
		why = append(why, fmt.Sprintf("its policy does not allow network %q", s.Network))
	} else if s.Network == NetworkSite && !slices.Contains(c.Sandboxes[i].Limits, LimitSiteNetwork) {
		why = append(why, fmt.Sprintf("its sandbox %q cannot keep a job to the site's networks", s.Sandbox))
	}
	return why
}
