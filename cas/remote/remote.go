// Package remote reads and writes a node's store over its control API, for programs
// that hold no store of their own: the command lines.
//
// It believes nothing: what is sent is named here and the node's answer is held
// against that name, and what arrives is held against the digest that was asked for,
// before it has its place. It keeps no content and decides nothing about what is
// kept; an upload names a hold, and who ends it is the caller.
//
// What is large goes on where an earlier try was cut (blocks.go, file.go): an upload by
// what the node verified of it, a download by the part that lies beside its place.
package remote

import (
	"bytes"
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
)

// chunk is how much of an object goes into one message.
const chunk = 256 << 10

// inFlight bounds concurrent calls on one connection, below the 100 streams that
// HTTP/2 servers usually allow.
const inFlight = 48

// Store is a node's store. It is safe for concurrent use.
type Store struct {
	api  forgeyardv1connect.ContentServiceClient
	dir  string        // for what is on its way
	slot chan struct{} // a call holds one

	// Hold keeps what is put, until it is ended with Unpin (see PutRequest.hold).
	Hold string
	// Wrap, when set, sees the bytes that are sent and received.
	Wrap func(io.Reader) io.Reader
	// Had, when set, is told of the bytes of an object that an earlier try has brought over.
	Had func(n int64)
	// Done, when set, is called for each object that is complete.
	Done func(cas.Ref)
}

var (
	_ tree.Putter = (*Store)(nil)
	_ tree.Source = (*Store)(nil)
)

// New uses dir for temporary files; it must be there when something is read.
func New(api forgeyardv1connect.ContentServiceClient, dir string) *Store {
	return &Store{api: api, dir: dir, slot: make(chan struct{}, inFlight)}
}

func (s *Store) enter(ctx context.Context) error {
	select {
	case s.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return forgeyard.E("content", forgeyard.Interrupted, ctx.Err())
	}
}

func (s *Store) leave() { <-s.slot }

func (s *Store) wrap(r io.Reader) io.Reader {
	if s.Wrap != nil {
		return s.Wrap(r)
	}
	return r
}

// Put implements tree.Putter. The class is the node's: a put that was answered is
// durable.
func (s *Store) Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	if err := s.enter(ctx); err != nil {
		return cas.Ref{}, err
	}
	defer s.leave()
	if at, ok := r.(io.ReaderAt); ok && o.Size >= inBlocks {
		if ref, err := s.putBlocks(ctx, at, o.Size); !wire.NotOffered(err) {
			return ref, err
		} // by a daemon that is older than this command: it takes a stream
	}
	name := cas.NewManifestBuilder()
	st := s.api.Put(ctx)
	if err := send(st, io.TeeReader(s.wrap(r), name), &forgeyardv1.PutRequest{Kind: "blob", Size: o.Size, Hold: s.Hold}); err != nil {
		_, _ = st.CloseAndReceive() // ends the stream; the error is known
		return cas.Ref{}, err
	}
	out, err := st.CloseAndReceive()
	if err != nil {
		return cas.Ref{}, err
	}
	ref, _, _, err := name.Finish()
	if err != nil {
		return cas.Ref{}, err
	}
	return ref, s.stored(out.Msg, ref)
}

// stored holds the node's answer to a put against the name of what was sent.
func (s *Store) stored(out *forgeyardv1.PutResponse, ref cas.Ref) error {
	if out.Digest != ref.Digest.String() || out.Size != ref.Size || out.Manifest != ref.Manifest.String() {
		return forgeyard.Errorf("cas put", forgeyard.Corrupt, "the node stored %s (%d bytes), sent was %s (%d bytes)", out.Digest, out.Size, ref.Digest, ref.Size)
	}
	if s.Done != nil {
		s.Done(ref)
	}
	return nil
}

