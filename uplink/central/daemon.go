package central

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	libpeer "github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// SocketName is the control socket's name in the data dir.
const SocketName = "control.sock"

// Config of a Daemon.
type Config struct {
	// DataDir holds everything: identity, store, content. It is made when missing.
	DataDir string
	// Listen is HOST:PORT of the mesh, TCP and QUIC on the same number; port 0 takes a free one.
	Listen string
	// Name is what sites show to people. Empty: "central".
	Name string
	// Version of the binary, for people.
	Version string
	// Clock and Log: nil means the system's clock, and no log.
	Clock clock.Clock
	Log   *slog.Logger
}

// Daemon is a running central daemon. What is opened first is closed last:
//
//	lock, store, content, mesh, exchange, then the goroutines of Run
type Daemon struct {
	cfg      Config
	lock     *os.File
	store    *Store
	content  *disk.Store
	mesh     *mesh.Mesh
	exchange *peer.Exchange
	access   *access
	fetcher  *fetcher
}

// Open takes the data dir and opens all that is in it. Conflict: another process
// has it, which the error names, or the port is taken.
func Open(cfg Config) (*Daemon, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Name == "" {
		cfg.Name = "central"
	}
	if len(cfg.Name) > uplink.MaxName {
		return nil, forgeyard.Errorf("up", forgeyard.Invalid, "name of %d bytes is over the limit of %d", len(cfg.Name), uplink.MaxName)
	}
	abs, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, forgeyard.E("up", forgeyard.Invalid, err)
	}
	cfg.DataDir = abs
	d := &Daemon{cfg: cfg}
	if err := d.open(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Daemon) open() (err error) {
	if d.lock, err = lockDir(d.cfg.DataDir); err != nil {
		return err
	}
	id, err := mesh.LoadOrCreateIdentity(d.cfg.DataDir)
	if err != nil {
		return err
	}
	if d.store, err = OpenStore(filepath.Join(d.cfg.DataDir, "central.db"), d.cfg.Clock); err != nil {
		return err
	}
	if d.content, err = disk.Open(disk.Config{Dir: filepath.Join(d.cfg.DataDir, "cas"), Log: d.cfg.Log, Clock: d.cfg.Clock}); err != nil {
		return err
	}
	sites, err := d.store.Sites()
	if err != nil {
		return err
	}
	d.access = newAccess(d.cfg.Clock, d.cfg.Log, d.store.OpenTickets, sites)
	peer.RegisterHasher()
	d.mesh, err = mesh.New(mesh.Config{
		Identity: id, Listen: d.cfg.Listen, Authorize: d.access.authorize, Revoked: d.access.revoked, Clock: d.cfg.Clock, Logger: d.cfg.Log,
	})
	if err != nil {
		return err
	}
	d.exchange, err = peer.New(peer.Config{
		Host: d.mesh.HostFor(mesh.ClassSite), Store: d.content, Log: d.cfg.Log, Clock: d.cfg.Clock,
		Dial: d.mesh.Dial, Listen: d.mesh.ListenFor(mesh.ClassSite), Resolve: func(p string) (libpeer.AddrInfo, error) { return holder(p) },
	})
	if err != nil {
		return err
	}
	d.fetcher = newFetcher(d.store, d.content, d.exchange, d.cfg.Clock, d.cfg.Log)
	return nil
}

