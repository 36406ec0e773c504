package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// reloaded is what the last asking for new settings led to (07§220).
type reloaded struct {
	settings sitecfg.Node // that this node goes by
	sources  []sitecfg.Setting
	waiting  []string // keys that the file has changed, which need a restart
	failed   string   // why the file was not taken; empty: it was
	at       time.Time
}

// settings are node.yaml as it is in force. Nobody writes into them.
func (n *Node) settings() sitecfg.Node {
	if r := n.reloaded.Load(); r != nil {
		return r.settings
	}
	return n.cfg.Settings
}

// sources tell where each value came from.
func (n *Node) sources() []sitecfg.Setting {
	if r := n.reloaded.Load(); r != nil {
		return r.sources
	}
	return n.cfg.Sources
}

// allowsHost is what local policy says of the host's network now.
func (n *Node) allowsHost() bool { return n.settings().Policy.Allows(job.NetworkHost) }

// siteNetworks are what it allows of the site's.
func (n *Node) siteNetworks() []netip.Prefix { return n.settings().Policy.Site() }

// reloadLoop reads the settings again whenever it is asked to.
func (n *Node) reloadLoop(ctx context.Context) error {
	if n.cfg.Load == nil {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.cfg.Reload:
			n.reload(ctx)
		}
	}
}

// reload takes over what can be taken over while the node runs (RA-359, RA-360) and names
// what cannot (RA-362). A file that is wrong in any place changes nothing: half of it may be
// what its writer did not mean.
func (n *Node) reload(ctx context.Context) {
	old := n.settings()
	r := reloaded{settings: old, sources: n.sources(), at: n.clock.Wall()}
	if was := n.reloaded.Load(); was != nil {
		r.waiting = was.waiting
	}
	now, from, err := n.cfg.Load()
	var next sitecfg.Node
	if err == nil {
		next, err = sitecfg.TakeOver(old, now)
	}
	if err != nil {
		r.failed = strings.ReplaceAll(err.Error(), "\n", "; ")
		n.reloaded.Store(&r)
		n.metrics.reloads.WithLabelValues("refused").Inc()
		n.log.Error("the settings could not be read, so the old ones stay", "err", r.failed)
		return
	}
	live, waiting := sitecfg.Reload(old, now)
	r.settings, r.sources, r.waiting = next, sitecfg.InForce(next, r.sources, from), waiting
	n.reloaded.Store(&r)
	n.metrics.reloads.WithLabelValues("taken").Inc()
	n.log.Info("settings read again", "taken", orNone(live), "need_restart", orNone(waiting))
	n.apply(ctx, next, live)
}

func orNone(keys []string) string {
	if len(keys) == 0 {
		return "none"
	}
	return strings.Join(keys, " ")
}

// apply gives the new settings to the parts that have their own copy. What is read where it
// is needed, as policy and the shutdown's grace, is in force already. The site learns of
// what this machine offers now at once (RA-114).
func (n *Node) apply(ctx context.Context, s sitecfg.Node, live []string) {
	if len(live) == 0 {
		return
	}
	if n.cfg.Level != nil {
		n.cfg.Level.Set(LevelOf(s.Log))
	}
	n.runner.SetBounds(int64(s.Limits.Reserve.Disk), int64(s.Spool.Limit), int64(s.Spool.PerJob))
	n.store.SetBounds(int64(s.CAS.Limit), int64(s.CAS.Reserve))
	n.scrub.SetPace(s.CAS.ScrubEvery, int64(s.CAS.ScrubRate))
	n.way.repace()
	n.refreshing.Lock() // a look that is under way began with the old settings
	n.lookAgain(ctx)
	n.refreshing.Unlock()
	n.nudge()
}

// LevelOf is a checked log level; an empty one is info.
func LevelOf(c sitecfg.LogConfig) slog.Level {
	var l slog.Level
	if l.UnmarshalText([]byte(c.Level)) != nil {
		return slog.LevelInfo
	}
	return l
}

// checkSettings says whether node.yaml and what is in force are the same.
func (n *Node) checkSettings() *forgeyardv1.Health_Check {
	c := check("settings")
	r := n.reloaded.Load()
	switch {
	case r == nil:
		c.Detail = "as they were at the start"
	case r.failed != "":
		c.Status, c.Detail = checkWarn, fmt.Sprintf("what was read at %s was refused, and what was before stays: %s", r.at.UTC().Format(time.RFC3339), r.failed)
		c.Fix = "mend node.yaml, then send SIGHUP to the daemon again"
	case len(r.waiting) > 0:
		c.Status, c.Detail = checkWarn, "changed in node.yaml and not in force: "+strings.Join(r.waiting, ", ")
		c.Fix = "restart the node when its work allows it: forgeyard-node drain --wait, then stop and start it"
	default:
		c.Detail = "read again at " + r.at.UTC().Format(time.RFC3339)
	}
	return c
}
