package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/executor/keeper"
	"github.com/forgeyard/forgeyard-node/node/fitness"
	"github.com/forgeyard/forgeyard-node/node/secrets"
)

// Outcomes of one check.
const (
	checkOK   = string(fitness.OK)
	checkWarn = string(fitness.Warn)
	checkFail = string(fitness.Fail)
)

// health runs the checks, and takes those that keep work away as they were found last: it waits
// for no disk longer than askedWithin. Package fitness says what they come to.
func (n *Node) health(ctx context.Context) *forgeyardv1.Health {
	disks, answered := n.diskChecks(ctx)
	own, looked := n.selfChecks.shown(n.clock.Now(), answered)
	h := &forgeyardv1.Health{Checks: slices.Concat(own, []*forgeyardv1.Health_Check{looked}, disks)}
	h.Checks = append(h.Checks,
		n.checkScrub(), n.checkLayers(), n.checkSandbox(), n.checkToolchains(ctx), n.checkAccount(), n.checkUsers(), n.checkPressure(), checkTrees(n.stuckTrees(), n.clock.Now()),
		n.checkDevices(), n.checkQuorum(ctx), n.checkLink(), n.checkGossip(), n.checkBacklog(),
		n.checkPeers(), n.checkExchange(), n.checkUplink(), n.checkReadiness(), n.checkBuildCache(), n.checkSettings(), n.checkVoters(), n.checkApproval(), n.checkIdentity(), n.checkLogFormat(),
	)
	h.Status = string(fitness.Of(findings(h.Checks)))
	return h
}

func check(name string) *forgeyardv1.Health_Check {
	return &forgeyardv1.Health_Check{Name: name, Status: checkOK}
}

func (n *Node) checkDisk() *forgeyardv1.Health_Check {
	c := check("disk")
	free, err := n.platform().Free(n.dir.path)
	switch {
	case err != nil:
		c.Status, c.Detail, c.Fix = checkFail, err.Error(), "look at the disk, and at how it is mounted: dmesg, findmnt"
	case free < minFreeDisk:
		c.Status, c.Detail = checkFail, fmt.Sprintf("%d MiB are free at %s, below %d MiB no work is taken", free>>20, n.dir.path, int64(minFreeDisk)>>20)
		c.Fix = "free space there, or run: forgeyard-node cas gc"
	default:
		c.Detail = fmt.Sprintf("%d MiB are free at %s", free>>20, n.dir.path)
	}
	return c
}

// checkSecrets says which secrets of node.yaml cannot be given.
func (n *Node) checkSecrets() *forgeyardv1.Health_Check {
	c := check("secrets")
	files := n.settings().Secrets
	var bad []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := secrets.Files(files).Has(name); err != nil {
			bad = append(bad, err.Error())
		}
	}
	c.Detail = fmt.Sprintf("%d files of node.yaml can be given", len(files))
	if len(bad) > 0 {
		c.Status, c.Detail = checkWarn, strings.Join(bad, "; ")
		c.Fix = "give each its file, of mode 0600 and the daemon's user, or take it out of secrets in node.yaml; until then jobs that ask for it go elsewhere"
	}
	return c
}

// checkAccount says whose rights the daemon has, and what follows.
func (n *Node) checkAccount() *forgeyardv1.Health_Check {
	c := check("account")
	switch uid := os.Geteuid(); {
	case uid < 0:
		c.Detail = "this platform has no users by number"
	case uid == 0:
		c.Detail = "root, privileged: it makes namespaces and control groups, and ends work of other users; what runs for jobs has none of it"
	default:
		c.Detail = fmt.Sprintf("user %d, not privileged: bounds hold where control groups are delegated to it, and work that asks for others goes elsewhere", uid)
	}
	return c
}

