package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/render"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

func (a *app) debugCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "debug", Short: "Gather what somebody who helps you wants to see"})
	g.AddCommand(a.debugBundle())
	return g
}

// A debug bundle is what the daemon shows to anybody who may ask it, in one file: no key, no
// token, no secret is among that. What may name one in a setting is taken out all the same.

func (a *app) debugBundle() *cobra.Command {
	return a.Build(cli.Command{
		Use: "bundle FILE", Short: "Write the state of this node into a .tar.gz that can be given away", Args: cobra.ExactArgs(1),
		Long: "Write what this node shows of itself and its site into a .tar.gz: status, doctor, settings, members, jobs, leases, devices, the last events, metrics, and what its goroutines do. " +
			"No key, token or secret is in it; names, addresses and titles of jobs are. What could not be had is named in manifest.json.",
		Example: "  forgeyard-node debug bundle n1.tar.gz\n  tar tzf n1.tar.gz", Exits: []int{1, 4, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			m := manifest{Version: version, Platform: runtime.GOOS + "/" + runtime.GOARCH, Created: now().UTC().Truncate(time.Second), Lacks: []lack{}}
			if err := writeNew(args[0], func(w io.Writer) error { return m.write(ctx, w, parts(c)) }); err != nil {
				return err
			}
			return a.PrintValue(m, func(p *cli.Page) {
				p.Fact("bundle", "%s, %d files", args[0], len(m.Files))
				for _, l := range m.Lacks {
					p.Fact("lacks", "%s: %s", l.File, l.Why)
				}
			})
		},
	})
}

// manifest says what a debug bundle has.
type manifest struct {
	Version  string    `json:"version"` // of the command
	Platform string    `json:"platform"`
	Created  time.Time `json:"created"`
	Files    []string  `json:"files"`
	Lacks    []lack    `json:"lacks"`
}

type lack struct {
	File string `json:"file"`
	Why  string `json:"why"`
}

// part is one file of a bundle.
type part struct {
	name string
	get  func(ctx context.Context) ([]byte, error)
}

// maxPart bounds what one part may have; the last events of a large site are longest.
const maxPart = 32 << 20

func parts(c *client) []part {
	return []part{
		{"status.json", message(c.node.Status, &forgeyardv1.NodeStatusRequest{}, nil)},
		{"doctor.json", message(c.node.Doctor, &forgeyardv1.DoctorRequest{}, func(d *forgeyardv1.DoctorResponse) { hide(d.Settings) })},
		{"site.json", message(c.site.Status, &forgeyardv1.SiteStatusRequest{}, nil)},
		{"site-config.json", message(c.site.GetConfig, &forgeyardv1.GetConfigRequest{}, func(r *forgeyardv1.GetConfigResponse) { hide(r.Settings) })},
		{"members.json", message(c.site.Members, &forgeyardv1.MembersRequest{}, nil)},
		{"jobs.json", message(c.job.List, &forgeyardv1.ListJobsRequest{}, nil)},
		{"leases.json", message(c.job.ListLeases, &forgeyardv1.ListLeasesRequest{}, nil)},
		{"devices.json", message(c.device.List, &forgeyardv1.ListDevicesRequest{}, nil)},
		{"uplink.json", message(c.uplink.Status, &forgeyardv1.UplinkStatusRequest{}, nil)},
		{"events.ndjson", c.events},
		{"metrics.txt", c.page("/metrics")},
		{"goroutines.txt", c.page("/debug/goroutines")},
	}
}

// message is the answer to a call as a file.
func message[Q any, R any, M interface {
	*R
	proto.Message
}](call func(context.Context, *connect.Request[Q]) (*connect.Response[R], error), q *Q, clean func(M)) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		r, err := unary(ctx, call, q)
		if err != nil {
			return nil, err
		}
		if clean != nil {
			clean(M(r))
		}
		var b bytes.Buffer
		err = render.JSON(&b, M(r))
		return b.Bytes(), err
	}
}

// events are the events of the site that are kept, as far as there is room: the last ones.
func (c *client) events(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := c.site.Events(ctx, connect.NewRequest(&forgeyardv1.SiteEventsRequest{}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // it was only read
	var b bytes.Buffer
	for s.Receive() {
		if err := render.NDJSON(&b, s.Msg()); err != nil {
			return nil, err
		}
		if b.Len() > 2*maxPart {
			rest := b.Bytes()[maxPart:]
			b = *bytes.NewBuffer(bytes.Clone(rest[bytes.IndexByte(rest, '\n')+1:]))
		}
	}
	return b.Bytes(), s.Err()
}

// page is what the daemon answers to a plain request.
func (c *client) page(path string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
		if err != nil {
			return nil, err
		}
		r, err := c.plain.Do(q)
		if err != nil {
			return nil, err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return nil, forgeyard.Errorf("get", forgeyard.Unavailable, "%s: %s", path, r.Status)
		}
		return io.ReadAll(io.LimitReader(r.Body, maxPart))
	}
}

// secretKey names settings whose values are nobody's business. None of them has a secret today:
// they name files. One that comes to have one is not forgotten here.
var secretKey = regexp.MustCompile(`(?i)(secret|token|password|credential|key)`)

func hide(all []*forgeyardv1.Setting) {
	for _, s := range all {
		if secretKey.MatchString(s.Key) && s.Source != "default" {
			s.Value = "(not shown)"
		}
	}
}

// write writes the bundle. A part that cannot be had is left out and named.
func (m *manifest) write(ctx context.Context, w io.Writer, all []part) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	add := func(name string, b []byte) error {
		err := t.WriteHeader(&tar.Header{Name: "forgeyard-debug/" + name, Mode: 0o600, Size: int64(len(b)), ModTime: m.Created})
		if err == nil {
			_, err = t.Write(b)
		}
		return err
	}
	for _, p := range all {
		b, err := p.get(ctx)
		if ctx.Err() != nil {
			return forgeyard.E("debug bundle", forgeyard.Interrupted, ctx.Err())
		}
		if err != nil {
			m.Lacks = append(m.Lacks, lack{p.name, err.Error()})
			continue
		}
		if err := add(p.name, b); err != nil {
			return err
		}
		m.Files = append(m.Files, p.name)
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(add("manifest.json", append(b, '\n')), t.Close(), z.Close())
}

// writeNew makes a file for its owner alone, whole or not at all; one that is there stays.
func writeNew(name string, write func(io.Writer) error) (err error) {
	if _, serr := os.Lstat(name); serr == nil {
		return forgeyard.Errorf("write", forgeyard.Conflict, "%s is there already", name).WithHint("name another file, or remove it")
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".forgeyard-debug-")
	if errors.Is(err, fs.ErrNotExist) {
		return forgeyard.Errorf("write", forgeyard.NotFound, "there is no folder %s", filepath.Dir(name)).WithHint("make it, or name a file in another")
	}
	if err != nil {
		return forgeyard.E("write", fileKind(err), err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // it is worth nothing
		}
	}()
	if err := errors.Join(write(f), f.Close()); durable.Full(err) {
		return forgeyard.E("write", forgeyard.NoSpace, fmt.Errorf("%s: %w", name, err))
	} else if err != nil {
		return fmt.Errorf("%s: %w", name, err) // of what it is made of: it says itself of which kind
	}
	if err := os.Link(f.Name(), name); err != nil {
		return forgeyard.E("write", fileKind(err), err)
	}
	return os.Remove(f.Name())
}
