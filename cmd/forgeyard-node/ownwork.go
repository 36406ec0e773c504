package main

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node"
	"github.com/forgeyard/forgeyard-node/node/runner/ownrun"
)

// The child of a daemon that carries out one ingest or garden run. It reads and hashes
// itself, and asks the daemon for what only the owner of the store can do; so it can be
// ended at any moment, and the daemon goes on.

func (a *app) ownWorkCommand() *cobra.Command {
	return a.Build(cli.Command{
		Use: node.OwnCommand, Hidden: true, Short: "Carry out an ingest or garden run for the daemon that started this",
		Example: "  forgeyard-node submit ingest.yaml --watch", Exits: []int{1, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			w := &ownWork{a: a, c: c, attempt: a.Getenv("FORGEYARD_ATTEMPT_ID")}
			r, err := w.run(ctx)
			if err != nil {
				r = ownrun.Result{Error: err.Error(), Category: ownCategory(err)}
			}
			if werr := ownrun.Write(a.Getenv("FORGEYARD_BUILD_DIR"), r); werr != nil {
				return errors.Join(err, werr)
			}
			return err
		},
	})
}

// ownCategory says in the ledger's words what went wrong.
func ownCategory(err error) job.FailureCategory {
	switch forgeyard.KindOf(err) {
	case forgeyard.NoSpace:
		return job.DiskFull
	case forgeyard.Corrupt:
		return job.CorruptInput
	case forgeyard.NotFound, forgeyard.Conflict, forgeyard.Unavailable, forgeyard.Denied, forgeyard.Limit, forgeyard.Invalid:
		return job.InputFetch
	}
	return job.Internal
}

type ownWork struct {
	a       *app
	c       *client
	attempt string
	task    *forgeyardv1.OwnTask
}

func (w *ownWork) run(ctx context.Context) (ownrun.Result, error) {
	var none ownrun.Result
	t, err := unary(ctx, w.c.own.Task, &forgeyardv1.OwnTaskRequest{AttemptId: w.attempt})
	if err != nil {
		return none, err
	}
	w.task = t
	spec, err := job.DecodeSpec(t.Spec)
	if err != nil {
		return none, err
	}
	if spec.Kind == job.Garden {
		return w.garden(ctx)
	}
	return w.ingest(ctx, spec.Ingest)
}

// say prints for whoever reads the log, and tells the ledger what a tool did.
func (w *ownWork) say(ctx context.Context, t *forgeyardv1.ToolUse, text string) error {
	if t.State != string(job.ToolStarted) {
		if _, err := fmt.Fprintf(w.a.Out, "%s: %s\n", t.Name, text); err != nil {
			return forgeyard.E("report", forgeyard.Other, err)
		}
	}
	_, err := unary(ctx, w.c.own.Report, &forgeyardv1.OwnReportRequest{AttemptId: w.attempt, Tool: t, Message: text})
	return err
}

// tool does something as one tool event, or two if it takes long.
func (w *ownWork) tool(ctx context.Context, source job.ToolSource, name string, do func(t *forgeyardv1.ToolUse) (text string, err error)) error {
	t := &forgeyardv1.ToolUse{Source: string(source), Name: name, State: string(job.ToolStarted)}
	if err := w.say(ctx, t, ""); err != nil {
		return err
	}
	began := now()
	text, err := do(t)
	t.State, t.Took = string(job.ToolEnded), durationpb.New(now().Sub(began))
	if err != nil {
		t.State, text = string(job.ToolFailed), err.Error()
	}
	if serr := w.say(ctx, t, text); serr != nil && err == nil {
		return serr
	}
	return err
}

