package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas/bundle"
	"github.com/forgeyard/forgeyard-node/internal/cli"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

func (a *app) bundleCommand() *cobra.Command {
	g := a.Build(cli.Command{
		Use: "bundle", Short: "Carry content in a file, where no wire reaches",
		Long: "Carry content in a file, where no wire reaches. A bundle holds whole objects, what shall keep them where they arrive, and an index that a member of the site has signed. " +
			"Each block is checked before it is kept, and what was cut off goes on where it ended.",
	})
	g.AddCommand(a.bundleExport(), a.bundleImport(), a.bundleInspect())
	return g
}

// bundleFacts is what the three print.
type bundleFacts struct {
	File      string       `json:"file"`
	ID        string       `json:"id"`
	Site      string       `json:"site"`
	Made      string       `json:"made"`
	Note      string       `json:"note,omitempty"`
	Objects   int          `json:"objects"`
	Bytes     int64        `json:"bytes"` // of content
	FileBytes int64        `json:"file_bytes"`
	Roots     []bundleRoot `json:"roots"`
	KeptUntil string       `json:"kept_until,omitempty"`
	SignedBy  string       `json:"signed_by,omitempty"`
	Trusted   *bool        `json:"trusted,omitempty"` // no daemon, no judgement
	Reason    string       `json:"reason,omitempty"`  // why it is not trusted, or nobody knows
	Verified  *bool        `json:"verified,omitempty"`
	NewBytes  *int64       `json:"new_bytes,omitempty"` // that an import brought
	Resumed   *int64       `json:"resumed_bytes,omitempty"`
}

type bundleRoot struct {
	Digest string `json:"digest"`
	Kind   string `json:"kind"`
}

func bundleFactsOf(file string, h bundle.Head) bundleFacts {
	const layout = "2006-01-02T15:04:05.000Z"
	f := bundleFacts{File: file, ID: h.ID().String(), Site: string(h.Index.Site), Made: h.Index.Made.Time().UTC().Format(layout), Note: h.Index.Note,
		Objects: len(h.Index.Objects), Bytes: h.Index.DataSize(), FileBytes: h.Size(), Roots: []bundleRoot{}}
	for _, p := range h.Index.Pins {
		for _, d := range p.Roots {
			f.Roots = append(f.Roots, bundleRoot{d.String(), kindBlob})
		}
		for _, d := range p.Trees {
			f.Roots = append(f.Roots, bundleRoot{d.String(), kindTree})
		}
		if !p.Expires.IsZero() {
			f.KeptUntil = p.Expires.UTC().Format(layout)
		}
	}
	return f
}

func (a *app) printBundle(f bundleFacts) error {
	return a.PrintValue(f, func(p *cli.Page) {
		p.Fact("file", "%s", f.File)
		p.Fact("bundle", "%s, of site %s, made %s", f.ID[:15], f.Site, f.Made)
		if f.Note != "" {
			p.Fact("note", "%s", f.Note)
		}
		p.Fact("content", "%s in %d objects", cli.Size(f.Bytes), f.Objects)
		for _, r := range f.Roots {
			p.Fact(r.Kind, "%s", r.Digest)
		}
		if f.KeptUntil != "" {
			p.Fact("kept until", "%s", f.KeptUntil)
		}
		switch {
		case f.Trusted == nil && f.Reason != "":
			p.Fact("signer", "not known: %s", f.Reason)
		case f.Trusted != nil && !*f.Trusted:
			p.Fact("signer", "not trusted: %s", f.Reason)
		case f.SignedBy != "":
			p.Fact("signer", "%s", f.SignedBy)
		}
		if f.Verified != nil {
			p.Fact("verified", "every byte")
		}
		if f.NewBytes != nil {
			p.Fact("new here", "%s", cli.Size(*f.NewBytes))
		}
		if f.Resumed != nil && *f.Resumed > 0 {
			p.Fact("resumed", "after %s", cli.Size(*f.Resumed))
		}
	})
}

