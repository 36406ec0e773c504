package main

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/render"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/remote"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/job"
)

// maxJobFile bounds a job file: it is written by people.
const maxJobFile = 1 << 20

// identity is what a run is among others.
type identity struct {
	key, group string
	order      uint64
}

func (a *app) submitCommand() *cobra.Command {
	var watch bool
	var sets []string
	var as identity
	c := a.Build(cli.Command{
		Use:   "submit FILE",
		Short: "Submit a job file",
		Long: "Submit a job file; `-` reads it from stdin. Local inputs (`from:`, relative to the file's folder) of a build are hashed and brought into the site's store first. " +
			"An ingest brings files, a folder or a bundle of one node into the store under names; a garden looks after one node: this one, or the one that `node:` names. " +
			"It prints the run id and the job id.",
		Example: `  forgeyard-node submit job.yaml --watch
  forgeyard-node submit job.yaml --set job.env.BOARD=rev5 --set title='nightly build'
  forgeyard-node submit - --idempotency-key "$GITHUB_RUN_ID" -o json < job.yaml
  echo '{version: 1, kind: garden}' | forgeyard-node submit - --watch
  echo '{version: 1, kind: ingest, inputs: [{name: scope-7, from: /srv/scope/7}]}' | forgeyard-node submit -`,
		Args:  cobra.ExactArgs(1),
		Exits: []int{1, 3, 4, 5, 6, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			f, base, err := a.readJob(args[0], sets)
			if err != nil {
				return err
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			out, err := a.submit(ctx, c, f, base, as)
			if err != nil {
				return err
			}
			if !watch {
				return a.Print(out, func(p *cli.Page) { submitted(p, out) })
			}
			if err := a.printSubmitted(out); err != nil {
				return err
			}
			return a.attach(ctx, c, out.JobIds[0], !a.JSON())
		},
	})
	f := c.Flags()
	f.BoolVar(&watch, "watch", false, "attach to the run until it ends; exits 0 for done, 1 for failed or cancelled")
	f.StringArrayVar(&sets, "set", nil, "k=v, replaces a value of the file by its dotted path; repeat for more")
	f.StringVar(&as.group, "group", "", "the run supersedes those of its group that are not over: they are cancelled and never resumed")
	f.Uint64Var(&as.order, "order", 0, "its place in the group; refused where the group has a run of a higher one (default: after all)")
	f.StringVar(&as.key, "idempotency-key", "", "the same key is the same run, however often it is submitted")
	return c
}

func submitted(p *cli.Page, r *forgeyardv1.SubmitResponse) {
	p.Row("run", r.RunId)
	for _, j := range r.JobIds {
		p.Row("job", j)
	}
}

// printSubmitted prints the ids before a stream: on one line where the stream is NDJSON.
func (a *app) printSubmitted(r *forgeyardv1.SubmitResponse) error {
	if a.JSON() {
		return render.NDJSON(a.Out, r)
	}
	return a.Text(func(p *cli.Page) { submitted(p, r) })
}

// readJob reads and checks a job file. base is where its relative paths start.
func (a *app) readJob(name string, sets []string) (f job.File, base string, err error) {
	overrides, err := pairs("--set", sets)
	if err != nil {
		return f, "", err
	}
	in, base := a.In, "."
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return f, "", forgeyard.E("submit", fileKind(err), err)
		}
		defer func() { _ = file.Close() }() // it was only read
		in, base = file, filepath.Dir(name)
	}
	b, err := io.ReadAll(io.LimitReader(in, maxJobFile+1))
	if err != nil {
		return f, "", forgeyard.E("submit", forgeyard.Other, err)
	}
	if len(b) > maxJobFile {
		return f, "", forgeyard.Errorf("submit", forgeyard.Limit, "%s has more than %d bytes, the bound of a job file", name, maxJobFile)
	}
	f, err = job.ParseFile(name, b, overrides)
	return f, base, err
}

// submit brings local inputs in and proposes the job. What was put is held until the
// job's own pin keeps it.
func (a *app) submit(ctx context.Context, c *client, f job.File, base string, as identity) (*forgeyardv1.SubmitResponse, error) {
	if f.Kind != job.Build {
		return a.submitOwn(ctx, c, f, base, as)
	}
	hold := newID()
	resolved, err := a.ingest(ctx, c, f, base, hold)
	var out *forgeyardv1.SubmitResponse
	if err == nil {
		out, err = propose(ctx, c, f, resolved, as, hold)
	}
	if err != nil && len(resolved) > 0 {
		a.unhold(ctx, c, hold)
	}
	return out, err
}

// submitOwn proposes an ingest or a garden run. Paths are those of the node that carries it
// out; relative ones are only for the node that is asked, which sees the file's folder.
func (a *app) submitOwn(ctx context.Context, c *client, f job.File, base string, as identity) (*forgeyardv1.SubmitResponse, error) {
	s, err := unary(ctx, c.node.Status, &forgeyardv1.NodeStatusRequest{})
	if err != nil {
		return nil, err
	}
	id, here := forgeyard.RunnerID(s.RunnerId), true
	if f.Node != "" {
		r, err := findRunner(ctx, c, f.Node)
		if err != nil {
			return nil, err
		}
		here = r == id
		id = r
	}
	for i, in := range f.Inputs {
		if in.From == "" || filepath.IsAbs(in.From) {
			continue
		}
		if !here {
			return nil, forgeyard.Errorf("submit", forgeyard.Invalid, "inputs[%d].from: %q is not absolute, and %s does not know this folder", i, forgeyard.Clip(in.From, 80), f.Node)
		}
		if f.Inputs[i].From, err = filepath.Abs(filepath.Join(base, in.From)); err != nil {
			return nil, forgeyard.E("submit", forgeyard.Other, err)
		}
	}
	spec, err := f.Own(id)
	if err != nil {
		return nil, err
	}
	return unary(ctx, c.job.Submit, &forgeyardv1.SubmitRequest{Spec: spec.Canonical(), Kind: string(f.Kind), Title: f.Title, IdempotencyKey: as.key, Group: as.group, Order: as.order})
}

