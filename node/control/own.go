package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// ownWork serves the children of this daemon that carry out ingest and garden runs.
type ownWork struct{ n Node }

func (s ownWork) Task(_ context.Context, r *connect.Request[forgeyardv1.OwnTaskRequest]) (*connect.Response[forgeyardv1.OwnTask], error) {
	t, err := s.n.OwnTask(forgeyard.AttemptID(r.Msg.AttemptId))
	return respond(t, err)
}

func (s ownWork) Report(_ context.Context, r *connect.Request[forgeyardv1.OwnReportRequest]) (*connect.Response[forgeyardv1.OwnReportResponse], error) {
	h := job.Happening{Kind: job.EventMessage, Message: forgeyard.Clip(r.Msg.Message, job.MaxEventMessage)}
	if t := r.Msg.Tool; t != nil {
		h.Kind, h.Tool = job.EventTool, &job.Tool{
			Source: job.ToolSource(t.Source), Name: t.Name, State: job.ToolState(t.State), Count: t.Count, Bytes: t.Bytes, Took: t.Took.AsDuration(), Code: int(t.Code),
		}
	}
	err := h.Check()
	if err == nil {
		err = s.n.OwnReport(forgeyard.AttemptID(r.Msg.AttemptId), h)
	}
	return respond(&forgeyardv1.OwnReportResponse{}, err)
}

func (s ownWork) Verify(ctx context.Context, r *connect.Request[forgeyardv1.OwnVerifyRequest]) (*connect.Response[forgeyardv1.OwnVerifyResponse], error) {
	d, err := forgeyard.ParseDigest(r.Msg.Digest)
	if err != nil {
		return nil, err
	}
	v, err := s.n.OwnVerify(ctx, forgeyard.AttemptID(r.Msg.AttemptId), d, r.Msg.Kind == "tree")
	return respond(v, err)
}

func (s ownWork) Garden(ctx context.Context, r *connect.Request[forgeyardv1.OwnGardenRequest]) (*connect.Response[forgeyardv1.OwnGardenResponse], error) {
	v, err := s.n.OwnGarden(ctx, forgeyard.AttemptID(r.Msg.AttemptId), r.Msg.Action)
	return respond(v, err)
}

func (s contentService) ListNames(_ context.Context, r *connect.Request[forgeyardv1.ListNamesRequest]) (*connect.Response[forgeyardv1.ListNamesResponse], error) {
	out := &forgeyardv1.ListNamesResponse{}
	names := s.n.Site().Names
	if want := r.Msg.Name; want != "" {
		n, ok := names.Get(want)
		if !ok {
			return nil, forgeyard.Errorf("name", forgeyard.NotFound, "no name %q", forgeyard.Clip(want, job.MaxName)).WithHint("forgeyard-node cas name list shows them")
		}
		out.Names = append(out.Names, Name(n))
		return connect.NewResponse(out), nil
	}
	for _, n := range names.All() {
		out.Names = append(out.Names, Name(n))
	}
	return connect.NewResponse(out), nil
}

func (s contentService) RemoveName(ctx context.Context, r *connect.Request[forgeyardv1.RemoveNameRequest]) (*connect.Response[forgeyardv1.RemoveNameResponse], error) {
	_, err := propose(ctx, s.n, site.Unname{Name: r.Msg.Name})
	return respond(&forgeyardv1.RemoveNameResponse{}, err)
}

// Name shows what people call a set of content, and what it pointed at before.
func Name(n site.Name) *forgeyardv1.Name {
	v := &forgeyardv1.Name{Name: n.Name, Set: namedSet(n.NamedSet)}
	for _, e := range n.Earlier {
		v.Earlier = append(v.Earlier, namedSet(e))
	}
	return v
}

func namedSet(s site.NamedSet) *forgeyardv1.NamedSet {
	v := &forgeyardv1.NamedSet{
		Digest: s.Digest.String(), Kind: "blob", Size: s.Size, RunId: string(s.Run), JobId: string(s.Job), Since: stamp(s.At), Until: stamp(s.Until),
	}
	if s.Tree {
		v.Kind = "tree"
	}
	if !s.Manifest.IsZero() {
		v.Manifest = s.Manifest.String()
	}
	return v
}
