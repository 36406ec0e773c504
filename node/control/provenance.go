package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/site/provenance"
)

// Provenance signs what the log has of a job. It is withheld from addresses that only show: to
// sign in this node's name is the account's.
func (s jobService) Provenance(ctx context.Context, r *connect.Request[forgeyardv1.ProvenanceRequest]) (*connect.Response[forgeyardv1.ProvenanceResponse], error) {
	if _, err := s.n.Current(ctx); err != nil {
		return nil, forgeyard.Errorf("job provenance", forgeyard.Unavailable, "this node's copy of the log may be behind, and it signs nothing that may be old: %v", err).WithHint("ask another node, or look at this one: forgeyard-node doctor")
	}
	j, err := lookUp(ctx, s.n, r.Msg.JobId, findJob)
	if err != nil {
		return nil, err
	}
	st := s.n.Site()
	j, _ = st.Jobs.Get(j.ID)
	payload := provenance.Of(st, j).Payload()
	keyID, sig, err := s.n.SignEnvelope(provenance.PAE(payload))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.ProvenanceResponse{Envelope: provenance.Sealed(payload, keyID, sig)}), nil
}

// JudgeProvenance says whether a member of this site signed an envelope, and whether the log has
// it otherwise. Of a job that the log does not know only the signature is judged, and Why says so.
func (s jobService) JudgeProvenance(ctx context.Context, r *connect.Request[forgeyardv1.JudgeProvenanceRequest]) (*connect.Response[forgeyardv1.JudgeProvenanceResponse], error) {
	o, err := provenance.Open(r.Msg.Envelope, s.n.CheckEnvelope)
	if err != nil {
		return connect.NewResponse(&forgeyardv1.JudgeProvenanceResponse{Why: err.Error()}), nil
	}
	if _, err := s.n.Current(ctx); err != nil {
		return nil, forgeyard.Errorf("job provenance", forgeyard.Unavailable, "this node's copy of the log may be behind, and would take what is true for false: %v", err).WithHint("ask another node, or look at this one: forgeyard-node doctor")
	}
	st := s.n.Site()
	out := &forgeyardv1.JudgeProvenanceResponse{JobId: string(o.Statement.Job()), Statement: o.Payload}
	m, ok := memberOfKey(st, o.KeyID)
	switch {
	case !ok:
		out.Why = "the key " + o.KeyID + " is of no member of this site"
	case m.Removed || m.Waiting:
		out.Why = m.Name + " is no member that is trusted: it was removed, or waits for approval"
	default:
		out.Why = provenance.Contradicts(st, o.Statement)
	}
	out.Signer, out.SignerId, out.Trusted = m.Name, string(m.Runner), out.Why == ""
	if _, known := st.Jobs.Get(o.Statement.Job()); out.Trusted && !known {
		out.Why = "the log does not know this job, or not any more: nothing but the signature was compared"
	}
	return connect.NewResponse(out), nil
}

// memberOfKey is the member whose peer id that is: one that left and came back with its key is
// the one that is here.
func memberOfKey(s *site.State, peer string) (found site.Member, ok bool) {
	for _, m := range s.Members.All() {
		if m.Peer == peer && (!ok || found.Removed) {
			found, ok = m, true
		}
	}
	return found, ok
}
