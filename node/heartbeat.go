package node

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/controllers"
)

// renewRequest is a heartbeat as it travels. Its attempts stand in the order of its leases.
func (n *Node) renewRequest(s controllers.Sign, batch []forgeyard.Authority) *forgeyardv1.RenewRequest {
	req := &forgeyardv1.RenewRequest{
		RunnerId: string(n.enrolment.RunnerID), SessionId: string(s.Session), Pressure: s.Pressure, Refusing: s.Refusing, Facts: n.factsToWire(s.Facts),
		SentMs: int64(s.Sent), AgentState: s.State, CapabilityDigest: s.Caps[:], Resources: resourcesToWire(s.Taken),
	}
	for i, a := range batch {
		req.Leases = append(req.Leases, authorityToWire(a))
		req.Attempts = append(req.Attempts, &forgeyardv1.RenewRequest_Attempt{Phase: string(s.Attempts[i].Phase), LastLogSeq: s.Attempts[i].LastLog})
	}
	return req
}

// signFromWire reads what another member's heartbeat says of itself; batch are its leases.
func (n *Node) signFromWire(m *forgeyardv1.RenewRequest, batch []controllers.Renewal) (controllers.Sign, error) {
	s := controllers.Sign{
		Session: forgeyard.SessionID(m.SessionId), Pressure: m.Pressure, Refusing: m.Refusing, Facts: n.factsFromWire(m.Facts),
		State: forgeyard.Clip(m.AgentState, maxWord), Sent: forgeyard.Wall(m.SentMs), Taken: resourcesFromWire(m.Resources),
	}
	if len(m.CapabilityDigest) == len(s.Caps) {
		s.Caps = forgeyard.Digest(m.CapabilityDigest)
	}
	if len(m.Attempts) == 0 {
		return s, nil // an older version
	}
	if len(m.Attempts) != len(batch) {
		return s, forgeyard.Errorf("renew", forgeyard.Invalid, "%d attempts of %d leases", len(m.Attempts), len(batch))
	}
	for i, a := range m.Attempts {
		s.Attempts = append(s.Attempts, controllers.Attempt{Authority: batch[i].Authority, Phase: job.Phase(forgeyard.Clip(a.Phase, maxWord)), LastLog: a.LastLogSeq})
	}
	return s, nil
}

// maxWord bounds a word that another member says and that people are shown.
const maxWord = 40

func resourcesToWire(t controllers.Taken) *forgeyardv1.Heartbeat_Resources {
	return &forgeyardv1.Heartbeat_Resources{Jobs: int32(t.Jobs), MilliCpu: t.MilliCPU, Memory: t.Memory, Disk: t.Disk, DiskFree: t.DiskFree, MilliCpuWithheld: t.Withheld}
}

func resourcesFromWire(w *forgeyardv1.Heartbeat_Resources) controllers.Taken {
	return controllers.Taken{Jobs: int(w.GetJobs()), MilliCPU: w.GetMilliCpu(), Memory: w.GetMemory(), Disk: w.GetDisk(), DiskFree: w.GetDiskFree(), Withheld: w.GetMilliCpuWithheld()}
}

// heartbeatToWire is the last heartbeat of a runner for people.
func heartbeatToWire(s controllers.Sign, ago time.Duration) *forgeyardv1.Heartbeat {
	v := &forgeyardv1.Heartbeat{
		Ago: durationpb.New(ago), SessionId: string(s.Session), AgentState: s.State, Pressure: s.Pressure, Refusing: s.Refusing, Resources: resourcesToWire(s.Taken),
	}
	if s.Sent != 0 {
		v.Sent = timestamppb.New(s.Sent.Time())
	}
	if !s.Caps.IsZero() {
		v.CapabilityDigest = s.Caps.String()
	}
	for _, a := range s.Attempts {
		v.ActiveAttempts = append(v.ActiveAttempts, &forgeyardv1.Heartbeat_Attempt{
			LeaseId: string(a.Authority.Lease), JobId: string(a.Authority.Job), AttemptId: string(a.Authority.Attempt), Epoch: a.Authority.Fence.Epoch,
			Phase: string(a.Phase), LastLogSeq: a.LastLog,
		})
	}
	return v
}

// Heard implements control.Node: what the leader last heard of a runner.
func (n *Node) Heard(ctx context.Context, r forgeyard.RunnerID) (*forgeyardv1.Heartbeat, error) {
	if l := n.leading.Load(); l != nil {
		s, ago, ok := l.Heard(r)
		if ttl := n.replica.State().Config.Lease.TTL; !ok && l.Led() <= ttl {
			return nil, forgeyard.Errorf("heartbeat", forgeyard.Unavailable, "the leader leads for %s only, and has heard nothing of %s yet", l.Led().Round(100*time.Millisecond), n.memberName(r)).
				WithHint("try again in %s", ttl)
		}
		if !ok {
			return nil, forgeyard.Errorf("heartbeat", forgeyard.NotFound, "the leader has heard nothing of %s", n.memberName(r))
		}
		v := heartbeatToWire(s, ago)
		v.Contest = l.Contested(r)
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, quorumTimeout)
	defer cancel()
	_, c, err := n.peers.leader()
	if err != nil {
		return nil, err
	}
	v, err := c.Heard(ctx, connect.NewRequest(&forgeyardv1.HeardRequest{RunnerId: string(r)}))
	if err != nil {
		return nil, err
	}
	return v.Msg, nil
}

// Heard implements the service.
func (s peerService) Heard(ctx context.Context, r *connect.Request[forgeyardv1.HeardRequest]) (*connect.Response[forgeyardv1.Heartbeat], error) {
	if s.n.leading.Load() == nil {
		return nil, notLeading(s.n)
	}
	v, err := s.n.Heard(ctx, forgeyard.RunnerID(r.Msg.RunnerId))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(v), nil
}
