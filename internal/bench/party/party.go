// Package party is one process that holds or brings content, for benches: the
// store and the exchange as a node has them, an HTTPS server or client, or the stock
// bitswap. It measures itself; who compares is elsewhere.
package party

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/internal/heap"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// Env, when set, makes a bench's own program a party. Its first line of input says
// what it is (Config); it answers that with one line of JSON (Says) when it is ready, and
// each line after it with one more:
//
//	meet […]  connects to those too, and counts them among those who have it
//	bring     brings the content, tells how long it took
//	stage …   makes a tree that was brought in a folder, tells how long it took
//	usage     tells the CPU time and the peak of memory so far
//
// It ends with its input.
const Env = "FORGEYARD_BENCH_PARTY"

// EnvProfile, when set, is the folder that gets a CPU profile of what each party does from
// its first word on.
const EnvProfile = "FORGEYARD_BENCH_PROFILE"

// Config says what a party is.
type Config struct {
	Kind   string   `json:"kind"` // ours, https or boxo
	Dir    string   `json:"dir"`
	Listen string   `json:"listen"`
	Size   int64    `json:"size"`  // of the blob to hold; 0: it holds nothing
	Files  int      `json:"files"` // so many of Size as a tree, in place of one blob
	Seed   uint64   `json:"seed"`
	From   []At     `json:"from"` // who has it, and who brings it in at the same time
	Ref    cas.Ref  `json:"ref"`  // what to bring; a tree when Files is set
	Names  []string `json:"names"`
	Rot    bool     `json:"rot"`   // it answers with other bytes than are asked for
	Aloud  bool     `json:"aloud"` // while it brings, it tells what it lacked and each block that it keeps
}

// At is where a party is.
type At struct {
	Peer  string   `json:"peer"`
	Addrs []string `json:"addrs"`
}

// Says is one line of a party.
type Says struct {
	At      At       `json:"at"`
	Ref     cas.Ref  `json:"ref"`
	Names   []string `json:"names"` // of the blocks, for who brings them by bitswap
	Seconds float64  `json:"seconds"`
	CPU     float64  `json:"cpu"`
	Peak    float64  `json:"peak"` // bytes
	Sent    float64  `json:"sent"` // bytes of blocks, by one that has an exchange
	Error   string   `json:"error"`
	Stats   string   `json:"stats"`
	Lacked  *int     `json:"lacked,omitempty"` // blocks, when it began: by one that tells aloud
	Kept    bool     `json:"kept,omitempty"`   // one more block: likewise
}

// party is what each kind of process does.
type party interface {
	ready(ctx context.Context) (Says, error)
	meet(ctx context.Context, more []At) error
	bring(ctx context.Context) error
	stats() string
}

// stager is a party that can make a folder of what it brought.
type stager interface {
	stage(ctx context.Context, dir string) error
}

// Run is the process.
func Run(ctx context.Context) error {
	heap.Leave(heap.Room) // as a node does
	var c Config
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 4<<20)
	if !in.Scan() {
		return in.Err()
	}
	if err := json.Unmarshal(in.Bytes(), &c); err != nil {
		return err
	}
	kinds := map[string]func(Config) party{
		"ours": func(c Config) party { return &ours{c: c} }, "https": func(c Config) party { return &overHTTPS{c: c} },
		"boxo": func(c Config) party { return &overBoxo{c: c} },
	}
	make := kinds[c.Kind]
	if make == nil {
		return fmt.Errorf("a party of the kind %q is unknown", c.Kind)
	}
	p := make(c)
	say := json.NewEncoder(os.Stdout)
	first, err := p.ready(ctx)
	if err != nil {
		return err
	}
	if err := say.Encode(first); err != nil {
		return err
	}
	stop, err := profile(c)
	if err != nil {
		return err
	}
	defer stop()
	for in.Scan() {
		if err := say.Encode(obey(ctx, p, in.Text())); err != nil {
			return err
		}
	}
	return in.Err()
}

