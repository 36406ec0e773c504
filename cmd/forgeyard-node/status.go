package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) statusCommand() *cobra.Command {
	return a.Build(cli.Command{
		Use: "status", Short: "Show what this node does, and why it takes no work",
		Example: "  forgeyard-node status\n  forgeyard-node status -o json | jq .not_taking_work", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			s, err := unary(ctx, c.node.Status, &forgeyardv1.NodeStatusRequest{})
			if err != nil {
				return err
			}
			return a.Print(s, func(p *cli.Page) { nodeStatus(p, s) })
		},
	})
}

func nodeStatus(p *cli.Page, s *forgeyardv1.NodeStatus) {
	p.Fact("node", "%s (%s) in site %s", s.Name, s.RunnerId, s.SiteName)
	p.Fact("state", "%s, started %s, pid %d, version %s", s.State, cli.Since(now(), s.Started), s.Pid, s.Version)
	p.Fact("session", "%s", s.SessionId)
	if c := s.Account; c != nil {
		p.Fact("runs as", "%s", accountText(c))
	}
	leader := s.Leader
	if leader == "" {
		leader = "nobody"
	}
	p.Fact("leader", "%s, quorum %s, log applied to %d", leader, cli.Yes(s.Quorum), s.AppliedIndex)
	p.Fact("link", "%s", linkText(s.Link))
	if c := s.GetLink().GetClock(); c != "" {
		p.Fact("clock", "%s", c)
	}
	if b := s.Backlog; b != nil {
		p.Fact("backlog", "%d results wait for the site, the oldest for %s", b.Results, cli.PDur(b.Oldest))
	}
	p.Fact("pressure", "%s", s.Pressure)
	p.Fact("assigned", "%s", assigned(s.Capabilities.GetAssigned()))
	if len(s.NotTakingWork) == 0 {
		p.Fact("work", "takes work")
	}
	if len(s.Reasons) == 0 { // of an older daemon
		for _, why := range s.NotTakingWork {
			p.Fact("work", "takes none: %s", why)
		}
	}
	for _, r := range s.Reasons {
		p.Fact("work", "takes none: %s: %s", r.Word, r.Detail)
	}
	if w := s.Withheld; w != nil {
		p.Fact("cores", "%.1f are withheld from new work: %s", float64(w.MilliCpu)/1000, w.Why)
	}
	if u := s.Cas; u != nil {
		p.Fact("store", "%s in %d objects, %s pinned%s, disk has %s free", cli.Size(u.Bytes), u.Objects, cli.Size(u.Pinned), ofLimit(u.Limit), cli.Size(u.DiskFree))
	}
	p.Fact("spool", "%s", cli.Size(s.SpoolBytes))
	if at := s.Addresses; at != nil {
		p.Fact("mesh", "%s", strings.Join(at.Mesh, " "))
		p.Fact("gossip", "%s", at.Gossip)
		p.Fact("http", "%s", at.Http)
		p.Fact("control", "%s", at.Control)
		if at.CacheApi != "" {
			p.Fact("cache", "%s", at.CacheApi)
		}
	}
	if len(s.ActiveAttempts) > 0 {
		p.Head("running", "JOB", "EPOCH", "PHASE", "LEASE", "LEASE ENDS IN", "PID")
		for _, t := range s.ActiveAttempts {
			p.Row(t.JobId, strconv.FormatUint(t.Epoch, 10), t.Phase, t.LeaseId, cli.PDur(t.DeadlineIn), pid(t.Pid))
		}
	}
	health(p, s.Health, false)
}

// accountText says whose rights the daemon has.
func accountText(c *forgeyardv1.NodeStatus_Account) string {
	if c.Privileged {
		return "root, privileged"
	}
	return fmt.Sprintf("user %d, not privileged", c.Uid)
}

// linkText says how the node reaches the leader.
func linkText(l *forgeyardv1.NodeStatus_Link) string {
	s := l.GetState()
	if m := l.GetMember(); m != "" {
		how := "by way of"
		if l.Direct {
			how = "directly to"
		}
		s += fmt.Sprintf(", %s %s, answered %s ago", how, m, cli.PDur(l.SinceAnswer))
	}
	if l.GetFailed() > 0 {
		s += fmt.Sprintf(", %d calls in a row failed: %s", l.Failed, l.Why)
	}
	return s
}