// Close closes what is open, in reverse. Run must have returned.
func (d *Daemon) Close() error {
	var errs []error
	if d.exchange != nil {
		errs = append(errs, d.exchange.Close())
	}
	if d.mesh != nil {
		errs = append(errs, d.mesh.Close())
	}
	if d.content != nil {
		errs = append(errs, d.content.Close())
	}
	if d.store != nil {
		errs = append(errs, d.store.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	*d = Daemon{}
	return errors.Join(errs...)
}

// PeerID names the daemon on the wire; Addrs are where it listens.
func (d *Daemon) PeerID() string  { return d.mesh.PeerID().String() }
func (d *Daemon) Addrs() []string { return d.mesh.Addrs() }

// Socket is the path of the control socket.
func (d *Daemon) Socket() string { return filepath.Join(d.cfg.DataDir, SocketName) }

// Run serves until ctx ends. ready is called once everything listens.
func (d *Daemon) Run(ctx context.Context, ready func()) error {
	if err := d.releaseInputs(ctx); err != nil {
		return err
	}
	servers, err := d.listen()
	if err != nil {
		return err
	}
	if err := d.store.Note("daemon", "started, version "+d.cfg.Version); err != nil {
		return errors.Join(err, servers.stop())
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range servers {
		g.Go(func() error {
			if err := s.Serve(s.l); !errors.Is(err, http.ErrServerClosed) {
				return forgeyard.E("serve", forgeyard.Other, err)
			}
			return nil
		})
	}
	g.Go(func() error { d.fetcher.run(ctx); return nil })
	g.Go(func() error { d.collect(ctx); return nil })
	g.Go(func() error { <-ctx.Done(); return servers.stop() })
	ready()
	return g.Wait()
}

// server is an HTTP server and where it listens.
type server struct {
	*http.Server
	l net.Listener
}

type servers []server

func (all servers) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	for _, s := range all {
		err := s.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = s.Server.Close() // whoever is cut off asks again
		}
		if errors.Is(err, net.ErrClosed) {
			err = nil
		}
		errs = append(errs, err)
		_ = s.l.Close() // Shutdown has, unless Serve never began
	}
	return errors.Join(errs...)
}

func (d *Daemon) listen() (all servers, err error) {
	dl := &delegation{
		store: d.store, access: d.access, self: d.PeerID(), name: d.cfg.Name, enrols: make(chan struct{}, maxEnrols),
		ended: d.ended, heard: d.fetcher.heard, lacks: d.fetcher.lacks,
	}
	enrol, sync := dl.handlers()
	le, err := d.mesh.Listen(uplink.ProtoEnrol, classVisitor, mesh.ClassSite)
	if err != nil {
		return nil, err
	}
	all = append(all, server{mesh.HTTPServer(enrol), le})
	ls, err := d.mesh.Listen(uplink.ProtoUplink, mesh.ClassSite)
	if err != nil {
		return nil, errors.Join(err, all.stop())
	}
	all = append(all, server{mesh.HTTPServer(sync), ls})
	lc, err := listenSocket(d.Socket())
	if err != nil {
		return nil, errors.Join(err, all.stop())
	}
	_, h := forgeyardv1connect.NewCentralServiceHandler(
		&control{store: d.store, cas: d.content, cfg: d.cfg, self: d.PeerID(), addrs: d.Addrs},
		connect.WithInterceptors(wire.Interceptor{}), connect.WithReadMaxBytes(maxControl))
	return append(all, server{localServer(h), lc}), nil
}

func localServer(h http.Handler) *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{Handler: h, Protocols: &p, ReadHeaderTimeout: 10 * time.Second}
}

// listenSocket binds the control socket. The lock on the data dir says that one left
// by a killed process is nobody's.
func listenSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, forgeyard.E("control socket", kindOfDisk(err), err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, forgeyard.E("control socket", forgeyard.Other, err).WithHint("a socket's path has at most about 100 letters; choose a shorter --data-dir")
	}
	if err := os.Chmod(path, 0o600); err != nil { // the data dir is 0700, so nobody was quicker
		return nil, errors.Join(forgeyard.E("control socket", kindOfDisk(err), err), l.Close())
	}
	return l, nil
}

// ended lets go of a job's inputs and fetches its objects.
func (d *Daemon) ended(j Job) {
	d.fetcher.poke()
	if err := d.content.Unpin(context.Background(), delegationOwner(j.Grant)); err != nil {
		d.cfg.Log.Warn("inputs of an ended job stay pinned until the next start", "grant_id", j.Grant, "error", err)
	}
}

// releaseInputs unpins what a killed process did not come to unpin.
func (d *Daemon) releaseInputs(ctx context.Context) error {
	pins, err := d.content.Pins(ctx)
	if err != nil {
		return err
	}
	for _, p := range pins {
		g, ok := strings.CutPrefix(p.Owner, delegationPrefix)
		if !ok {
			continue
		}
		j, err := d.store.Job(forgeyard.GrantID(g))
		if err != nil && forgeyard.KindOf(err) != forgeyard.NotFound {
			return err
		}
		if err != nil || j.Status.terminal() {
			if err := d.content.Unpin(ctx, p.Owner); err != nil {
				return err
			}
		}
	}
	return nil
}

// collect removes what nothing keeps, now and then.
func (d *Daemon) collect(ctx context.Context) {
	for {
		select {
		case <-d.cfg.Clock.After(collectEvery):
		case <-ctx.Done():
			return
		}
		r, err := d.content.GC(ctx, false)
		if err != nil {
			d.cfg.Log.Warn("collection", "error", err)
			continue
		}
		d.cfg.Log.Info("collection", "removed", r.Removed, "freed", r.Freed)
	}
}

// lockDir makes the data dir and takes its lock, which the kernel frees when the
// process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	if _, err := os.Stat(filepath.Join(dir, "raft")); err == nil {
		return nil, forgeyard.Errorf("data dir", forgeyard.Conflict, "%s is a node's", dir).WithHint("the central daemon needs a folder of its own: --data-dir DIR")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, forgeyard.E("data dir", kindOfDisk(err), err).WithHint("choose another with --data-dir")
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, forgeyard.E("data dir", kindOfDisk(err), err)
	}
	if err := tryLock(f); err != nil {
		who := "another process"
		b := make([]byte, 32)
		n, _ := f.ReadAt(b, 0) // a lock that nobody wrote to is still a lock
		if pid := strings.TrimSpace(string(b[:n])); pid != "" {
			who = "process " + pid
		}
		_ = f.Close() // nothing was written
		return nil, forgeyard.Errorf("data dir", forgeyard.Conflict, "%s is in use by %s", dir, who).WithHint("one daemon a data dir: stop that one, or choose another --data-dir")
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(forgeyard.E("data dir", kindOfDisk(err), fmt.Errorf("lock: %w", err)), f.Close())
	}
	return f, nil
}
