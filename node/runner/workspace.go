package runner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/layer"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// payloadDir holds a restored checkpoint, below the restore folder.
const payloadDir = "payload"

// newWorkspace makes a folder that no other epoch ever had or will have (E18).
func newWorkspace(parent, epoch string, prepare func(root string) error) (string, error) {
	var r [6]byte
	if _, err := rand.Read(r[:]); err != nil {
		return "", forgeyard.E("workspace", forgeyard.Unavailable, err)
	}
	root := filepath.Join(parent, epoch+"-"+hex.EncodeToString(r[:]))
	if err := os.Mkdir(root, 0o700); err != nil {
		return "", forgeyard.E("workspace", executor.KindOfDisk(err), err)
	}
	return root, prepare(root)
}

// removeWorkspace deletes a workspace whose tree is dead. Something mounted in it means
// that the tree was not all there was: then it stays, and is told (07§176).
func removeWorkspace(root string) error {
	mounted, err := mountsBelow(root)
	if err != nil {
		return forgeyard.E("remove workspace", forgeyard.Unavailable, err)
	}
	if len(mounted) > 0 {
		return forgeyard.Errorf("remove workspace", forgeyard.Conflict, "%s is mounted in it", mounted[0]).WithHint("look who holds it, unmount it, and remove the folder")
	}
	return tree.Remove(root)
}

// needs is what a collection must not take while the attempt runs.
func (a *Attempt) needs() cas.Pin {
	pin := cas.Pin{Owner: PinOwner(a.task.Authority.Attempt)}
	for _, in := range a.ins {
		if in.Tree {
			pin.Trees = append(pin.Trees, in.Digest)
		} else {
			pin.Roots = append(pin.Roots, in.Digest)
		}
	}
	if a.task.Restore != nil {
		pin.Roots = append(pin.Roots, a.task.Restore.ID)
	}
	return pin
}

// inputs brings every input to its place, and puts a checkpoint back.
func (a *Attempt) inputs(ctx context.Context) error {
	a.ins = a.run.withManaged(a.task.Spec)
	if pin := a.needs(); len(pin.Roots)+len(pin.Trees) > 0 {
		if err := a.run.cfg.Store.Pin(ctx, pin); err != nil {
			return err
		}
	}
	ins := slices.Clone(a.ins)
	// Outer folders first: a tree is put into an empty folder only.
	slices.SortStableFunc(ins, func(x, y job.Input) int { return strings.Compare(path.Clean(x.Path), path.Clean(y.Path)) })
	for i, in := range ins {
		if err := a.healed(ctx, in, a.shares(ins, i)); err != nil {
			return fmt.Errorf("input %s (%s): %s: %w", in.Path, in.Digest, inputClass(err), err)
		}
	}
	if a.task.Restore == nil {
		return nil
	}
	return a.resume(ctx)
}

// shares says whether an input can be a tree that others read too: it is read-only, the
// workload cannot see where it comes from, and nothing else has its place inside it.
func (a *Attempt) shares(ins []job.Input, i int) bool {
	p := path.Clean(ins[i].Path)
	top, _, _ := strings.Cut(p, "/")
	if a.run.cfg.Layers == nil || !ins[i].Tree || (top != executor.SourceDir && top != executor.ToolchainsDir) || a.view == a.root {
		return false
	}
	return !slices.ContainsFunc(ins, func(in job.Input) bool { return strings.HasPrefix(path.Clean(in.Path), p+"/") })
}

// inputClass names the trouble with an input in the words of RA-189.
func inputClass(err error) string {
	k := forgeyard.KindOf(err)
	switch {
	case errors.Is(err, tree.ErrPath):
		return "PathIncompatible"
	case k == forgeyard.Corrupt:
		return "CorruptInput"
	case k == forgeyard.NoSpace:
		return "DiskInsufficient"
	case k == forgeyard.NotFound || k == forgeyard.Unknown || k == forgeyard.Unavailable:
		return "InputFetch"
	}
	return k.String()
}

// healed brings an input, and does it once more when the store's copy was damaged: the
// store has set that copy aside, so it is fetched from who has a good one. With nobody
// there the damage is what is told.
func (a *Attempt) healed(ctx context.Context, in job.Input, shared bool) error {
	err := a.input(ctx, in, shared)
	if forgeyard.KindOf(err) != forgeyard.Corrupt {
		return err
	}
	a.note("input %s is damaged in this node's store (%v); it is fetched again", in.Path, err)
	if in.Tree { // all that is damaged is found now: a third try is not made
		if _, cerr := tree.CheckStored(ctx, a.run.cfg.Store, in.Digest, tree.Limits{}); cerr != nil {
			return cerr
		}
	}
	if again := a.input(ctx, in, shared); again != nil {
		return forgeyard.Errorf("input", forgeyard.Corrupt, "%w; fetched again: %v", err, again)
	}
	return nil
}

