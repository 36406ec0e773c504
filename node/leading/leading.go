// Package leading is the shell around the controllers: one term of leading, from the
// first entry of the term to the moment at which the node no longer leads.
//
// It steps the controllers at every change of the state, at every alarm that they set
// and when somebody new is heard, and carries out what they wish: proposals, one at a
// time for each key, and changes of the group, one at a time at all. It answers
// heartbeats once a majority has confirmed, after they arrived, that the leadership
// still holds (decision 3).
//
// Invariants: a lease whose expiry has an unknown outcome stays refused for the rest of
// the leadership; what a leadership holds dies with it.
//
// It decides nothing (node/controllers does), and does not know how it is reached. It is
// a package of its own so that the simulation runs it as the node does.
//
// Goroutines: Run is the caller's; each proposal and each change of the group has one,
// which ends with the context of Run.
package leading

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// refusedPause is how long a leader waits before it makes a proposal again that was refused
// or failed.
const refusedPause = 300 * time.Millisecond

// reshapeFor bounds one change of the group.
const reshapeFor = 10 * time.Second

// Group is what a leadership needs of the Raft group.
type Group interface {
	Confirm(ctx context.Context) (uint64, error)
	Members() []consensus.Member
	Stats() consensus.Stats
	AddNonvoter(ctx context.Context, id, addr string) error
	Promote(ctx context.Context, id string) error
	Demote(ctx context.Context, id string) error
	Remove(ctx context.Context, id string) error
}

// Replica is the node's copy of the state.
type Replica interface {
	State() *site.State
	Changed() <-chan struct{}
}

// Proposer gets commands into the log.
type Proposer interface {
	ProposeAs(ctx context.Context, by string, body site.Body) (site.Reply, error)
}

// Config is what a leadership is made of. All but Daemon and Renewed is required.
type Config struct {
	Self     forgeyard.RunnerID
	Term     uint64
	Group    Group
	Replica  Replica
	Proposer Proposer
	Clock    clock.Clock
	Log      *slog.Logger
	// Used is the leader's figure of uplink silence; see controllers.Input.
	Used func() (used time.Duration, known bool)
	// Daemon is what the central daemon's clock read at the last contact, and how far this
	// node's was ahead; see controllers.Input. Nil: what is committed is all that is known.
	Daemon func() (read forgeyard.Wall, off time.Duration)
	// Renewed is told how each lease of a heartbeat was answered. Nil: nobody.
	Renewed func(answers []controllers.RenewalAnswer)
}

// Leadership is one term of leading. All methods may be called by any goroutine.
type Leadership struct {
	cfg Config
	due chan struct{} // capacity 1: look again

	mu        sync.Mutex // guards what is below
	mem       *controllers.Memory
	flying    map[string]bool // keys of proposals under way
	reshaping bool            // a change of the voters is under way
}

// New begins a leadership: from now on every lease counts anew.
func New(cfg Config) *Leadership {
	return &Leadership{cfg: cfg, mem: controllers.NewMemory(cfg.Clock.Now()), flying: map[string]bool{}, due: make(chan struct{}, 1)}
}

// Term is the term that is led.
func (l *Leadership) Term() uint64 { return l.cfg.Term }

// Run steps the controllers until ctx ends.
func (l *Leadership) Run(ctx context.Context) {
	var last looks
	for {
		changed := l.cfg.Replica.Changed()
		began := l.cfg.Clock.Now()
		group := GroupMembers(l.cfg.Group, l.cfg.Self)
		l.mu.Lock()
		now, in := l.look(group)
		effects, wake := controllers.Step(now, in)
		l.mu.Unlock()
		ended := l.cfg.Clock.Now()
		cost := last.cost(ended.Sub(began))
		for _, e := range effects {
			l.carryOut(ctx, e)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-l.due:
		case <-l.cfg.Clock.After(wake.Sub(l.cfg.Clock.Now())):
			continue // nothing came, and the time for this look is now
		}
		pause := rest(cost) - l.cfg.Clock.Now().Sub(ended)
		if pause <= 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-l.cfg.Clock.After(pause):
		}
	}
}

