package grpcapi

import (
	"context"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

func (s *Server) getResult(ctx context.Context, r *repb.GetActionResultRequest, _ cacheapi.Right) (*repb.ActionResult, error) {
	f, err := ask(r.InstanceName, r.DigestFunction)
	if err != nil {
		return nil, err
	}
	action, err := idOf(f, r.ActionDigest)
	if err != nil {
		return nil, err
	}
	out, err := s.cache.Result(ctx, cacheapi.ActionKey(r.InstanceName, action), f)
	if err != nil {
		return nil, err
	}
	return out, s.inline(ctx, r, f, out)
}

// inline puts the streams into the answer where the client asked and they are small.
func (s *Server) inline(ctx context.Context, r *repb.GetActionResultRequest, f cacheapi.Function, out *repb.ActionResult) error {
	room := int64(maxInline)
	for _, x := range []struct {
		wanted bool
		digest *repb.Digest
		raw    *[]byte
	}{{r.InlineStdout, out.StdoutDigest, &out.StdoutRaw}, {r.InlineStderr, out.StderrDigest, &out.StderrRaw}} {
		if !x.wanted || x.digest == nil || len(*x.raw) > 0 || x.digest.SizeBytes > room {
			continue
		}
		id, err := idOf(f, x.digest)
		if err != nil {
			return err
		}
		if *x.raw, err = s.cache.Read(ctx, id, room); err != nil {
			return err
		}
		room -= id.Size
	}
	return nil
}

// maxInline keeps an answer well below what clients take in one message.
const maxInline = 512 << 10

func (s *Server) updateResult(ctx context.Context, r *repb.UpdateActionResultRequest, _ cacheapi.Right) (*repb.ActionResult, error) {
	f, err := ask(r.InstanceName, r.DigestFunction)
	if err != nil {
		return nil, err
	}
	action, err := idOf(f, r.ActionDigest)
	if err != nil {
		return nil, err
	}
	if r.ActionResult == nil {
		return nil, forgeyard.Errorf("action result", forgeyard.Invalid, "it is not set")
	}
	if err := s.cache.SetResult(ctx, cacheapi.ActionKey(r.InstanceName, action), f, r.ActionResult); err != nil {
		return nil, err
	}
	return r.ActionResult, nil
}
