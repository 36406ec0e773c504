package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/site"
)

func (s siteService) SetSecret(ctx context.Context, r *connect.Request[forgeyardv1.SetSecretRequest]) (*connect.Response[forgeyardv1.SetSecretResponse], error) {
	b := site.SecretSet{Name: r.Msg.Name, Sealed: r.Msg.Sealed}
	for _, id := range r.Msg.RunnerIds {
		b.For = append(b.For, forgeyard.RunnerID(id))
	}
	_, err := propose(ctx, s.n, b)
	return respond(&forgeyardv1.SetSecretResponse{}, err)
}

func (s siteService) ListSecrets(context.Context, *connect.Request[forgeyardv1.ListSecretsRequest]) (*connect.Response[forgeyardv1.ListSecretsResponse], error) {
	st, out := s.n.Site(), &forgeyardv1.ListSecretsResponse{}
	for _, x := range st.Secrets.All() {
		v := &forgeyardv1.Secret{Name: x.Name, Set: stamp(x.At), By: x.By}
		for _, id := range x.For {
			if m, ok := st.Members.Get(id); ok && !m.Removed {
				v.Nodes = append(v.Nodes, m.Name)
			}
		}
		out.Secrets = append(out.Secrets, v)
	}
	return connect.NewResponse(out), nil
}

func (s siteService) RemoveSecret(ctx context.Context, r *connect.Request[forgeyardv1.RemoveSecretRequest]) (*connect.Response[forgeyardv1.RemoveSecretResponse], error) {
	_, err := propose(ctx, s.n, site.SecretRemove{Name: r.Msg.Name})
	return respond(&forgeyardv1.RemoveSecretResponse{}, err)
}
