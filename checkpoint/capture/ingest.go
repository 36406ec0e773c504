package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// IngestSealed takes a sealed directory, `<ckpt dir>/NNNNNN`, into the store. An error
// that carries a finding (checkpoint.FindingOf) is the workload's fault and final for
// this slot; any other (no space, a cancelled context) says nothing of the checkpoint,
// and the same call may be made again. On an error nothing stays pinned.
func IngestSealed(ctx context.Context, store cas.Store, dir string, e Expect) (Ingested, error) {
	slot, sealed, ok := checkpoint.ParseSlot(filepath.Base(dir))
	if !ok || !sealed {
		return Ingested{}, forgeyard.Errorf("ingest", forgeyard.Invalid, "%q is not a sealed slot: six digits are expected", filepath.Base(dir))
	}
	root, err := openChild(filepath.Dir(dir), filepath.Base(dir))
	if err != nil {
		return Ingested{}, forgeyard.E("ingest", forgeyard.Other, err)
	}
	defer root.Close()
	n := newNeedles(e.Secrets)
	m, err := readMarker(root, n)
	if err != nil {
		return Ingested{}, err
	}
	listing, err := listSealed(root)
	if err != nil {
		return Ingested{}, err
	}
	if n.inNames(listing) {
		return Ingested{}, secretFinding().Err("ingest")
	}
	in, err := newIntake(ctx, store, n, e, slot)
	if err != nil {
		return Ingested{}, err
	}
	in.root = root
	if f := checkpoint.CheckMarker(m, slot, e.current(), e.Contract, entries(listing)); f.Code != checkpoint.CodeUnhashed {
		return Ingested{}, f.Err("ingest")
	}
	return in.done(in.sealed(m, slot, listing))
}

// IngestExit takes the contract's files from the build directory after the workload
// exited with its checkpoint code. The caller has confirmed that its whole process tree
// is dead: that is what makes this the strongest consistency. Errors are as those of
// IngestSealed. The slot is the one after LastSeq. A contract without files is refused:
// such a program seals directories, and its exit only asks to be started again from the
// last one.
func IngestExit(ctx context.Context, store cas.Store, buildDir string, e Expect) (Ingested, error) {
	if !e.Contract.Resumable() || len(e.Contract.Files) == 0 {
		return Ingested{}, checkpoint.Finding{Verdict: checkpoint.Incompatible, Code: checkpoint.CodeMode, Detail: "the job declares no checkpoint files"}.Err("ingest")
	}
	root, err := os.OpenRoot(buildDir)
	if err != nil {
		return Ingested{}, forgeyard.E("ingest", forgeyard.Other, err)
	}
	defer root.Close()
	var listing []seen
	for _, p := range e.Contract.Files {
		part, err := listDeclared(root, p)
		if err != nil {
			return Ingested{}, err
		}
		listing = append(listing, part...)
	}
	n := newNeedles(e.Secrets)
	if n.inNames(listing) {
		return Ingested{}, secretFinding().Err("ingest")
	}
	m := exitMarker(listing, e)
	if f := checkpoint.CheckMarker(m, m.Seq, e.current(), e.Contract, entries(listing)); f.Code != checkpoint.CodeUnhashed && !f.OK() {
		return Ingested{}, f.Err("ingest")
	}
	in, err := newIntake(ctx, store, n, e, m.Seq)
	if err != nil {
		return Ingested{}, err
	}
	in.root = root
	return in.done(in.exit(m, listing))
}

// openChild opens directory name in parent without following a link that stands there.
func openChild(parent, name string) (*os.Root, error) {
	p, err := os.OpenRoot(parent)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	info, err := p.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, refuse(checkpoint.Incompatible, checkpoint.CodeIrregular, "\""+name+"\" is no directory")
	}
	root, err := p.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	opened, err := root.Stat(".")
	if err != nil || !os.SameFile(opened, info) {
		root.Close()
		return nil, errors.Join(err, changed(name, nil))
	}
	return root, nil
}

