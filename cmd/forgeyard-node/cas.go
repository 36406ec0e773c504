package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/remote"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/internal/strictyaml"
	"github.com/forgeyard/forgeyard-node/job"
)

func (a *app) casCommand() *cobra.Command {
	g := a.Build(cli.Command{
		Use: "cas", Short: "Put, get and keep content by its digest",
		Long: "Put, get and keep content by its digest. A digest is b3: and 64 hex digits, the BLAKE3-256 of the bytes, equal to what b3sum prints. " +
			"A directory is named by its tree.",
	})
	g.AddCommand(a.casPut(), a.casGet(), a.casLs(), a.casStat(), a.casPin(), a.casUnpin(), a.casGC(), a.casName(),
		a.casVerify("verify", "Read all that this node has, and set aside what is damaged", "  forgeyard-node cas verify --rate 20MiB\n  forgeyard-node cas verify --repair", false),
		a.casVerify("fsck", "The same, and with --repair make the index agree with the files first", "  forgeyard-node cas fsck --repair", true))
	return g
}

func (a *app) casPut() *cobra.Command {
	var keep bool
	c := a.Build(cli.Command{
		Use: "put PATH", Short: "Store a file, a directory, or with - what comes on stdin, and print its digest", Args: cobra.ExactArgs(1),
		Long: "Store a file, a directory, or with - what comes on stdin, in this node's store, and print its digest. Nothing keeps it from the next `cas gc` but a pin: " +
			"give --pin, or use `cas pin`. A large file that was cut goes on where it ended.",
		Example: "  forgeyard-node cas put firmware.bin --pin\n  tar c src | forgeyard-node cas put -", Exits: []int{1, 3, 4, 5, 6, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			hold := newID()
			defer a.unhold(ctx, c, hold)
			v, err := a.putPath(ctx, c, args[0], hold)
			if err == nil && keep {
				_, err = unary(ctx, c.content.Pin, &forgeyardv1.PinRequest{Digest: v.Digest, Kind: v.Kind})
			}
			if err != nil {
				return err
			}
			return a.PrintValue(v, func(p *cli.Page) { p.Line("%s", v.Digest) })
		},
	})
	c.Flags().BoolVar(&keep, "pin", false, "keep it until it is unpinned")
	return c
}

func (a *app) putPath(ctx context.Context, c *client, name, hold string) (put, error) {
	if name != "-" {
		return a.upload(ctx, c, name, hold)
	}
	bar := a.NewProgress("upload", 0)
	defer bar.Close()
	s := remote.New(c.content, "")
	s.Hold, s.Wrap = hold, bar.Reader
	r, err := s.Put(ctx, a.In, cas.PutOptions{})
	return put{r.Digest.String(), r.Size, kindBlob, 1, r}, err
}

func (a *app) casGet() *cobra.Command {
	var out string
	var isTree bool
	c := a.Build(cli.Command{
		Use: "get DIGEST|NAME", Short: "Fetch content by its digest, or by a name that an ingest gave it, from this node or its peers", Args: cobra.ExactArgs(1),
		Long: "Fetch content by its digest, from this node or its peers. What arrives is held against the digest; a file or directory gets its name only then: " +
			"a file that is there is replaced when all has come, a directory must not be there. " +
			"A file that was cut goes on where it ended. " +
			"Without -O, or with -O -, the bytes go to stdout, into a device or a pipe that -O names they go as they come, and a mismatch is known by the exit code.",
		Example: "  forgeyard-node cas get b3:… -O firmware.bin\n  forgeyard-node cas get b3:… --tree -O ./src", Exits: []int{1, 3, 4, 5, 6, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			if job.CheckName(args[0]) != nil {
				if _, err := parseRef(args[0], "", 0); err != nil {
					return err
				}
			}
			toStdout := out == "" || out == "-"
			if isTree && toStdout {
				return a.Usage("cas get", "--tree needs -O DIR")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			ref, namedTree, err := named(ctx, c, args[0])
			if isTree = isTree || namedTree; err != nil {
				return err
			}
			if isTree && toStdout {
				return a.Usage("cas get", "%s is a directory: it needs -O DIR", args[0])
			}
			if !toStdout {
				return a.download(ctx, c, ref, isTree, out)
			}
			return a.copyTo(ctx, c, ref, a.Out, "stdout")
		},
	})
	c.Flags().StringVarP(&out, "out", "O", "", "file or directory to make; - is stdout")
	c.Flags().BoolVar(&isTree, "tree", false, "the digest names a directory")
	return c
}

func parseRef(digest, manifest string, size int64) (cas.Ref, error) {
	d, err := forgeyard.ParseDigest(digest)
	ref := cas.Ref{Digest: d, Size: size}
	if err == nil && manifest != "" {
		ref.Manifest, err = forgeyard.ParseDigest(manifest)
	}
	return ref, err
}

// copyTo writes a file's bytes as they come. What w makes of it is w's fault, and said so.
func (a *app) copyTo(ctx context.Context, c *client, ref cas.Ref, w io.Writer, name string) error {
	to := &sink{w: w}
	_, err := remote.New(c.content, "").Get(ctx, ref, false, to)
	if to.err != nil {
		return noRoom(forgeyard.E("write to "+name, fileKind(to.err), to.err), name)
	}
	return err
}

// sink remembers why it took no more.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(b []byte) (n int, err error) {
	n, s.err = s.w.Write(b)
	return n, s.err
}

