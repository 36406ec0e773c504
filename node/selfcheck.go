package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/fitness"
	"github.com/forgeyard/forgeyard-node/node/pressure"
)

// Whether this node takes work is asked at every step of the agent and in every heartbeat,
// which may wait for nothing. So what must be tried out, a disk or the keeper, is tried beside
// them every few seconds, and they go by what came of it last.

const (
	selfCheckEvery = sampleEvery
	// selfCheckHangs is how long the checks may take. They write a few bytes and ask a child:
	// what takes longer hangs.
	selfCheckHangs = 30 * time.Second
)

// selfChecks is what this node found wrong with itself when it looked last.
type selfChecks struct {
	mu    sync.Mutex // guards all below
	found []*forgeyardv1.Health_Check
	ended forgeyard.Instant // when they were; zero: no look has ended yet
	began forgeyard.Instant // of the look that is under way
	under bool              // one is
}

func (s *selfChecks) begin(now forgeyard.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.under = now, true
}

func (s *selfChecks) end(found []*forgeyardv1.Health_Check, now forgeyard.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found, s.ended, s.under = found, now, false
}

// all is what was found, and that the checks hang when they do.
func (s *selfChecks) all(now forgeyard.Instant) []fitness.Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := findings(s.found)
	if why := s.hang(now); why != "" {
		out = append(out, fitness.Finding{Check: "checks", Status: fitness.Fail, Detail: why})
	}
	return out
}

// hang says that the look under way does not end. It is called with mu held.
func (s *selfChecks) hang(now forgeyard.Instant) string {
	took := now.Sub(s.began)
	if !s.under || took < selfCheckHangs {
		return ""
	}
	return fmt.Sprintf("this node's checks of itself began %s ago and do not end: a disk does not answer", took.Round(time.Second))
}

// looksAgain is what to do about a disk that does not answer.
const looksAgain = "look at the disk: dmesg, and /proc/PID/stack of what waits for it; this node looks again by itself as soon as it answers"

// shown is what was found, as it was found, and the check of the checks themselves. answered says
// whether those that keep no work away had their answer from the disk.
func (s *selfChecks) shown(now forgeyard.Instant, answered bool) (own []*forgeyardv1.Health_Check, looked *forgeyardv1.Health_Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := check("checks")
	c.Detail = "this node has not looked at itself yet"
	if s.ended != 0 {
		c.Detail = fmt.Sprintf("what keeps work away was looked at %s ago", now.Sub(s.ended).Round(time.Second))
	}
	if !answered {
		c.Status, c.Fix = checkWarn, looksAgain
		c.Detail += fmt.Sprintf("; what else lies on a disk did not answer within %s, and is shown as it was", askedWithin)
	}
	if why := s.hang(now); why != "" {
		c.Status, c.Detail, c.Fix = checkFail, why, looksAgain
	}
	return s.found, c
}

// selfCheckLoop looks again and again, and tells the leader at once of what keeps work away
// since, or does not any more.
func (n *Node) selfCheckLoop(ctx context.Context) error {
	var said []string
	for {
		n.selfChecks.begin(n.clock.Now())
		n.selfChecks.end(n.ownChecks(ctx), n.clock.Now())
		words := fitness.Words(n.notTaking())
		if now := strings.Join(words, " "); now != strings.Join(said, " ") && ctx.Err() == nil {
			n.tellFitness(words)
			n.local.askRenewal()
			said = words
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.clock.After(selfCheckEvery):
		}
	}
}

func (n *Node) tellFitness(words []string) {
	if len(words) == 0 {
		n.log.Info("new work is taken")
		return
	}
	if n.caps.Load() == nil {
		return // as at each start
	}
	var why []string
	for _, r := range n.notTaking() {
		why = append(why, string(r.Word)+": "+r.Detail)
	}
	n.log.Warn("no new work is taken; what runs goes on", "why", strings.Join(why, "; "))
}

// ownChecks are the checks whose failure keeps new work away. None of them asks another machine.
func (n *Node) ownChecks(ctx context.Context) []*forgeyardv1.Health_Check {
	return []*forgeyardv1.Health_Check{
		n.checkStore(), n.checkSpool(), n.checkRaftDisk(), n.checkExecutors(), n.checkKeeper(ctx), n.checkCredential(), n.checkClock(),
	}
}

func findings(all []*forgeyardv1.Health_Check) []fitness.Finding {
	var out []fitness.Finding
	for _, c := range all {
		out = append(out, fitness.Finding{Check: c.Name, Status: fitness.Status(c.Status), Detail: c.Detail})
	}
	return out
}

// fitnessNow is what this node knows of itself; it waits for nothing.
func (n *Node) fitnessNow() fitness.Input {
	m, _ := n.replica.State().Members.Get(n.enrolment.RunnerID)
	in := fitness.Input{
		Stopping: n.stopping.Load(), Draining: m.Draining, Disabled: m.Disabled, Unapproved: m.Waiting, Outdated: n.outdated(), Findings: n.selfChecks.all(n.clock.Now()),
	}
	if stuck := n.stuckTrees(); len(stuck) > 0 {
		in.Findings = append(slices.Clone(in.Findings), fitness.Finding{Check: "trees", Status: fitness.Fail, Detail: stuckText(stuck, n.clock.Now())})
	}
	if c := n.caps.Load(); c != nil {
		in.Probed, in.Sandboxes = true, len(c.Sandboxes)
	}
	switch p := n.pressure(); p {
	case pressureNormal:
	case pressureDisk:
		in.Pressure, in.PressureWhy = p, fmt.Sprintf("less than %d MiB are free", minFreeDisk>>20)
	default:
		in.Pressure, in.PressureWhy = p, pressure.Level(p).Why()
	}
	return in
}

// notTaking is why this node takes no new work.
func (n *Node) notTaking() []fitness.Reason { return fitness.Reasons(n.fitnessNow()) }

// notTakingForPeople is notTaking with what the site sees by itself.
func (n *Node) notTakingForPeople(quorum bool) []fitness.Reason {
	in := n.fitnessNow()
	in.NoQuorum = !quorum
	in.Full = in.Probed && n.local.taken().Jobs >= n.caps.Load().MaxJobs
	return fitness.Reasons(in)
}

// refusing are the reasons that answer an offer.
func (n *Node) refusing() []agent.Refusal {
	var out []agent.Refusal
	if v := n.notice.Load(); v != nil {
		out = append(out, agent.Refusal{Reason: job.RejectDraining, Detail: "this machine is being taken away: " + v.Source})
	}
	for _, r := range n.notTaking() {
		if r.Reject != "" {
			out = append(out, agent.Refusal{Reason: r.Reject, Detail: r.Detail})
		}
	}
	return out
}

// refusingWords are the reasons as the leader hears them.
func (n *Node) refusingWords() []string { return fitness.Words(n.notTaking()) }

// fitnessMetrics tell what keeps work away.
func (n *Node) fitnessMetrics(r *prometheus.Registry) {
	for _, w := range []fitness.Word{
		fitness.Draining, fitness.Disabled, fitness.NotApproved, fitness.Version, fitness.Ill, fitness.Credential, fitness.Clock, fitness.Pressure, fitness.Capacity,
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "forgeyard", Name: "agent_not_taking_work", Help: "1 while this node takes no new work for that reason.", ConstLabels: prometheus.Labels{"reason": string(w)},
		}, func() float64 {
			if n.opened.Load() && slices.Contains(n.refusingWords(), string(w)) {
				return 1
			}
			return 0
		}))
	}
}