func pid(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func ofLimit(n int64) string {
	if n == 0 {
		return ""
	}
	return ", limit " + cli.Size(n)
}

// health shows what is not well with its fix, or all checks.
func health(p *cli.Page, h *forgeyardv1.Health, all bool) {
	if h == nil {
		return
	}
	var show []*forgeyardv1.Health_Check
	for _, c := range h.Checks {
		if all || c.Status != "ok" {
			show = append(show, c)
		}
	}
	if len(show) == 0 {
		p.Fact("health", "%s", h.Status)
		return
	}
	p.Head("health: "+h.Status, "CHECK", "STATUS", "DETAIL", "FIX")
	for _, c := range show {
		p.Row(c.Name, c.Status, c.Detail, c.Fix)
	}
}

func (a *app) doctorCommand() *cobra.Command {
	return a.Build(cli.Command{
		Use: "doctor", Short: "Check this node, say what to do, and show each setting with its source",
		Long:    "Check this node, say what to do, and show each effective setting and where it came from. Exits 1 when a check fails.",
		Example: "  forgeyard-node doctor\n  forgeyard-node doctor -o json | jq '.health.checks[] | select(.status != \"ok\")'", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			d, err := unary(ctx, c.node.Doctor, &forgeyardv1.DoctorRequest{})
			if err != nil {
				return err
			}
			err = a.Print(d, func(p *cli.Page) {
				health(p, d.Health, true)
				p.Head("settings", "KEY", "VALUE", "FROM")
				for _, s := range d.Settings {
					p.Row(s.Key, s.Value, s.Source)
				}
			})
			if err == nil && failed(d.Health) {
				return cli.Exit(1)
			}
			return err
		},
	})
}

func failed(h *forgeyardv1.Health) bool {
	for _, c := range h.GetChecks() {
		if c.Status == "fail" {
			return true
		}
	}
	return false
}

func (a *app) capabilitiesCommand() *cobra.Command {
	return a.Build(cli.Command{
		Use: "capabilities", Short: "Show what jobs this node can run",
		Example: "  forgeyard-node capabilities -o json", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			s, err := unary(ctx, c.node.Status, &forgeyardv1.NodeStatusRequest{})
			if err != nil {
				return err
			}
			caps := s.Capabilities
			if caps == nil {
				caps = &forgeyardv1.Capabilities{}
			}
			return a.Print(caps, func(p *cli.Page) { capabilities(p, caps) })
		},
	})
}

func capabilities(p *cli.Page, c *forgeyardv1.Capabilities) {
	p.Fact("platform", "%s/%s", c.Os, c.Arch)
	p.Fact("for jobs", "%g cores, %s memory, %s disk, %d at once", float64(c.MilliCpu)/1000, cli.Size(c.Memory), cli.Size(c.Disk), c.MaxJobs)
	p.Fact("labels", "%s", cli.Labels(c.Labels))
	p.Fact("assigned", "%s", assigned(c.Assigned))
	p.Fact("networks", "%s", cli.Join(c.Networks))
	for _, s := range c.Sandboxes {
		p.Fact("sandbox", "%s %s, bounds %s", s.Kind, s.Version, orDash(cli.Join(s.Limits)))
	}
	for _, t := range c.Toolchains {
		how := "seen"
		switch {
		case t.Warm:
			how = "warm"
		case t.Digest != "":
			how = "made when a job wants it"
		case t.Verified:
			how = "run"
		}
		p.Fact("toolchain", "%s %s (%s, %s)", t.Name, t.Version, t.Source, how)
	}
	for _, d := range c.WarmToolchains {
		p.Fact("toolchain", "%s (store, warm)", d)
	}
	for _, g := range c.Gpus {
		memory := "memory not known"
		if g.Memory > 0 {
			memory = cli.Size(g.Memory)
		}
		p.Fact("gpu", "%s %s at %s (%s, driver %s)", orDash(g.Vendor), g.Model, g.Bus, memory, orDash(g.Driver))
	}
	for _, d := range c.Devices {
		p.Fact("device", "%s %s %s %s", d.Id, d.Kind, d.Serial, cli.Labels(d.Labels))
	}
	p.Fact("digest", "%s", c.Digest)
}

func (a *app) versionCommand() *cobra.Command {
	return a.Build(cli.Command{
		Use: "version", Short: "Show the version of this program", Example: "  forgeyard-node version -o json",
		Run: func(context.Context, []string) error {
			v := map[string]string{"version": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH}
			return a.PrintValue(v, func(p *cli.Page) {
				p.Line("%s %s (%s, %s/%s)", a.Program, version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			})
		},
	})
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