func readMarker(root *os.Root, n needles) (checkpoint.Marker, error) {
	b, err := readBounded(root, checkpoint.MarkerName, checkpoint.MaxMarkerBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return checkpoint.Marker{}, refuse(checkpoint.Incomplete, checkpoint.CodeNoMarker, "there is no "+checkpoint.MarkerName)
	}
	if err != nil {
		return checkpoint.Marker{}, forgeyard.E("ingest", forgeyard.Other, err)
	}
	if n.in(b) {
		return checkpoint.Marker{}, secretFinding().Err("ingest")
	}
	m, err := checkpoint.ParseMarker(b)
	switch {
	case forgeyard.KindOf(err) == forgeyard.Limit:
		return m, checkpoint.Finding{Verdict: checkpoint.Incompatible, Code: checkpoint.CodeFiles, Detail: err.Error()}.Err("ingest")
	case err != nil:
		return m, checkpoint.Finding{Verdict: checkpoint.Incomplete, Code: checkpoint.CodeBadMarker, Detail: err.Error()}.Err("ingest")
	case n.inMarker(m):
		return m, secretFinding().Err("ingest")
	}
	return m, nil
}

// inMarker looks at what the marker's JSON may have spelled with escapes.
func (n needles) inMarker(m checkpoint.Marker) bool {
	texts := append([]string{m.Format.Name, m.Progress.Unit}, m.EffectsOpen...)
	for _, f := range m.Files {
		texts = append(texts, f.Path)
	}
	return slices.ContainsFunc(texts, func(s string) bool { return n.in([]byte(s)) })
}

func (n needles) inNames(listing []seen) bool {
	return slices.ContainsFunc(listing, func(s seen) bool { return n.in([]byte(s.Path)) })
}

// listSealed lists a slot without its marker.
func listSealed(root *os.Root) ([]seen, error) {
	all, err := list(root, ".")
	if err != nil {
		return nil, forgeyard.E("ingest", forgeyard.Other, err)
	}
	return slices.DeleteFunc(all, func(s seen) bool { return s.Path == checkpoint.MarkerName && s.Kind == checkpoint.Regular }), nil
}

// listDeclared lists one declared path of the build directory, which may itself be
// anything that the workload left there.
func listDeclared(root *os.Root, p string) ([]seen, error) {
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		if info, err := root.Lstat(d); err == nil && !info.IsDir() {
			return nil, refuse(checkpoint.Incompatible, checkpoint.CodeIrregular, "\""+d+"\" is no directory")
		}
	}
	part, err := list(root, p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(checkpoint.Incomplete, checkpoint.CodeMissing, "\""+p+"\" is declared and not there")
	}
	if err != nil {
		return nil, forgeyard.E("ingest", forgeyard.Other, err)
	}
	return part, nil
}

// exitMarker is what the workload would have written. Digests are filled in later: until
// then each file carries the digest that its size allows.
func exitMarker(listing []seen, e Expect) checkpoint.Marker {
	m := checkpoint.Marker{
		V: checkpoint.MarkerVersion, Attempt: e.Authority.Attempt, Epoch: e.Authority.Fence.Epoch, Seq: e.LastSeq + 1,
		Mode: e.Contract.Mode, Consistency: checkpoint.Application, Quiesced: true, Format: e.Contract.Format, Progress: e.Progress,
		EffectsOpen: []string{},
	}
	for _, s := range listing {
		if s.Kind == checkpoint.Regular {
			f := checkpoint.File{Path: s.Path, Size: s.Size, BLAKE3: unread(s.Size), Mode: checkpoint.FileMode(s.info.Mode().Perm())}
			m.Files = append(m.Files, f)
		}
	}
	slices.SortFunc(m.Files, func(a, b checkpoint.File) int { return strings.Compare(a.Path, b.Path) })
	return m
}

// unread stands for a digest that is not known yet; no file hashes to it.
func unread(size int64) forgeyard.Digest {
	if size == 0 {
		return cas.Empty()
	}
	return forgeyard.Digest{1}
}

func entries(listing []seen) []checkpoint.Entry {
	out := make([]checkpoint.Entry, len(listing))
	for i, s := range listing {
		out[i] = s.Entry
	}
	return out
}

// intake is one checkpoint on its way into the store.
type intake struct {
	ctx     context.Context
	store   cas.Store
	root    *os.Root
	needles needles
	expect  Expect
	owner   string
	box     *box // of a restricted one
}

func newIntake(ctx context.Context, store cas.Store, n needles, e Expect, slot int) (*intake, error) {
	in := &intake{ctx: ctx, store: store, needles: n, expect: e, owner: Owner(e.Authority.Attempt, e.Authority.Fence.Epoch, slot)}
	if e.Sensitivity != checkpoint.Restricted {
		return in, nil
	}
	var err error
	in.box, err = newBox(e.Seal)
	return in, err
}

