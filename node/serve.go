package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime/pprof"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/control"
	"github.com/forgeyard/forgeyard-node/node/fitness"
)

// serverAddrs is where this node answers.
type serverAddrs struct{ http, control, cache string }

type servers []*http.Server

// close ends the servers: calls under way get a moment, streams are cut.
func (s servers) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, x := range s {
		if err := x.Shutdown(ctx); err != nil {
			_ = x.Close() // Shutdown gave up on streams that follow something; they are cut
		}
	}
}

// listen starts the servers: peers over the mesh, people on the unix socket, and
// loopback HTTP.
func (n *Node) listen(ctx context.Context, g *errgroup.Group) (servers, error) {
	peerMux := http.NewServeMux()
	peerMux.Handle(forgeyardv1connect.NewPeerServiceHandler(peerService{n}, connect.WithInterceptors(wire.Interceptor{}, connect.UnaryInterceptorFunc(n.ownLineage)), connect.WithReadMaxBytes(4<<20)))
	overMesh, err := n.mesh.Listen(mesh.ProtoRPC, mesh.ClassMember)
	if err != nil {
		return nil, err
	}
	unixL, err := n.listenUnix(n.dir.join(fileControl))
	if err != nil {
		return nil, err
	}
	httpL, err := listenLoopback(n.settings().HTTP)
	if err != nil {
		return nil, errors.Join(err, unixL.Close())
	}
	cacheL, cacheH, err := n.listenCache()
	if err != nil {
		return nil, errors.Join(err, unixL.Close(), closeListener(httpL))
	}
	n.mu.Lock()
	n.servers = serverAddrs{control: n.dir.join(fileControl)}
	if cacheL != nil {
		n.servers.cache = cacheL.Addr().String()
	}
	if httpL != nil {
		n.servers.http = httpL.Addr().String()
	}
	n.mu.Unlock()
	all := servers{}
	start := func(s *http.Server, l net.Listener) {
		s.BaseContext = func(net.Listener) context.Context { return ctx }
		all = append(all, s)
		g.Go(func() error {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return forgeyard.E("serve", forgeyard.Unavailable, err)
			}
			return nil
		})
	}
	start(mesh.HTTPServer(peerMux), overMesh)
	start(plainServer(withDebug(n.withHealth(control.Handler(n, control.Full)))), unixL)
	if httpL != nil {
		start(plainServer(onlyLoopback(n.withHealth(control.Handler(n, control.ReadOnly)))), httpL)
	}
	if cacheL != nil {
		start(plainServer(cacheH), cacheL)
	}
	n.mesh.ServeJoin(n.admit)
	return all, nil
}

func closeListener(l net.Listener) error {
	if l == nil {
		return nil
	}
	return l.Close()
}

// plainServer speaks HTTP/1 and unencrypted HTTP/2, which streams both ways.
func plainServer(h http.Handler) *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{Handler: h, Protocols: &p, ReadHeaderTimeout: 10 * time.Second}
}

// listenUnix opens the control socket for this account alone. A socket that a killed
// process left is replaced: the data dir's lock says that it is dead.
func (n *Node) listenUnix(path string) (net.Listener, error) {
	if err := removeFile(path); err != nil {
		return nil, err
	}
	l, err := n.platform().ListenPrivate(path)
	if err != nil {
		return nil, forgeyard.E("control socket", forgeyard.Unavailable, err).WithHint("a path of a unix socket has at most 107 bytes: choose a shorter --data-dir")
	}
	return l, nil
}

// listenLoopback opens the HTTP address. Anything but loopback needs tokens with roles,
// which this version does not have, so it is refused rather than left open.
func listenLoopback(addr string) (net.Listener, error) {
	if addr == "" || addr == "off" {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, forgeyard.Errorf("http", forgeyard.Invalid, "%q is not HOST:PORT", forgeyard.Clip(addr, 80))
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, forgeyard.Errorf("http", forgeyard.Invalid, "%q is not a loopback address: this version has no tokens for callers from elsewhere", forgeyard.Clip(addr, 80)).
			WithHint("use 127.0.0.1:PORT, and reach it through ssh")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, forgeyard.E("http", forgeyard.Conflict, err).WithHint("choose another with --http, port 0 takes a free one")
	}
	return l, nil
}

// onlyLoopback refuses requests that a web page made under another name, so that no
// site a person visits can drive the node (DNS rebinding).
func onlyLoopback(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		ip := net.ParseIP(host)
		if host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "only loopback names are answered", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// withHealth adds the plain endpoints.
func (n *Node) withHealth(api http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.Handle("/metrics", promhttp.HandlerFor(n.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		h := n.health(r.Context())
		if h.Status == string(fitness.Unhealthy) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		writeLine(w, h.Status)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if s := n.State(); s != StateOnline && s != StateDraining {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		writeLine(w, n.State())
	})
	return mux
}

// withDebug shows what goroutines do to the daemon's own account. Calls stand there without
// their arguments, which may be anything.
func withDebug(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("/debug/goroutines", func(w http.ResponseWriter, _ *http.Request) {
		_ = pprof.Lookup("goroutine").WriteTo(w, 1) // the caller has gone; there is nobody to tell
	})
	return mux
}

func writeLine(w http.ResponseWriter, s string) {
	_, _ = w.Write([]byte(s + "\n")) // the caller has gone; there is nobody to tell
}
