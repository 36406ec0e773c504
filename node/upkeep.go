package node

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// Intervals of upkeep.
const (
	pinsEvery   = 30 * time.Second
	sampleEvery = 5 * time.Second
)

// upkeepLoop keeps the node in touch with what the log says: whom to stay connected
// to, which daemon is the uplink, what no longer needs to be kept.
func (n *Node) upkeepLoop(ctx context.Context) error {
	n.work.Go(func() { n.witness.Run(ctx) })
	var known addressBook
	nextPins, nextSample := n.clock.Now(), n.clock.Now()
	for {
		changed := n.replica.Changed()
		n.keepInTouch(&known)
		now := n.clock.Now()
		if now >= nextSample {
			n.metrics.sample(ctx, n)
			n.feel()
			n.fetchSiteKey(ctx)
			if n.keeper != nil {
				n.work.Go(func() { n.keeper.Mind(ctx) })
			}
			nextSample = now.Add(sampleEvery)
		}
		if now >= nextPins {
			if _, _, err := n.dropPins(ctx); err != nil && ctx.Err() == nil {
				level := slog.LevelWarn
				if errors.Is(err, errBehind) {
					level = slog.LevelDebug // as after each start; the next look is not far
				}
				n.log.Log(ctx, level, "what nothing needs stays pinned", "err", err)
			}
			if err := n.keepToolchains(ctx); err != nil && ctx.Err() == nil {
				n.log.Warn("a toolchain of node.yaml may be collected", "err", err)
			}
			n.relieve(ctx)
			n.keepNoted() // the disk may have been full
			n.renewCredential(ctx)
			nextPins = now.Add(pinsEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-n.clock.After(sampleEvery):
		}
	}
}

// addressBook is what the mesh was last told.
type addressBook struct {
	members string
	central string
}

func (n *Node) keepInTouch(known *addressBook) {
	peers := n.memberAddrs()
	if text := describe(peers); text != known.members {
		known.members = text
		if err := n.addKnownAddrs(peers); err != nil {
			n.log.Warn("addresses", "err", err)
		}
		if err := n.mesh.Keep(others(peers, n.mesh.PeerID())); err != nil {
			n.log.Warn("peers to keep", "err", err)
		}
		n.gossip.SetSeeds(n.gossipSeeds())
		n.keepNoted()
	}
	n.followUplink(known)
}

func (n *Node) keepNoted() {
	if err := n.noteAddrs(); err != nil {
		n.log.Warn("where the other members are cannot be written down; after a restart they are looked for where they were before", "err", err)
	}
}

func (n *Node) followUplink(known *addressBook) {
	c := n.replica.State().Central
	want := c.Peer
	if c.Drill {
		want = "" // a drill cuts the connection, not only the calls
	}
	if want == known.central {
		return
	}
	if known.central != "" {
		if err := uplink.Detach(n.mesh, known.central); err != nil {
			n.log.Warn("uplink", "err", err)
		}
	}
	if want != "" {
		if err := uplink.Attach(n.mesh, c); err != nil {
			n.log.Warn("uplink", "err", err)
		}
	}
	known.central = want
}

func others(all []mesh.PeerAddr, self peerID) []mesh.PeerAddr {
	var out []mesh.PeerAddr
	for _, p := range all {
		if p.PeerID != self {
			out = append(out, p)
		}
	}
	return out
}

func describe(all []mesh.PeerAddr) string {
	lines := make([]string, 0, len(all))
	for _, p := range all {
		lines = append(lines, p.PeerID.String()+" "+strings.Join(p.Addrs, ",")+" "+p.GossipAddr)
	}
	slices.Sort(lines) // they come in the order of a map, which is none
	return strings.Join(lines, "\n")
}

// dropPins lets go of what is kept for jobs that no longer need it: inputs and
// checkpoints when the job has ended, outputs when it is forgotten.
func (n *Node) dropPins(ctx context.Context) (looked, dropped int, err error) {
	pins, err := n.store.Pins(ctx)
	if err != nil {
		return 0, 0, err
	}
	if !n.upToDate(ctx) {
		// An old copy of the log says nothing of jobs that it does not know.
		return 0, 0, forgeyard.E("retention", forgeyard.Unavailable, errBehind)
	}
	st := n.replica.State()
	for _, p := range pins {
		if !n.needless(st, p) {
			if n.letPayloadGo(ctx, st, p) {
				dropped++
			}
			continue
		}
		if err := n.store.Unpin(ctx, p.Owner); err != nil {
			n.log.Warn("a pin stays", "owner", p.Owner, "err", err)
			continue
		}
		dropped++
	}
	return len(pins), dropped, nil
}

// letPayloadGo keeps of a checkpoint that nothing will resume from its manifest alone.
func (n *Node) letPayloadGo(ctx context.Context, st *site.State, p cas.Pin) bool {
	if len(p.Trees) == 0 || !agent.PayloadNeedless(st, p.Owner, n.clock.Wall()) {
		return false
	}
	if err := n.store.Pin(ctx, cas.Pin{Owner: p.Owner, Roots: p.Roots}); err != nil {
		n.log.Warn("the payload of a checkpoint stays", "owner", p.Owner, "err", err)
		return false
	}
	return true
}

// relieve makes room in the store: above its marks what was used longest ago goes, and all
// that nothing keeps when the disk is short, for the log and the running work must go on.
func (n *Node) relieve(ctx context.Context) {
	if r, err := n.store.Evict(ctx); err != nil {
		n.log.Warn("the store is above its mark, and nothing could be evicted", "err", err)
	} else if r.Removed > 0 {
		n.log.Info("the store was above its mark: what was used longest ago went", "removed", r.Removed, "freed", r.Freed)
	}
	if n.pressure() != pressureDisk {
		return
	}
	if freed := n.EvictLayers(); freed > 0 {
		n.log.Warn("the disk is short: trees that were kept for reuse went", "freed", freed)
	}
	r, err := n.store.GC(ctx, false)
	if err != nil {
		n.log.Warn("the disk is short, and the store could not be collected", "err", err)
		return
	}
	n.log.Warn("the disk is short: the store was collected", "removed", r.Removed, "freed", r.Freed)
}

// EvictLayers implements control.Node.
func (n *Node) EvictLayers() int64 { return n.runner.Evict(math.MaxInt64) }

// upToDate reports that this node's copy of the log has everything that was committed
// when it asked.
func (n *Node) upToDate(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, quorumTimeout)
	defer cancel()
	if n.group.IsLeader() {
		return n.group.ReadBarrier(ctx) == nil
	}
	_, c, err := n.peers.leader()
	if err != nil {
		return false
	}
	r, err := c.Barrier(ctx, connect.NewRequest(&forgeyardv1.BarrierRequest{}))
	return err == nil && n.group.WaitApplied(ctx, r.Msg.Index) == nil
}

