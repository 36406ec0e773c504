package node

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/control"
	"github.com/forgeyard/forgeyard-node/node/fitness"
	"github.com/forgeyard/forgeyard-node/node/pressure"
	"github.com/forgeyard/forgeyard-node/site"
)

var _ control.Node = (*Node)(nil)

// Changed implements control.Node.
func (n *Node) Changed() <-chan struct{} { return n.replica.Changed() }

// Propose implements control.Node.
func (n *Node) Propose(ctx context.Context, by string, body site.Body) (site.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	return n.proposer.ProposeAs(ctx, by+"@"+n.enrolment.Name, body)
}

// groupLook is how often the group is looked at by who waits for a change of it.
const groupLook = 20 * time.Millisecond

// Outvoted implements control.Node. What a majority vouches for after the change was seen
// here stands behind it in the log.
func (n *Node) Outvoted(ctx context.Context, r forgeyard.RunnerID) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	for n.votes(r) {
		select {
		case <-ctx.Done():
			return forgeyard.Errorf("remove", forgeyard.Unavailable, "%s is removed, and the group still counts its vote", n.memberName(r)).
				WithHint("leave it running until the voters that do not answer are back: forgeyard-node doctor")
		case <-n.clock.After(groupLook):
		}
	}
	if r == n.enrolment.RunnerID {
		return nil // nobody vouches for this node any more
	}
	_, err := n.Current(ctx)
	return err
}

// Wall implements control.Node.
func (n *Node) Wall() time.Time { return n.clock.Wall() }

// NewID implements control.Node.
func (n *Node) NewID() string { return NewID(n.clock) }

// Store implements control.Node.
func (n *Node) Store() cas.Store { return n.store }

// UploadLimit implements control.Node.
func (n *Node) UploadLimit() int64 { return int64(n.replica.State().Config.Upload.Limit) }

// Identity implements control.Node.
func (n *Node) Identity() (forgeyard.RunnerID, string) { return n.enrolment.RunnerID, n.cfg.Version }

// Current implements control.Node.
func (n *Node) Current(ctx context.Context) (uint64, error) {
	if !n.upToDate(ctx) {
		return 0, forgeyard.Errorf("read", forgeyard.Unavailable, "no majority of voters vouches for what %s has", n.enrolment.Name).
			WithHint("forgeyard-node site members shows who is missing")
	}
	_, _, term := n.group.Leader()
	return term, nil
}

// Warn implements control.Node.
func (n *Node) Warn(msg string, args ...any) { n.log.Warn(msg, args...) }

// Status implements control.Node.
func (n *Node) Status(ctx context.Context) *forgeyardv1.NodeStatus {
	st := n.replica.State()
	id, _, _ := n.group.Leader()
	caps := n.capsNow()
	me, _ := st.Members.Get(n.enrolment.RunnerID)
	v := &forgeyardv1.NodeStatus{
		RunnerId: string(n.enrolment.RunnerID), SessionId: string(n.session), Name: n.enrolment.Name, PeerId: n.mesh.PeerID().String(),
		State: n.State(), Leader: n.memberName(forgeyard.RunnerID(id)), Quorum: n.Quorum(ctx), Pressure: n.pressure(),
		Health: n.health(ctx), Version: n.cfg.Version,
		SiteId: string(n.enrolment.SiteID), SiteName: n.enrolment.SiteName, AppliedIndex: st.Index,
		Capabilities: control.Caps(caps, capsDigest(caps), me.Assigned), Started: timestamppb.New(n.started), DataDir: n.dir.path, Pid: int64(os.Getpid()),
	}
	disk := n.lookAtStorage(ctx)
	v.SpoolBytes = disk.spool
	if u := disk.usage; u != nil {
		v.Cas = &forgeyardv1.NodeStatus_CasUsage{Bytes: u.Bytes, Limit: u.Limit, Pinned: u.Pinned, Objects: u.Objects, DiskFree: u.DiskFree}
	}
	why := n.notTakingForPeople(v.Quorum)
	v.NotTakingWork = fitness.Words(why)
	for _, r := range why {
		v.Reasons = append(v.Reasons, &forgeyardv1.NodeStatus_Reason{Word: string(r.Word), Detail: r.Detail})
	}
	v.Withheld = n.showWithheld()
	if uid := os.Geteuid(); uid >= 0 {
		v.Account = &forgeyardv1.NodeStatus_Account{Uid: int64(uid), Privileged: uid == 0}
	}
	n.mu.Lock()
	v.Addresses = &forgeyardv1.NodeStatus_Addresses{Mesh: n.mesh.Addrs(), Gossip: n.gossip.Addr(), Http: n.servers.http, Control: n.servers.control, CacheApi: n.servers.cache}
	n.mu.Unlock()
	v.Link = n.showLink()
	if waiting, oldest := n.backlog.waiting(n.clock.Now()); waiting > 0 {
		v.Backlog = &forgeyardv1.NodeStatus_Backlog{Results: int64(waiting), Oldest: durationpb.New(oldest)}
	}
	for _, x := range n.local.executions() {
		v.ActiveAttempts = append(v.ActiveAttempts, n.showExecution(x))
	}
	return v
}

