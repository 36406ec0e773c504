package node

import (
	"context"
	"errors"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
)

func capsDigest(c job.Capabilities) forgeyard.Digest { return cas.Sum(cborx.Marshal(c)) }

// rootsOf are the roots of a delivery.
func rootsOf(outs []job.Output, log []job.LogChunk) []caspeer.Root {
	var roots []caspeer.Root
	for _, o := range outs {
		kind := caspeer.Blob
		if o.Tree {
			kind = caspeer.Tree
		}
		roots = append(roots, caspeer.Root{Kind: kind, Ref: cas.Ref{Digest: o.Digest, Size: o.Size, Manifest: o.Manifest}})
	}
	for _, c := range log {
		roots = append(roots, caspeer.Root{Kind: caspeer.Blob, Ref: cas.Ref{Digest: c.Digest, Size: c.Size, Manifest: c.Manifest}})
	}
	return roots
}

func pinOf(owner string, roots []caspeer.Root) cas.Pin {
	p := cas.Pin{Owner: owner}
	for _, r := range roots {
		if r.Kind == caspeer.Tree {
			p.Trees = append(p.Trees, r.Ref.Digest)
		} else {
			p.Roots = append(p.Roots, r.Ref.Digest)
		}
	}
	return p
}

// replicate brings roots, which are whole in the local store, to as many nodes as
// the durability asks, this one included, each of which has acknowledged a durable
// and pinned copy when it returns (§7). A site with fewer members than copies asks
// for as many as it has, and the result is marked short.
func (n *Node) replicate(ctx context.Context, d job.Durability, pin cas.Pin, roots []caspeer.Root) (runner.Replicas, error) {
	me := n.enrolment.RunnerID
	if len(pin.Roots)+len(pin.Trees) == 0 {
		return runner.Replicas{Nodes: []forgeyard.RunnerID{me}}, nil
	}
	if err := n.store.Pin(ctx, pin); err != nil {
		return runner.Replicas{}, err
	}
	have := []forgeyard.RunnerID{me}
	if d == job.Ephemeral {
		return runner.Replicas{Nodes: have}, nil
	}
	cfg := n.replica.State().Config.Durability
	want := min(cfg.Copies, n.membersInSite())
	var targets []forgeyard.RunnerID
	if len(have) < want {
		targets = n.answering(ctx, n.targets())
	}
	last := errors.New("none answers")
	patience := busyFor
	if cfg.AcceptFewer {
		patience = 0 // what is here is enough to go on: nobody waits for more
	}
	untilNotBusy(ctx, n.clock, patience, func() bool {
		var busy []forgeyard.RunnerID
		for _, t := range targets {
			if len(have) >= want {
				return false
			}
			if err := n.exchange.Replicate(ctx, string(t), roots, pin.Owner, time.Time{}); err != nil {
				if last = err; forgeyard.KindOf(err) == forgeyard.Limit {
					busy = append(busy, t)
				}
				n.log.Warn("a copy could not be made", "on", t, "what", pin.Owner, "err", err)
				continue
			}
			have = append(have, t)
		}
		targets = busy // only they may do it later
		return len(busy) > 0
	})
	r := runner.Replicas{Nodes: have, Short: len(have) < cfg.Copies}
	if len(have) >= want || cfg.AcceptFewer {
		return r, nil
	}
	return r, forgeyard.Errorf("replicate", forgeyard.Unavailable, "%d of %d copies are made, no other node takes one: %v", len(have), want, last).
		WithHint("bring another node up, or allow fewer: forgeyard-node site config set durability.accept_fewer true")
}

// How long nodes that have too much to do are asked again: whoever saves before its machine is
// taken away has no later.
const (
	busyFirst = 100 * time.Millisecond
	busyMost  = 2 * time.Second
	busyFor   = time.Minute
)

// untilNotBusy calls try again while it says that somebody was busy, ever less often.
func untilNotBusy(ctx context.Context, c clock.Clock, most time.Duration, try func() (busy bool)) {
	wait := busyFirst
	for from := c.Now(); try() && c.Now().Sub(from) < most; {
		select {
		case <-ctx.Done():
			return
		case <-c.After(wait):
		}
		wait = min(2*wait, busyMost)
	}
}

func (n *Node) membersInSite() int {
	c := 0
	for _, m := range n.replica.State().Members.All() {
		if !m.Removed && !m.Waiting {
			c++
		}
	}
	return max(1, c)
}

// targets are the other members, those that gossip calls alive first. What waits for approval
// is trusted with no copy.
func (n *Node) targets() []forgeyard.RunnerID {
	var out []forgeyard.RunnerID
	for id, m := range n.replica.State().Members.All() {
		if id != n.enrolment.RunnerID && !m.Removed && !m.Waiting && m.Session.ID != "" {
			out = append(out, id)
		}
	}
	if len(out) < 2 {
		return out
	}
	alive := map[forgeyard.RunnerID]bool{}
	for _, m := range n.gossip.Members() {
		alive[m.RunnerID] = m.State == mesh.StateAlive
	}
	sort.SliceStable(out, func(i, j int) bool { return alive[out[i]] && !alive[out[j]] })
	return out
}