// here says that an attempt is at work on this node.
func (n *Node) here(id forgeyard.AttemptID) bool {
	return slices.ContainsFunc(n.local.executions(), func(x *execution) bool { return x.authority.Attempt == id })
}

// renewCredential asks a voter for a credential that lasts longer, when a third of
// this one's life is left.
func (n *Node) renewCredential(ctx context.Context) {
	cred, err := mesh.ParseCredential(n.credential.Load())
	if err != nil || cred.NotAfter.Sub(n.clock.Wall()) > credentialRenew {
		return
	}
	raw, err := n.freshCredential(ctx)
	if err == nil {
		err = lastsLonger(raw, cred.NotAfter)
	}
	if err != nil {
		n.log.Warn("the credential could not be renewed", "until", cred.NotAfter, "err", err)
		return
	}
	err = n.note(func(e *mesh.Enrolment) bool { e.Credential = raw; return true })
	if err != nil {
		n.log.Warn("the renewed credential could not be saved", "err", err)
		return
	}
	n.mesh.SetCredential(raw)
	n.log.Info("credential renewed")
}

// lastsLonger refuses a credential that would be over no later than the one that it
// replaces: whoever signed it has a clock that is far behind, and the node would shut
// itself out with it (E10).
func lastsLonger(raw []byte, than time.Time) error {
	c, err := mesh.ParseCredential(raw)
	if err != nil {
		return err
	}
	if !c.NotAfter.After(than) {
		return forgeyard.Errorf("credential", forgeyard.Stale, "the new one is good until %s, no longer than this one", c.NotAfter.Format(time.RFC3339)).
			WithHint("the clock of the member that signed it is behind: set it")
	}
	return nil
}

func (n *Node) freshCredential(ctx context.Context) ([]byte, error) {
	if !n.siteKey().IsZero() {
		e, err := n.sign(n.enrolmentNow(), n.mesh.PeerID())
		return e.Credential, err
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	_, c, err := n.peers.leader()
	if err != nil {
		return nil, err
	}
	r, err := c.Credential(ctx, connect.NewRequest(&forgeyardv1.CredentialRequest{}))
	if err != nil {
		return nil, err
	}
	return r.Msg.Credential, nil
}

// fetchSiteKey asks the leader for the site key once this node may vote and holds none: it
// had to wait for approval, and until then was trusted with no key that lets others in.
func (n *Node) fetchSiteKey(ctx context.Context) {
	m, _ := n.replica.State().Members.Get(n.enrolment.RunnerID)
	if !m.MayLead() || !n.siteKey().IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	cred, key, err := n.askForKey(ctx)
	if err == nil {
		err = n.note(func(e *mesh.Enrolment) bool {
			e.Credential, e.SiteKey, e.Roles = cred, key, append(slices.Clone(e.Roles), mesh.RoleVoter)
			return true
		})
	}
	if err != nil {
		n.log.Warn("this node is approved, and the site key did not come yet", "err", err)
		return
	}
	n.mesh.SetCredential(cred)
	n.log.Info("approved: this node may vote and let others in")
}

// askForKey is the credential of a voter, and the site key that comes with it.
func (n *Node) askForKey(ctx context.Context) ([]byte, mesh.Secret, error) {
	_, c, err := n.peers.leader()
	if err != nil {
		return nil, mesh.Secret{}, err
	}
	r, err := c.Credential(ctx, connect.NewRequest(&forgeyardv1.CredentialRequest{WantsKey: true}))
	if err != nil {
		return nil, mesh.Secret{}, err
	}
	key := mesh.NewSecret(r.Msg.SiteKey)
	if key.IsZero() {
		return nil, key, forgeyard.Errorf("site key", forgeyard.Unavailable, "the leader sent none").WithHint("it comes once the leader runs this program's version or a newer one")
	}
	return r.Msg.Credential, key, nil
}
