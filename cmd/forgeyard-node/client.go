package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// Bounds of a call. One that proposes waits for a majority for some seconds; one
// that moves content may take as long as the content does.
const (
	callTimeout   = 30 * time.Second
	unholdTimeout = 2 * time.Second
	bulkTimeout   = 12 * time.Hour
	probeTimeout  = 2 * time.Second
)

// client is the daemon's API.
type client struct {
	node    forgeyardv1connect.NodeServiceClient
	site    forgeyardv1connect.SiteServiceClient
	job     forgeyardv1connect.JobServiceClient
	ckpt    forgeyardv1connect.CheckpointServiceClient
	run     forgeyardv1connect.RunServiceClient
	content forgeyardv1connect.ContentServiceClient
	bundle  forgeyardv1connect.BundleServiceClient
	own     forgeyardv1connect.OwnWorkServiceClient
	device  forgeyardv1connect.DeviceServiceClient
	uplink  forgeyardv1connect.UplinkServiceClient
	plain   *http.Client // for what is no call
}

// connect finds the daemon: at --addr, else at the control socket of --data-dir,
// else at FORGEYARD_ADDR, else at the control socket of the data dir.
func (a *app) connect(ctx context.Context) (*client, error) {
	addr := a.daemonAddr()
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		if addr != "" {
			return d.DialContext(ctx, "tcp", addr)
		}
		return d.DialContext(ctx, "unix", filepath.Join(a.dir(), "control.sock"))
	}
	if err := a.probe(ctx, addr, dial); err != nil {
		return nil, err
	}
	c := calls{}
	if a.tokenFile != "" {
		b, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return nil, forgeyard.E("token file", fileKind(err), err)
		}
		c.bearer = strings.TrimSpace(string(b))
	}
	return newClient(dial, c), nil
}

// newClient speaks HTTP/2 without encryption: it streams both ways, over the socket
// and over loopback.
func newClient(dial func(context.Context) (net.Conn, error), c calls) *client {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	h := &http.Client{Transport: &http.Transport{
		Protocols: &p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}
	const base = "http://localhost"
	// Uncompressed: the daemon is on this machine, and content would be squeezed for nothing.
	opt := connect.WithClientOptions(connect.WithInterceptors(c, wire.Interceptor{}), connect.WithAcceptCompression("gzip", nil, nil))
	return &client{
		node:    forgeyardv1connect.NewNodeServiceClient(h, base, opt),
		site:    forgeyardv1connect.NewSiteServiceClient(h, base, opt),
		job:     forgeyardv1connect.NewJobServiceClient(h, base, opt),
		ckpt:    forgeyardv1connect.NewCheckpointServiceClient(h, base, opt),
		run:     forgeyardv1connect.NewRunServiceClient(h, base, opt),
		content: forgeyardv1connect.NewContentServiceClient(h, base, opt),
		bundle:  forgeyardv1connect.NewBundleServiceClient(h, base, opt),
		own:     forgeyardv1connect.NewOwnWorkServiceClient(h, base, opt),
		device:  forgeyardv1connect.NewDeviceServiceClient(h, base, opt),
		uplink:  forgeyardv1connect.NewUplinkServiceClient(h, base, opt),
		plain:   h,
	}
}

// probe says in one line that nobody answers, before any command starts its work.
func (a *app) probe(ctx context.Context, addr string, dial func(context.Context) (net.Conn, error)) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := dial(ctx)
	if err == nil {
		return conn.Close()
	}
	if ctx.Err() == context.Canceled {
		return forgeyard.E("connect", forgeyard.Interrupted, ctx.Err())
	}
	if addr != "" {
		return forgeyard.Errorf("connect", forgeyard.Unavailable, "no daemon answers at %s: %v", addr, reason(err)).WithHint("see its `ready:` line for the address of http")
	}
	if errors.Is(err, fs.ErrPermission) {
		return forgeyard.Errorf("connect", forgeyard.Denied, "the control socket in %s belongs to another account", a.dir()).WithHint("run the command as the daemon's account")
	}
	e := forgeyard.Errorf("connect", forgeyard.Unavailable, "no daemon answers in %s", a.dir())
	switch _, serr := os.Stat(filepath.Join(a.dir(), "identity")); {
	case serr != nil:
		return e.WithHint("no node lives there: forgeyard-node up --init --site NAME, or name another with --data-dir")
	default:
		return e.WithHint("start it with: forgeyard-node up --data-dir %s", shellWord(a.dir()))
	}
}

// reason is the innermost cause, which is what a person can act on.
func reason(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

// calls bounds unary calls in time and shows who calls.
type calls struct{ bearer string }

// WrapUnary implements connect.Interceptor.
func (c calls) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if c.bearer != "" {
			r.Header().Set("Authorization", "Bearer "+c.bearer)
		}
		limit := callTimeout
		switch path.Base(r.Spec().Procedure) {
		case "Pin", "GC", "Submit", "Cleanup":
			limit = bulkTimeout
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return next(ctx, r)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (c calls) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, s connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, s)
		if c.bearer != "" {
			conn.RequestHeader().Set("Authorization", "Bearer "+c.bearer)
		}
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (c calls) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// unary makes a request and returns its answer's message.
func unary[Q, R any](ctx context.Context, call func(context.Context, *connect.Request[Q]) (*connect.Response[R], error), q *Q) (*R, error) {
	out, err := call(ctx, connect.NewRequest(q))
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, forgeyard.Errorf("call", forgeyard.Unavailable, "the daemon took the call and does not answer").WithHint("is its process stopped, or the machine overloaded?")
	case err != nil:
		return nil, err
	}
	return out.Msg, nil
}

// fileKind is the kind of an error of a file that a person named.
func fileKind(err error) forgeyard.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return forgeyard.NotFound
	case errors.Is(err, fs.ErrPermission):
		return forgeyard.Denied
	case errors.Is(err, fs.ErrExist):
		return forgeyard.Conflict
	case durable.Full(err):
		return forgeyard.NoSpace
	}
	return forgeyard.Other
}
