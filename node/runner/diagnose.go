package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// Diagnostics is what a node lets be kept of work that failed, of the paths that its spec
// names for that (07§177, 07§178).
type Diagnostics string

// Policies.
const (
	DiagnosticsNone  Diagnostics = "none"
	DiagnosticsPlain Diagnostics = "plain" // what is not marked sensitive
	DiagnosticsAll   Diagnostics = "all"
)

// diagnoseTime bounds how long a failure is held back for what is kept of it.
const diagnoseTime = time.Minute

// diagnose captures what the spec wants to see of an attempt of which a step failed. It tells
// how the work ended neither better nor worse: what cannot be had is left out, and why. An
// attempt that has lost its lease keeps nothing, since nobody may act on it any more.
func (a *Attempt) diagnose(v *verdict) {
	if len(a.task.Spec.OnFailure) == 0 || len(a.steps) == 0 || v == nil || v.end != EndCompleted || v.outcome != job.OutcomeFailed || a.Lost() {
		return
	}
	a.enter(job.PhaseUploading)
	ctx, cancel := a.bounded(diagnoseTime, a.cancelled)
	defer cancel()
	left := tree.Limits{MaxFiles: job.MaxDiagnosticFiles, MaxBytes: job.MaxDiagnosticBytes}
	for _, d := range a.task.Spec.OnFailure {
		g, err := a.diagnostic(ctx, d, &left)
		if err != nil {
			g.LeftOut = forgeyard.Clip(a.clean(err.Error()), job.MaxLeftOut)
			a.note("on_failure: %q is left out: %s", d.Path, g.LeftOut)
		}
		a.signs = append(a.signs, g)
	}
	if err := a.keepDiagnostics(ctx); err != nil {
		a.note("on_failure: what is kept is on this node alone: %v", err)
	}
	if a.Lost() {
		a.signs = nil
	}
}

// diagnostic captures one path, within what the others left of the bounds.
func (a *Attempt) diagnostic(ctx context.Context, d job.DiagnosticDecl, left *tree.Limits) (job.Diagnostic, error) {
	g := job.Diagnostic{Path: d.Path, Sensitive: d.Sensitive}
	if err := a.task.Diagnostics.allows(d); err != nil {
		return g, err
	}
	if err := ctx.Err(); err != nil {
		return g, forgeyard.Errorf("", forgeyard.Interrupted, "there was no time left for it")
	}
	build := filepath.Join(a.root, executor.BuildDir)
	if err := fitsIn(ctx, build, d.Path, *left); err != nil {
		return g, err
	}
	if err := a.noSecretIn(ctx, build, []string{d.Path}); err != nil {
		return g, err
	}
	o := tree.Options{Owner: PinOwner(a.task.Authority.Attempt), Class: cas.Durable, UID: a.owner(), Limits: *left}
	got, err := tree.CaptureOutputs(ctx, a.run.cfg.Store, build, []string{d.Path}, o)
	if err != nil {
		return g, err
	}
	it := got.Items[0]
	g.Tree, g.Digest, g.Manifest, g.Size = it.Kind == cas.Dir, it.Ref.Digest, it.Ref.Manifest, it.Ref.Size
	left.MaxFiles -= it.Files
	left.MaxBytes -= it.Bytes
	return g, nil
}

// allows says why the policy does not let a path be kept, or nil.
func (p Diagnostics) allows(d job.DiagnosticDecl) error {
	switch {
	case p == DiagnosticsAll, p == DiagnosticsPlain && !d.Sensitive:
		return nil
	case p == DiagnosticsPlain:
		return forgeyard.Errorf("", forgeyard.Denied, "the node keeps nothing that is sensitive (policy.diagnostics: plain)")
	}
	return forgeyard.Errorf("", forgeyard.Denied, "the node keeps nothing of work that failed (policy.diagnostics: none)")
}

// fitsIn says why a path is not there or too much, before a byte of it is read: what failed
// work left can be anything. The tree is dead, so it does not change.
func fitsIn(ctx context.Context, build, path string, left tree.Limits) error {
	root, err := os.OpenRoot(build)
	if err != nil {
		return forgeyard.E("", forgeyard.Other, err)
	}
	defer root.Close()
	if _, err := root.Lstat(filepath.FromSlash(path)); errors.Is(err, fs.ErrNotExist) {
		return forgeyard.Errorf("", forgeyard.NotFound, "it is not there")
	}
	var files, bytes int64
	return fs.WalkDir(root.FS(), path, func(at string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return forgeyard.E("", forgeyard.Other, err)
		}
		files++
		if st, err := d.Info(); err == nil && st.Mode().IsRegular() {
			bytes += st.Size()
		}
		if files > left.MaxFiles || bytes > left.MaxBytes {
			return forgeyard.Errorf("", forgeyard.Limit, "%s", tooMuch(left))
		}
		return nil
	})
}

func tooMuch(left tree.Limits) string {
	return fmt.Sprintf("it has more than the %d files or %d bytes that are left of %d and %d for all", left.MaxFiles, left.MaxBytes, job.MaxDiagnosticFiles, job.MaxDiagnosticBytes)
}

// keepDiagnostics has what was captured kept as outputs are, and copied but for what is
// sensitive.
func (a *Attempt) keepDiagnostics(ctx context.Context) error {
	var d Delivery
	for _, g := range a.signs {
		switch {
		case g.Digest.IsZero():
		case g.Sensitive:
			d.Private = append(d.Private, g.Output())
		default:
			d.Outputs = append(d.Outputs, g.Output())
		}
	}
	if len(d.Outputs)+len(d.Private) == 0 {
		return nil
	}
	r, err := a.hooks.Replicate(ctx, d)
	if err != nil {
		return err
	}
	a.result.Replicas = r.Nodes
	return nil
}
