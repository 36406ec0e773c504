package control

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// Lease shows the lease of a job's current epoch.
func Lease(s *site.State, j site.Job) *forgeyardv1.Lease {
	l := j.Lease
	a := l.Authority
	m, _ := s.Members.Get(a.Runner)
	v := &forgeyardv1.Lease{
		LeaseId: string(a.Lease), JobId: string(j.ID), Epoch: a.Fence.Epoch, RunnerId: string(a.Runner), Runner: memberName(s, a.Runner), State: string(l.State),
		Reason: string(l.Reason), Detail: l.Detail, Policy: leasePolicy(l), Fence: a.Fence.String(), Token: l.Token, Granted: stamp(l.Granted), Ended: stamp(l.EndedAt),
		Protected: l.WaitsForCertain(), Certain: !l.Live() && (j.Status != job.Unknown || j.Certain), JobStatus: string(j.Status),
	}
	if l.Live() {
		v.SilentSince = stamp(m.Silent)
	}
	return v
}

// leasePolicy is what the holder may do in silence, as it was granted.
func leasePolicy(l lease.Lease) string {
	text := string(l.Policy.Policy)
	if l.Policy.For > 0 {
		text += " " + l.Policy.For.String()
	}
	if l.Policy.NoReplace {
		text += ", no replacement"
	}
	if l.Protected {
		text += ", protected effects"
	}
	return text
}

// cancelPending says why a cancellation that was asked for has not ended the job yet.
func cancelPending(s *site.State, j site.Job) string {
	if j.CancelAt == 0 || j.Status.Terminal() {
		return ""
	}
	m, _ := s.Members.Get(j.Lease.Authority.Runner)
	switch {
	case j.Status == job.Unknown:
		return fmt.Sprintf("%s may still run it: it ends with the word of that runner, or when its lease is certainly over", m.Name)
	case m.Silent != 0:
		return fmt.Sprintf("%s is out of reach: it is told first of all when it is back, else its lease ends", m.Name)
	}
	return m.Name + " has not confirmed yet that it has stopped"
}

// delivery is where the result of a job is on its way. It never changes what the result says.
func delivery(s *site.State, j site.Job) string {
	switch {
	case !j.Status.Terminal() && j.Phase == job.PhaseUploading:
		return "uploading"
	case !j.Status.Terminal():
		return ""
	case j.Grant != nil && s.Uplink.State != lease.Standalone:
		for _, r := range s.Outbox.All() {
			if r.Kind == site.RecordOutcome && r.Grant == j.Grant.ID {
				return "pending"
			}
		}
		return "acknowledged"
	case j.Result != nil && j.Result.Short:
		return "short"
	case j.Result != nil:
		return "here"
	}
	return ""
}

func readiness(r site.Ready) string {
	switch {
	case !r.Asked:
		return ""
	case len(r.Lacks) == 0:
		return "ready"
	}
	return "not_ready"
}

func shortfalls(r site.Ready) []*forgeyardv1.Shortfall {
	var out []*forgeyardv1.Shortfall
	for _, s := range r.Lacks {
		out = append(out, &forgeyardv1.Shortfall{Node: s.Node, What: string(s.What), Detail: s.Detail})
	}
	return out
}

// ListLeases lists the live leases, and with all the last one of every open job.
func (s jobService) ListLeases(_ context.Context, r *connect.Request[forgeyardv1.ListLeasesRequest]) (*connect.Response[forgeyardv1.ListLeasesResponse], error) {
	st := s.n.Site()
	out := &forgeyardv1.ListLeasesResponse{}
	for id := range st.Open.All() {
		if j, _ := st.Jobs.Get(id); j.Lease.Live() || (r.Msg.All && j.Lease.State != "") {
			out.Leases = append(out.Leases, Lease(st, j))
		}
	}
	return connect.NewResponse(out), nil
}

// RevokeLease takes a lease from its holder.
func (s jobService) RevokeLease(ctx context.Context, r *connect.Request[forgeyardv1.RevokeLeaseRequest]) (*connect.Response[forgeyardv1.Lease], error) {
	if strings.TrimSpace(r.Msg.Reason) == "" {
		return nil, forgeyard.Errorf("lease revoke", forgeyard.Invalid, "the reason is empty").WithHint("say why: it stands in the site's events")
	}
	j, err := lookUp(ctx, s.n, r.Msg.Lease, findLease)
	if err != nil {
		return nil, err
	}
	class := site.RevokedByOperator
	if r.Msg.Security {
		class = site.RevokedSecurity
	}
	if _, err := propose(ctx, s.n, site.Revoke{Job: j.ID, Lease: j.Lease.Authority.Lease, Class: class, Reason: forgeyard.Clip(r.Msg.Reason, 200)}); err != nil {
		return nil, err
	}
	st := s.n.Site()
	j, _ = st.Jobs.Get(j.ID)
	return connect.NewResponse(Lease(st, j)), nil
}

// findLease finds a job by what people type for its lease, or for itself.
func findLease(s *site.State, word string) (site.Job, error) {
	w := strings.ToUpper(strings.TrimSpace(word))
	var found []site.Job
	for id := range s.Open.All() {
		if j, _ := s.Jobs.Get(id); len(w) >= 4 && strings.HasSuffix(string(j.Lease.Authority.Lease), w) {
			found = append(found, j)
		}
	}
	switch len(found) {
	case 0:
		return findJob(s, word)
	case 1:
		return found[0], nil
	}
	return site.Job{}, forgeyard.Errorf("lease", forgeyard.Conflict, "%q names %d leases", w, len(found)).WithHint("give more of its letters")
}
