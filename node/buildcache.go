package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi/grpcapi"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi/httpapi"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// The build cache is a door to the store for programs that know nothing of a site. It has
// a listener of its own, so that opening it opens nothing else.

// cacheLookup bounds a question to all members at once: one that is dead must cost a
// build less than compiling a file does.
const cacheLookup = 400 * time.Millisecond

// cacheUpkeep is how often old names and uploads are forgotten. Nothing is at the start.
const cacheUpkeep = time.Hour

// openBuildCache makes the cache, if the configuration wants one.
func (n *Node) openBuildCache(_ context.Context, cl *closers) error {
	cfg := n.settings().CacheAPI
	if err := removeFile(n.dir.join(fileCacheAddress)); err != nil {
		return err
	}
	if !cfg.On() {
		return nil
	}
	c := cacheapi.Config{
		Store: n.store, Names: n.store, Dir: n.dir.join(dirUploads), Keep: cfg.Keep, Clock: n.clock, Log: n.log,
		Free: func() (int64, error) {
			free, err := n.platform().Free(n.dir.path)
			return free - cacheReserve, err
		},
	}
	if cfg.Peers {
		c.Peers = &cachePeers{n: n}
	}
	cache, err := cacheapi.New(c)
	if err != nil {
		return err
	}
	n.cache = cache
	cl.add(func() error { return removeFile(n.dir.join(fileCacheAddress)) })
	n.cacheMetrics(n.metrics.registry)
	return nil
}

// cacheReserve is what an upload that is spooled leaves free for the log and the work.
const cacheReserve = 4 * minFreeDisk

// listenCache opens the cache's own address.
func (n *Node) listenCache() (net.Listener, http.Handler, error) {
	if n.cache == nil {
		return nil, nil, nil
	}
	addr := n.settings().CacheAPI.Listen
	tokens, err := n.cacheTokens()
	if err != nil {
		return nil, nil, err
	}
	tokens.Open = sitecfg.Loopback(addr)
	l, err := net.Listen("tcp", n.ports.sticky("cache", addr))
	if err != nil {
		l, err = net.Listen("tcp", addr)
	}
	if err != nil {
		return nil, nil, forgeyard.E("cache API", forgeyard.Conflict, err).WithHint("choose another address in cache_api.listen, port 0 takes a free one")
	}
	n.ports.keep("cache", portOfAddr(l.Addr().String()))
	n.savePorts()
	if err := writeFile(n.dir.join(fileCacheAddress), []byte(l.Addr().String()+"\n"), 0o644); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	calls := grpcapi.New(n.cache, tokens)
	for _, p := range grpcapi.Prefixes {
		mux.Handle(p, calls)
	}
	values := httpapi.New(n.cache, tokens)
	mux.Handle("/", values)
	// A mux would redirect a key with odd slashes; a cache refuses it.
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, p := mux.Handler(r); p == "/" || p == "" {
			values.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
	if tokens.Open {
		h = onlyLoopback(h)
	}
	return l, h, nil
}

// cacheTokens reads who may use the cache, and makes the tokens at the first start.
func (n *Node) cacheTokens() (cacheapi.Tokens, error) {
	text, err := CacheTokens(n.dir.path)
	if err != nil {
		return cacheapi.Tokens{}, err
	}
	return cacheapi.ParseTokens(text)
}

// CacheTokens gives the tokens of a data dir's build cache, made when there are none. The
// file is for this account alone.
func CacheTokens(dir string) (string, error) {
	const op = "cache tokens"
	path := (&dataDir{path: dir}).join(fileCacheTokens)
	b, err := os.ReadFile(path)
	if err == nil {
		return string(b), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", forgeyard.E(op, kindOfIO(err), err)
	}
	text := cacheapi.NewTokens(func(b []byte) { _, _ = rand.Read(b) }) // never fails: it ends the process instead
	if err := durable.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", forgeyard.E(op, kindOfIO(err), err)
	}
	return text, nil
}

// CacheAddress is where the build cache of a data dir's daemon answers. It stands in a file,
// so that finding it waits for nothing: a node that has no quorum still has its cache. A
// killed daemon leaves the file; nobody answers there then.
func CacheAddress(dir string) (string, error) {
	b, err := os.ReadFile((&dataDir{path: dir}).join(fileCacheAddress))
	if errors.Is(err, os.ErrNotExist) {
		return "", forgeyard.Errorf("cache API", forgeyard.Unavailable, "no daemon in %s serves one", dir).WithHint("set cache_api.listen in its node.yaml and start it")
	}
	if err != nil {
		return "", forgeyard.E("cache API", kindOfIO(err), err)
	}
	return strings.TrimSpace(string(b)), nil
}