func (a *app) bundleExport() *cobra.Command {
	var out, note string
	var trees []string
	var keep time.Duration
	c := a.Build(cli.Command{
		Use: "export --out FILE DIGEST...", Short: "Write content of the site to a file", Args: cobra.ArbitraryArgs,
		Long: "Write content of the site to a file: files by their digest, directories with --tree. What this node lacks it fetches first. FILE gets its name when all of it is there and on the disk; " +
			"until then it is FILE.part, and the same command goes on with that. With --out - it goes to stdout, and begins anew each time.",
		Example: "  forgeyard-node bundle export --out /media/stick/firmware.fyb b3:…\n  forgeyard-node bundle export --out - --tree b3:… | ssh mill tee firmware.fyb >/dev/null", Exits: []int{1, 2, 3, 4, 5, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			if out == "" || len(args)+len(trees) == 0 {
				return a.Usage("bundle export", "--out FILE and a DIGEST are needed: cas put prints one")
			}
			r := &forgeyardv1.ExportBundleRequest{Note: note, Keep: durationpb.New(keep)}
			for _, d := range args {
				r.Roots = append(r.Roots, &forgeyardv1.BundleRoot{Digest: d, Kind: kindBlob})
			}
			for _, d := range trees {
				r.Roots = append(r.Roots, &forgeyardv1.BundleRoot{Digest: d, Kind: kindTree})
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			if out == "-" {
				_, err := a.receiveBundle(ctx, c, r, func(head []byte) (io.Writer, error) { _, err := a.Out.Write(head); return a.Out, err })
				return err
			}
			f, err := a.exportTo(ctx, c, r, out)
			if err != nil {
				return err
			}
			return a.printBundle(f)
		},
	})
	f := c.Flags()
	f.StringVar(&out, "out", "", "file to make, - for stdout")
	f.StringArrayVar(&trees, "tree", nil, "the digest of a directory; may be repeated")
	f.StringVar(&note, "note", "", "words for who reads it")
	f.DurationVar(&keep, "keep", 0, "how long it is kept where it arrives (default: until it is unpinned there)")
	return c
}

// errOtherHead: the content, the signer or its credential is another than when the file
// was begun.
var errOtherHead = errors.New("the bundle is another one by now")

// exportTo writes a file, or finishes the one that was begun.
func (a *app) exportTo(ctx context.Context, c *client, r *forgeyardv1.ExportBundleRequest, out string) (bundleFacts, error) {
	f, err := openPart(out + ".part")
	if err != nil {
		return bundleFacts{}, err
	}
	defer f.Close() // what counts was synced before
	old, good := a.begun(ctx, f)
	if good > 0 {
		r.MadeMs, r.From = int64(old.Index.Made), good
	}
	h, err := a.receiveBundle(ctx, c, r, a.appendTo(f, old, good))
	if errors.Is(err, errOtherHead) {
		good, r.MadeMs, r.From = 0, 0, 0
		h, err = a.receiveBundle(ctx, c, r, a.appendTo(f, bundle.Head{}, 0))
	}
	if err != nil {
		return bundleFacts{}, err
	}
	if err := errors.Join(f.Truncate(h.Size()), f.Sync()); err != nil {
		return bundleFacts{}, fileError("bundle export", err)
	}
	if err := os.Rename(out+".part", out); err != nil {
		return bundleFacts{}, fileError("bundle export", err)
	}
	v := bundleFactsOf(out, h)
	v.Resumed = &good
	return v, fileError("bundle export", durable.SyncDir(filepath.Dir(out)))
}

// openPart opens an unfinished file for this process alone: two that write into one would
// give it a name with the bytes of both. A filesystem without locks cannot tell them apart.
func openPart(path string) (*os.File, error) {
	const op = "bundle export"
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fileError(op, err)
		}
		if err := durable.TryLock(f); errors.Is(err, durable.ErrLocked) {
			return nil, errors.Join(forgeyard.Errorf(op, forgeyard.Conflict, "%s is being written by another export", path).WithHint("wait until that one has ended, or choose another --out"), f.Close())
		}
		locked, err1 := f.Stat()
		named, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(locked, named) {
			return f, nil
		}
		// Whoever had it has finished it meanwhile, and this is the finished file.
		if err := errors.Join(err1, f.Close()); err != nil {
			return nil, fileError(op, err)
		}
	}
}