const (
	// longLook is a look after which a leader rests. A shorter one is that of a site with
	// little open, where each step of a job should find the next at once.
	longLook = 20 * time.Microsecond
	// restFactor is how much longer than its last look a leader rests before the next.
	restFactor = 49
	// maxRest bounds that: on a machine that is busy with other things a look takes long by
	// the clock, and jobs must not wait for it fifty times over.
	maxRest = 500 * time.Millisecond
)

// looks are what the last looks took by the clock.
type looks [4]time.Duration

// cost is what a look takes, by the last ones and one more: the shortest of them. On a busy
// machine the processor is given to others in the middle of a look, and that is no reason to
// rest.
func (k *looks) cost(took time.Duration) time.Duration {
	copy(k[1:], k[:])
	k[0] = took
	return slices.Min(k[:])
}

// rest is how long after a look that costs so much a leader does not look. Each commit asks
// for one, and with hundreds of open jobs a look costs more than the commit: what comes
// meanwhile waits for the next, so that looking takes a fiftieth of the time. What comes
// later finds a leader that has rested.
func rest(took time.Duration) time.Duration {
	if took < longLook {
		return 0
	}
	return min(restFactor*took, maxRest)
}

// look is what there is to decide on, and when that was so. It is called with mu held. The
// clock is read last: whatever the state shows had happened by then, so a lease that is new
// in it is counted from no earlier than its holder counts, however long the look took.
func (l *Leadership) look(group []controllers.GroupMember) (forgeyard.Instant, controllers.Input) {
	in := l.known()
	in.Group = group
	return l.cfg.Clock.Now(), in
}

// known is input without the group, which renewals do not ask about and which costs more
// than they do.
func (l *Leadership) known() controllers.Input {
	used, known := l.cfg.Used()
	in := controllers.Input{State: l.cfg.Replica.State(), Mem: l.mem, Used: used, Known: known, Term: l.cfg.Term, Wall: forgeyard.WallOf(l.cfg.Clock.Wall()), Reshaping: l.reshaping}
	if l.cfg.Daemon != nil {
		in.Daemon, in.DaemonOff = l.cfg.Daemon()
	}
	return in
}

// GroupMembers is the Raft configuration, with how far each member follows.
func GroupMembers(g Group, self forgeyard.RunnerID) []controllers.GroupMember {
	behind := map[string]uint64{string(self): 0}
	for _, f := range g.Stats().Followers {
		if f.Known {
			behind[f.ID] = f.Lag
		}
	}
	var out []controllers.GroupMember
	for _, m := range g.Members() {
		lag, known := behind[m.ID]
		if !known {
			lag = 1 << 62
		}
		out = append(out, controllers.GroupMember{Runner: forgeyard.RunnerID(m.ID), Voter: m.Voter, Behind: lag})
	}
	return out
}

func (l *Leadership) carryOut(ctx context.Context, e controllers.Effect) {
	switch e := e.(type) {
	case controllers.Propose:
		if !l.take(e.Key) {
			return
		}
		go func() {
			reply, err := l.cfg.Proposer.ProposeAs(ctx, "leader", e.Body)
			if err != nil && ctx.Err() == nil {
				l.cfg.Log.Warn("a proposal of the leader failed", "what", e.Key, "err", err)
				l.pause(ctx)
			} else if refused := reply.Err(); refused != nil {
				// What was decided on is not so any more, or rule and decision differ: either way
				// the same proposal is not made again at once.
				l.cfg.Log.Info("a proposal of the leader was refused", "what", e.Key, "err", refused)
				l.pause(ctx)
			}
			l.done(e, err == nil)
		}()
	case controllers.SetVoter:
		l.setVoter(ctx, e)
	}
}

func (l *Leadership) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-l.cfg.Clock.After(refusedPause):
	}
}

func (l *Leadership) take(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying[key] {
		return false
	}
	l.flying[key] = true
	return true
}

// done ends a proposal. A lease whose expiry had an unknown outcome stays refused for
// the rest of this leadership.
func (l *Leadership) done(e controllers.Propose, known bool) {
	l.mu.Lock()
	delete(l.flying, e.Key)
	if x, ok := e.Body.(site.Expire); ok && known {
		l.mem.Settled(x.Lease)
	}
	l.mu.Unlock()
	l.again()
}

func (l *Leadership) again() {
	select {
	case l.due <- struct{}{}:
	default: // one look is due already
	}
}

