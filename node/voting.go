package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/control"
	"github.com/forgeyard/forgeyard-node/site"
)

// voting counts the voters of these members, and how many more of them may be lost before
// the rest is no majority: below zero when it is none already.
func voting(members []*forgeyardv1.Member) (voters, spare int) {
	alive := 0
	for _, m := range members {
		if !m.Voter {
			continue
		}
		voters++
		if m.State == string(mesh.StateAlive) {
			alive++
		}
	}
	return voters, alive - (voters/2 + 1)
}

func (n *Node) checkVoters() *forgeyardv1.Health_Check {
	return judgeVoters(n.Members(), n.replica.State().Config.Voters)
}

// judgeVoters warns of what nobody would choose: a site of three nodes or more whose voters
// survive no loss, or one less than they could. A smaller site is the matter of `quorum`.
func judgeVoters(members []*forgeyardv1.Member, bound int) *forgeyardv1.Health_Check {
	c := check("voters")
	voters, spare := voting(members)
	c.Detail = fmt.Sprintf("%d voters of %d members, bound %d; %d more may be lost", voters, len(members), bound, max(0, spare))
	advice := control.Advice(members, bound)
	if len(advice) > 0 {
		c.Detail += "; " + strings.Join(advice, "; ")
	}
	if len(members) >= 3 && (voters <= 1 || voters%2 == 0) {
		c.Status, c.Fix = checkWarn, "forgeyard-node site members shows who votes; site promote and site demote change it"
	}
	for _, m := range members {
		if m.State == stateRemoved {
			c.Status, c.Fix = checkWarn, "leave it running, and bring the voters back that do not answer"
			c.Detail += fmt.Sprintf("; %s was removed, and its vote still counts", m.Name)
		}
	}
	return c
}

func (n *Node) checkApproval() *forgeyardv1.Health_Check { return judgeApproval(n.replica.State()) }

// judgeApproval names the members that nobody has approved yet.
func judgeApproval(st *site.State) *forgeyardv1.Health_Check {
	c := check("approval")
	var wait []string
	for _, m := range st.Members.All() {
		if m.Waiting && !m.Removed {
			wait = append(wait, m.Name)
		}
	}
	if len(wait) == 0 {
		c.Detail = "nobody waits for approval"
		return c
	}
	slices.Sort(wait)
	c.Status, c.Detail = checkWarn, strings.Join(wait, ", ")+": no work and no vote until a person approves it"
	c.Fix = "on a voter: forgeyard-node runner approve NAME, or forgeyard-node site remove NAME"
	return c
}

func (n *Node) checkIdentity() *forgeyardv1.Health_Check {
	refused, by := n.group.Refusals()
	return n.alone(judgeIdentity(n.enrolment.Name, func(id string) string { return n.memberName(forgeyard.RunnerID(id)) }, refused, by))
}

// alone adds what is known of other processes with the key of a runner: by the leader of
// all, by each of the two of itself.
func (n *Node) alone(c *forgeyardv1.Health_Check) *forgeyardv1.Health_Check {
	var said []string
	if r := n.refusedAs.Load(); r != nil && !r.program {
		said = append(said, r.err.Error())
	}
	if r := n.rival.Load(); r != nil && *r != "" {
		said = append(said, n.enrolment.Name+": "+*r)
	}
	if l := n.leading.Load(); l != nil {
		for id, m := range n.replica.State().Members.All() {
			if w := l.Contested(id); w != "" {
				said = append(said, m.Name+": "+w)
			}
		}
	}
	if len(said) == 0 {
		return c
	}
	if c.Status == checkOK {
		c.Status, c.Detail = checkWarn, ""
		c.Fix = "stop one of the two processes: a data dir belongs to one machine; whoever is to stay besides joins anew with an empty data dir"
	} else {
		said = append([]string{c.Detail}, said...)
	}
	c.Detail = strings.Join(said, "; ")
	return c
}