// checkUsers says whether jobs are walled off from each other by users of their own.
func (n *Node) checkUsers() *forgeyardv1.Health_Check {
	c := check("users")
	uid := n.settings().Process.UID
	first, count := n.users.Range()
	switch {
	case n.users == nil:
		c.Detail = "the daemon is not root: sandboxes run as its own user, and nothing else does"
	case n.executors[job.SandboxProcess] != nil && uid != 0:
		c.Status, c.Detail = checkWarn, fmt.Sprintf("all process jobs run as user %d and can read each other's memory and files", uid)
		c.Fix = "remove process.uid from node.yaml, or trust all jobs of this node alike"
	case !n.users.Apart():
		c.Status, c.Detail = checkWarn, fmt.Sprintf("all jobs run as user %d: there is no range of users here", first)
		c.Fix = "give this container more user numbers, or set users.first and users.count in node.yaml"
	case n.users.Lent() > count*9/10:
		c.Status, c.Detail = checkWarn, fmt.Sprintf("%d of the %d users from %d on are lent", n.users.Lent(), count, first)
		c.Fix = "look for jobs that do not end, or raise users.count in node.yaml"
	default:
		c.Detail = fmt.Sprintf("each job has a user of its own: %d of the %d from %d on are lent", n.users.Lent(), count, first)
	}
	return c
}

// checkStore tries out where objects are written. It goes through none of them: how long that
// takes says nothing of whether the disk answers.
func (n *Node) checkStore() *forgeyardv1.Health_Check {
	c := check("store")
	u := n.store.Holds()
	c.Detail = fmt.Sprintf("%d objects, %d MiB", u.Objects, u.Bytes>>20)
	if u.Limit > 0 && u.Bytes > u.Limit*9/10 {
		c.Status, c.Detail, c.Fix = checkWarn, fmt.Sprintf("%d of %d MiB are used", u.Bytes>>20, u.Limit>>20), "run: forgeyard-node cas gc, or raise cas.limit in node.yaml"
	}
	return sayWrite(c, tryWrite(n.dir.join(dirCAS, "tmp")))
}

// checkLayers looks at the trees that are kept for reuse.
func (n *Node) checkLayers() *forgeyardv1.Health_Check {
	c := check("layers")
	if n.layers == nil {
		c.Detail = "no tree is kept for reuse here"
		return c
	}
	s := n.layers.Stats()
	c.Detail = fmt.Sprintf("%d trees, %d of %d MiB, %d in use", s.Layers, s.Bytes>>20, s.MaxBytes>>20, s.Leased)
	if s.Wrong > 0 {
		c.Status = checkWarn
		c.Detail += fmt.Sprintf("; %d times one was not what it was made as, and was made anew", s.Wrong)
		c.Fix = "find out who writes to " + n.dir.join(dirLayers) + "; if nobody does, look at the disk"
	}
	return c
}

func (n *Node) checkSandbox() *forgeyardv1.Health_Check {
	c := check("sandbox")
	caps := n.capsNow()
	if len(caps.Sandboxes) == 0 {
		c.Status, c.Detail = checkWarn, "no sandbox works here, so this node runs nothing"
		c.Fix = "install bubblewrap (Debian: apt-get install bubblewrap), or list `process` under executors in node.yaml"
		return c
	}
	for _, s := range caps.Sandboxes {
		c.Detail += fmt.Sprintf("%s %s %v ", s.Kind, s.Version, s.Limits)
	}
	return c
}

// checkKeeper looks at who ends work whose lease is over when this process cannot.
func (n *Node) checkKeeper(ctx context.Context) *forgeyardv1.Health_Check {
	c := check("keeper")
	if n.keeper == nil {
		c.Detail = "nothing is run here, so no deadline is held"
		if len(n.executors) > 0 {
			c.Status, c.Detail = checkWarn, "deadlines are held by this process alone: one that is stopped lets its work run on"
			c.Fix = "run forgeyard-node itself, on Linux with /proc"
		}
		return c
	}
	h := n.keeper.Health(ctx)
	if h.Err == nil {
		n.keeperMissed = 0
	} else {
		n.keeperMissed++
	}
	return judgeKeeper(h, n.keeperMissed)
}