// ingest brings every input in, or fails with the first that it cannot.
func (w *ownWork) ingest(ctx context.Context, ins []job.RunInput) (r ownrun.Result, err error) {
	var bytes, files int64
	for _, in := range ins {
		err := w.tool(ctx, job.ToolIngest, in.Name, func(t *forgeyardv1.ToolUse) (string, error) {
			o, n, err := w.input(ctx, in)
			if err != nil {
				return "", err
			}
			r.Outputs = append(r.Outputs, o)
			t.Count, t.Bytes = n.Objects, n.Bytes
			files, bytes = files+n.Objects, bytes+n.Bytes
			return fmt.Sprintf("%s, %s of %s verified", o.Digest.Short(), cli.Size(n.Bytes), plural(int(n.Objects), "object")), nil
		})
		if err != nil {
			from := in.From
			if from == "" {
				from = in.Digest.Short()
			}
			return r, forgeyard.E(fmt.Sprintf("input %s (%s)", in.Name, from), forgeyard.KindOf(err), err)
		}
	}
	r.Summary = fmt.Sprintf("%s: %s, %s", plural(len(ins), "name"), plural(int(files), "object"), cli.Size(bytes))
	return r, nil
}

// input stores one input, and reads back what was stored.
func (w *ownWork) input(ctx context.Context, in job.RunInput) (o ownrun.Output, n *forgeyardv1.OwnVerifyResponse, err error) {
	o = ownrun.Output{Name: in.Name, Tree: in.Tree, Digest: in.Digest}
	switch {
	case in.Bundle:
		o, err = w.bundle(ctx, in)
	case in.From != "":
		o, err = w.unchanged(ctx, in)
	}
	if err != nil {
		return o, nil, err
	}
	kind := kindBlob
	if o.Tree {
		kind = kindTree
	}
	n, err = unary(ctx, w.c.own.Verify, &forgeyardv1.OwnVerifyRequest{AttemptId: w.attempt, Digest: o.Digest.String(), Kind: kind})
	if err != nil {
		return o, nil, err
	}
	ref, err := parseRef(o.Digest.String(), n.Manifest, n.Size)
	o.Manifest, o.Size = ref.Manifest, ref.Size
	return o, n, err
}

// may says why this run may not read a path, or nil: a run that was submitted elsewhere reads
// only where this node's own configuration lets it.
func (w *ownWork) may(path string) error {
	if w.task.Here {
		return nil
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return forgeyard.E("read input", fileKind(err), err)
	}
	for _, p := range w.task.Paths {
		root, err := filepath.EvalSymlinks(p)
		if err != nil {
			continue
		}
		if rel, err := filepath.Rel(root, real); err == nil && filepath.IsLocal(rel) {
			return nil
		}
	}
	return forgeyard.Errorf("read input", forgeyard.Denied, "%s is not below policy.ingest of this node, and the run was submitted on another one", path).
		WithHint("submit it on the node that has the data, or let its node.yaml allow the folder")
}

// Tries at data that changes while it is read, and the pause before the next.
const (
	ingestTries = 3
	ingestPause = 500 * time.Millisecond
)

// unchanged uploads what does not change meanwhile: files that somebody works on would be
// stored as they never were.
func (w *ownWork) unchanged(ctx context.Context, in job.RunInput) (o ownrun.Output, err error) {
	if err := w.may(in.From); err != nil {
		return o, err
	}
	for try := 1; ; try++ {
		o, err = w.once(ctx, in)
		if forgeyard.KindOf(err) != forgeyard.Conflict || try == ingestTries {
			return o, err
		}
		fmt.Fprintf(w.a.Out, "%s: %v; trying again\n", in.Name, err)
		select {
		case <-ctx.Done():
			return o, err
		case <-time.After(ingestPause):
		}
	}
}

func (w *ownWork) once(ctx context.Context, in job.RunInput) (ownrun.Output, error) {
	before, err := look(in.From)
	if err != nil {
		return ownrun.Output{}, err
	}
	got, err := w.a.upload(ctx, w.c, in.From, w.task.Hold)
	if err != nil {
		return ownrun.Output{}, err
	}
	after, err := look(in.From)
	if err != nil {
		return ownrun.Output{}, err
	}
	if p := before.differs(after); p != "" {
		return ownrun.Output{}, forgeyard.Errorf("read input", forgeyard.Conflict, "%s changed while it was read", p).WithHint("let whoever writes it end first")
	}
	return ownrun.Output{Name: in.Name, Tree: got.Kind == kindTree, Digest: got.ref.Digest, Manifest: got.ref.Manifest, Size: got.ref.Size}, nil
}

