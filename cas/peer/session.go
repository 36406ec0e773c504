package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	libpeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multistream"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// source is a peer that may have something, under the name that a caller knows.
type source struct {
	name  string
	info  libpeer.AddrInfo
	named bool // a caller named it, or our own Providers

	uplink bool // it is beyond the site
}

// holder is a source that has, or may have, what a session is about.
type holder struct {
	source
	link   *link
	answer Answer // zero when the peer does not speak our protocol
	gone   bool   // it failed this session

	// sibling is bringing the same thing in: it does not have all of it, and will.
	sibling bool
	key     uint64 // for the division of blocks among siblings
}

// fault is why a source was no help.
type fault struct {
	kind forgeyard.Kind
	name string
	text string
}

// stages in which sources are asked; each begins when the one before gave no
// holder that can still serve, or has been silent for too long.
const (
	stageNamed     = iota // providers of the caller, then those of Config.Providers
	stageConnected        // whoever is connected
	stageUplink           // the provider beyond the site
	stagePenalised        // who lied or was silent lately
	stageNone
)

// session is one Fetch or FetchTree: the peers found for it, and why others are
// no help. Goroutines: one per question under way; they end with ctx.
type session struct {
	x       *Exchange
	op      string
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	class   cas.Class
	subject forgeyard.Digest
	named   []string

	priority bulk.Priority

	mu      sync.Mutex
	changed chan struct{} // closed and replaced on each change
	stage   int
	asking  int                 // questions under way
	asked   map[libpeer.ID]bool // or set aside
	later   []source            // penalised, for the last stage
	holders []*holder           // in the order in which they answered
	faults  []fault
	answers map[libpeer.ID]bool // who gave a real answer, yes or no
	bytes   int64               // that were stored
}

func (x *Exchange) newSession(ctx context.Context, op string, subject forgeyard.Digest, providers []string, class cas.Class) *session {
	ctx, cancel := x.join(ctx)
	s := &session{
		x: x, priority: priorityOf(ctx), op: op, ctx: ctx, cancel: cancel, class: class, subject: subject, named: providers,
		changed: make(chan struct{}), asked: map[libpeer.ID]bool{x.cfg.Host.ID(): true}, answers: map[libpeer.ID]bool{},
	}
	x.beginFetch(subject, s)
	return s
}

// close ends every question and waits for it.
func (s *session) close() {
	s.x.endFetch(s.subject, s)
	s.cancel()
	s.wg.Wait()
	s.mu.Lock()
	bytes := s.bytes
	s.mu.Unlock()
	metered(s.ctx, bytes)
}

// wake tells everyone who waits for a change. The caller holds mu.
func (s *session) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// advance begins the next stage: it asks who has the subject, or failing that one
// of the digests. It reports false when there is no stage left.
func (s *session) advance(digests []forgeyard.Digest) bool {
	s.mu.Lock()
	stage := s.stage
	if stage == stageNone {
		s.mu.Unlock()
		return false
	}
	s.stage++
	s.mu.Unlock()
	var sources []source
	switch stage {
	case stageNamed:
		sources = s.resolveAll(s.names(), false)
	case stageConnected:
		for _, p := range s.x.cfg.Host.Network().Peers() {
			sources = append(sources, source{name: p.String(), info: libpeer.AddrInfo{ID: p}})
		}
	case stageUplink:
		if slices.Contains(s.names(), s.x.cfg.Uplink) {
			sources = s.resolveAll([]string{s.x.cfg.Uplink}, true)
		}
	case stagePenalised:
		s.mu.Lock()
		sources, s.later = s.later, nil
		s.mu.Unlock()
	}
	s.ask(sources, stage, append([]forgeyard.Digest{s.subject}, digests...))
	return true
}

// names are the providers of the caller and those of the configuration.
func (s *session) names() []string {
	names := s.named
	if s.x.cfg.Providers != nil {
		names = append(names[:len(names):len(names)], s.x.cfg.Providers(s.ctx, s.subject)...)
	}
	return names
}

// resolveAll gives the sources behind names: the uplink alone, or all but it.
func (s *session) resolveAll(names []string, uplink bool) []source {
	var out []source
	for _, name := range names {
		if uplink != (name == s.x.cfg.Uplink && name != "") {
			continue
		}
		info, err := s.x.resolve(name)
		if err != nil {
			s.mu.Lock()
			s.faults = append(s.faults, fault{forgeyard.Unavailable, name, err.Error()})
			s.mu.Unlock()
			continue
		}
		out = append(out, source{name: name, info: info, named: true, uplink: uplink})
	}
	return out
}

// resolve finds the peer behind a provider's name.
func (x *Exchange) resolve(name string) (libpeer.AddrInfo, error) {
	var cause error
	if x.cfg.Resolve != nil {
		info, err := x.cfg.Resolve(name)
		if err == nil {
			return info, nil
		}
		cause = err
	}
	id, err := libpeer.Decode(name)
	if err != nil {
		if cause == nil {
			cause = fmt.Errorf("not the name of a peer")
		}
		return libpeer.AddrInfo{}, cause
	}
	return libpeer.AddrInfo{ID: id}, nil
}