// done lets go of everything when the intake failed.
func (in *intake) done(g Ingested, err error) (Ingested, error) {
	if err == nil {
		return g, nil
	}
	// The context may be what failed; letting go must not depend on it.
	if e := in.store.Unpin(context.WithoutCancel(in.ctx), in.owner); e != nil {
		err = errors.Join(err, e)
	}
	return Ingested{}, err
}

func (in *intake) sealed(m checkpoint.Marker, slot int, listing []seen) (Ingested, error) {
	want := map[string]forgeyard.Digest{}
	for _, f := range m.Files {
		want[f.Path] = f.BLAKE3
	}
	refs, err := in.files(listing, want)
	if err != nil {
		return Ingested{}, err
	}
	if f := checkpoint.CheckMarker(m, slot, in.expect.current(), in.expect.Contract, entries(listing)); !f.OK() {
		return Ingested{}, f.Err("ingest")
	}
	return in.finish(m, listing, refs)
}

func (in *intake) exit(m checkpoint.Marker, listing []seen) (Ingested, error) {
	refs, err := in.files(listing, nil)
	if err != nil {
		return Ingested{}, err
	}
	for i := range m.Files {
		m.Files[i].BLAKE3 = refs[m.Files[i].Path].whole.Digest
	}
	if f := checkpoint.CheckMarker(m, m.Seq, in.expect.current(), in.expect.Contract, entries(listing)); !f.OK() {
		return Ingested{}, f.Err("ingest")
	}
	return in.finish(m, listing, refs)
}

// kept is a file in the store: whole, as a tree of pieces, or sealed.
type kept struct {
	whole  cas.Ref
	pieces cas.Ref // zero: it is a blob
	cuts   cuts
	sealed cas.Ref // the only form in which a restricted one is stored
}

// entry is the file's in the tree of its directory.
func (k kept) entry(name string, exec bool) cas.Entry {
	if p := k.pieces; !p.Digest.IsZero() {
		return cas.Entry{Name: name, Kind: cas.Dir, Size: p.Size, Digest: p.Digest, Manifest: p.Manifest}
	}
	return cas.Entry{Name: name, Kind: cas.File, Exec: exec, Size: k.whole.Size, Digest: k.whole.Digest, Manifest: k.whole.Manifest}
}