// send sends all of r. A stream that the node has ended is no error here: its reason
// is in the answer.
func send(st *connect.ClientStreamForClient[forgeyardv1.PutRequest, forgeyardv1.PutResponse], r io.Reader, m *forgeyardv1.PutRequest) error {
	buf := make([]byte, chunk)
	for first := true; ; first = false {
		n, err := io.ReadFull(r, buf)
		if n > 0 || first {
			m.Data = buf[:n]
			if serr := st.Send(m); errors.Is(serr, io.EOF) {
				return nil
			} else if serr != nil {
				return serr
			}
			m = &forgeyardv1.PutRequest{}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Get writes the bytes of an object to w and fails with Corrupt when they are not
// what the digest names. A writer that must not see wrong bytes under a right name
// uses File. With isTree the node first brings all that the tree names.
func (s *Store) Get(ctx context.Context, ref cas.Ref, isTree bool, w io.Writer) (int64, error) {
	h := cas.NewHasher()
	n, err := s.receive(ctx, ref, isTree, 0, io.MultiWriter(h, w))
	if err == nil {
		err = check(ref, h)
	}
	return n, err
}

func check(ref cas.Ref, h *cas.Hasher) error {
	if got := h.Sum(); got != ref.Digest {
		return forgeyard.Errorf("cas get", forgeyard.Corrupt, "the bytes that came for %s are %s", ref.Digest, got)
	}
	return nil
}

// receive writes an object's bytes from an offset on, unverified.
func (s *Store) receive(ctx context.Context, ref cas.Ref, isTree bool, offset int64, w io.Writer) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	req := &forgeyardv1.GetRequest{Digest: ref.Digest.String(), Manifest: ref.Manifest.String(), Size: ref.Size, Kind: "blob", Offset: offset}
	if isTree {
		req.Kind = "tree"
	}
	st, err := s.api.Get(ctx, connect.NewRequest(req))
	if err != nil {
		return 0, err
	}
	defer func() { _ = st.Close() }() // it was only read
	return io.Copy(w, s.wrap(&stream{st: st, skip: offset}))
}

type stream struct {
	st   *connect.ServerStreamForClient[forgeyardv1.GetResponse]
	buf  []byte
	skip int64 // what a node sends that knows no offsets
	came bool
}

func (s *stream) Read(b []byte) (int, error) {
	for len(s.buf) == 0 {
		if !s.st.Receive() {
			if err := s.st.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		m := s.st.Msg()
		if !s.came {
			s.came, s.skip = true, s.skip-m.Offset
		}
		n := max(0, min(s.skip, int64(len(m.Data))))
		s.buf, s.skip = m.Data[n:], s.skip-n
	}
	n := copy(b, s.buf)
	s.buf = s.buf[n:]
	return n, nil
}

// Open implements tree.Source for trees, which fit memory.
func (s *Store) Open(ctx context.Context, d forgeyard.Digest) (cas.Object, error) {
	var b bytes.Buffer
	if _, err := s.Get(ctx, cas.Ref{Digest: d}, false, &capped{w: &b, left: cas.MaxTreeBytes, d: d}); err != nil {
		return nil, err
	}
	return object{bytes.NewReader(b.Bytes()), cas.Ref{Digest: d, Size: int64(b.Len())}}, nil
}

// capped refuses more bytes than a tree may have.
type capped struct {
	w    io.Writer
	left int
	d    forgeyard.Digest
}

func (c *capped) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		return 0, forgeyard.Errorf("cas get", forgeyard.Invalid, "%s has more than %d bytes, so it is no tree", c.d.Short(), cas.MaxTreeBytes)
	}
	return c.w.Write(b)
}

type object struct {
	*bytes.Reader
	ref cas.Ref
}

func (o object) Ref() cas.Ref { return o.ref }
func (o object) Close() error { return nil }

// Block implements tree.Source.
func (s *Store) Block(ctx context.Context, d forgeyard.Digest) ([]byte, error) {
	var b bytes.Buffer
	_, err := s.Get(ctx, cas.Ref{Digest: d}, false, &b)
	return b.Bytes(), err
}

// Path implements tree.Source: a temporary file that release removes. Until then nobody else
// has its name, although files of a tree that are equal are asked for at once.
func (s *Store) Path(ctx context.Context, d forgeyard.Digest) (string, func(), error) {
	f, _, err := s.temp(ctx, cas.Ref{Digest: d})
	if err != nil {
		return "", nil, err
	}
	name, release, err := lend(f)
	if err != nil {
		return "", nil, forgeyard.E("cas get", forgeyard.Other, err)
	}
	return name, release, nil
}

// Bring makes a tree and all that it names complete in the node's store, and gives
// its root.
func (s *Store) Bring(ctx context.Context, root forgeyard.Digest) (cas.Tree, error) {
	var b bytes.Buffer
	if _, err := s.Get(ctx, cas.Ref{Digest: root}, true, &capped{w: &b, left: cas.MaxTreeBytes, d: root}); err != nil {
		return cas.Tree{}, err
	}
	return cas.DecodeTree(b.Bytes())
}