// judgeKeeper warns of one answer that did not come, as on a machine in heavy use or while a new
// keeper is started, and fails when the next one does not come either.
func judgeKeeper(h keeper.Health, missed int) *forgeyardv1.Health_Check {
	c := check("keeper")
	c.Detail = fmt.Sprintf("process %d holds %d deadlines", h.PID, h.Held)
	if h.Restarts > 0 {
		c.Detail += fmt.Sprintf("; it was replaced %d times", h.Restarts)
	}
	if missed > 0 {
		c.Status, c.Detail = checkWarn, fmt.Sprintf("%s; %d times in a row it did not answer: %v", c.Detail, missed, h.Err)
		if missed > 1 {
			c.Status = checkFail
		}
		c.Fix = "it is started again by itself; if it stays so, look at the log of the node"
	}
	return c
}

func (n *Node) checkQuorum(ctx context.Context) *forgeyardv1.Health_Check {
	c := check("quorum")
	if !n.Quorum(ctx) {
		c.Status, c.Detail = checkFail, "no majority of voters answers: nothing can be decided"
		c.Fix = "bring the missing voters back: forgeyard-node site members shows them"
		return c
	}
	id, _, term := n.group.Leader()
	voters := 0
	for _, m := range n.group.Members() {
		if m.Voter {
			voters++
		}
	}
	c.Detail = fmt.Sprintf("%d voters, term %d, led by %s", voters, term, id)
	if n.membersInSite() == 2 {
		c.Status, c.Detail = checkWarn, c.Detail+"; a site of two nodes stops when its one voter does"
		c.Fix = "add a third node"
	}
	return c
}

// checkLink looks at the way to the leader. One by way of a member holds, and says that a
// link of this machine does not.
func (n *Node) checkLink() *forgeyardv1.Health_Check {
	c := check("link")
	l := n.showLink()
	since := l.SinceAnswer.AsDuration().Round(time.Millisecond)
	switch l.State {
	case string(agent.LinkOnline):
		c.Detail = fmt.Sprintf("%s answered %s ago", l.Member, since)
		if !l.Direct && l.Member != "" {
			c.Status, c.Detail = checkWarn, c.Detail+", passing on what the leader is asked"
			c.Fix = "look at the network between this machine and the leader: forgeyard-node site status names it"
		}
	case linkDisabled:
		c.Status, c.Detail = checkWarn, "the runner is disabled"
		c.Fix = "forgeyard-node runner enable " + n.enrolment.Name
	case string(agent.LinkEnded):
		c.Status, c.Detail, c.Fix = checkFail, "the site wants nothing of this node: "+l.Ended, "look at the log of the node"
	default:
		c.Status, c.Detail = checkFail, fmt.Sprintf("%d calls in a row did not reach the leader: %s", l.Failed, l.Why)
		c.Fix = "it goes on trying; look at the network, and at the voters: forgeyard-node site members"
	}
	return c
}

// backlogLate is how long a result may wait for the site before it is a matter of health.
const backlogLate = 30 * time.Second

func (n *Node) checkBacklog() *forgeyardv1.Health_Check {
	c := check("backlog")
	waiting, oldest := n.backlog.waiting(n.clock.Now())
	c.Detail = fmt.Sprintf("%d results wait for the site", waiting)
	if oldest > backlogLate {
		c.Status, c.Detail = checkWarn, fmt.Sprintf("%s, the oldest for %s", c.Detail, oldest.Round(time.Second))
		c.Fix = "they are on disk and are tried for ever; bring the voters back: forgeyard-node site members"
	}
	return c
}

func (n *Node) checkCredential() *forgeyardv1.Health_Check {
	c := check("credential")
	cred, err := mesh.ParseCredential(n.credential.Load())
	if err != nil {
		c.Status, c.Detail, c.Fix = checkFail, err.Error(), "join again with a new token"
		return c
	}
	sayCredential(c, cred.NotAfter, n.clock.Wall())
	return c
}