// input brings one input to its place. It may be called again after an error.
func (a *Attempt) input(ctx context.Context, in job.Input, shared bool) error {
	p := path.Clean(in.Path)
	top, _, _ := strings.Cut(p, "/")
	if !filepath.IsLocal(p) || (top != executor.SourceDir && top != executor.BuildDir && top != executor.ToolchainsDir) {
		return forgeyard.Errorf("input", forgeyard.Invalid, "path %q is not below source, build or toolchains", in.Path)
	}
	var o tree.Materialisation
	if !a.managed(in) {
		o.MaxBytes = a.task.Spec.Resources.Disk
	}
	if top == executor.BuildDir && a.user.Lent() {
		o.Chown, o.UID, o.GID = true, a.user.UID, a.user.GID
	}
	if err := a.parents(p, o); err != nil {
		return err
	}
	dst := filepath.Join(a.root, filepath.FromSlash(p))
	if shared {
		err := a.layer(ctx, in, p, dst, o.Limits)
		if !errors.Is(err, layer.ErrNoRoom) {
			return err
		}
		a.said().Info("a tree gets no place for reuse", "root", in.Digest, "why", err)
	}
	if in.Tree {
		err := a.inputTree(ctx, in.Digest, p, dst, o)
		if err == nil && top == executor.ToolchainsDir {
			a.binds = append(a.binds, executor.Bind{Host: dst, Inside: path.Join(a.view, p)})
		}
		return err
	}
	if !a.run.cfg.Store.Has(ctx, in.Digest) {
		if err := a.run.cfg.Fetch(ctx, cas.Ref{Digest: in.Digest, Size: in.Size, Manifest: in.Manifest}); err != nil {
			return err
		}
	}
	return a.inputFile(ctx, in.Digest, dst, o)
}

// layer shows the workload a tree that others may read at the same time.
func (a *Attempt) layer(ctx context.Context, in job.Input, p, dst string, limits tree.Limits) error {
	if err := os.Mkdir(dst, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return forgeyard.E("input", executor.KindOfDisk(err), err)
	}
	l, err := a.run.cfg.Layers.Get(ctx, in.Digest, layer.Want{
		Limits: limits,
		Fetch:  func(ctx context.Context) error { return a.run.cfg.FetchTree(ctx, in.Digest) },
		Room:   a.run.spare,
	})
	if err != nil {
		return err
	}
	if _, ok := in.Toolchain(); ok {
		a.run.warmed(in.Digest, l.Reused)
	}
	a.layers = append(a.layers, l)
	a.binds = append(a.binds, executor.Bind{Host: l.Dir, Inside: path.Join(a.view, p)})
	return nil
}

// inputTree makes a tree that is this workspace's alone.
func (a *Attempt) inputTree(ctx context.Context, root forgeyard.Digest, p, dst string, o tree.Materialisation) error {
	if err := a.run.cfg.FetchTree(ctx, root); err != nil {
		return err
	}
	_, err := tree.Materialise(ctx, a.run.cfg.Store, root, dst, o)
	if err != nil {
		// What was made of it goes: the folder itself was there before, or is made again.
		if k := forgeyard.KindOf(err); k == forgeyard.Corrupt {
			return errors.Join(err, emptied(dst))
		}
		return err
	}
	if p == executor.BuildDir {
		return a.ownBuild()
	}
	return nil
}

// emptied removes what is in a folder that a materialisation left half made.
func emptied(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return absent(err)
	}
	if err := tree.Remove(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, st.Mode().Perm()); err != nil {
		return forgeyard.E("input", executor.KindOfDisk(err), err)
	}
	return nil
}

// ownBuild gives the build folder itself back its mode after a tree was put over it.
func (a *Attempt) ownBuild() error {
	return os.Chmod(filepath.Join(a.root, executor.BuildDir), 0o755)
}

// parents makes the folders above an input. No workload runs yet, so nobody can
// put a link in their way.
func (a *Attempt) parents(p string, o tree.Materialisation) error {
	parts := strings.Split(path.Dir(p), "/")
	dir := a.root
	for _, part := range parts {
		if part == "." {
			continue
		}
		dir = filepath.Join(dir, part)
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil && o.Chown {
			err = os.Chown(dir, o.UID, o.GID)
		}
		if err != nil {
			return forgeyard.E("input", executor.KindOfDisk(err), err)
		}
	}
	return nil
}

// inputFile makes one blob a file of this workspace.
func (a *Attempt) inputFile(ctx context.Context, d forgeyard.Digest, dst string, o tree.Materialisation) error {
	info, err := a.run.cfg.Store.Stat(ctx, d)
	if err != nil {
		return err
	}
	_, err = tree.MaterialiseFile(ctx, a.run.cfg.Store, info.Ref, dst, o)
	if forgeyard.KindOf(err) == forgeyard.Corrupt {
		err = errors.Join(err, absent(os.Remove(dst)))
	}
	return err
}