// noRoom says what to do about a full disk that is not the node's.
func noRoom(err *forgeyard.Error, where string) *forgeyard.Error {
	if err.Kind == forgeyard.NoSpace {
		return err.WithHint("free space or inodes where %s is, or name another place", where)
	}
	return err
}

// into writes to what is there and is no file: a device, a pipe, /dev/stdout. A rename
// would put a file in its place, for everybody.
func (a *app) into(ctx context.Context, c *client, ref cas.Ref, dst string) (err error) {
	f, err := os.OpenFile(dst, os.O_WRONLY, 0)
	if err != nil {
		return withFileKind(err, dst)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return a.copyTo(ctx, c, ref, f, dst)
}

// download makes a file or directory at dst, which gets its name when all of it is
// there and verified. A file that is there is replaced by then, as other tools with such a
// flag do; a directory must not be there yet.
func (a *app) download(ctx context.Context, c *client, ref cas.Ref, isTree bool, dst string) error {
	if _, err := os.Lstat(dst); err == nil {
		st, err := os.Stat(dst) // a link to a device is one
		if isTree || (err == nil && st.IsDir()) {
			return forgeyard.Errorf("cas get", forgeyard.Conflict, "%s is there already", dst).WithHint("name another place")
		}
		if err == nil && !st.Mode().IsRegular() {
			return a.into(ctx, c, ref, dst)
		}
	}
	if st, err := os.Stat(filepath.Dir(dst)); err != nil || !st.IsDir() {
		return forgeyard.Errorf("cas get", forgeyard.NotFound, "there is no directory %s", filepath.Dir(dst)).WithHint("make it first")
	}
	bar := a.NewProgress("fetch "+filepath.Base(dst), sizeOf(ctx, c, ref, isTree))
	defer bar.Close()
	s := remote.New(c.content, filepath.Dir(dst))
	s.Wrap, s.Had = bar.Reader, bar.Had
	if !isTree {
		n, err := s.File(ctx, ref, dst)
		if err == nil && n <= cas.MaxTreeBytes {
			a.noteTree(dst)
		}
		return withFileKind(err, dst)
	}
	bar.SetTotal(0) // the size of a tree is not that of its files
	if _, err := s.Bring(ctx, ref.Digest); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dst), ".forgeyard-*")
	if err != nil {
		return withFileKind(err, dst)
	}
	defer func() { _ = tree.Remove(tmp) }() // what is left of it, when all went well nothing
	if _, err := tree.Materialise(ctx, s, ref.Digest, filepath.Join(tmp, "tree"), tree.Materialisation{}); err != nil {
		return err
	}
	return withFileKind(os.Rename(filepath.Join(tmp, "tree"), dst), dst)
}

// noteTree tells a person who asked for the bytes of a directory's tree what they are.
func (a *app) noteTree(file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		return
	}
	if _, err := cas.DecodeTree(b); err == nil {
		a.Note("%s has the list of a directory; the directory itself comes with --tree", file)
	}
}

