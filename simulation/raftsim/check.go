package raftsim

import (
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus/seam"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/site"
)

// checks sees every machine. A command is known by its step (site.State.Step), which
// every machine must give it alike.
//
//	same-state           the same commands at the same steps, none left out, the same hash
//	nothing-lost         what a client was told to be taken in is in every state at the end
//	leader-left-alone    who stands without its timer has no living leader, like most voters
//	one-leader-per-term  no two machines send entries or heartbeats in one term
//	current-reads        a confirmed read has what was acknowledged before it began
//	one-current-epoch    no grant while another is live, and epochs count by one
//	stale-never-commits  nothing is taken under another authority than the newest
//	started-once         no process starts one epoch twice
//	holder-stops-first   nobody acts for protected work that is granted to another
type checks struct {
	w *world

	mu     sync.Mutex // guards what is below
	steps  []string   // by step: the command's id, nothing for "no command", unknown
	stepOf map[forgeyard.MessageID]uint64
	hashes map[uint64][32]byte // by step, of some
	terms  map[uint64]*process
	acked  uint64 // the highest step that a client was told of
	head   *site.State
	newest map[forgeyard.JobID]forgeyard.Authority
	begun  map[start]bool
}

// start is one epoch in one process.
type start struct {
	process   *process
	authority forgeyard.Authority
}

// What steps holds of a step that is not a command's.
const (
	unknown = ""
	nothing = "-"
)

// hashEvery is how many steps lie between two states that are hashed: commands are compared
// at each, and the machines compare states themselves (decision 26g) more often than this.
const hashEvery = 256

func newChecks(w *world) *checks {
	return &checks{w: w, stepOf: map[forgeyard.MessageID]uint64{}, hashes: map[uint64][32]byte{}, terms: map[uint64]*process{}, head: &site.State{}, newest: map[forgeyard.JobID]forgeyard.Authority{}, begun: map[start]bool{}}
}

// applied is told of each command, by each machine.
func (c *checks) applied(p *process, a replica.Applied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w.faults.Spoilt && p.m.id == 0 {
		return
	}
	step := a.State.Step
	for uint64(len(c.steps)) <= step {
		c.steps = append(c.steps, unknown)
	}
	for k := a.Before.Step + 1; k < step; k++ {
		c.at(p, k, nothing)
	}
	first := c.at(p, step, string(a.Command.ID))
	if step%hashEvery == 0 {
		h := a.State.Hash()
		if known, ok := c.hashes[step]; ok && known != h {
			c.w.fail("same-state", "%s has another state at step %d", p.m.name, step)
		}
		c.hashes[step] = h
	}
	if first {
		c.commit(a)
	}
}

// at holds what a machine has at a step against what others had.
func (c *checks) at(p *process, step uint64, what string) (first bool) {
	switch c.steps[step] {
	case unknown:
		c.steps[step] = what
		return true
	case what:
	default:
		c.w.fail("same-state", "%s has %s at step %d, another machine %s", p.m.name, what, step, c.steps[step])
	}
	return false
}

// commit looks at a command that nobody applied before.
func (c *checks) commit(a replica.Applied) {
	if _, again := c.stepOf[a.Command.ID]; !again {
		c.stepOf[a.Command.ID] = a.State.Step
	}
	c.w.count(func(r *Result) { r.Entries++ })
	outcome := ""
	if err := a.Reply.Err(); err != nil {
		outcome = ": " + err.Error()
	}
	c.w.trace("#%d %T %s by %s%s", a.State.Step, a.Command.Body, a.Command.ID, a.Command.By, outcome)
	if a.Reply.Err() == nil && c.stepOf[a.Command.ID] == a.State.Step {
		c.authority(a)
	}
	if a.State.Step > c.head.Step {
		c.head = a.State
	}
}

func (c *checks) authority(a replica.Applied) {
	if used, ok := site.AuthorityOf(a.Command.Body); ok && accepts(a) && c.newest[used.Job] != used {
		c.w.fail("stale-never-commits", "step %d: %T under %s, the newest grant is %s", a.State.Step, a.Command.Body, short(used), short(c.newest[used.Job]))
	}
	if _, ok := a.Command.Body.(site.Offer); !ok {
		return
	}
	granted, err := site.Value[forgeyard.Authority](a.Reply)
	if err != nil {
		c.w.fail("one-current-epoch", "step %d: an offer without an authority: %v", a.State.Step, err)
		return
	}
	old := c.newest[granted.Job]
	before, _ := a.Before.Jobs.Get(granted.Job)
	switch {
	case before.Lease.Live():
		c.w.fail("one-current-epoch", "step %d grants %s while %s is live", a.State.Step, short(granted), short(old))
	case granted.Fence.Epoch != old.Fence.Epoch+1:
		c.w.fail("one-current-epoch", "step %d grants %s after %s", a.State.Step, short(granted), short(old))
	}
	c.newest[granted.Job] = granted
}

// accepts says that a command was taken, and changed something.
func accepts(a replica.Applied) bool {
	if _, ok := a.Command.Body.(site.Complete); ok {
		v, err := site.Value[site.Completed](a.Reply)
		return err == nil && v.Verdict == site.Accepted
	}
	return true
}

func short(a forgeyard.Authority) string {
	return fmt.Sprintf("%s@%s", forgeyard.Short(a.Job), a.Fence)
}

