package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/bundle"
)

type bundleService struct{ n Node }

// How long content of a bundle is kept that was not exported, or not imported, to its
// end: a stick may be copied again next week.
const (
	exportHold = 24 * time.Hour
	importHold = 7 * 24 * time.Hour
)

// window is how much of a bundle goes into one message.
const window = 1 << 20

func (s bundleService) Export(ctx context.Context, r *connect.Request[forgeyardv1.ExportBundleRequest], out *connect.ServerStream[forgeyardv1.ExportBundleChunk]) error {
	pin, err := s.gather(ctx, r.Msg.Roots)
	if err != nil {
		return err
	}
	store := s.n.Store()
	hold := pin
	hold.Owner, hold.Expires = "bundle/export/"+s.n.NewID(), s.n.Wall().Add(exportHold)
	if err := store.Pin(ctx, hold); err != nil {
		return err
	}
	defer s.unpin(ctx, hold.Owner)
	x := bundle.Index{Site: s.n.SiteID(), Made: forgeyard.WallOf(s.n.Wall()), Note: r.Msg.Note}
	if r.Msg.MadeMs > 0 {
		x.Made = forgeyard.Wall(r.Msg.MadeMs)
	}
	if keep := r.Msg.Keep.AsDuration(); keep > 0 {
		pin.Expires = x.Made.Time().Add(keep).UTC()
	}
	x.Pins = []cas.Pin{pin}
	if x.Objects, err = bundle.Closure(ctx, store, x.Pins); err != nil {
		return err
	}
	h, err := bundle.NewHead(x, s.n.SignBundle)
	if err != nil {
		return err
	}
	head := h.Bytes()
	first := &forgeyardv1.ExportBundleChunk{HeadSize: int64(len(head)), Size: h.Size()}
	for len(head) > 0 {
		n := min(len(head), window)
		first.Head = head[:n]
		if err := out.Send(first); err != nil {
			return err
		}
		head, first = head[n:], &forgeyardv1.ExportBundleChunk{}
	}
	return bundle.Data(ctx, h, store, r.Msg.From, chunks{out})
}

// gather makes the roots local and names them in a pin.
func (s bundleService) gather(ctx context.Context, roots []*forgeyardv1.BundleRoot) (cas.Pin, error) {
	p := cas.Pin{Owner: "bundle"}
	if len(roots) == 0 {
		return p, forgeyard.Errorf("bundle export", forgeyard.Invalid, "nothing is named").WithHint("name the digests that shall go into it")
	}
	for _, r := range roots {
		d, err := forgeyard.ParseDigest(r.Digest)
		if err != nil {
			return p, err
		}
		switch r.Kind {
		case "", "blob":
			p.Roots = append(p.Roots, d)
		case "tree":
			p.Trees = append(p.Trees, d)
		default:
			return p, forgeyard.Errorf("bundle export", forgeyard.Invalid, "kind %q is not blob or tree", forgeyard.Clip(r.Kind, 40))
		}
		if err := s.n.Bring(ctx, cas.Ref{Digest: d}, r.Kind == "tree"); err != nil {
			return p, err
		}
	}
	return p, p.Validate()
}

func (s bundleService) unpin(ctx context.Context, owner string) {
	if err := s.n.Store().Unpin(context.WithoutCancel(ctx), owner); err != nil {
		s.n.Warn("a pin stays until it expires", "owner", owner, "err", err)
	}
}

type chunks struct {
	out *connect.ServerStream[forgeyardv1.ExportBundleChunk]
}

func (c chunks) Write(b []byte) (int, error) {
	return len(b), c.out.Send(&forgeyardv1.ExportBundleChunk{Data: b})
}

// signer judges who signed a head. A member that this node's copy of the log does not know
// yet is one by its credential.
func (s bundleService) signer(h bundle.Head) (*forgeyardv1.BundleSigner, error) {
	runner, err := s.n.BundleSigner(h.Index.Site, h.Raw, h.Signature, h.Index.Made.Time())
	v := &forgeyardv1.BundleSigner{RunnerId: string(runner), Name: string(runner)}
	if err != nil {
		return v, err
	}
	if m, ok := s.n.Site().Members.Get(runner); ok {
		v.Name = m.Name
		if m.Removed {
			return v, forgeyard.Errorf("bundle", forgeyard.Denied, "%s, which signed it, is no member any more", m.Name).WithHint("export it again on a member")
		}
	}
	v.Trusted = true
	return v, nil
}

func (s bundleService) Judge(_ context.Context, st *connect.ClientStream[forgeyardv1.JudgeBundleRequest]) (*connect.Response[forgeyardv1.BundleSigner], error) {
	h, err := readHead(func() ([]byte, bool, error) {
		if !st.Receive() {
			return nil, true, st.Err()
		}
		return st.Msg().Head, false, nil
	})
	if err != nil {
		return nil, err
	}
	v, err := s.signer(h)
	if err != nil {
		v.Reason = err.Error()
	}
	return connect.NewResponse(v), nil
}

