package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/remote"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) casCommand() *cobra.Command {
	g := a.Build(cli.Command{
		Use: "cas", Short: "Put, get and keep content by its digest",
		Long: "Put, get and keep content by its digest. A digest is b3: and 64 hex digits, the BLAKE3-256 of the bytes, equal to what b3sum prints. " +
			"A directory is named by its tree.",
	})
	g.AddCommand(a.casPut(), a.casGet(), a.casLs(), a.casStat(), a.casPin(), a.casUnpin(), a.casGC())
	return g
}

func (a *app) casPut() *cobra.Command {
	var keep bool
	c := a.Build(cli.Command{
		Use: "put PATH", Short: "Store a file, a directory, or with - what comes on stdin, and print its digest", Args: cobra.ExactArgs(1),
		Long: "Store a file, a directory, or with - what comes on stdin, in this node's store, and print its digest. Nothing keeps it from the next `cas gc` but a pin: " +
			"give --pin, or use `cas pin`.",
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
		Use: "get DIGEST", Short: "Fetch content by its digest, from this node or its peers", Args: cobra.ExactArgs(1),
		Long: "Fetch content by its digest, from this node or its peers. What arrives is held against the digest; a file or directory gets its name only then. " +
			"Without -O, or with -O -, the bytes go to stdout, and a mismatch is known by the exit code.",
		Example: "  forgeyard-node cas get b3:… -O firmware.bin\n  forgeyard-node cas get b3:… --tree -O ./src", Exits: []int{1, 3, 4, 5, 6, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			ref, err := parseRef(args[0], "", 0)
			if err != nil {
				return err
			}
			toStdout := out == "" || out == "-"
			if isTree && toStdout {
				return a.Usage("cas get", "--tree needs -O DIR")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if !toStdout {
				return a.download(ctx, c, ref, isTree, out)
			}
			_, err = remote.New(c.content, "").Get(ctx, ref, false, a.Out)
			return err
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

// download makes a file or directory at dst, which gets its name when all of it is
// there and verified. A directory must not be there yet.
func (a *app) download(ctx context.Context, c *client, ref cas.Ref, isTree bool, dst string) error {
	if st, err := os.Lstat(dst); err == nil && (isTree || st.IsDir()) {
		return forgeyard.Errorf("cas get", forgeyard.Conflict, "%s is there already", dst).WithHint("name another place")
	}
	bar := a.NewProgress("fetch "+filepath.Base(dst), ref.Size)
	defer bar.Close()
	s := remote.New(c.content, filepath.Dir(dst))
	s.Wrap = bar.Reader
	if !isTree {
		_, err := s.File(ctx, ref, dst)
		return withFileKind(err)
	}
	bar.SetTotal(0) // the size of a tree is not that of its files
	if _, err := s.Bring(ctx, ref.Digest); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dst), ".forgeyard-*")
	if err != nil {
		return withFileKind(err)
	}
	defer func() { _ = tree.Remove(tmp) }() // what is left of it, when all went well nothing
	if _, err := tree.Materialise(ctx, s, ref.Digest, filepath.Join(tmp, "tree"), tree.Materialisation{}); err != nil {
		return err
	}
	return withFileKind(os.Rename(filepath.Join(tmp, "tree"), dst))
}

func withFileKind(err error) error {
	if err == nil || forgeyard.KindOf(err) != forgeyard.Other {
		return err
	}
	return forgeyard.E("cas get", fileKind(err), err)
}

func (a *app) casLs() *cobra.Command {
	return a.Build(cli.Command{
		Use: "ls DIGEST", Short: "List one directory by its digest", Args: cobra.ExactArgs(1), Example: "  forgeyard-node cas ls b3:…", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			ref, err := parseRef(args[0], "", 0)
			if err != nil {
				return err
			}
			c, err := a.connect(ctx)
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
	p.Fact("manifest", "%s", o.Manifest)
	p.Fact("also on", "%s", cli.Join(o.Holders))
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
			return a.PrintValue(map[string]any{"digest": args[0], "pinned": true}, func(p *cli.Page) { p.Line("pinned %s", args[0]) })
		},
	})
	f := c.Flags()
	f.BoolVar(&isTree, "tree", false, "the digest names a directory: keep all that it names")
	f.DurationVar(&ttl, "ttl", 0, "how long (default: until it is unpinned)")
	f.StringVar(&req.Owner, "owner", "", "who keeps it (default operator)")
	return c
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
			if _, err := unary(ctx, c.content.Unpin, &forgeyardv1.UnpinRequest{Digest: args[0], Owner: owner}); err != nil {
				return err
			}
			return a.PrintValue(map[string]any{"digest": args[0], "pinned": false}, func(p *cli.Page) { p.Line("unpinned %s", args[0]) })
		},
	})
	c.Flags().StringVar(&owner, "owner", "", "whose pin (default operator)")
	return c
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
				p.Line("%s %s of %s, %s; %s kept", did, strconv.FormatInt(r.Removed, 10), plural(int(r.Examined), "object"), cli.Size(r.Freed), fmt.Sprint(r.Kept))
			})
		},
	})
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would be removed")
	return c
}