// judgeIdentity says which processes do not count, since they were started from a copy of a
// node's data dir, or from an old one.
func judgeIdentity(own string, name func(id string) string, refused, by []consensus.Refusal) *forgeyardv1.Health_Check {
	c := check("identity")
	c.Detail = "nobody speaks in the name of another node"
	var said []string
	for _, r := range by {
		said = append(said, fmt.Sprintf("%s refuses this node as a member of the site's log: %s", name(r.Member), r.Verdict))
	}
	for _, r := range refused {
		said = append(said, fmt.Sprintf("a process is refused that speaks as %s: %s", name(r.Member), r.Verdict))
	}
	switch {
	case len(by) > 0:
		c.Status = checkFail
		c.Fix = fmt.Sprintf("stop this daemon; if it is the only one that speaks as %s: forgeyard-node site remove %s on another node, then join anew with an empty data dir", own, own)
	case len(refused) > 0:
		who := name(refused[0].Member)
		c.Status = checkWarn // this node itself is well
		c.Fix = fmt.Sprintf("find both daemons that speak as %s and stop the copy; if none is left that is heard: forgeyard-node site remove %s, then join anew with an empty data dir", who, who)
	}
	if len(said) > 0 {
		c.Detail = strings.Join(said, "; ")
	}
	return c
}

func (n *Node) checkLogFormat() *forgeyardv1.Health_Check {
	return n.fits(judgeFormat(n.replica.State(), n.voterIDs(), site.FormatNow))
}

// fits fails the check while the site refuses this program.
func (n *Node) fits(c *forgeyardv1.Health_Check) *forgeyardv1.Health_Check {
	if why := n.outdated(); why != "" {
		c.Status, c.Detail = checkFail, "the site does not take this program, so it runs no job: "+why+"; "+c.Detail
		c.Fix = "upgrade this node: install the version that the voters run (forgeyard-node site members), then restart it"
	}
	return c
}

// judgeFormat says which incarnation of the site this is, how its log is written, and who
// keeps the format from rising to what this program writes.
func judgeFormat(st *site.State, voters []forgeyard.RunnerID, writes site.Format) *forgeyardv1.Health_Check {
	c := check("format")
	read, less := st.ReadByAll(voters, writes)
	c.Detail = fmt.Sprintf("incarnation %d, log format %d; all voters read up to %d, this program writes up to %d", st.Incarnation, st.LogFormat(), read, writes)
	if len(less) > 0 {
		c.Status, c.Fix = checkWarn, "upgrade and restart "+strings.Join(less, ", ")
	}
	return c
}

func (n *Node) voterIDs() []forgeyard.RunnerID {
	var out []forgeyard.RunnerID
	for _, m := range n.group.Members() {
		if m.Voter {
			out = append(out, forgeyard.RunnerID(m.ID))
		}
	}
	return out
}

// siteMetrics tell which incarnation this node is of, what the log's format waits for, and
// how many voters may be lost.
func (n *Node) siteMetrics(r *prometheus.Registry) {
	add := func(name, help string, of func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: name, Help: help}, func() float64 {
			if n.group == nil || n.gossip == nil {
				return 0 // it is not open yet
			}
			return of()
		}))
	}
	add("site_incarnation", "Incarnation of the site that this node is in.", func() float64 { return float64(n.replica.State().Incarnation) })
	add("log_format", "Format of the site's log.", func() float64 { return float64(n.replica.State().LogFormat()) })
	add("log_format_readable", "Newest log format that all voters read.", func() float64 {
		read, _ := n.replica.State().ReadByAll(n.voterIDs(), site.FormatNow)
		return float64(read)
	})
	add("raft_refused_voters", "Members in whose name a process was refused here: it was started from a copy of a data dir, or from an old one.", func() float64 {
		refused, _ := n.group.Refusals()
		return float64(len(refused))
	})
	add("raft_known_to", "Members that know of this start of the node, and do not refuse it.", func() float64 { return float64(n.group.KnownTo()) })
	add("raft_disowned", "Members that refuse this node so.", func() float64 {
		_, by := n.group.Refusals()
		return float64(len(by))
	})
	add("raft_voters", "Voters of the site.", func() float64 {
		voters, _ := voting(n.Members())
		return float64(voters)
	})
	add("raft_voters_spare", "Voters that may be lost besides before nothing can be decided; below 0: it is so.", func() float64 {
		_, spare := voting(n.Members())
		return float64(spare)
	})
}