// sizeOf is the size that was given, or what this node knows of it, for the progress that a
// person sees: 0 when it is not here, or when it does not answer at once.
func sizeOf(ctx context.Context, c *client, ref cas.Ref, isTree bool) int64 {
	if isTree || ref.Size != 0 {
		return ref.Size
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	o, err := unary(ctx, c.content.Stat, &forgeyardv1.StatRequest{Digest: ref.Digest.String()})
	if err != nil {
		return 0
	}
	return o.Size
}

func withFileKind(err error, dst string) error {
	if err == nil || forgeyard.KindOf(err) != forgeyard.Other {
		return err
	}
	return noRoom(forgeyard.E("cas get", fileKind(err), err), dst)
}

func (a *app) casLs() *cobra.Command {
	return a.Build(cli.Command{
		Use: "ls DIGEST|NAME", Short: "List one directory by its digest, or by a name that an ingest gave it", Args: cobra.ExactArgs(1),
		Example: "  forgeyard-node cas ls b3:…\n  forgeyard-node cas ls scope-7", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			if job.CheckName(args[0]) != nil { // a digest, or what shall be one: it has a colon
				if _, err := parseRef(args[0], "", 0); err != nil {
					return err
				}
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			ref, _, err := named(ctx, c, args[0])
			if err != nil {
				return err
			}
			o, err := remote.New(c.content, "").Open(ctx, ref.Digest)
			if err != nil {
				return err
			}
			b := make([]byte, o.Ref().Size)
			if _, err := o.ReadAt(b, 0); err != nil {
				return forgeyard.E("cas ls", forgeyard.Other, err)
			}
			t, err := cas.DecodeTree(b)
			if err != nil {
				return forgeyard.Errorf("cas ls", forgeyard.Invalid, "%s is no directory", ref.Digest.Short()).WithHint("`cas get` fetches a file")
			}
			return a.printTree(t)
		},
	})
}

// treeEntry is what `cas ls` prints.
type treeEntry struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Exec   bool   `json:"exec"`
	Size   int64  `json:"size"`
	Digest string `json:"digest,omitempty"`
	Target string `json:"target,omitempty"`
}

func (a *app) printTree(t cas.Tree) error {
	all := make([]treeEntry, 0, len(t.Entries))
	for _, e := range t.Entries {
		all = append(all, treeEntry{e.Name, e.Kind.String(), e.Exec, e.Size, e.Digest.String(), e.Target})
	}
	return a.PrintValue(all, func(p *cli.Page) {
		p.Row("KIND", "SIZE", "DIGEST", "NAME")
		for _, e := range all {
			name := e.Name
			switch {
			case e.Kind == cas.Dir.String():
				name += "/"
			case e.Target != "":
				name += " -> " + e.Target
			case e.Exec:
				name += " *"
			}
			p.Row(e.Kind, cli.Size(e.Size), e.Digest, name)
		}
	})
}

func (a *app) casStat() *cobra.Command {
	return a.Build(cli.Command{
		Use: "stat [DIGEST]", Short: "Show one object, or how full the store is", Args: cobra.MaximumNArgs(1),
		Example: "  forgeyard-node cas stat\n  forgeyard-node cas stat b3:… -o json", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				u, err := unary(ctx, c.content.Usage, &forgeyardv1.UsageRequest{})
				if err != nil {
					return err
				}
				return a.Print(u, func(p *cli.Page) {
					p.Fact("stored", "%s in %s%s", cli.Size(u.Bytes), plural(int(u.Objects), "object"), ofLimit(u.Limit))
					p.Fact("pinned", "%s", cli.Size(u.Pinned))
					p.Fact("disk free", "%s", cli.Size(u.DiskFree))
				})
			}
			o, err := unary(ctx, c.content.Stat, &forgeyardv1.StatRequest{Digest: args[0]})
			if err != nil {
				return err
			}
			return a.Print(o, func(p *cli.Page) { objectText(p, o) })
		},
	})
}

