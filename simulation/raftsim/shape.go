package raftsim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/consensus/seam"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// shape is what a seed makes of a run, before anything happens.
type shape struct {
	machines      int
	slow          int // the machine whose Raft has slow timers; -1: none
	slowBy        int
	heartbeat     time.Duration
	rpc           time.Duration
	latency       time.Duration
	safety        time.Duration
	calm          time.Duration // mean time between two faults
	longest       time.Duration // that a fault lasts
	jobs          time.Duration // between two submissions
	reads         time.Duration // between two reads
	snapshotAfter uint64
	trailing      uint64
	gossip        bool // the machines gossip
	batches       bool // several commands may share an entry
	config        sitecfg.Site
	mischief      []mischief
}

// Faults are what a test puts into a run, to see a checker fail. The zero value is honest.
type Faults struct {
	Off      seam.Guards
	LazyDisk time.Duration // disks answer at once and write back this late
	Carry    func(seam.Transport) seam.Transport
	State    func(machine, life int, s consensus.StateMachine) consensus.StateMachine
	Spoilt   bool // State differs from the log on purpose: only the end counts
	Shape    func(*shape)
	Rejoin   time.Duration // how often gossip dials who is away; 0: as in the product
}

func draw(r *rand.Rand) shape {
	pick := func(ds ...time.Duration) time.Duration { return ds[r.IntN(len(ds))] }
	s := shape{
		machines: []int{3, 3, 3, 5}[r.IntN(4)], slow: -1, slowBy: 10,
		heartbeat: pick(500*time.Millisecond, 500*time.Millisecond, time.Second), rpc: pick(time.Second, 3*time.Second, 10*time.Second),
		latency: pick(2*time.Millisecond, 20*time.Millisecond, 60*time.Millisecond),
		safety:  time.Duration(240+r.IntN(480)) * time.Second,
		calm:    pick(5*time.Second, 15*time.Second), longest: pick(6*time.Second, 15*time.Second),
		jobs: pick(2*time.Second, 6*time.Second), reads: pick(500*time.Millisecond, 2*time.Second),
		snapshotAfter: []uint64{40, 150, 1000}[r.IntN(3)], config: sitecfg.DefaultSite(),
	}
	s.trailing = s.snapshotAfter / 4
	s.batches = r.IntN(2) == 0
	if r.IntN(2) == 0 {
		s.slow = r.IntN(s.machines)
	}
	s.config.Voters = s.machines
	l := &s.config.Lease
	l.TTL = pick(3*time.Second, 6*time.Second, 15*time.Second)
	l.Renew = l.TTL / 3
	l.Grace = pick(0, 5*time.Second)
	for _, m := range allMischief {
		if r.IntN(2) == 0 {
			s.mischief = append(s.mischief, m)
		}
	}
	s.gossip = r.IntN(2) == 0
	if len(s.mischief) == 0 {
		s.mischief = allMischief
	}
	if r.IntN(4) == 0 {
		s.idle(r)
	}
	return s
}

// idle leaves a leader with slow timers alone with itself: nobody asks it for anything for so
// long that it neither writes an entry nor looks for its majority, and another is elected
// behind its back. What is wrong with a heartbeat that deposes is seen only then
// (hashicorp/raft#695): whoever asks in vain has written an entry before. Of what else was
// drawn one kind stays: a leader that is cut off, stopped or crashed is not idle.
func (s *shape) idle(r *rand.Rand) {
	s.jobs, s.reads, s.calm, s.rpc = 20*time.Second, 20*time.Second, 3*time.Second, time.Second
	s.config.Lease.TTL, s.config.Lease.Renew = 15*time.Second, 5*time.Second
	s.slow = r.IntN(s.machines)
	s.mischief = []mischief{deposing, deposing, deposing, s.mischief[r.IntN(len(s.mischief))]}
}

func (s shape) String() string {
	var names []string
	for _, m := range s.mischief {
		names = append(names, m.name)
	}
	slow := "none slow"
	if s.slow >= 0 {
		slow = fmt.Sprintf("n%d slow", s.slow+1)
	}
	if s.gossip {
		slow += ", gossip"
	}
	return fmt.Sprintf("%s, heartbeat %s, latency %s, ttl %s, snapshot after %d, %s of %s", slow, s.heartbeat, s.latency, s.config.Lease.TTL, s.snapshotAfter, s.safety, strings.Join(names, " "))
}

// timings are those of one machine. A slow one believes for long that it leads.
func (s shape) timings(machine int) consensus.Timings {
	t := consensus.Timings{
		Heartbeat: s.heartbeat, RPC: s.rpc, Confirm: s.heartbeat, Retry: time.Second, Hash: 20 * time.Second, Snapshot: 10 * time.Second, Write: 5 * time.Second,
	}
	if machine == s.slow {
		k := time.Duration(s.slowBy)
		t.Heartbeat, t.Election, t.Lease, t.Confirm, t.Commit = k*s.heartbeat, k*s.heartbeat, k*s.heartbeat, k*s.heartbeat, k*50*time.Millisecond
	}
	return t
}