// ask puts the question to every source that was not asked before, in parallel.
func (s *session) ask(sources []source, stage int, digests []forgeyard.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, src := range sources {
		if stage != stagePenalised {
			if s.asked[src.info.ID] {
				continue
			}
			s.asked[src.info.ID] = true
			if s.x.penalised(src.info.ID) {
				s.later = append(s.later, src)
				continue
			}
		}
		if stage == stageConnected {
			if n++; n > maxConnectedAsked {
				break
			}
		}
		s.asking++
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			s.question(src, digests)
		}()
	}
}

// question asks one source and files what it says.
func (s *session) question(src source, digests []forgeyard.Digest) {
	h, err := s.x.whoHas(s.ctx, src, digests)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking--
	defer s.wake()
	switch {
	case h != nil:
		s.answers[src.info.ID] = true
		s.admit(h)
	case err == nil:
		s.answers[src.info.ID] = true
		if src.named && s.stage <= stageConnected {
			delete(s.asked, src.info.ID) // it may yet have a part, which is asked about later
		}
	case s.ctx.Err() != nil: // our own end, not the peer's fault
	case !src.named && errors.Is(err, multistream.ErrNotSupported[protocol.ID]{}): // a connected stranger to content
	default:
		s.faults = append(s.faults, fault{forgeyard.Unavailable, src.name, reason(err)})
	}
}

// whoHas gives a holder when the source has any of the digests, or may have it.
func (x *Exchange) whoHas(ctx context.Context, src source, digests []forgeyard.Digest) (*holder, error) {
	l, err := x.connect(ctx, src.info)
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, errTimeout) {
			x.silent(src.info.ID)
		}
		return nil, err
	}
	answers, err := x.askPeer(ctx, src.info.ID, src.name, request{Kind: kindAsk, Digests: digests, Fetching: true})
	switch {
	case err == nil:
	case src.named && errors.Is(err, multistream.ErrNotSupported[protocol.ID]{}):
		return &holder{source: src, link: l}, nil // plain bitswap: ask for the blocks themselves
	case forgeyard.KindOf(err) == forgeyard.Limit:
		return &holder{source: src, link: l}, nil // busy, and alive
	default:
		if ctx.Err() == nil && errors.Is(err, errTimeout) {
			x.silent(src.info.ID)
		}
		return nil, err
	}
	for _, a := range answers {
		if a.Have || a.Partial > 0 || a.Fetching {
			return &holder{source: src, link: l, answer: answers[0], sibling: answers[0].Fetching}, nil
		}
	}
	return nil, nil
}

func (x *Exchange) silent(p libpeer.ID) {
	x.stats.silent.Add(1)
	x.penalise(p, false)
}

// lose takes a holder out of the session. It is idempotent.
func (s *session) lose(h *holder, kind forgeyard.Kind, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.gone {
		return
	}
	h.gone = true
	s.faults = append(s.faults, fault{kind, h.name, why})
	s.wake()
}

// failure says why the session cannot go on, of the kind that its faults add up to.
func (s *session) failure(d forgeyard.Digest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	what := d.Short()
	if d != s.subject {
		what += " of " + s.subject.Short()
	}
	kind, texts := forgeyard.NotFound, []string(nil)
	for _, f := range s.faults {
		if kind == forgeyard.NotFound || f.kind == forgeyard.Unavailable {
			kind = f.kind
		}
		texts = append(texts, f.name+": "+f.text)
	}
	sort.Strings(texts)
	why := strings.Join(texts, "; ")
	switch {
	case len(s.faults) == 0 && len(s.answers) == 0:
		return forgeyard.Errorf(s.op, forgeyard.NotFound, "%s is not here and there is no peer to ask", what)
	case kind == forgeyard.NotFound:
		return forgeyard.Errorf(s.op, kind, "%s: none of %d peers asked has it", what, len(s.answers))
	case kind == forgeyard.Corrupt:
		return forgeyard.Errorf(s.op, kind, "%s: only wrong bytes were offered: %s", what, why)
	default:
		return forgeyard.Errorf(s.op, kind, "%s: %s", what, why)
	}
}

// ended is the error of a session whose context ended.
func (s *session) ended(ctx context.Context) error {
	switch {
	case s.x.ctx.Err() != nil:
		return forgeyard.Errorf(s.op, forgeyard.Unavailable, "%s: the exchange was closed", s.subject.Short())
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		s.mu.Lock()
		defer s.mu.Unlock()
		var names []string
		for _, h := range s.holders {
			names = append(names, h.name)
		}
		for _, f := range s.faults {
			names = append(names, f.name+" ("+f.text+")")
		}
		if len(names) == 0 {
			names = s.named
		}
		return forgeyard.Errorf(s.op, forgeyard.Unavailable, "%s: the deadline passed after %d bytes; peers: %s", s.subject.Short(), s.bytes, strings.Join(names, ", "))
	}
	return forgeyard.E(s.op, forgeyard.Interrupted, fmt.Errorf("%s: %w", s.subject.Short(), context.Cause(ctx)))
}

// reason gives the first line of an error: dial errors list every address.
func reason(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return forgeyard.Clip(text, 200)
}