func objectText(p *cli.Page, o *forgeyardv1.ObjectInfo) {
	p.Fact("digest", "%s", o.Digest)
	switch {
	case o.Complete:
		p.Fact("here", "%s, stored %s", cli.Size(o.Size), cli.Since(now(), o.Stored))
	case o.Have > 0:
		p.Fact("here", "%s of %s", cli.Size(o.Have), cli.Size(o.Size))
	default:
		p.Fact("here", "no")
	}
	if o.Gone != "" {
		p.Fact("gone", "%s", o.Gone)
	}
	p.Fact("manifest", "%s", o.Manifest)
	p.Fact("also on", "%s", cli.Join(o.Holders))
	p.Fact("acknowledged", "%s", cli.Join(o.Acknowledged))
	for _, i := range o.Pins {
		until := ""
		if i.Expires != nil {
			until = ", until " + cli.At(i.Expires)
		}
		p.Fact("kept by", "%s%s", i.Owner, until)
	}
}

func (a *app) casPin() *cobra.Command {
	var req forgeyardv1.PinRequest
	var isTree bool
	var ttl time.Duration
	c := a.Build(cli.Command{
		Use: "pin DIGEST", Short: "Keep an object from being collected on this node, fetching it if it is elsewhere", Args: cobra.ExactArgs(1),
		Example: "  forgeyard-node cas pin b3:… --tree\n  forgeyard-node cas pin b3:… --ttl 24h", Exits: []int{1, 3, 5, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			if ttl < 0 {
				return a.Usage("cas pin", "--ttl %s is below 0", ttl)
			}
			if _, err := forgeyard.ParseDigest(args[0]); err != nil {
				return err
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			req.Digest = args[0]
			if ttl > 0 {
				req.Ttl = durationpb.New(ttl)
			}
			if isTree {
				req.Kind = kindTree
			}
			if _, err := unary(ctx, c.content.Pin, &req); err != nil {
				return err
			}
			if !isTree && isTreeHere(ctx, c, args[0]) {
				a.Note("this is a directory, and only the list of what is in it is kept; --tree keeps all of it")
			}
			return a.PrintValue(map[string]any{"digest": args[0], "pinned": true}, func(p *cli.Page) { p.Line("pinned %s", args[0]) })
		},
	})
	f := c.Flags()
	f.BoolVar(&isTree, "tree", false, "the digest names a directory: keep all that it names")
	f.DurationVar(&ttl, "ttl", 0, "how long (default: until it is unpinned)")
	f.StringVar(&req.Owner, "owner", "", "who keeps it (default operator)")
	return c
}

// isTreeHere reports whether an object that the node has is a directory's tree.
func isTreeHere(ctx context.Context, c *client, digest string) bool {
	ref, err := parseRef(digest, "", 0)
	if size := sizeOf(ctx, c, ref, false); err != nil || size == 0 || size > cas.MaxTreeBytes {
		return false
	}
	b, err := remote.New(c.content, "").Block(ctx, ref.Digest)
	if err != nil {
		return false
	}
	_, err = cas.DecodeTree(b)
	return err == nil
}

func (a *app) casUnpin() *cobra.Command {
	var owner string
	c := a.Build(cli.Command{
		Use: "unpin DIGEST", Short: "End a pin of `cas pin`", Args: cobra.ExactArgs(1), Example: "  forgeyard-node cas unpin b3:…", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			if _, err := forgeyard.ParseDigest(args[0]); err != nil {
				return err
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.content.Unpin, &forgeyardv1.UnpinRequest{Digest: args[0], Owner: owner})
			if err != nil {
				return err
			}
			return a.PrintValue(map[string]any{"digest": args[0], "pinned": false, "changed": r.Changed}, func(p *cli.Page) {
				if r.Changed {
					p.Line("unpinned %s", args[0])
				} else {
					p.Line("%s was not pinned by %s", args[0], cmp.Or(owner, "operator"))
				}
			})
		},
	})
	c.Flags().StringVar(&owner, "owner", "", "whose pin (default operator)")
	return c
}