// setVoter changes the group, one change at a time.
func (l *Leadership) setVoter(ctx context.Context, e controllers.SetVoter) {
	l.mu.Lock()
	busy := l.reshaping
	l.reshaping = true
	l.mu.Unlock()
	if busy {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, reshapeFor)
		defer cancel()
		err := l.reshape(ctx, e)
		if err != nil && ctx.Err() == nil {
			l.cfg.Log.Warn("the group could not be changed", "runner", e.Runner, "to", e.Role, "err", err)
			l.pause(ctx)
		} else if err == nil {
			l.cfg.Log.Info("group changed", "runner", e.Runner, "to", e.Role)
		}
		l.mu.Lock()
		l.reshaping = false
		l.mu.Unlock()
		l.again()
	}()
}

func (l *Leadership) reshape(ctx context.Context, e controllers.SetVoter) error {
	switch e.Role {
	case controllers.Voter:
		return l.cfg.Group.Promote(ctx, string(e.Runner))
	case controllers.NonVoter:
		return l.cfg.Group.AddNonvoter(ctx, string(e.Runner), e.Peer)
	case controllers.Spare:
		return l.cfg.Group.Demote(ctx, string(e.Runner))
	default:
		return l.cfg.Group.Remove(ctx, string(e.Runner))
	}
}

// Renew answers a heartbeat that arrived now. It answers only after a majority has
// confirmed, since, that this leadership still holds (decision 3).
func (l *Leadership) Renew(ctx context.Context, r forgeyard.RunnerID, sign controllers.Sign, batch []controllers.Renewal) ([]controllers.RenewalAnswer, error) {
	arrived := l.cfg.Clock.Now()
	if _, err := l.cfg.Group.Confirm(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	_, before := l.mem.Runner(r)
	sign.At = arrived
	l.mem.Hello(r, sign)
	out := l.mem.Renew(arrived, l.known(), batch)
	l.mu.Unlock()
	if l.cfg.Renewed != nil {
		l.cfg.Renewed(out)
	}
	if !before {
		l.again() // somebody new may be able to serve what waits
	}
	return out, nil
}

// Contest says why a registration is not taken now: another process is that runner, and is
// heard. See controllers.Memory.Contest. The first refusal is told in the site's log.
func (l *Leadership) Contest(ctx context.Context, b site.Register) error {
	l.mu.Lock()
	s := l.cfg.Replica.State()
	first, err := l.mem.Contest(l.cfg.Clock.Now(), s, b)
	l.mu.Unlock()
	if first {
		m, _ := s.Members.Get(b.Runner)
		told := site.Contest{Runner: b.Runner, Session: m.Session.ID, Other: b.Session}
		if len(b.Addrs) > 0 {
			told.Addr = b.Addrs[0]
		}
		if s.Allows(site.FormatOf(told)) {
			l.carryOut(context.WithoutCancel(ctx), controllers.Propose{Key: "contest/" + string(b.Runner), Body: told})
		}
	}
	return err
}

// Contested tells of a process that asks to be a runner and is refused; empty: there is none.
func (l *Leadership) Contested(r forgeyard.RunnerID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mem.Contested(l.cfg.Clock.Now(), l.cfg.Replica.State(), r)
}

// Heard is the last heartbeat of a runner, and how long ago it arrived.
func (l *Leadership) Heard(r forgeyard.RunnerID) (controllers.Sign, time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.mem.Runner(r)
	return s, l.cfg.Clock.Now().Sub(s.At), ok
}

// Led is how long this leadership lasts.
func (l *Leadership) Led() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cfg.Clock.Now().Sub(l.mem.Elected)
}

// Explain says why a job is where it is, by what this leader knows.
func (l *Leadership) Explain(id forgeyard.JobID) (string, []controllers.Candidate, error) {
	group := GroupMembers(l.cfg.Group, l.cfg.Self) // it reads the disk: not under the lock
	l.mu.Lock()
	defer l.mu.Unlock()
	now, in := l.look(group)
	j, ok := in.State.Jobs.Get(id)
	if !ok {
		return "", nil, forgeyard.Errorf("explain", forgeyard.NotFound, "no job %s", id)
	}
	held, all := controllers.Explain(now, in, j)
	return held, all, nil
}