// linkDisabled is the state of a link that the log has switched off.
const linkDisabled = "disabled"

// showLink is how this node reaches the leader.
func (n *Node) showLink() *forgeyardv1.NodeStatus_Link {
	s, why := n.way.status()
	v := &forgeyardv1.NodeStatus_Link{
		State: string(s.State), Ended: string(s.End), Member: n.peerName(s.Peer), Direct: s.Direct,
		Failed: int64(s.Fails), Attempts: int64(s.Tries), Returns: int64(s.Returns), Why: why, Clock: n.clockDoubt(),
	}
	if s.Answered != 0 {
		v.SinceAnswer = durationpb.New(n.clock.Now().Sub(s.Answered))
	}
	if n.isDisabled() && s.End == agent.NotEnded {
		v.State = linkDisabled
	}
	return v
}

func (n *Node) showExecution(x *execution) *forgeyardv1.NodeStatus_ActiveAttempt {
	v := &forgeyardv1.NodeStatus_ActiveAttempt{
		JobId: string(x.authority.Job), AttemptId: string(x.authority.Attempt), LeaseId: string(x.authority.Lease), Epoch: x.authority.Fence.Epoch,
	}
	x.mu.Lock()
	v.Phase = string(x.phase)
	if x.attempt != nil {
		pid, _ := x.attempt.Process()
		v.Pid = int64(pid)
	}
	x.mu.Unlock()
	n.local.mu.Lock()
	d := n.local.book.Deadline(x.authority.Lease)
	n.local.mu.Unlock()
	if !d.IsZero() {
		v.DeadlineIn = durationpb.New(d.Sub(n.clock.Now()))
	}
	return v
}

// quorumTimeout is how long a person waits to hear that there is no quorum.
const quorumTimeout = 1500 * time.Millisecond

// Quorum reports whether a majority of voters stands behind a leader now.
func (n *Node) Quorum(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, quorumTimeout)
	defer cancel()
	if n.group.IsLeader() {
		_, err := n.group.Confirm(ctx)
		return err == nil
	}
	_, c, err := n.peers.leader()
	if err != nil {
		return false
	}
	_, err = c.Barrier(ctx, connect.NewRequest(&forgeyardv1.BarrierRequest{}))
	return err == nil
}

