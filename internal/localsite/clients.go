package localsite

import (
	"context"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
)

// callTimeout bounds one question; a daemon that is starting does not answer, and one
// without a quorum says so after a second and a half.
const callTimeout = 10 * time.Second

// API is a node's control API.
type API struct {
	Node    forgeyardv1connect.NodeServiceClient
	Site    forgeyardv1connect.SiteServiceClient
	Job     forgeyardv1connect.JobServiceClient
	Run     forgeyardv1connect.RunServiceClient
	Content forgeyardv1connect.ContentServiceClient
	Device  forgeyardv1connect.DeviceServiceClient
	Uplink  forgeyardv1connect.UplinkServiceClient
}

// CentralAPI is the central daemon's.
type CentralAPI = forgeyardv1connect.CentralServiceClient

const base = "http://localhost"

func newAPI(socket string) API {
	h, o := overUnix(socket), connect.WithInterceptors(wire.Interceptor{})
	return API{
		Node: forgeyardv1connect.NewNodeServiceClient(h, base, o), Site: forgeyardv1connect.NewSiteServiceClient(h, base, o),
		Job: forgeyardv1connect.NewJobServiceClient(h, base, o), Run: forgeyardv1connect.NewRunServiceClient(h, base, o),
		Content: forgeyardv1connect.NewContentServiceClient(h, base, o), Device: forgeyardv1connect.NewDeviceServiceClient(h, base, o),
		Uplink: forgeyardv1connect.NewUplinkServiceClient(h, base, o),
	}
}

func newCentralAPI(socket string) CentralAPI {
	return forgeyardv1connect.NewCentralServiceClient(overUnix(socket), base, connect.WithInterceptors(wire.Interceptor{}))
}

// overUnix speaks HTTP/2 without encryption, which streams both ways.
func overUnix(socket string) *http.Client {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: &p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
}

func call[Q, R any](ctx context.Context, f func(context.Context, *connect.Request[Q]) (*connect.Response[R], error), q *Q) (*R, error) {
	out, err := f(ctx, connect.NewRequest(q))
	if err != nil {
		return nil, err
	}
	return out.Msg, nil
}