// cachePeers are the other members, as a build cache sees them. A build asks hundreds of
// times, so one that did not answer is left alone for a while: a dead member costs its
// deadline once, and not with each question.
type cachePeers struct {
	n *Node

	mu    sync.Mutex
	quiet map[forgeyard.RunnerID]forgeyard.Instant // not asked until then
}

var _ cacheapi.Peers = (*cachePeers)(nil)

// cacheQuiet is how long a member that did not answer is left alone.
const cacheQuiet = 10 * time.Second

// asked are the members worth a question now.
func (p *cachePeers) asked(all []forgeyard.RunnerID, now forgeyard.Instant) []forgeyard.RunnerID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []forgeyard.RunnerID
	for _, t := range all {
		if until, ok := p.quiet[t]; ok && now < until {
			continue
		}
		delete(p.quiet, t)
		out = append(out, t)
	}
	return out
}

func (p *cachePeers) silent(t forgeyard.RunnerID, now forgeyard.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet == nil {
		p.quiet = map[forgeyard.RunnerID]forgeyard.Instant{}
	}
	p.quiet[t] = now.Add(cacheQuiet)
}

// Lookup implements cacheapi.Peers.
func (p *cachePeers) Lookup(ctx context.Context, names []cas.Name) []cacheapi.Claim {
	within, cancel := context.WithTimeout(ctx, cacheLookup)
	defer cancel()
	req := &forgeyardv1.CacheNamesRequest{}
	for _, x := range names {
		req.Names = append(req.Names, &forgeyardv1.CacheName{Space: uint32(x.Space), Key: x.Key[:]})
	}
	targets := p.asked(p.n.targets(), p.n.clock.Now())
	answers := make([][]cacheapi.Claim, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() {
			m, err := p.ask(within, t, req)
			if err != nil {
				if ctx.Err() == nil { // it is the member's silence, not the tool's
					p.silent(t, p.n.clock.Now())
				}
				return
			}
			answers[i] = claimsOf(m, string(t), names)
		})
	}
	wg.Wait()
	return slices.Concat(answers...)
}

// maxCacheAnswer bounds what a member may answer: 1024 bindings of about 200 bytes.
const maxCacheAnswer = 1 << 20

func (p *cachePeers) ask(ctx context.Context, t forgeyard.RunnerID, req *forgeyardv1.CacheNamesRequest) (*forgeyardv1.CacheNamesResponse, error) {
	c, err := p.n.peers.runner(t, connect.WithReadMaxBytes(maxCacheAnswer))
	if err != nil {
		return nil, err
	}
	r, err := c.CacheNames(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

// claimsOf reads a member's answer: one claim for each name that was asked for, and none
// for another.
func claimsOf(m *forgeyardv1.CacheNamesResponse, provider string, names []cas.Name) []cacheapi.Claim {
	open := map[cas.Name]bool{}
	for _, x := range names {
		open[x] = true
	}
	var out []cacheapi.Claim
	for _, w := range m.Bindings {
		b, err := claimFromWire(w)
		if err == nil && open[b.Name] {
			open[b.Name] = false
			out = append(out, cacheapi.Claim{Binding: b, Provider: provider})
		}
	}
	return out
}

func claimFromWire(w *forgeyardv1.CacheBinding) (cas.Binding, error) {
	b := cas.Binding{Ref: cas.Ref{Size: w.Size}}
	name, err := nameFromWire(w.Name)
	if err != nil {
		return b, err
	}
	b.Name = name
	if b.Ref.Digest, err = forgeyard.ParseDigest(w.Digest); err != nil {
		return b, err
	}
	if w.Size < 0 || w.Size > cas.MaxBlobSize {
		return b, forgeyard.Errorf("cache names", forgeyard.Invalid, "size %d is not in [0, %d]", w.Size, int64(cas.MaxBlobSize))
	}
	if w.Manifest != "" {
		b.Ref.Manifest, err = forgeyard.ParseDigest(w.Manifest)
	}
	return b, err
}

func nameFromWire(w *forgeyardv1.CacheName) (cas.Name, error) {
	n := cas.Name{Space: cas.Space(w.GetSpace())}
	if len(w.GetKey()) != len(n.Key) || w.GetSpace() > 255 {
		return n, forgeyard.Errorf("cache names", forgeyard.Invalid, "space %d with a key of %d bytes: 32 are expected", w.GetSpace(), len(w.GetKey()))
	}
	copy(n.Key[:], w.Key)
	return n, nil
}

// Fetch implements cacheapi.Peers.
func (p *cachePeers) Fetch(ctx context.Context, ref cas.Ref, provider string) error {
	var providers []string // the members alone: a build does not wait for the uplink
	if provider != "" {
		providers = append(providers, provider)
	}
	for _, t := range p.asked(p.n.targets(), p.n.clock.Now()) {
		if string(t) != provider {
			providers = append(providers, string(t))
		}
	}
	if ref.Size < 0 || ref.Manifest.IsZero() && ref.Size > cas.BlockSize {
		return p.n.exchange.FetchAny(ctx, ref.Digest, providers)
	}
	return p.n.exchange.Fetch(ctx, ref, providers)
}

// Blame implements cacheapi.Peers.
func (p *cachePeers) Blame(provider, why string) {
	p.n.log.Warn("a member said for what a build cache's name stands, and was wrong", runner.BadPeer.Attr(), "member", p.n.memberName(forgeyard.RunnerID(provider)), "why", why)
	p.n.metrics.badPeers.Inc()
}

// CacheNames implements the service.
func (s peerService) CacheNames(ctx context.Context, r *connect.Request[forgeyardv1.CacheNamesRequest]) (*connect.Response[forgeyardv1.CacheNamesResponse], error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	out := &forgeyardv1.CacheNamesResponse{}
	if s.n.cache == nil {
		return connect.NewResponse(out), nil
	}
	names := make([]cas.Name, len(r.Msg.Names))
	for i, w := range r.Msg.Names {
		var err error
		if names[i], err = nameFromWire(w); err != nil {
			return nil, err
		}
	}
	bound, err := s.n.cache.Claims(ctx, names)
	if err != nil {
		return nil, err
	}
	for _, b := range bound {
		out.Bindings = append(out.Bindings, &forgeyardv1.CacheBinding{
			Name: &forgeyardv1.CacheName{Space: uint32(b.Name.Space), Key: b.Name.Key[:]}, Digest: b.Ref.Digest.String(), Size: b.Ref.Size, Manifest: b.Ref.Manifest.String(),
		})
	}
	return connect.NewResponse(out), nil
}

// cacheLoop forgets what nobody uses.
func (n *Node) cacheLoop(ctx context.Context) error {
	if n.cache == nil {
		return nil
	}
	cfg := n.settings().CacheAPI
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.clock.After(cacheUpkeep):
		}
		if err := n.cache.Upkeep(ctx, n.clock.Wall().Add(-cfg.ForgetAfter), cfg.MaxNames); err != nil && ctx.Err() == nil {
			n.log.Warn("old names of the build cache could not be forgotten", "err", err)
		}
	}
}

