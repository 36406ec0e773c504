// Package grpcapi speaks the remote execution API's caching half for a build cache:
// Capabilities, ContentAddressableStorage, ByteStream and ActionCache. Nothing is executed.
//
// It decides how the API's words map to a cacheapi.Cache, and which gRPC code each refusal
// has:
//
//	INVALID_ARGUMENT     a digest, name, offset or size that cannot be, or bytes that are not theirs
//	NOT_FOUND            content or a result that is nowhere, or a result whose closure is not
//	FAILED_PRECONDITION  a result that names what is not here, with a MISSING violation for each blob
//	RESOURCE_EXHAUSTED   no disk, or a bound
//	ABORTED              another stream is writing that upload
//	UNAUTHENTICATED      no token, or one that is none; PERMISSION_DENIED: a token without the right
//
// The messages are the API's own; the protocol is served by Connect, over the same port as
// plain HTTP.
package grpcapi

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	semver "github.com/bazelbuild/remote-apis/build/bazel/semver"
	bspb "google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

// Server answers the API's calls.
type Server struct {
	cache  *cacheapi.Cache
	tokens cacheapi.Tokens
}

// The services and their calls. Execution is not among them.
const (
	casService  = "/build.bazel.remote.execution.v2.ContentAddressableStorage/"
	acService   = "/build.bazel.remote.execution.v2.ActionCache/"
	capService  = "/build.bazel.remote.execution.v2.Capabilities/"
	byteService = "/google.bytestream.ByteStream/"
)

// Prefixes are the paths of the services, for whoever shares the port.
var Prefixes = []string{casService, acService, capService, byteService}

// New returns the handler of all four services.
func New(cache *cacheapi.Cache, tokens cacheapi.Tokens) http.Handler {
	s := &Server{cache: cache, tokens: tokens}
	mux := http.NewServeMux()
	unary(mux, capService+"GetCapabilities", cacheapi.MayRead, s, s.capabilities)
	unary(mux, casService+"FindMissingBlobs", cacheapi.MayRead, s, s.findMissing)
	unary(mux, casService+"BatchUpdateBlobs", cacheapi.MayWrite, s, s.batchUpdate)
	unary(mux, casService+"BatchReadBlobs", cacheapi.MayRead, s, s.batchRead)
	unary(mux, acService+"GetActionResult", cacheapi.MayRead, s, s.getResult)
	unary(mux, acService+"UpdateActionResult", cacheapi.MayWrite, s, s.updateResult)
	unary(mux, byteService+"QueryWriteStatus", cacheapi.MayWrite, s, s.writeStatus)
	path := casService + "GetTree"
	mux.Handle(path, connect.NewServerStreamHandler(path, func(ctx context.Context, r *connect.Request[repb.GetTreeRequest], out *connect.ServerStream[repb.GetTreeResponse]) error {
		return after(s, r.Header(), cacheapi.MayRead, func() error { return s.getTree(ctx, r.Msg, out) })
	}, options...))
	path = byteService + "Read"
	mux.Handle(path, connect.NewServerStreamHandler(path, func(ctx context.Context, r *connect.Request[bspb.ReadRequest], out *connect.ServerStream[bspb.ReadResponse]) error {
		return after(s, r.Header(), cacheapi.MayRead, func() error { return s.read(ctx, r.Msg, out) })
	}, options...))
	path = byteService + "Write"
	mux.Handle(path, connect.NewClientStreamHandler(path, func(ctx context.Context, in *connect.ClientStream[bspb.WriteRequest]) (*connect.Response[bspb.WriteResponse], error) {
		var out *bspb.WriteResponse
		err := after(s, in.RequestHeader(), cacheapi.MayWrite, func() (err error) {
			out, err = s.write(ctx, in)
			return err
		})
		if err != nil {
			return nil, err
		}
		return connect.NewResponse(out), nil
	}, options...))
	return mux
}

var options = []connect.HandlerOption{connect.WithReadMaxBytes(cacheapi.MaxMessage)}

// unary registers a call, and with it the right that it needs.
func unary[In, Out any](mux *http.ServeMux, path string, needs cacheapi.Right, s *Server, f func(context.Context, *In, cacheapi.Right) (*Out, error)) {
	mux.Handle(path, connect.NewUnaryHandler(path, func(ctx context.Context, r *connect.Request[In]) (*connect.Response[Out], error) {
		var out *Out
		err := after(s, r.Header(), needs, func() (err error) {
			has, _ := s.tokens.Judge(r.Header().Get("Authorization"))
			out, err = f(ctx, r.Msg, has)
			return err
		})
		if err != nil {
			return nil, err
		}
		return connect.NewResponse(out), nil
	}, options...))
}