// readHead puts a head together from its pieces.
func readHead(next func() (piece []byte, last bool, err error)) (bundle.Head, error) {
	var b bytes.Buffer
	for {
		p, last, err := next()
		if err != nil {
			return bundle.Head{}, err
		}
		if b.Len()+len(p) > bundle.MaxHeadBytes {
			return bundle.Head{}, forgeyard.Errorf("bundle", forgeyard.Limit, "the head has over %d bytes", bundle.MaxHeadBytes)
		}
		b.Write(p)
		if last {
			return bundle.ReadHead(&b)
		}
	}
}

func (s bundleService) Import(ctx context.Context, st *connect.BidiStream[forgeyardv1.ImportBundleRequest, forgeyardv1.ImportBundleResponse]) error {
	h, err := readHead(func() ([]byte, bool, error) {
		m, err := st.Receive()
		if err != nil {
			return nil, false, err
		}
		return m.Head, m.Complete, nil
	})
	if err != nil {
		return err
	}
	signer, err := s.signer(h)
	if err != nil {
		return err
	}
	hold := cas.Pin{Owner: "bundle/import/" + h.ID().Hex(), Expires: s.n.Wall().Add(importHold)}
	for _, p := range h.Index.Pins {
		hold.Roots, hold.Trees = append(hold.Roots, p.Roots...), append(hold.Trees, p.Trees...)
	}
	store := s.n.Store()
	if err := store.Pin(ctx, hold); err != nil {
		return err
	}
	f := &farFile{st: st, size: h.Size()}
	fresh, err := bundle.Import(ctx, h, f, store, func(n int64) { f.done += n })
	if err != nil {
		return err
	}
	v := &forgeyardv1.BundleImported{Id: h.ID().String(), Objects: int64(len(h.Index.Objects)), Bytes: h.Index.DataSize(), NewBytes: fresh, Signer: signer}
	if err := s.keep(ctx, h, v); err != nil {
		return err
	}
	s.unpin(ctx, hold.Owner)
	return st.Send(&forgeyardv1.ImportBundleResponse{Done: f.done, Result: v})
}

// keep pins what the bundle asks to keep, as `cas pin` does, and takes no time from a pin
// that is there.
func (s bundleService) keep(ctx context.Context, h bundle.Head, v *forgeyardv1.BundleImported) error {
	store := s.n.Store()
	all, err := store.Pins(ctx)
	if err != nil {
		return err
	}
	there := map[string]cas.Pin{}
	for _, p := range all {
		there[p.Owner] = p
	}
	for _, p := range h.Index.Pins {
		if !p.Expires.IsZero() {
			v.KeptUntil = timestamppb.New(p.Expires)
		}
		pin := func(d forgeyard.Digest, one cas.Pin, kind string) error {
			one.Owner, one.Expires = pinOwner("", d), p.Expires
			v.Roots = append(v.Roots, &forgeyardv1.BundleRoot{Digest: d.String(), Kind: kind})
			if old, ok := there[one.Owner]; ok && len(old.Trees) >= len(one.Trees) && (old.Expires.IsZero() || !one.Expires.IsZero() && old.Expires.After(one.Expires)) {
				return nil
			}
			return store.Pin(ctx, one)
		}
		for _, d := range p.Roots {
			if err := pin(d, cas.Pin{Roots: []forgeyard.Digest{d}}, "blob"); err != nil {
				return err
			}
		}
		for _, d := range p.Trees {
			if err := pin(d, cas.Pin{Trees: []forgeyard.Digest{d}}, "tree"); err != nil {
				return err
			}
		}
	}
	return nil
}

// farFile is a file that the caller has.
type farFile struct {
	st   *connect.BidiStream[forgeyardv1.ImportBundleRequest, forgeyardv1.ImportBundleResponse]
	size int64 // that the head promises
	done int64

	at  int64  // of buf
	buf []byte // the last range: small objects lie side by side
}

// ReadAt implements io.ReaderAt.
func (f *farFile) ReadAt(b []byte, at int64) (int, error) {
	if at < f.at || at+int64(len(b)) > f.at+int64(len(f.buf)) {
		if err := f.fetch(at, max(len(b), window)); err != nil {
			return 0, err
		}
	}
	n := copy(b, f.buf[at-f.at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *farFile) fetch(at int64, size int) error {
	want := min(int64(size), f.size-at)
	if err := f.st.Send(&forgeyardv1.ImportBundleResponse{At: at, Size: want, Done: f.done}); err != nil {
		return err
	}
	m, err := f.st.Receive()
	if errors.Is(err, io.EOF) {
		return forgeyard.Errorf("bundle import", forgeyard.Interrupted, "the caller has gone").WithHint("the same command goes on where this one ended")
	}
	if err != nil {
		return err
	}
	if m.At != at || int64(len(m.Data)) > want {
		return forgeyard.Errorf("bundle import", forgeyard.Invalid, "%d bytes at %d were asked for, %d at %d came", want, at, len(m.Data), m.At)
	}
	f.at, f.buf = at, m.Data
	return nil
}
