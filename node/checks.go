package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
)

// Checks of what an attempt needs of this machine (07§125).

// tried is how the executors did in this process.
type tried struct {
	mu     sync.Mutex // guards all below
	worked map[job.Sandbox]bool
	failed map[job.Sandbox]string // by the last probe
	tools  map[string]bool        // toolchains that were found once
	gone   []string               // of them, what the last probe did not find
}

// probed notes what a probe found.
func (t *tried) probed(c job.Capabilities, failed map[job.Sandbox]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.worked == nil {
		t.worked, t.tools = map[job.Sandbox]bool{}, map[string]bool{}
	}
	for _, s := range c.Sandboxes {
		t.worked[s.Kind] = true
	}
	has := map[string]bool{}
	for _, k := range c.Toolchains {
		has[k.Name], t.tools[k.Name] = true, true
	}
	t.failed, t.gone = failed, nil
	for _, name := range slices.Sorted(maps.Keys(t.tools)) {
		if !has[name] {
			t.gone = append(t.gone, name)
		}
	}
}

// works reports whether an executor worked when it was tried last.
func (t *tried) works(k job.Sandbox) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.worked[k] && t.failed[k] == ""
}

// judgeExecutors says how the executors that were started to try them out did. One that worked
// in this process and does not any more is a matter of this machine; where none is left, nothing
// can be run.
func (t *tried) judgeExecutors() *forgeyardv1.Health_Check {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := check("executors")
	working := 0
	for k := range t.worked {
		if t.failed[k] == "" {
			working++
		}
	}
	var why []string
	for _, k := range slices.Sorted(maps.Keys(t.failed)) {
		how := "does not work here"
		if t.worked[k] {
			how = "worked and does not any more"
		}
		why = append(why, fmt.Sprintf("%s %s: %s", k, how, t.failed[k]))
	}
	c.Detail = fmt.Sprintf("%d were tried out and work", working)
	if len(why) > 0 {
		c.Status, c.Detail = checkWarn, c.Detail+"; "+strings.Join(why, "; ")
		c.Fix = "mend what it says, or take the executor out of executors in node.yaml; it is tried again every minute"
		if working == 0 && len(t.worked) > 0 {
			c.Status = checkFail
		}
	}
	return c
}

func (n *Node) checkExecutors() *forgeyardv1.Health_Check { return n.tried.judgeExecutors() }

// judgeToolchains says what jobs find here, and what they do not find any more.
// lacking are those of the store that nobody has.
func (t *tried) judgeToolchains(all []job.Toolchain, lacking []string) *forgeyardv1.Health_Check {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := check("toolchains")
	c.Detail = fmt.Sprintf("%d can be asked for", len(all))
	if len(t.gone) > 0 {
		c.Status, c.Detail = checkWarn, fmt.Sprintf("%s; %s was here when the daemon began and is not now", c.Detail, strings.Join(t.gone, ", "))
		c.Fix = "bring it back (is a file system not mounted?), or restart the daemon if it was taken away on purpose; until then jobs that ask for it go elsewhere"
	}
	if len(lacking) > 0 {
		c.Status, c.Detail = checkWarn, fmt.Sprintf("%s; the digest that node.yaml has for %s is neither here nor at a member that answers, so jobs that require it wait", c.Detail, strings.Join(lacking, ", "))
		c.Fix = strings.TrimPrefix(c.Fix+"; correct the digest in node.yaml, or put the folder again on any node: forgeyard-node cas put FOLDER", "; ")
	}
	return c
}

// checkToolchains asks the peers for what is not here, and waits for them as for a disk.
func (n *Node) checkToolchains(ctx context.Context) *forgeyardv1.Health_Check {
	ctx, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	lacking, _ := n.lacking.ask(ctx, n.work.Go, func() []string { return n.lackingToolchains(n.running, n.providers(), n.exchange.Ask) })
	return n.tried.judgeToolchains(n.capsNow().Toolchains, lacking)
}

// tryWrite writes a byte into a folder and takes it away again.
func tryWrite(dir string) error {
	name := filepath.Join(dir, ".check")
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{1})
	return errors.Join(err, f.Close(), os.Remove(name))
}

// sayWrite judges a folder that could not be written to. One that is full is the matter of `disk`.
func sayWrite(c *forgeyardv1.Health_Check, err error) *forgeyardv1.Health_Check {
	if err == nil {
		return c
	}
	c.Status, c.Detail = checkFail, "cannot be written to: "+err.Error()
	c.Fix = "look at the disk, and at how it is mounted: dmesg, findmnt; work is taken again as soon as a write succeeds"
	if kindOfIO(err) == forgeyard.NoSpace {
		c.Status, c.Fix = checkWarn, "free space there, or run: forgeyard-node cas gc"
	}
	return c
}

