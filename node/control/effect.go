package control

import (
	"context"
	"strings"

	"connectrpc.com/connect"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/site"
)

// outsideOf shows the ledger of a job, and its committed steps.
func outsideOf(j site.Job, v *forgeyardv1.Job) {
	for _, e := range j.Effects {
		v.Effects = append(v.Effects, &forgeyardv1.Job_Effect{
			Key: e.Key, Kind: e.Kind, IdempotencyKey: e.Idem, State: string(e.State), Policy: string(j.Spec.Effect(e.Key).Policy), Epoch: e.Epoch, AttemptId: string(e.Attempt),
			Begun: stamp(e.Begun), Ended: stamp(e.Ended), By: e.By, Why: e.Why, Evidence: strings.ToValidUTF8(string(e.Evidence), "\uFFFD"), EvidenceDigest: e.Digest.String(),
		})
	}
	for _, c := range j.Steps {
		v.CommittedSteps = append(v.CommittedSteps, &forgeyardv1.Job_CommittedStep{Name: c.Name, Epoch: c.Epoch, Evidence: c.Evidence.String(), Outputs: Outputs(c.Outputs), At: stamp(c.At)})
	}
}

// ResolveEffect notes a person's word, and shows the job after it.
func (s jobService) ResolveEffect(ctx context.Context, r *connect.Request[forgeyardv1.ResolveEffectRequest]) (*connect.Response[forgeyardv1.Job], error) {
	j, err := lookUp(ctx, s.n, r.Msg.JobId, findJob)
	if err != nil {
		return nil, err
	}
	reply, err := propose(ctx, s.n, site.EffectResolve{Job: j.ID, Key: r.Msg.Key, State: site.EffectState(r.Msg.State), Reason: r.Msg.Reason})
	if err == nil {
		err = reply.Err()
	}
	if err != nil {
		return nil, err
	}
	return s.Show(ctx, connect.NewRequest(&forgeyardv1.ShowJobRequest{JobId: string(j.ID)}))
}