// cacheMetrics show what the cache is worth.
func (n *Node) cacheMetrics(r *prometheus.Registry) {
	count := func(name, help string, labels prometheus.Labels, of interface{ Load() int64 }) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "forgeyard", Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(of.Load()) }))
	}
	s := &n.cache.Stats
	const reads = "Content, results and values that build tools asked for, by what came of it."
	count("cache_api_reads_total", reads, prometheus.Labels{"outcome": "hit"}, &s.Hits)
	count("cache_api_reads_total", reads, prometheus.Labels{"outcome": "peer"}, &s.PeerHits)
	count("cache_api_reads_total", reads, prometheus.Labels{"outcome": "miss"}, &s.Misses)
	count("cache_api_writes_total", "Content, results and values that build tools put.", nil, &s.Writes)
	count("cache_api_read_bytes_total", "Bytes that build tools read.", nil, &s.BytesRead)
	count("cache_api_written_bytes_total", "Bytes that build tools put.", nil, &s.BytesWritten)
	count("cache_api_incomplete_total", "Results that were a miss because something that they name was not to be had.", nil, &s.Incomplete)
	count("cache_api_false_claims_total", "Times that a member was wrong about a name.", nil, &s.FalseClaims)
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: "cache_api_upload_bytes", Help: "Bytes of uploads that are on their way or wait to be continued."}, func() float64 {
		_, bytes := n.cache.Waiting()
		return float64(bytes)
	}))
}

// checkBuildCache says who can reach the build cache, and what it is worth.
func (n *Node) checkBuildCache() *forgeyardv1.Health_Check {
	c := check("cache_api")
	if n.cache == nil {
		c.Detail = "off"
		return c
	}
	n.mu.Lock()
	at := n.servers.cache
	n.mu.Unlock()
	s := &n.cache.Stats
	waiting, _ := n.cache.Waiting()
	c.Detail = fmt.Sprintf("%s: %d hits here, %d from members, %d misses, %d writes; %d uploads on their way", at, s.Hits.Load(), s.PeerHits.Load(), s.Misses.Load(), s.Writes.Load(), waiting)
	switch {
	case s.FalseClaims.Load() > 0:
		c.Status, c.Detail = checkWarn, fmt.Sprintf("%s; members were wrong about a name %d times", c.Detail, s.FalseClaims.Load())
		c.Fix = "the log of the node names them"
	case !sitecfg.Loopback(at):
		c.Status, c.Detail = checkWarn, c.Detail+"; tokens and content cross the network in the clear"
		c.Fix = "listen on loopback and let the build run on the node, or reach it through ssh or a proxy that speaks TLS"
	}
	return c
}