// files stores every regular file of the listing and writes into the listing what it
// was stored as. With want, other bytes are refused.
func (in *intake) files(listing []seen, want map[string]forgeyard.Digest) (map[string]kept, error) {
	g, ctx := errgroup.WithContext(in.ctx)
	g.SetLimit(storeWorkers)
	refs := make([]kept, len(listing))
	for i, s := range listing {
		if s.Kind == checkpoint.Regular {
			g.Go(func() (err error) {
				refs[i], err = in.file(ctx, s, want[s.Path])
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	byPath, memory := map[string]kept{}, map[string]cuts{}
	for i, s := range listing {
		if s.Kind == checkpoint.Regular {
			listing[i].BLAKE3, listing[i].Size = refs[i].whole.Digest, refs[i].whole.Size
			byPath[s.Path] = refs[i]
			if c := refs[i].cuts; len(c.pieces) > 0 {
				memory[s.Path] = c
			}
		}
	}
	in.expect.Memory.replace(memory)
	return byPath, nil
}

func (in *intake) file(ctx context.Context, s seen, want forgeyard.Digest) (k kept, err error) {
	f, err := open(in.root, s)
	if err != nil {
		return kept{}, err
	}
	defer f.Close()
	pieces := in.box == nil && s.Size > cas.BlockSize && in.expect.Pieces
	if pieces && len(in.needles) > 0 { // a piece is stored before the next is read: none may be before all are looked through
		if _, err := io.Copy(io.Discard, newScanner(io.LimitReader(f, s.Size+1), in.needles)); errors.Is(err, errSecret) {
			return kept{}, secretFinding().Err("ingest")
		} else if err != nil {
			return kept{}, err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return kept{}, err
		}
	}
	// One byte more than was listed shows growth without following it for ever.
	sc := newScanner(io.LimitReader(f, s.Size+1), in.needles)
	switch {
	case in.box != nil:
		k.whole, k.sealed, err = in.putSealed(ctx, sc)
	case pieces:
		c := cutter{old: in.expect.Memory.of(s.Path)}
		if k.pieces, k.whole, err = in.pieces(ctx, sc, &c); err == nil {
			k.cuts = c.now
		}
	default:
		k.whole, err = in.store.Put(ctx, sc, cas.PutOptions{Class: cas.Durable, Expect: want, Size: s.Size, Owner: in.owner})
	}
	if err == nil && !want.IsZero() && k.whole.Digest != want {
		err = forgeyard.Errorf("ingest", forgeyard.Corrupt, "%q is %s", s.Path, k.whole.Digest.Short())
	}
	switch {
	case sc.found:
		return kept{}, secretFinding().Err("ingest")
	case forgeyard.KindOf(err) == forgeyard.Corrupt:
		return kept{}, refuse(checkpoint.Corrupt, checkpoint.CodeDigest, "\""+forgeyard.Clip(s.Path, 80)+"\" does not have the bytes that the marker names")
	case err != nil:
		return kept{}, err
	case k.whole.Size != s.Size:
		return kept{}, changed(s.Path, nil)
	}
	return k, nil
}

// finish stores trees, marker and manifest, and pins them.
func (in *intake) finish(m checkpoint.Marker, listing []seen, refs map[string]kept) (Ingested, error) {
	if n := len(m.Encode()); n > checkpoint.MaxMarkerBytes {
		return Ingested{}, checkpoint.Finding{Verdict: checkpoint.Incompatible, Code: checkpoint.CodeFiles, Detail: fmt.Sprintf("the marker has %d bytes, the bound is %d", n, checkpoint.MaxMarkerBytes)}.Err("ingest")
	}
	bound := in.expect.binding(m)
	tree, marker, err := in.payload(m, listing, refs)
	if err != nil {
		return Ingested{}, err
	}
	if in.box != nil {
		bound.Sealed = marker.Digest
	}
	man, err := checkpoint.NewManifest(m, tree.Digest, bound)
	if err != nil {
		return Ingested{}, err
	}
	manifest, err := in.bytes(man.Encode())
	if err != nil {
		return Ingested{}, err
	}
	g := Ingested{Marker: m, Manifest: man, ID: man.ID(), Payload: tree.Digest, Blobs: []cas.Ref{manifest, marker}, Trees: []cas.Ref{tree}, Owner: in.owner}
	pin := cas.Pin{Owner: in.owner, Trees: []forgeyard.Digest{tree.Digest}}
	for _, r := range g.Blobs {
		pin.Roots = append(pin.Roots, r.Digest)
	}
	return g, in.store.Pin(in.ctx, pin)
}

// payload stores the tree and the marker.
func (in *intake) payload(m checkpoint.Marker, listing []seen, refs map[string]kept) (tree, marker cas.Ref, err error) {
	if in.box != nil {
		return in.sealedPayload(m, listing, refs)
	}
	if tree, err = in.tree(m, listing, refs); err != nil {
		return tree, marker, err
	}
	marker, err = in.bytes(m.Encode())
	return tree, marker, err
}

func (in *intake) bytes(b []byte) (cas.Ref, error) {
	return in.store.Put(in.ctx, bytes.NewReader(b), cas.PutOptions{Class: cas.Durable, Expect: cas.Sum(b), Size: int64(len(b)), Owner: in.owner})
}

// tree makes the payload's tree of what was stored. Directories deepest first, so that
// each is named before the one that holds it.
func (in *intake) tree(m checkpoint.Marker, listing []seen, refs map[string]kept) (cas.Ref, error) {
	dirs := map[string]*cas.Tree{".": {}}
	ensure := func(d string) {
		for ; dirs[d] == nil; d = path.Dir(d) {
			dirs[d] = &cas.Tree{}
		}
	}
	for _, s := range listing {
		if s.Kind == checkpoint.Directory {
			ensure(s.Path)
		}
	}
	for _, f := range m.Files {
		d := path.Dir(f.Path)
		ensure(d)
		dirs[d].Entries = append(dirs[d].Entries, refs[f.Path].entry(path.Base(f.Path), f.Mode.Exec()))
	}
	order := make([]string, 0, len(dirs))
	for d := range dirs {
		order = append(order, d)
	}
	slices.SortFunc(order, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	order = append(slices.DeleteFunc(order, func(d string) bool { return d == "." }), ".")
	for _, d := range order {
		t := dirs[d]
		t.Sort()
		r, err := in.treeOf(*t)
		if err != nil || d == "." {
			return r, err
		}
		up := dirs[path.Dir(d)]
		up.Entries = append(up.Entries, cas.Entry{Name: path.Base(d), Kind: cas.Dir, Size: r.Size, Digest: r.Digest, Manifest: r.Manifest})
	}
	return cas.Ref{}, nil
}