// obey does what one line says.
func obey(ctx context.Context, p party, line string) (s Says) {
	word, rest, _ := strings.Cut(line, " ")
	began := time.Now()
	err := fmt.Errorf("unknown word %s", word)
	switch word {
	case "meet":
		var more []At
		if err = json.Unmarshal([]byte(rest), &more); err == nil {
			err = p.meet(ctx, more)
		}
	case "bring":
		err = p.bring(ctx)
		s.Stats = p.stats()
	case "stage":
		err = errors.New("this party makes no folders")
		if st, ok := p.(stager); ok {
			err = st.stage(ctx, rest)
		}
	case "usage":
		err = nil
	}
	if err != nil {
		s.Error = err.Error()
	}
	s.Seconds = time.Since(began).Seconds()
	s.CPU, s.Peak = OwnUsage()
	if o, ok := p.(*ours); ok {
		s.Sent = float64(o.x.Stats().BytesOut)
	}
	return s
}

// profile begins a CPU profile where one is wanted.
func profile(c Config) (stop func(), err error) {
	dir := os.Getenv(EnvProfile)
	if dir == "" {
		return func() {}, nil
	}
	role := "holds"
	if c.From != nil {
		role = "brings"
	}
	f, err := os.CreateTemp(dir, fmt.Sprintf("%s-%s-*.pprof", c.Kind, role))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // it is for whoever looks at it, and says when it is cut
	}, nil
}

// peakMemory is VmHWM: ru_maxrss would begin with what the parent had.
func peakMemory() float64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib * 1024
		}
	}
	return 0
}

// Noise makes bytes that no two blobs share, as fast as they are read. X is the seed.
type Noise struct{ X uint64 }

// Read implements io.Reader; it gives a multiple of eight bytes.
func (n *Noise) Read(b []byte) (int, error) {
	for i := 0; i+8 <= len(b); i += 8 {
		n.X += 0x9E3779B97F4A7C15
		z := n.X
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		for k := range 8 {
			b[i+k] = byte(z >> (8 * k))
		}
	}
	return len(b) &^ 7, nil
}

// ours is a mesh, the store and the exchange, as a node has them.
type ours struct {
	c     Config
	mesh  *mesh.Mesh
	store *disk.Store
	x     *peer.Exchange
}

func (o *ours) stats() string { return fmt.Sprintf("%+v", o.x.Stats()) }

func (o *ours) ready(ctx context.Context) (Says, error) {
	peer.RegisterHasher()
	id, err := mesh.NewIdentity()
	if err != nil {
		return Says{}, err
	}
	everybody := func(libpeer.ID, *mesh.Credential) (mesh.Class, error) { return mesh.ClassMember, nil }
	if o.mesh, err = mesh.New(mesh.Config{Identity: id, Listen: o.c.Listen, Authorize: everybody}); err != nil {
		return Says{}, err
	}
	if o.store, err = disk.Open(disk.Config{Dir: o.c.Dir, Reserve: -1, ReserveInodes: -1}); err != nil {
		return Says{}, err
	}
	var served cas.Store = o.store
	switch {
	case o.c.Rot:
		served = rotten{o.store}
	case o.c.Aloud:
		served = loud{o.store}
	}
	if o.x, err = peer.New(peer.Config{Host: o.mesh.HostFor(mesh.ClassMember), Store: served, Class: cas.Cache, Dial: o.mesh.Dial, Listen: o.mesh.ListenFor(mesh.ClassMember)}); err != nil {
		return Says{}, err
	}
	if err := meetAll(ctx, o.mesh, o.c.From); err != nil {
		return Says{}, err
	}
	s := Says{At: At{Peer: o.mesh.PeerID().String(), Addrs: o.mesh.Addrs()}}
	s.Ref, err = o.fill(ctx)
	return s, err
}

// rotten is a store that gives wrong blocks, and swears that they are right.
type rotten struct{ *disk.Store }

// Block implements cas.Store.
func (r rotten) Block(ctx context.Context, d forgeyard.Digest) ([]byte, error) {
	return r.ReadBlock(ctx, d, nil, true)
}

// OpenBlock implements cas.BlockOpener.
func (rotten) OpenBlock(forgeyard.Digest) cas.Pieces { return nil }

// ReadBlock implements cas.BlockReader. Manifests are right, else nothing would be asked for.
func (r rotten) ReadBlock(ctx context.Context, d forgeyard.Digest, buf []byte, check bool) ([]byte, error) {
	b, err := r.Store.ReadBlock(ctx, d, buf, check)
	if err == nil && len(b) == cas.BlockSize {
		b[len(b)/2] ^= 1
	}
	return b, err
}