// leads is told of every call that only a leader makes.
func (c *checks) leads(p *process, term uint64) {
	if p.dead.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch by := c.terms[term]; {
	case by == nil:
		c.terms[term] = p
	case by.m != p.m:
		c.w.fail("one-leader-per-term", "%s and %s lead term %d", by.m.name, p.m.name, term)
	}
}

// lost is told of each process that stands because the leader of a term is gone. That is
// so when its process ended, or when most voters know of no leader.
func (c *checks) lost(p *process, term uint64) {
	c.w.count(func(r *Result) { r.Lost++ })
	c.mu.Lock()
	leader := c.terms[term]
	c.mu.Unlock()
	if leader == nil || leader.port.closed() {
		return
	}
	voters, without := 0, 1 // p itself
	for _, m := range p.group.Members() {
		if !m.Voter {
			continue
		}
		voters++
		if x := c.w.reach(m.Addr); x != nil && x != p && x != leader {
			if _, follows, _ := x.group.Leader(); follows != leader.m.name {
				without++
			}
		}
	}
	if without <= voters/2 {
		c.w.fail("leader-left-alone", "%s stands while %s leads term %d, and %d of %d voters know of no leader", p.m.name, leader.m.name, term, without, voters)
	}
}

// ack is told that a client knows a command to be committed.
func (c *checks) ack(id forgeyard.MessageID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	step, ok := c.stepOf[id]
	if !ok {
		if !c.w.faults.Spoilt {
			c.w.fail("nothing-lost", "%s was answered, and no machine has applied it", id)
		}
		return
	}
	c.acked = max(c.acked, step)
}

func (c *checks) ackedStep() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acked
}

// read is told what a confirmed read saw, and what was acknowledged before it began.
func (c *checks) read(p *process, saw, acked uint64) {
	if saw < acked {
		c.w.fail("current-reads", "%s confirmed a read of step %d after step %d was acknowledged", p.m.name, saw, acked)
	}
}

// started is told of every start of a workload.
func (c *checks) started(x *execution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := start{x.p, x.authority}
	if c.begun[s] {
		c.w.fail("started-once", "%s starts %s for the second time", x.p.m.name, short(x.authority))
	}
	c.begun[s] = true
}

// ran is told of every instant at which a workload acts.
func (c *checks) ran(x *execution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.job.Spec.Effects != job.EffectsProtected || c.w.faults.Spoilt {
		return // a spoilt machine that leads may grant what nobody else has granted
	}
	j, ok := c.head.Jobs.Get(x.authority.Job)
	switch {
	case !ok:
		c.w.fail("holder-stops-first", "%s acts for a job that is gone", x.p.m.name)
	case j.Lease.Authority != x.authority:
		c.w.fail("holder-stops-first", "%s acts under %s while %s is granted", x.p.m.name, short(x.authority), short(j.Lease.Authority))
	case j.Lease.State == lease.Ended && (j.Status != job.Unknown || j.Certain):
		c.w.fail("holder-stops-first", "%s acts under %s, whose lease ended (%s), and the job is %s", x.p.m.name, short(x.authority), j.Lease.Reason, j.Status)
	}
}

// latest is the newest state that any machine has.
func (c *checks) latest() *site.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.head
}

// differ says which machine has not the state of the others, if one has not.
func (c *checks) differ() string {
	first := c.w.nodes[0].process()
	for _, m := range c.w.nodes {
		p := m.process()
		switch {
		case p == nil || first == nil:
			return m.name + " is down"
		case p.replica.State().Step != first.replica.State().Step:
			return fmt.Sprintf("%s is at step %d, %s at %d", m.name, p.replica.State().Step, first.m.name, first.replica.State().Step)
		case p.replica.Hash() != first.replica.Hash():
			return fmt.Sprintf("%s and %s have different states at step %d", m.name, first.m.name, p.replica.State().Step)
		}
	}
	return ""
}

// atEnd looks for what clients were promised in the state of every machine.
func (c *checks) atEnd() {
	if c.w.failed() {
		return
	}
	for _, m := range c.w.nodes {
		s := m.process().replica.State()
		for _, id := range c.w.client.promised() {
			if _, ok := s.Jobs.Get(id); !ok {
				c.w.fail("nothing-lost", "job %s was taken in, and %s has it not", forgeyard.Short(id), m.name)
			}
		}
		c.w.trace("%s ends at step %d with %x", m.name, s.Step, m.process().replica.Hash())
	}
}

// tap sees the calls that leave a machine.
type tap struct {
	seam.Transport
	p *process
}

func (t *tap) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	t.p.w.check.leads(t.p, q.Term)
	return t.Transport.AppendEntries(id, to, q, r)
}

func (t *tap) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	t.p.w.check.leads(t.p, q.Term)
	err := t.Transport.InstallSnapshot(id, to, q, r, data)
	if err == nil && r.Success && !t.p.dead.Load() {
		t.p.w.trace("%s brought the snapshot at %d to %s", t.p.m.name, q.LastLogIndex, to)
		t.p.w.count(func(r *Result) { r.Installs++ })
	}
	return err
}

func (t *tap) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.Transport.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	return &tapPipeline{p, t}, nil
}

type tapPipeline struct {
	raft.AppendPipeline
	t *tap
}

func (p *tapPipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.t.p.w.check.leads(p.t.p, q.Term)
	return p.AppendPipeline.AppendEntries(q, r)
}
