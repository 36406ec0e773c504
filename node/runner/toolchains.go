package runner

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// toolchains remembers which of the trees that are kept for reuse jobs named as toolchains.
// It is safe for concurrent use; a new process begins with none.
type toolchains struct {
	mu    sync.Mutex // guards all below
	uses  uint64
	known map[forgeyard.Digest]uint64 // when it was used last, in uses
}

// withManaged are the inputs of a spec, and after them the node's own toolchains that it
// requires by name. What the job brings itself under that name is its own.
func (r *Runner) withManaged(s job.Spec) []job.Input {
	ins := slices.Clone(s.Inputs)
	if r.cfg.Toolchains == nil {
		return ins
	}
	managed := r.cfg.Toolchains()
	for _, name := range s.Requires.Toolchains {
		d, ok := managed[name]
		p := path.Join(job.ToolchainsDir, name)
		if ok && !slices.ContainsFunc(ins, func(in job.Input) bool { return in.Path == p }) {
			ins = append(ins, job.Input{Path: p, Tree: true, Digest: d})
		}
	}
	return ins
}

// managed reports whether the node itself added an input. The job cannot know how large that
// is, so it does not count as its disk.
func (a *Attempt) managed(in job.Input) bool {
	return slices.ContainsFunc(a.ins[min(len(a.task.Spec.Inputs), len(a.ins)):], func(own job.Input) bool { return own.Path == in.Path })
}

// warmed notes that a toolchain is ready here, and tells the node of one that was not.
func (r *Runner) warmed(d forgeyard.Digest, before bool) {
	t := &r.toolchains
	t.mu.Lock()
	if t.known == nil {
		t.known = map[forgeyard.Digest]uint64{}
	}
	_, knew := t.known[d]
	t.uses++
	t.known[d] = t.uses
	if len(t.known) > job.MaxWarm {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(t.known)), func(a, b forgeyard.Digest) int { return int(t.known[a]) - int(t.known[b]) })
		delete(t.known, oldest)
	}
	t.mu.Unlock()
	if (!before || !knew) && r.cfg.Warmed != nil {
		r.cfg.Warmed()
	}
}

// WarmToolchains are the toolchains that jobs named and that are ready here, in the order of
// their digests.
func (r *Runner) WarmToolchains() []forgeyard.Digest {
	t := &r.toolchains
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []forgeyard.Digest
	for d := range t.known {
		if r.cfg.Layers.Has(d) {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b forgeyard.Digest) int { return bytes.Compare(a[:], b[:]) })
	return all
}