// after runs f when the caller may, and puts what it says into the API's words.
func after(s *Server, h http.Header, needs cacheapi.Right, f func() error) error {
	if err := s.may(h, needs); err != nil {
		return err
	}
	return toWire(f())
}

// may says why a caller may not, or nil.
func (s *Server) may(h http.Header, needs cacheapi.Right) error {
	has, wrong := s.tokens.Judge(h.Get("Authorization"))
	switch {
	case wrong:
		return connect.NewError(connect.CodeUnauthenticated, errors.New("the authorization header holds no token of this cache"))
	case has >= needs:
		return nil
	case h.Get("Authorization") == "":
		return connect.NewError(connect.CodeUnauthenticated, errors.New("this call needs a token: authorization: Bearer TOKEN; `forgeyard-node cache token` on the node prints it"))
	}
	return connect.NewError(connect.CodePermissionDenied, errors.New("this token may read; writing needs another: `forgeyard-node cache token` on the node prints it"))
}

// toWire gives an error its code, and a result that cannot be stored the list of what it lacks.
func toWire(err error) error {
	if err == nil {
		return nil
	}
	out := wire.ToConnect(err)
	var missing *cacheapi.Missing
	var c *connect.Error
	if errors.As(err, &missing) && errors.As(out, &c) {
		fail := &errdetails.PreconditionFailure{}
		for _, id := range missing.IDs[:min(len(missing.IDs), maxViolations)] {
			fail.Violations = append(fail.Violations, &errdetails.PreconditionFailure_Violation{Type: "MISSING", Subject: subject(id)})
		}
		if d, derr := connect.NewErrorDetail(fail); derr == nil {
			c.AddDetail(d)
		}
	}
	return out
}

// maxViolations keeps an error within the trailers that clients take.
const maxViolations = 64

func subject(id cacheapi.ID) string {
	d := digestOf(id)
	return "blobs/" + d.Hash + "/" + itoa(d.SizeBytes)
}

// statusOf is an error of one blob in a batch.
func statusOf(err error) *rpcstatus.Status {
	if err == nil {
		return &rpcstatus.Status{}
	}
	return &rpcstatus.Status{Code: int32(connect.CodeOf(toWire(err))), Message: err.Error()}
}

// capabilities says what this cache speaks. Who may not write is told so.
func (s *Server) capabilities(_ context.Context, r *repb.GetCapabilitiesRequest, has cacheapi.Right) (*repb.ServerCapabilities, error) {
	if err := cacheapi.CheckInstance(r.InstanceName); err != nil {
		return nil, err
	}
	return &repb.ServerCapabilities{
		CacheCapabilities: &repb.CacheCapabilities{
			DigestFunctions:               []repb.DigestFunction_Value{repb.DigestFunction_SHA256, repb.DigestFunction_BLAKE3},
			ActionCacheUpdateCapabilities: &repb.ActionCacheUpdateCapabilities{UpdateEnabled: has == cacheapi.MayWrite},
			MaxBatchTotalSizeBytes:        cacheapi.MaxBatchBytes,
			SymlinkAbsolutePathStrategy:   repb.SymlinkAbsolutePathStrategy_ALLOWED,
			SupportedCompressors:          []repb.Compressor_Value{repb.Compressor_ZSTD},
			MaxCasBlobSizeBytes:           cas.MaxBlobSize,

			SupportedBatchUpdateCompressors: []repb.Compressor_Value{repb.Compressor_ZSTD},
		},
		LowApiVersion:  &semver.SemVer{Major: 2},
		HighApiVersion: &semver.SemVer{Major: 2, Minor: 3},
	}, nil
}

// function turns the API's word; unset means SHA-256, as the API infers from 64 digits.
func function(v repb.DigestFunction_Value) (cacheapi.Function, error) {
	switch v {
	case repb.DigestFunction_UNKNOWN, repb.DigestFunction_SHA256:
		return cacheapi.SHA256, nil
	case repb.DigestFunction_BLAKE3:
		return cacheapi.BLAKE3, nil
	}
	return 0, forgeyard.Errorf("digest", forgeyard.Invalid, "digest function %v: SHA256 and BLAKE3 are spoken here", v)
}

// ask checks what most requests begin with.
func ask(instance string, v repb.DigestFunction_Value) (cacheapi.Function, error) {
	if err := cacheapi.CheckInstance(instance); err != nil {
		return 0, err
	}
	return function(v)
}

func idOf(f cacheapi.Function, d *repb.Digest) (cacheapi.ID, error) {
	if d == nil {
		return cacheapi.ID{}, forgeyard.Errorf("digest", forgeyard.Invalid, "it is not set")
	}
	return cacheapi.ParseID(f, d.Hash, d.SizeBytes)
}
