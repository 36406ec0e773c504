package sandbox

import (
	"context"
	"errors"
	"os"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor/sitenet"
)

// gate are the pipes between a sandbox and who starts it: bubblewrap's reports, and for a
// workload on the site's network the one that holds it back until the network is there.
type gate struct {
	status, statusW *os.File
	block, open     *os.File // nil: nothing is held back
}

func newGate(n job.Network) (*gate, error) {
	var g gate
	var err error
	g.status, g.statusW, err = os.Pipe()
	if err == nil && n == job.NetworkSite {
		g.block, g.open, err = os.Pipe()
	}
	if err != nil {
		g.close()
		closeAll(g.inside())
		return nil, forgeyard.E("sandbox", forgeyard.Unavailable, err)
	}
	return &g, nil
}

// inside are the ends that bubblewrap gets, in the order of its arguments.
func (g *gate) inside() []*os.File {
	var fs []*os.File
	for _, f := range []*os.File{g.statusW, g.block} {
		if f != nil {
			fs = append(fs, f)
		}
	}
	return fs
}

// close gives up our ends.
func (g *gate) close() {
	for _, f := range []*os.File{g.status, g.open} {
		if f != nil {
			f.Close()
		}
	}
}

// connect gives a workload that is held back its network, and lets it go. After an error
// nothing is left running.
func (h *handle) connect(ctx context.Context, g *gate, cfg sitenet.Config) error {
	if g.open == nil {
		return nil
	}
	defer g.open.Close()
	select {
	case <-h.born:
	case <-h.done:
		return h.startFailed(ctx)
	case <-ctx.Done():
		return errors.Join(forgeyard.E("sandbox", forgeyard.Interrupted, ctx.Err()), h.end(ctx))
	}
	n, err := sitenet.Attach(h.init, h.PID(), cfg)
	if err != nil {
		return errors.Join(err, h.end(ctx))
	}
	if !h.keep(n) {
		n.Close()
		return h.startFailed(ctx)
	}
	if _, err := g.open.Write([]byte{1}); err != nil {
		return errors.Join(forgeyard.E("sandbox", forgeyard.Unavailable, err), h.end(ctx))
	}
	return nil
}

// keep has the network closed when the workload has ended, unless it has already.
func (h *handle) keep(n *sitenet.Net) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	h.net = n
	return true
}