// unusable is trouble of a checkpoint itself: whoever tries it again, anywhere, has it too.
type unusable struct{ error }

func (u *unusable) Unwrap() error { return u.error }

// resume restores the checkpoint, and tells what is wrong with it from what is wrong here: it
// is tried once, and the one before it is next (K01).
func (a *Attempt) resume(ctx context.Context) error {
	err := a.restore(ctx)
	if _, found := checkpoint.FindingOf(err); err != nil && (found || forgeyard.KindOf(err) == forgeyard.Corrupt) {
		return &unusable{err}
	}
	return err
}

// restore brings the checkpoint here, verified, read-only, and for an exit-driven
// one also copies its files to where they were (HTCondor's way).
func (a *Attempt) restore(ctx context.Context) error {
	soon := ctx
	if u := a.run.cfg.Urgent; u != nil {
		soon = u(ctx)
	}
	var m checkpoint.Manifest
	if err := a.part(SpanValidate, func() (err error) { m, err = a.fitting(ctx, soon); return err }); err != nil {
		return err
	}
	return a.part(SpanRestore, func() error { return a.fetchState(ctx, soon, m) })
}

// fitting brings the manifest here, and says why this execution may not go on from it.
func (a *Attempt) fitting(ctx, soon context.Context) (checkpoint.Manifest, error) {
	cfg := a.run.cfg
	if !cfg.Store.Has(ctx, a.task.Restore.ID) {
		if err := cfg.Fetch(soon, cas.Ref{Digest: a.task.Restore.ID}); err != nil {
			return checkpoint.Manifest{}, fmt.Errorf("checkpoint %s: %w", a.task.Restore.ID.Short(), err)
		}
	}
	m, err := capture.LoadManifest(ctx, cfg.Store, a.task.Restore.ID)
	if err != nil {
		return m, err
	}
	if f := checkpoint.Usable(m, a.target()); !f.OK() {
		return m, f.Err("restore")
	}
	return m, nil
}

// fetchState brings the payload here and unpacks it.
func (a *Attempt) fetchState(ctx, soon context.Context, m checkpoint.Manifest) error {
	cfg := a.run.cfg
	pin := a.needs()
	pin.Trees, pin.Roots = append(pin.Trees, m.Payload), append(pin.Roots, m.Marker)
	if err := cfg.Store.Pin(ctx, pin); err != nil {
		return err
	}
	if !cfg.Store.Has(ctx, m.Marker) {
		if err := cfg.Fetch(soon, cas.Ref{Digest: m.Marker}); err != nil {
			return fmt.Errorf("checkpoint marker %s: %w", m.Marker.Short(), err)
		}
	}
	if err := cfg.FetchTree(soon, m.Payload); err != nil {
		return fmt.Errorf("checkpoint payload %s: %w", m.Payload.Short(), err)
	}
	if err := a.unpack(ctx, m); err != nil {
		return err
	}
	a.restored = &m
	if a.contract.Mode == checkpoint.ModeFramework {
		b, err := capture.RestoredBinding(filepath.Join(a.root, executor.RestoreDir, payloadDir))
		if err != nil {
			return err
		}
		a.list = b.List.String()
	}
	if !a.task.Restore.ExitDriven {
		return nil
	}
	return a.putBack()
}

// unpack puts a payload that is here into the restore folder.
func (a *Attempt) unpack(ctx context.Context, m checkpoint.Manifest) error {
	dst, cfg := filepath.Join(a.root, executor.RestoreDir, payloadDir), a.run.cfg
	if !m.Sealed || cfg.Unseal == nil {
		return capture.Restore(ctx, cfg.Store, m, dst)
	}
	marker, err := capture.RestoreSealed(ctx, cfg.Store, m, dst, cfg.Unseal)
	a.was = marker.Files
	return err
}

// target is this execution, as a checkpoint must fit it.
func (a *Attempt) target() checkpoint.Target {
	id := a.task.Authority
	return checkpoint.Target{Job: id.Job, Attempt: id.Attempt, Spec: id.Spec, Contract: a.contract, OS: runtime.GOOS, Arch: runtime.GOARCH, Machine: a.task.Restore.Machine}
}

// putBack copies the payload over the build folder, owned by the workload's user.
func (a *Attempt) putBack() (err error) {
	from, err := os.OpenRoot(filepath.Join(a.root, executor.RestoreDir, payloadDir))
	if err != nil {
		return forgeyard.E("restore", forgeyard.Unavailable, err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.OpenRoot(filepath.Join(a.root, executor.BuildDir))
	if err != nil {
		return forgeyard.E("restore", forgeyard.Unavailable, err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	err = copyTree(from, to, a.user)
	if err != nil {
		return forgeyard.E("restore", executor.KindOfDisk(err), err)
	}
	return nil
}