// findRunner finds a member by its name or its id.
func findRunner(ctx context.Context, c *client, word string) (forgeyard.RunnerID, error) {
	l, err := unary(ctx, c.site.Members, &forgeyardv1.MembersRequest{})
	if err != nil {
		return "", err
	}
	for _, m := range l.Members {
		if m.RunnerId == word || m.Name == word {
			return forgeyard.RunnerID(m.RunnerId), nil
		}
	}
	return "", forgeyard.Errorf("submit", forgeyard.NotFound, "no member %q", forgeyard.Clip(word, job.MaxName)).WithHint("forgeyard-node site members shows them")
}

func propose(ctx context.Context, c *client, f job.File, resolved []job.Input, as identity, hold string) (*forgeyardv1.SubmitResponse, error) {
	spec, err := f.Spec(resolved)
	if err != nil {
		return nil, err
	}
	req := &forgeyardv1.SubmitRequest{Spec: spec.Canonical(), Kind: string(f.Kind), Title: f.Title, IdempotencyKey: as.key, Group: as.group, Order: as.order}
	if len(resolved) > 0 {
		req.Hold = hold
	}
	return unary(ctx, c.job.Submit, req)
}

// newID draws an identifier for a request.
func newID() string {
	var e [10]byte
	rand.Read(e[:]) // never fails (crypto/rand since Go 1.24)
	return forgeyard.NewULID(now(), e)
}

// unhold ends a hold of an upload that comes to nothing. What cannot be told ends
// with the daemon; one that stands still keeps nobody at the terminal who pressed Ctrl-C.
func (a *app) unhold(ctx context.Context, c *client, hold string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unholdTimeout)
	defer cancel()
	if _, err := unary(ctx, c.content.Unpin, &forgeyardv1.UnpinRequest{Hold: hold}); err != nil && a.Verbose {
		a.Note("the uploaded pieces stay until the daemon restarts: %v", err)
	}
}

// ingest stores the local inputs of a job file.
func (a *app) ingest(ctx context.Context, c *client, f job.File, base, hold string) ([]job.Input, error) {
	var out []job.Input
	for _, in := range f.Job.Inputs {
		if in.Named != "" {
			got, err := namedInput(ctx, c, in)
			if err != nil {
				return out, err
			}
			out = append(out, got)
			continue
		}
		if in.From == "" {
			continue
		}
		from := in.From
		if !filepath.IsAbs(from) {
			from = filepath.Join(base, from)
		}
		got, err := a.upload(ctx, c, from, hold)
		if err != nil {
			return out, err
		}
		out = append(out, job.Input{Path: path.Clean(in.Path), Tree: got.Kind == kindTree, Digest: got.ref.Digest, Manifest: got.ref.Manifest, Size: got.ref.Size})
	}
	return out, nil
}

// namedInput is what a name points at now; the job keeps to it.
func namedInput(ctx context.Context, c *client, in job.FileInput) (job.Input, error) {
	n, err := findName(ctx, c, in.Named)
	if err != nil {
		return job.Input{}, err
	}
	ref, err := parseRef(n.Set.Digest, n.Set.Manifest, n.Set.Size)
	return job.Input{Path: path.Clean(in.Path), Tree: n.Set.Kind == kindTree, Digest: ref.Digest, Manifest: ref.Manifest, Size: ref.Size}, err
}

const (
	kindBlob = "blob"
	kindTree = "tree"
)

// put is what an upload stored, as `cas put` prints it.
type put struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	Kind   string `json:"kind"`
	Files  int64  `json:"files"`

	ref cas.Ref
}

// upload stores a file, or a directory with all below it, under a hold. The name
// itself may be a link: the person named it.
func (a *app) upload(ctx context.Context, c *client, name, hold string) (put, error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return put{}, forgeyard.E("read input", fileKind(err), err)
	}
	st, err := os.Stat(real)
	if err != nil {
		return put{}, forgeyard.E("read input", fileKind(err), err)
	}
	bar := a.NewProgress("upload "+filepath.Base(name), 0)
	defer bar.Close()
	s := remote.New(c.content, "")
	s.Hold, s.Wrap, s.Had, s.Done = hold, bar.Reader, bar.Had, func(cas.Ref) { bar.Item() }
	if st.IsDir() {
		r, err := tree.Capture(ctx, s, real, tree.Options{})
		return put{r.Digest.String(), r.Bytes, kindTree, r.Files, r.Ref}, err
	}
	bar.SetTotal(st.Size())
	e, err := tree.CaptureFile(ctx, s, real, tree.Options{})
	return put{e.Digest.String(), e.Size, kindBlob, 1, e.Ref()}, err
}