// begun is what of an earlier export is right.
func (a *app) begun(ctx context.Context, f *os.File) (bundle.Head, int64) {
	h, err := bundle.ReadHead(io.NewSectionReader(f, 0, 1<<62))
	if err != nil {
		return bundle.Head{}, 0 // nothing, or not even a head
	}
	bar := a.NewProgress("check what is there", h.Index.DataSize())
	defer bar.Close()
	good, _ := bundle.Verify(ctx, h, f, bar.Add) // it ends somewhere, or is damaged there: the rest is written again
	return h, good
}

// appendTo takes the head as it comes, and places the data behind what is good.
func (a *app) appendTo(f *os.File, old bundle.Head, good int64) func([]byte) (io.Writer, error) {
	return func(head []byte) (io.Writer, error) {
		if good > 0 {
			if !bytes.Equal(head, old.Bytes()) {
				return nil, errOtherHead
			}
			return io.NewOffsetWriter(f, old.DataAt()+good), nil
		}
		if err := f.Truncate(0); err != nil {
			return nil, err
		}
		_, err := f.WriteAt(head, 0)
		return io.NewOffsetWriter(f, int64(len(head))), err
	}
}

// receiveBundle reads a bundle from the daemon. begin gets the head and says where the
// data goes.
func (a *app) receiveBundle(ctx context.Context, c *client, r *forgeyardv1.ExportBundleRequest, begin func(head []byte) (io.Writer, error)) (bundle.Head, error) {
	ctx, cancel := context.WithTimeout(ctx, bulkTimeout)
	defer cancel()
	s, err := c.bundle.Export(ctx, connect.NewRequest(r))
	if err != nil {
		return bundle.Head{}, err
	}
	defer func() { _ = s.Close() }() // it was only read
	bar := a.NewProgress("export", 0)
	defer bar.Close()
	var head, w = []byte(nil), io.Writer(nil)
	var want int64
	for s.Receive() {
		m := s.Msg()
		if m.HeadSize > 0 {
			want = m.HeadSize
			bar.SetTotal(m.Size)
		}
		if head = append(head, m.Head...); len(head) > bundle.MaxHeadBytes {
			return bundle.Head{}, forgeyard.Errorf("bundle export", forgeyard.Limit, "the head has over %d bytes", bundle.MaxHeadBytes)
		}
		bar.Add(int64(len(m.Head) + len(m.Data)))
		if w == nil && int64(len(head)) == want {
			bar.Add(r.From)
			if w, err = begin(head); err != nil {
				return bundle.Head{}, fileError("bundle export", err)
			}
		}
		if len(m.Data) == 0 {
			continue
		}
		if _, err := w.Write(m.Data); err != nil {
			return bundle.Head{}, fileError("bundle export", err)
		}
	}
	if err := s.Err(); err != nil {
		return bundle.Head{}, err
	}
	return bundle.ReadHead(bytes.NewReader(head))
}

func fileError(op string, err error) error {
	if err == nil || errors.Is(err, errOtherHead) || forgeyard.KindOf(err) != forgeyard.Other {
		return err
	}
	e := forgeyard.E(op, fileKind(err), err)
	if durable.Full(err) {
		return e.WithHint("make room, and give the same command again: it goes on where it ended")
	}
	return e
}

func (a *app) bundleImport() *cobra.Command {
	return a.Build(cli.Command{
		Use: "import FILE", Short: "Bring a bundle's content into this node's store", Args: cobra.ExactArgs(1),
		Long: "Bring a bundle's content into this node's store, and keep it as the bundle says. It is refused unless a member of this site has signed it. What is here already is not read, " +
			"and an import that was cut off goes on where it ended.",
		Example: "  forgeyard-node bundle import /media/stick/firmware.fyb", Exits: []int{1, 2, 3, 5, 6, 7, 130},
		Run: func(ctx context.Context, args []string) error {
			f, h, err := openBundle(args[0])
			if err != nil {
				return err
			}
			defer f.Close() // it was only read
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			r, err := a.sendBundle(ctx, c, f, h)
			if err != nil {
				return err
			}
			v := bundleFactsOf(args[0], h)
			v.SignedBy, v.Trusted, v.NewBytes = r.Signer.Name, &r.Signer.Trusted, &r.NewBytes
			return a.printBundle(v)
		},
	})
}