func (a *app) casVerify(name, short, example string, index bool) *cobra.Command {
	req := forgeyardv1.VerifyRequest{}
	var rate string
	c := a.Build(cli.Command{
		Use: name, Short: short, Example: example, Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			req.Index = index && req.Repair
			if err := setRate(&req, rate); err != nil {
				return err
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := a.verify(ctx, c, &req)
			if err != nil {
				return err
			}
			if err := a.Print(r, func(p *cli.Page) { verifyText(p, r) }); err != nil {
				return err
			}
			return verified(name, r)
		},
	})
	c.Flags().BoolVar(&req.Repair, "repair", false, "fetch what is damaged from peers")
	c.Flags().StringVar(&rate, "rate", "", "read at most so many bytes a second, like 20MiB (default: as fast as the disk)")
	return c
}

// verified says what is still wrong after a verification.
func verified(name string, r *forgeyardv1.VerifyResponse) error {
	healed := map[string]bool{}
	for _, d := range r.Healed {
		healed[d] = true
	}
	left := 0
	for _, d := range r.Damaged {
		if !healed[d] {
			left++
		}
	}
	switch {
	case left > 0:
		return forgeyard.Errorf("cas "+name, forgeyard.Corrupt, "%s damaged and set aside", plural(left, "object")).WithHint("fetch them from a peer: add --repair, or `forgeyard-node cas get DIGEST`")
	case len(r.Missing) > 0:
		return forgeyard.Errorf("cas "+name, forgeyard.NotFound, "%s that a pin keeps: neither here nor at a peer that answers", plural(len(r.Missing), "object")).WithHint("`cas stat DIGEST` tells who keeps it; bring up who has it and repeat, or put it again")
	}
	return nil
}

func setRate(req *forgeyardv1.VerifyRequest, rate string) error {
	if rate == "" {
		return nil
	}
	n, err := strictyaml.ParseSize(rate)
	if err != nil {
		return forgeyard.Errorf("cas verify", forgeyard.Invalid, "--rate %q: %w", rate, err)
	}
	req.Rate = int64(n)
	return nil
}

// verify follows to the end; a terminal sees how far it is.
func (a *app) verify(ctx context.Context, c *client, req *forgeyardv1.VerifyRequest) (*forgeyardv1.VerifyResponse, error) {
	s, err := c.content.Verify(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // all of it was read, or the error says why not
	bar := a.NewProgress("read", 0)
	defer bar.Close()
	if u, err := unary(ctx, c.content.Usage, &forgeyardv1.UsageRequest{}); err == nil {
		bar.SetTotal(u.Bytes)
	}
	last := &forgeyardv1.VerifyResponse{}
	for s.Receive() {
		bar.Add(s.Msg().Bytes - last.Bytes)
		last = s.Msg()
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if !last.Done {
		return nil, forgeyard.Errorf("cas verify", forgeyard.Unavailable, "the daemon ended it before the end")
	}
	return last, nil
}

func verifyText(p *cli.Page, r *forgeyardv1.VerifyResponse) {
	p.Fact("read", "%s, %s", plural(int(r.Objects), "object"), cli.Size(r.Bytes))
	if r.Indexed+r.Proved+r.Forgotten > 0 {
		p.Fact("index", "%d taken in, %d manifests proved, %d forgotten", r.Indexed, r.Proved, r.Forgotten)
	}
	for _, d := range r.Damaged {
		p.Fact("damaged", "%s", d)
	}
	for _, d := range r.Healed {
		p.Fact("fetched again", "%s", d)
	}
	for _, d := range r.Missing {
		p.Fact("missing", "%s", d)
	}
}

func (a *app) casGC() *cobra.Command {
	var req forgeyardv1.GCRequest
	c := a.Build(cli.Command{
		Use: "gc", Short: "Remove from this node what nothing keeps", Example: "  forgeyard-node cas gc --dry-run", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := unary(ctx, c.content.GC, &req)
			if err != nil {
				return err
			}
			did := "removed"
			if req.DryRun {
				did = "would remove"
			}
			return a.Print(r, func(p *cli.Page) {
				p.Line("%s %s of %s, %s; %s kept", did, strconv.FormatInt(r.Removed, 10), plural(int(r.Examined), "object"), cli.Size(r.Freed-r.TreesFreed), fmt.Sprint(r.Kept))
				if r.TreesFreed > 0 {
					p.Line("%s %s of trees that were kept for reuse by jobs", did, cli.Size(r.TreesFreed))
				}
			})
		},
	})
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would be removed")
	return c
}