// Members implements control.Node: who belongs to the site, by the log, and how each
// is, by gossip and by this node's view of the Raft group.
func (n *Node) Members() []*forgeyardv1.Member {
	st := n.replica.State()
	leader, _, _ := n.group.Leader()
	voters, inGroup := map[string]bool{}, map[string]bool{}
	for _, m := range n.group.Members() {
		voters[m.ID], inGroup[m.ID] = m.Voter, true
	}
	heard := map[forgeyard.RunnerID]mesh.Member{}
	for _, m := range n.gossip.Members() {
		heard[m.RunnerID] = m
	}
	var out []*forgeyardv1.Member
	for _, m := range byOrder(st, voters) {
		id := string(m.Runner)
		v := &forgeyardv1.Member{
			RunnerId: id, Name: m.Name, PeerId: m.Peer, Role: "pending", Voter: voters[id], State: "unknown", SessionId: string(m.Session.ID),
			Draining: m.Draining, Disabled: m.Disabled, Waiting: m.Waiting, Leader: id == leader, Labels: m.Labels, Addrs: m.Addrs, Version: m.Session.Version,
			Joined: timestamppb.New(m.Joined.Time()), SilentSince: silentSince(m), Capabilities: control.Caps(m.Caps, m.Digest, m.Assigned), Assigned: control.Assigned(m.Assigned), TakenAway: takenAway(m),
		}
		switch {
		case voters[id]:
			v.Role = "voter"
		case inGroup[id]:
			v.Role = "nonvoter"
		}
		if g, ok := heard[m.Runner]; ok {
			v.State, v.AsOf, v.Http = string(g.State), timestamppb.New(g.AsOf), g.Meta.HTTPAddr
		}
		if m.Runner == n.enrolment.RunnerID {
			v.State, v.AsOf = string(mesh.StateAlive), timestamppb.New(n.clock.Wall())
		}
		if m.Removed {
			v.State = stateRemoved
		}
		out = append(out, v)
	}
	return out
}

// stateRemoved is shown of a member that was removed while the group still counts its vote:
// who switches it off now takes a vote from the group.
const stateRemoved = "removed"

// silentSince is when the leader stopped hearing a member that holds leases.
func silentSince(m site.Member) *timestamppb.Timestamp {
	if m.Silent == 0 {
		return nil
	}
	return timestamppb.New(m.Silent.Time())
}

// byOrder are the members, and who was removed and still votes.
func byOrder(st *site.State, voters map[string]bool) []site.Member {
	var all []site.Member
	for _, m := range st.Members.All() {
		if !m.Removed || voters[string(m.Runner)] {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b site.Member) int { return cmp.Compare(a.Order, b.Order) })
	return all
}

// UplinkUsed implements control.Node. Only the leader counts; elsewhere it is the
// committed figure.
func (n *Node) UplinkUsed(context.Context) (time.Duration, string, time.Time) {
	used := n.replica.State().Uplink.Used
	if n.leading.Load() == nil {
		return used, "", time.Time{}
	}
	if u, known := n.link.Used(); known {
		used = max(used, u)
	}
	s := n.link.Status()
	return used, s.LastError, s.LastContact
}

// Explain implements control.Node.
func (n *Node) Explain(ctx context.Context, id forgeyard.JobID) (string, []*forgeyardv1.Job_Candidate, error) {
	if l := n.leading.Load(); l != nil {
		held, all, err := l.Explain(id)
		return held, candidates(all), err
	}
	ctx, cancel := context.WithTimeout(ctx, quorumTimeout)
	defer cancel()
	_, c, err := n.peers.leader()
	if err != nil {
		return "", nil, err
	}
	r, err := c.Explain(ctx, connect.NewRequest(&forgeyardv1.ExplainRequest{JobId: string(id)}))
	if err != nil {
		return "", nil, err
	}
	return r.Msg.HeldBack, r.Msg.Candidates, nil
}

// Pressures (decision 13); the others are levels of package pressure.
const (
	pressureNormal = string(pressure.Normal)
	pressureDisk   = fitness.Disk
)

// minFreeDisk is the free space below which no new work is taken: the log and the
// store must go on.
const minFreeDisk = 64 << 20

func (n *Node) pressure() string {
	if free, err := n.platform().Free(n.dir.path); err == nil && free < minFreeDisk {
		return pressureDisk
	}
	if s := n.strain.Load(); s != nil {
		return string(s.level)
	}
	return pressureNormal
}

// spoolBytes is what logs take on the disk.
func (n *Node) spoolBytes() int64 {
	var total int64
	err := filepath.WalkDir(n.dir.join(dirSpool), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // what vanished while it was counted takes nothing
		}
		if i, err := d.Info(); err == nil {
			total += i.Size()
		}
		return nil
	})
	if err != nil {
		n.log.Warn("the spool cannot be counted", "err", err)
	}
	return total
}

// takenAway is who says that a member is being taken away; empty: nobody.
func takenAway(m site.Member) string {
	if m.Notice == nil {
		return ""
	}
	return m.Notice.Source
}