// probeTimeout is how long a member may take to say that it is there before others are
// asked to take a copy first: gossip needs longer to find out that a node died.
const probeTimeout = 500 * time.Millisecond

// answering puts the members that answer now before those that do not.
func (n *Node) answering(ctx context.Context, all []forgeyard.RunnerID) []forgeyard.RunnerID {
	if len(all) < 2 {
		return all
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	there := make([]bool, len(all))
	var wg sync.WaitGroup
	for i, t := range all {
		wg.Go(func() {
			_, err := n.exchange.Ask(ctx, string(t), []forgeyard.Digest{cas.Empty()})
			there[i] = err == nil
		})
	}
	wg.Wait()
	var first, last []forgeyard.RunnerID
	for i, t := range all {
		if there[i] {
			first = append(first, t)
		} else {
			last = append(last, t)
		}
	}
	return append(first, last...)
}

// maxAskedMembers bounds who is asked for content without a hint of the log, those that are
// alive first: in a site of hundreds each fetch would ask all of them.
const maxAskedMembers = 64

// providers are where content of the site may be found, and the uplink last. The exchange
// adds those that the log names (see hints).
func (n *Node) providers() []string {
	var out []string
	all := n.targets()
	for _, t := range all[:min(len(all), maxAskedMembers)] {
		out = append(out, string(t))
	}
	if s := n.replica.State(); s.Central.Peer != "" && !s.Central.Drill {
		out = append(out, uplinkProvider)
	}
	return out
}

// fetch makes a blob local: from this store, then from peers, then over the uplink.
func (n *Node) fetch(ctx context.Context, ref cas.Ref) error {
	if n.store.Has(ctx, ref.Digest) {
		return nil
	}
	if ref.Manifest.IsZero() && (ref.Size == 0 || ref.Size > cas.BlockSize) {
		return n.exchange.FetchAny(ctx, ref.Digest, n.providers())
	}
	return n.exchange.Fetch(ctx, ref, n.providers())
}

// urgently makes fetches under ctx overtake other content: a checkpoint that holds up a job.
func urgently(ctx context.Context) context.Context {
	return caspeer.WithPriority(ctx, bulk.Urgent)
}

func (n *Node) fetchTree(ctx context.Context, root forgeyard.Digest) error {
	return n.exchange.FetchTree(ctx, root, n.providers())
}

// Bring makes content local for a person.
func (n *Node) Bring(ctx context.Context, ref cas.Ref, isTree bool) error {
	if isTree {
		return n.fetchTree(ctx, ref.Digest)
	}
	return n.fetch(ctx, ref)
}

// Holders asks the other members who has a blob.
func (n *Node) Holders(ctx context.Context, d forgeyard.Digest) []string {
	targets := n.targets()
	have := make([]bool, len(targets))
	g, ctx := errgroup.WithContext(ctx)
	for i, t := range targets {
		g.Go(func() error {
			a, err := n.exchange.Ask(ctx, string(t), []forgeyard.Digest{d})
			have[i] = err == nil && len(a) == 1 && a[0].Have
			return nil // who does not answer has nothing to offer now
		})
	}
	_ = g.Wait() // the functions return nil
	var out []string
	for i, t := range targets {
		if have[i] {
			out = append(out, n.memberName(t))
		}
	}
	return out
}

func (n *Node) memberName(r forgeyard.RunnerID) string {
	if m, ok := n.replica.State().Members.Get(r); ok {
		return m.Name
	}
	return string(r)
}

// prefetch brings the inputs of a delegated job into the site before the site takes
// the job in: what needs the uplink is done while there is one.
func (n *Node) prefetch(ctx context.Context, d site.Delegation) error {
	if d.Cancel || len(d.Spec) == 0 {
		return nil
	}
	spec, err := job.DecodeSpec(d.Spec)
	if err != nil {
		return nil // the log refuses it by name, and tells the daemon
	}
	var roots []caspeer.Root
	for _, in := range spec.Inputs {
		ref := cas.Ref{Digest: in.Digest, Size: in.Size, Manifest: in.Manifest}
		kind := caspeer.Blob
		if in.Tree {
			kind = caspeer.Tree
			err = n.fetchTree(ctx, in.Digest)
		} else {
			err = n.fetch(ctx, ref)
		}
		if err != nil {
			return err
		}
		roots = append(roots, caspeer.Root{Kind: kind, Ref: ref})
	}
	_, err = n.replicate(ctx, job.DurSite, pinOf(agent.GrantPin(d), roots), roots)
	return err
}

// holders are the members that can serve content to the central daemon, each with the
// addresses at which it may be dialled.
func (n *Node) holders() []string {
	var out []string
	for _, p := range n.memberAddrs() {
		out = append(out, uplink.Holder(p.PeerID.String(), p.Addrs)...)
	}
	return out
}