// checkSpool tries out where logs are written.
func (n *Node) checkSpool() *forgeyardv1.Health_Check {
	c := check("spool")
	c.Detail = fmt.Sprintf("%d KiB of logs, each attempt's at most %d MiB", n.spoolBytes()>>10, int64(n.settings().Spool.Limit)>>20)
	return sayWrite(c, tryWrite(n.dir.join(dirSpool)))
}

// raftDisk is how the disk of the site's log did.
type raftDisk struct {
	mu   sync.Mutex // guards all below
	why  string     // what the last trouble was
	at   forgeyard.Instant
	over bool // raft runs again since
}

// raftDiskCalm is how long a disk that failed once is told of.
const raftDiskCalm = 10 * time.Minute

// happened notes what the group says of its disk.
func (d *raftDisk) happened(e consensus.Event, now forgeyard.Instant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch e.Kind {
	case consensus.DiskFull, consensus.DiskHung, consensus.DiskFailed:
		d.why, d.at, d.over = e.Kind.String(), now, false
		if e.Err != nil {
			d.why += ": " + e.Err.Error()
		}
	case consensus.Restarted:
		d.over = true
	}
}

func (d *raftDisk) judge(now forgeyard.Instant) *forgeyardv1.Health_Check {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := check("raft_disk")
	switch {
	case d.why == "" || d.over && now.Sub(d.at) > raftDiskCalm:
		c.Detail = "the site's log is written in time"
	case d.over:
		c.Status, c.Detail = checkWarn, fmt.Sprintf("the site's log could not be written %s ago (%s), and can again", now.Sub(d.at).Round(time.Second), d.why)
		c.Fix = "look at the disk: smartctl, dmesg; other work on it may be too much for it"
	default:
		c.Status, c.Detail = checkFail, fmt.Sprintf("the site's log cannot be written since %s (%s)", now.Sub(d.at).Round(time.Second), d.why)
		c.Fix = "look at the disk: df, smartctl, dmesg; this node takes part again by itself when it answers"
	}
	return c
}

func (n *Node) checkRaftDisk() *forgeyardv1.Health_Check { return n.raftDisk.judge(n.clock.Now()) }

// checkGossip looks whether gossip hears whom the mesh is connected to. Gossip is UDP and TCP on
// a port of its own, which a firewall may have forgotten.
func (n *Node) checkGossip() *forgeyardv1.Health_Check {
	heard := map[forgeyard.RunnerID]bool{}
	for _, m := range n.gossip.Members() {
		heard[m.RunnerID] = m.State == mesh.StateAlive
	}
	var deaf []string
	connected := 0
	for _, p := range n.mesh.Peers() {
		if p.Class != mesh.ClassMember {
			continue
		}
		connected++
		if !heard[p.Runner] {
			deaf = append(deaf, n.memberName(p.Runner))
		}
	}
	return judgeGossip(connected, deaf, n.gossip.Addr())
}

func judgeGossip(connected int, deaf []string, addr string) *forgeyardv1.Health_Check {
	c := check("gossip")
	c.Detail = fmt.Sprintf("on %s; %d members are connected, all of them are heard", addr, connected)
	if len(deaf) > 0 {
		c.Status, c.Detail = checkWarn, fmt.Sprintf("on %s; connected and not heard by gossip: %s", addr, strings.Join(deaf, ", "))
		c.Fix = "open the gossip port for UDP and TCP in both directions (default 7445); members that have just come are heard within seconds"
	}
	return c
}

// checkDevices looks at the supervisor of the devices that are attached here, and at what the
// site thinks of them.
func (n *Node) checkDevices() *forgeyardv1.Health_Check {
	damaged := map[forgeyard.DeviceID]string{}
	for _, d := range n.settings().Devices {
		s, err := n.devices.Status(d.ID)
		switch {
		case err != nil:
			damaged[d.ID] = err.Error()
		case s.Damaged != "":
			damaged[d.ID] = s.Damaged
		}
	}
	return judgeDevices(n.replica.State(), n.enrolment.RunnerID, damaged)
}

func judgeDevices(st *site.State, here forgeyard.RunnerID, damaged map[forgeyard.DeviceID]string) *forgeyardv1.Health_Check {
	c := check("devices")
	var wrong []string
	hosted := 0
	for id, d := range st.Devices.All() {
		if d.Host != here {
			continue
		}
		hosted++
		if why := damaged[id]; why == "" && (d.Presence != devices.Present || d.Quarantine != nil || d.Reason != "") {
			damaged[id] = forgeyard.Clip(fmt.Sprintf("%s %s", d.Presence, d.Reason), 120)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(damaged)) {
		wrong = append(wrong, fmt.Sprintf("%s: %s", id, strings.TrimSpace(damaged[id])))
	}
	c.Detail = fmt.Sprintf("%d devices are hosted here", hosted)
	if len(wrong) > 0 {
		c.Status, c.Detail = checkWarn, c.Detail+"; "+strings.Join(wrong, "; ")
		c.Fix = "look at it with: forgeyard-node device doctor; jobs that ask for it wait"
	}
	return c
}
