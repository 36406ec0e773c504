package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/job"
)

const (
	maxJobFile  = 1 << 20   // a spec has at most 256 KiB
	uploadPiece = 256 << 10 // bytes of one message of an upload
	tellEvery   = 3 * time.Second
)

func (c *cli) delegate() *cobra.Command {
	var set []string
	var within time.Duration
	cmd := &cobra.Command{
		Use:     "delegate SITE FILE|-",
		Short:   "Give a site a job",
		Long:    "Give a site the job of a job file, with authority for as long as the job's connectivity says.\nLocal inputs are read relative to the file, stored at the daemon, and brought to the site with the job.\nWith --within the authority has a hard end that contact does not renew: the site starts nothing that may\nrun longer, and stops what is not done by then.",
		Example: "  forgeyard-central delegate plant-a job.yaml --set title=nightly\n  forgeyard-central delegate plant-a job.yaml --within 6h",
		Args:    exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := c.delegateFile(cmd.Context(), args[0], args[1], set, within)
			if err != nil {
				return err
			}
			return c.show(j, func(w io.Writer) { line(w, j.GrantId) })
		},
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "replace a value of the file: --set job.env.BOARD=rev4")
	cmd.Flags().DurationVar(&within, "within", 0, "hard end of the authority, from now; 0: none")
	return cmd
}

func (c *cli) delegateFile(ctx context.Context, site, name string, set []string, within time.Duration) (*v1.CentralJob, error) {
	if within < 0 {
		return nil, usage("--within %s is below 0", within)
	}
	file, dir, err := c.readJobFile(name, set)
	if err != nil {
		return nil, err
	}
	if file.Kind != job.Build {
		return nil, usage("%s: kind %s is the site's own business; only a build can be delegated", name, file.Kind)
	}
	cl, err := c.client()
	if err != nil {
		return nil, err
	}
	up, err := newUploader(cl)
	if err != nil {
		return nil, err
	}
	stop := up.tell(c.errs)
	inputs, err := up.inputs(ctx, dir, file.Job.Inputs)
	stop()
	if err != nil {
		return nil, err
	}
	spec, err := file.Spec(inputs)
	if err != nil {
		return nil, err
	}
	req := &v1.DelegateRequest{Site: site, Spec: spec.Canonical(), Title: file.Title, Upload: up.name}
	if within > 0 {
		req.Within = durationpb.New(within)
	}
	r, err := cl.Delegate(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

// readJobFile reads and checks a job file; dir is where its relative paths begin.
func (c *cli) readJobFile(name string, set []string) (f job.File, dir string, err error) {
	overrides := map[string]string{}
	for _, s := range set {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return f, "", usage("--set %q is not KEY=VALUE", forgeyard.Clip(s, 60))
		}
		overrides[k] = v
	}
	in, dir := c.in, "."
	if name != "-" {
		file, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			return f, "", forgeyard.E("delegate", forgeyard.NotFound, err)
		}
		if err != nil {
			return f, "", forgeyard.E("delegate", forgeyard.Other, err)
		}
		defer func() { _ = file.Close() }() // it was only read
		in, dir = file, filepath.Dir(name)
	}
	b, err := io.ReadAll(io.LimitReader(in, maxJobFile+1))
	if err != nil {
		return f, "", forgeyard.E("delegate", forgeyard.Other, err)
	}
	if len(b) > maxJobFile {
		return f, "", forgeyard.Errorf("delegate", forgeyard.Limit, "%s has more than %d bytes", name, maxJobFile)
	}
	f, err = job.ParseFile(name, b, overrides)
	return f, dir, err
}

// uploader is a tree.Putter that stores at the daemon. What it stores is kept until
// the delegation that names the same upload.
type uploader struct {
	client forgeyardv1connect.CentralServiceClient
	name   string
	sent   atomic.Int64
}

var _ tree.Putter = (*uploader)(nil)

func newUploader(cl forgeyardv1connect.CentralServiceClient) (*uploader, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return nil, forgeyard.E("delegate", forgeyard.Other, err)
	}
	return &uploader{client: cl, name: hex.EncodeToString(b)}, nil
}

// inputs stores what comes from local paths and gives each its digest.
func (u *uploader) inputs(ctx context.Context, dir string, ins []job.FileInput) (out []job.Input, err error) {
	for _, in := range ins {
		if in.From == "" {
			continue
		}
		path := in.From
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		st, err := os.Stat(path)
		if err != nil {
			return nil, forgeyard.E("delegate", forgeyard.NotFound, fmt.Errorf("input %s: %w", in.Path, err))
		}
		got := job.Input{Path: in.Path, Tree: st.IsDir()}
		if st.IsDir() {
			r, err := tree.Capture(ctx, u, path, tree.Options{})
			if err != nil {
				return nil, err
			}
			got.Digest, got.Manifest, got.Size = r.Digest, r.Manifest, r.Size
		} else {
			e, err := tree.CaptureFile(ctx, u, path, tree.Options{})
			if err != nil {
				return nil, err
			}
			got.Digest, got.Manifest, got.Size = e.Digest, e.Manifest, e.Size
		}
		out = append(out, got)
	}
	return out, nil
}

// Put implements tree.Putter: one stream an object. The daemon's name for it must be
// the one that the bytes had here.
func (u *uploader) Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	s := u.client.PutObject(ctx)
	sum, buf := cas.NewHasher(), make([]byte, uploadPiece)
	msg := &v1.PutObjectRequest{Upload: u.name}
	for {
		n, rerr := io.ReadFull(r, buf)
		if rerr != nil && rerr != io.EOF && !errors.Is(rerr, io.ErrUnexpectedEOF) {
			_, _ = s.CloseAndReceive() // the read error is what went wrong
			return cas.Ref{}, rerr
		}
		_, _ = sum.Write(buf[:n]) // a Hasher never fails
		msg.Data = buf[:n]
		if err := s.Send(msg); err != nil {
			break // the cause is in the answer
		}
		u.sent.Add(int64(n))
		msg = &v1.PutObjectRequest{}
		if rerr != nil {
			break
		}
	}
	resp, err := s.CloseAndReceive()
	if err != nil {
		return cas.Ref{}, err
	}
	return u.check(resp.Msg, sum.Sum(), o)
}

func (u *uploader) check(m *v1.PutObjectResponse, sum forgeyard.Digest, o cas.PutOptions) (cas.Ref, error) {
	d, err := forgeyard.ParseDigest(m.Digest)
	if err != nil {
		return cas.Ref{}, err
	}
	if d != sum || !o.Expect.IsZero() && d != o.Expect {
		return cas.Ref{}, forgeyard.Errorf("put", forgeyard.Corrupt, "the daemon stored %s, the bytes are %s", d.Short(), sum.Short())
	}
	ref := cas.Ref{Digest: d, Size: m.Size}
	if err := ref.Manifest.UnmarshalText([]byte(m.Manifest)); err != nil {
		return cas.Ref{}, err
	}
	return ref, nil
}

// tell says every few seconds how much went up, until stop.
func (u *uploader) tell(w io.Writer) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-time.After(tellEvery):
				fmt.Fprintf(w, "uploaded %d bytes of inputs\n", u.sent.Load())
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}
