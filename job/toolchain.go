package job

import (
	"path"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// ToolchainsDir is where a workload finds the toolchains that came from the store, each in a
// folder of its own name, below /work. They are read-only, and only SandboxStrict shows them.
const ToolchainsDir = "toolchains"

// Where a toolchain comes from.
const (
	ToolchainHost  = "host"  // of the machine: whatever its operating system has there
	ToolchainStore = "store" // a tree that is named by its digest, the same on every machine
)

// MaxWarm bounds how many toolchains a runner says it has ready besides those of its settings.
const MaxWarm = 32

// Toolchain is the name of the toolchain that the input is, and whether it is one.
func (in Input) Toolchain() (string, bool) {
	dir, name := path.Split(in.Path)
	return name, dir == ToolchainsDir+"/"
}

// usesToolchains reports whether a toolchain is among the inputs.
func (s Spec) usesToolchains() bool {
	return slices.ContainsFunc(s.Inputs, func(in Input) bool { _, ok := in.Toolchain(); return ok })
}

// SaysLater reports what a program of log format 1 does not read.
func (s Spec) SaysLater() bool {
	return s.Connectivity.NoReplace || s.Own() || len(s.OnFailure) > 0 || s.Requires.Pool != "" || len(s.Requires.Trust) > 0 || s.usesToolchains() || s.Resume.saysLater() || s.saysEffects() || s.Interruption.saysLater() || s.Resume.Checkpoint.OnCancel || s.Resume.Checkpoint.NoneOnNotice || s.Resume.Mode == ResumeFramework || s.Resume.Profile != ""
}

// Warm counts the toolchains of a spec that the machine has ready: a soft preference of
// placement, and never a requirement (07§157).
func (c Capabilities) Warm(s Spec) (n int) {
	for _, in := range s.Inputs {
		if _, ok := in.Toolchain(); ok && c.isWarm(in.Digest) {
			n++
		}
	}
	for _, t := range c.Toolchains {
		if t.Warm && slices.Contains(s.Requires.Toolchains, t.Name) {
			n++
		}
	}
	return n
}

func (c Capabilities) isWarm(d forgeyard.Digest) bool {
	return slices.Contains(c.WarmToolchains, d) || slices.ContainsFunc(c.Toolchains, func(t Toolchain) bool { return t.Warm && t.Digest == d })
}

// toolchain checks an input below toolchains.
func (c *check) toolchain(at string, in Input, sandbox Sandbox) {
	if first, _, _ := strings.Cut(in.Path, "/"); first != ToolchainsDir {
		return
	}
	name, ok := in.Toolchain()
	switch {
	case !ok:
		c.add(at+".path", "%q; a toolchain is named directly below %s", forgeyard.Clip(in.Path, 80), ToolchainsDir)
	case !in.Tree:
		c.add(at+".path", "%q is a toolchain, which is a directory; `tree: true` says so of a digest", forgeyard.Clip(in.Path, 80))
	case sandbox != SandboxStrict:
		c.add(at+".path", "%q needs sandbox %s, which shows it read-only; the job has %s", forgeyard.Clip(in.Path, 80), SandboxStrict, sandbox)
	default:
		c.name(at+".path", name)
	}
}