func openBundle(name string) (*os.File, bundle.Head, error) {
	if name == "-" {
		return nil, bundle.Head{}, forgeyard.Errorf("bundle", forgeyard.Invalid, "a bundle cannot be read from stdin: it is read here and there").WithHint("write it to a file first")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, bundle.Head{}, fileError("bundle", err)
	}
	h, err := bundle.ReadHead(io.NewSectionReader(f, 0, 1<<62))
	if err != nil {
		return nil, h, errors.Join(err, f.Close())
	}
	return f, h, nil
}

// sendBundle answers what the daemon asks of the file.
func (a *app) sendBundle(ctx context.Context, c *client, f *os.File, h bundle.Head) (*forgeyardv1.BundleImported, error) {
	ctx, cancel := context.WithTimeout(ctx, bulkTimeout)
	defer cancel()
	s := c.bundle.Import(ctx)
	defer func() { _ = s.CloseResponse() }() // the result was read, or there is none
	for head := h.Bytes(); ; {
		n := min(len(head), 1<<20)
		err := s.Send(&forgeyardv1.ImportBundleRequest{Head: head[:n], Complete: n == len(head)})
		if err != nil || n == len(head) {
			break // an error comes with its reason from Receive
		}
		head = head[n:]
	}
	bar := a.NewProgress("import", h.Index.DataSize())
	defer bar.Close()
	var done int64
	for {
		m, err := s.Receive()
		if err != nil {
			return nil, err
		}
		bar.Add(m.Done - done)
		if done = m.Done; m.Result != nil {
			return m.Result, nil
		}
		b := make([]byte, max(0, min(m.Size, 4<<20)))
		n, err := f.ReadAt(b, m.At)
		if err != nil && err != io.EOF {
			return nil, fileError("bundle import", err)
		}
		if err := s.Send(&forgeyardv1.ImportBundleRequest{At: m.At, Data: b[:n]}); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
}

func (a *app) bundleInspect() *cobra.Command {
	var verify bool
	c := a.Build(cli.Command{
		Use: "inspect FILE", Short: "Say what is in a bundle, who signed it, and with --verify whether every byte is right", Args: cobra.ExactArgs(1),
		Long:    "Say what is in a bundle and who signed it, as the daemon of this node judges; without a daemon the signer is not known. With --verify every byte is read and held against its name.",
		Example: "  forgeyard-node bundle inspect /media/stick/firmware.fyb\n  forgeyard-node bundle inspect --verify firmware.fyb -o json | jq .trusted", Exits: []int{1, 2, 3, 130},
		Run: func(ctx context.Context, args []string) error {
			f, h, err := openBundle(args[0])
			if err != nil {
				return err
			}
			defer f.Close() // it was only read
			v := bundleFactsOf(args[0], h)
			a.judge(ctx, h, &v)
			if verify {
				bar := a.NewProgress("verify", h.Index.DataSize())
				defer bar.Close()
				if _, err := bundle.Verify(ctx, h, f, bar.Add); err != nil {
					return err
				}
				v.Verified = &verify
			}
			return a.printBundle(v)
		},
	})
	c.Flags().BoolVar(&verify, "verify", false, "read everything and hold it against its name")
	return c
}

func (a *app) judge(ctx context.Context, h bundle.Head, v *bundleFacts) {
	c, err := a.connect(ctx)
	if err != nil {
		v.Reason = err.Error()
		return
	}
	s := c.bundle.Judge(ctx)
	for head := h.Bytes(); len(head) > 0; {
		n := min(len(head), 1<<20)
		if s.Send(&forgeyardv1.JudgeBundleRequest{Head: head[:n]}) != nil {
			break // its reason comes with the answer
		}
		head = head[n:]
	}
	r, err := s.CloseAndReceive()
	if err != nil {
		v.Reason = err.Error()
		return
	}
	v.SignedBy, v.Trusted, v.Reason = r.Msg.Name, &r.Msg.Trusted, r.Msg.Reason
}