// loud is a store that tells of each block that is verified and kept, after it is.
type loud struct{ *disk.Store }

// Partial implements cas.Store.
func (l loud) Partial(ctx context.Context, m cas.Manifest) (cas.Partial, error) {
	p, err := l.Store.Partial(ctx, m)
	if err != nil {
		return nil, err
	}
	lacked := len(p.Missing())
	return loudPartial{p}, tell(Says{Lacked: &lacked})
}

type loudPartial struct{ cas.Partial }

// PutBlock implements cas.Partial.
func (p loudPartial) PutBlock(i int, b []byte) error {
	if err := p.Partial.PutBlock(i, b); err != nil {
		return err
	}
	return tell(Says{Kept: true})
}

// tell says one line beside the answers. Each is one write, so that they do not mix.
func tell(s Says) error { return json.NewEncoder(os.Stdout).Encode(s) }

// meetAll connects to those who are named.
func meetAll(ctx context.Context, m *mesh.Mesh, all []At) error {
	for _, f := range all {
		p, err := libpeer.Decode(f.Peer)
		if err != nil {
			return err
		}
		if p == m.PeerID() {
			continue
		}
		if err := m.AddAddrs(p, f.Addrs); err != nil {
			return err
		}
		if err := m.Connect(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// fill stores what this party holds.
func (o *ours) fill(ctx context.Context) (cas.Ref, error) {
	n := &Noise{o.c.Seed}
	put := func(r io.Reader) (cas.Ref, error) { return o.store.Put(ctx, r, cas.PutOptions{Class: cas.Cache}) }
	if o.c.From != nil {
		return cas.Ref{}, nil
	}
	if o.c.Files == 0 {
		return put(io.LimitReader(n, o.c.Size))
	}
	var t cas.Tree
	for i := range o.c.Files {
		r, err := put(io.LimitReader(n, o.c.Size))
		if err != nil {
			return r, err
		}
		t.Entries = append(t.Entries, cas.Entry{Name: fmt.Sprintf("f%05d", i), Kind: cas.File, Digest: r.Digest, Size: r.Size, Manifest: r.Manifest})
	}
	enc, err := t.Encode()
	if err != nil {
		return cas.Ref{}, err
	}
	return put(strings.NewReader(string(enc)))
}

func (o *ours) meet(ctx context.Context, more []At) error {
	o.c.From = append(o.c.From, more...)
	return meetAll(ctx, o.mesh, more)
}

func (o *ours) bring(ctx context.Context) error {
	var names []string
	for _, f := range o.c.From {
		names = append(names, f.Peer)
	}
	if o.c.Files > 0 {
		return o.x.FetchTree(ctx, o.c.Ref.Digest, names)
	}
	return o.x.Fetch(ctx, o.c.Ref, names)
}

func (o *ours) stage(ctx context.Context, dir string) error {
	_, err := tree.Materialise(ctx, o.store, o.c.Ref.Digest, dir, tree.Materialisation{})
	return err
}

// overHTTPS is Go's server and client, TLS 1.3, a file at either end.
type overHTTPS struct{ c Config }

func (*overHTTPS) stats() string { return "" }

func (*overHTTPS) meet(context.Context, []At) error {
	return errors.New("a web client meets nobody")
}

func (h *overHTTPS) ready(context.Context) (Says, error) {
	if h.c.From != nil {
		return Says{}, nil
	}
	path := filepath.Join(h.c.Dir, "blob")
	f, err := os.Create(path)
	if err != nil {
		return Says{}, err
	}
	_, err = io.CopyN(f, &Noise{h.c.Seed}, h.c.Size)
	if err := errors.Join(err, f.Close()); err != nil {
		return Says{}, err
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }))
	s.StartTLS()
	return Says{At: At{Addrs: []string{s.URL}}}, nil
}

func (h *overHTTPS) bring(ctx context.Context) error {
	// The test's certificate is nobody's; verifying one costs a handshake nothing that counts here.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, h.c.From[0].Addrs[0], nil)
	if err != nil {
		return err
	}
	r, err := client.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	f, err := os.Create(filepath.Join(h.c.Dir, "got"))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r.Body)
	return errors.Join(err, f.Close())
}