// sayCredential warns while a renewal that has not come is still in time.
func sayCredential(c *forgeyardv1.Health_Check, until, now time.Time) {
	left := until.Sub(now)
	c.Detail = fmt.Sprintf("good until %s", until.UTC().Format(time.RFC3339))
	switch {
	case left <= 0:
		c.Status, c.Fix = checkFail, "join again with a new token"
	case left < credentialRenew/2:
		c.Status, c.Fix = checkWarn, "it renews itself when a voter can be reached"
	}
}

// checkClock compares the wall clock with those of members that this node has met (E10).
func (n *Node) checkClock() *forgeyardv1.Health_Check {
	c := check("clock")
	off, of := n.mesh.ClockOff()
	c.Detail = fmt.Sprintf("within %s of the median of %d members", off.Abs().Round(time.Millisecond), of)
	if of == 0 {
		c.Detail = "no other member has said what its clock reads"
	}
	n.mesh.AskClocks(clockTolerance) // for the next look
	against, met := n.mesh.ClockAgainst(clockStops)
	sayClock(c, n.clockDoubt(), against, met)
	return c
}

// clockStops is how far a wall clock may be off before no new work is taken: what is built by
// time stamps, and every record of it, would be wrong by that.
const clockStops = time.Minute

// sayClock doubts this machine's clock when somebody does, and takes it for wrong when most
// members do, and more than one: of two clocks nobody knows which is right.
func sayClock(c *forgeyardv1.Health_Check, doubt string, against, met int) {
	if doubt == "" {
		return
	}
	c.Status, c.Detail, c.Fix = checkWarn, doubt, "set the clock; the node goes on trying, and joins by itself when it is right"
	if against > 1 && 2*against > met {
		c.Status = checkFail
		c.Fix = "set the clock (timedatectl, chronyc makestep); work is taken again within seconds of that"
	}
}

func (n *Node) checkPeers() *forgeyardv1.Health_Check {
	c := check("peers")
	alive, all := 0, 0
	for _, m := range n.Members() {
		if m.State == stateRemoved {
			continue
		}
		all++
		if m.State == string(mesh.StateAlive) {
			alive++
		}
	}
	c.Detail = fmt.Sprintf("%d of %d members are alive", alive, all)
	if alive < all {
		c.Status, c.Fix = checkWarn, "forgeyard-node site members shows who is missing"
	}
	return c
}

func (n *Node) checkUplink() *forgeyardv1.Health_Check {
	c := check("uplink")
	u := n.replica.State().Uplink
	c.Detail = string(u.State)
	if u.Doubt != "" {
		c.Status, c.Detail, c.Fix = checkWarn, u.Doubt, "set the clock, or bring the uplink back"
	}
	return c
}

// checkReadiness says whether the site could go on alone: while it is online there is time
// to mend what it lacks.
func (n *Node) checkReadiness() *forgeyardv1.Health_Check {
	c := check("readiness")
	st := n.replica.State()
	switch {
	case st.Central.Peer == "":
		c.Detail = "the site has no central daemon"
	case !st.Ready.Asked:
		c.Detail = "not looked at yet"
	case len(st.Ready.Lacks) == 0:
		c.Detail = fmt.Sprintf("the site could go on alone for %s", st.Uplink.Terms.Allowance)
	default:
		var all []string
		for _, s := range st.Ready.Lacks {
			all = append(all, s.String())
		}
		c.Status, c.Detail = checkWarn, "the site could not go on alone: "+strings.Join(all, "; ")
		c.Fix = "mend it while the link is up: forgeyard-node uplink status shows what is left of it"
	}
	return c
}

// Doctor implements control.Node.
func (n *Node) Doctor(ctx context.Context) *forgeyardv1.DoctorResponse {
	d := &forgeyardv1.DoctorResponse{Health: n.health(ctx)}
	for _, s := range n.sources() {
		d.Settings = append(d.Settings, &forgeyardv1.Setting{Key: s.Key, Value: s.Value, Source: string(s.Source)})
	}
	return d
}