// sight is what a folder, or a file, looked like: a number for each file.
type sight struct {
	seed  maphash.Seed
	files map[string]uint64
}

var sightSeed = maphash.MakeSeed()

func look(root string) (sight, error) {
	s := sight{sightSeed, map[string]uint64{}}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return s, forgeyard.E("read input", fileKind(err), err)
	}
	err = filepath.WalkDir(real, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		s.files[p] = maphash.String(s.seed, fmt.Sprint(st.Mode(), st.Size(), st.ModTime().UnixNano()))
		return nil
	})
	if errors.Is(err, os.ErrNotExist) && len(s.files) > 0 {
		return s, forgeyard.E("read input", forgeyard.Conflict, err) // it went while we looked
	}
	if err != nil {
		return s, forgeyard.E("read input", fileKind(err), err)
	}
	return s, nil
}

// differs names a file that is not as it was, or nothing.
func (s sight) differs(t sight) string {
	for p, is := range t.files {
		if was, ok := s.files[p]; !ok || was != is {
			return p
		}
	}
	for p := range s.files {
		if _, ok := t.files[p]; !ok {
			return p
		}
	}
	return ""
}

// bundle imports a bundle; its one root gets the name.
func (w *ownWork) bundle(ctx context.Context, in job.RunInput) (o ownrun.Output, err error) {
	if err := w.may(in.From); err != nil {
		return o, err
	}
	f, h, err := openBundle(in.From)
	if err != nil {
		return o, err
	}
	defer f.Close() // it was only read
	r, err := w.a.sendBundle(ctx, w.c, f, h)
	if err != nil {
		return o, err
	}
	if len(r.Roots) != 1 {
		return o, forgeyard.Errorf("bundle", forgeyard.Invalid, "it has %d roots, and a name takes one", len(r.Roots)).WithHint("export what shall have one name as one tree")
	}
	d, err := forgeyard.ParseDigest(r.Roots[0].Digest)
	return ownrun.Output{Name: in.Name, Tree: r.Roots[0].Kind == kindTree, Digest: d}, err
}

// gardenActions in their order: what is let go first can be collected after.
var gardenActions = []string{"retention", "workspaces", "gc", "scrub", "devices"}

// garden does every step of maintenance; one that fails does not keep the next from its work.
func (w *ownWork) garden(ctx context.Context) (r ownrun.Result, err error) {
	var parts []string
	var errs []error
	for _, action := range gardenActions {
		var text string
		err := w.tool(ctx, job.ToolGarden, action, func(t *forgeyardv1.ToolUse) (string, error) {
			v, err := unary(ctx, w.c.own.Garden, &forgeyardv1.OwnGardenRequest{AttemptId: w.attempt, Action: action})
			if err != nil {
				return "", err
			}
			t.Count, t.Bytes = v.Done, v.Bytes
			text = fmt.Sprintf("%d of %d", v.Done, v.Looked)
			if v.Bytes > 0 {
				text += ", " + cli.Size(v.Bytes)
			}
			if len(v.Trouble) == 0 {
				return text, nil
			}
			if action == "scrub" {
				return "", forgeyard.Errorf("", forgeyard.Corrupt, "%d of what is kept is not whole: %s", len(v.Trouble), strings.Join(v.Trouble, "; "))
			}
			return text + ": " + strings.Join(v.Trouble, "; "), nil
		})
		if ctx.Err() != nil {
			return r, forgeyard.E("garden", forgeyard.Interrupted, ctx.Err())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", action, err))
			continue
		}
		parts = append(parts, action+" "+text)
	}
	r.Summary = strings.Join(parts, "; ")
	return r, errors.Join(errs...)
}
