package site

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// change is one Apply under way: a private copy of the state, and the facts of
// the entry. Rules change the copy; the caller keeps it only if they succeed.
type change struct {
	State
	at   forgeyard.Wall
	by   string
	id   forgeyard.MessageID // of the command
	term uint64              // of the entry; zero: not known
	ids  uint16              // identifiers derived so far in this command
	next job.EventType       // of the next event, which says in its own words what happened
}

// Apply is ApplyEntry where the term of the entry is not known.
func (s *State) Apply(index uint64, data []byte) (*State, Reply) { return s.ApplyEntry(index, 0, data) }

// ApplyEntry applies one command of the log and returns the next state and the reply.
// Bytes that are no command are answered with an error, on every voter alike. index is
// that of the entry, which may hold several commands: they come one after the other.
// term is the leadership in which the entry entered the log, the same on every voter.
func (s *State) ApplyEntry(index, term uint64, data []byte) (*State, Reply) {
	cmd, err := Decode(data)
	return s.ApplyCommand(index, term, cmd, err)
}

// ApplyCommand is ApplyEntry of bytes that were given to Decode already: cmd and unread are
// what it returned. Rules keep parts of the command: nobody may change it any more.
func (s *State) ApplyCommand(index, term uint64, cmd Command, unread error) (*State, Reply) {
	c := s.begin(index)
	if unread != nil {
		return &c.State, errorReply(unread)
	}
	if r, ok := s.Requests.Get(cmd.ID); ok {
		return &c.State, r.Reply
	}
	c.at, c.by, c.id, c.term = cmd.At, cmd.By, cmd.ID, term
	value, err := c.run(cmd.Body)
	if err != nil {
		c = s.begin(index) // nothing of what it did before it failed
		reply := errorReply(err)
		c.remember(cmd.ID, reply)
		return &c.State, reply
	}
	var reply Reply
	if value != nil {
		reply.Value = cborx.Marshal(value)
	}
	c.remember(cmd.ID, reply)
	return &c.State, reply
}

// begin begins the change that an entry makes.
func (s *State) begin(index uint64) *change {
	c := &change{State: *s}
	c.Index, c.Step = index, max(index, s.Step+1)
	return c
}

func errorReply(err error) Reply {
	r := Reply{Kind: forgeyard.KindOf(err), Error: err.Error()}
	if e, ok := err.(*forgeyard.Error); ok {
		r.Hint = e.Hint
		bare := *e
		bare.Hint = ""
		r.Error = bare.Error()
	}
	return r
}

// remember keeps the reply for a repeat of the request, and forgets the oldest.
func (c *change) remember(id forgeyard.MessageID, r Reply) {
	c.Requests = c.Requests.Put(id, requestReply{Index: c.Step, Reply: r})
	c.Order = c.Order.Push(id)
	for c.Order.Len() > maxRequests {
		old, _ := c.Order.First()
		c.Order = c.Order.Pop()
		c.Requests = c.Requests.Delete(old)
	}
}

func (c *change) run(b Body) (any, error) {
	if _, ok := b.(Init); !ok && c.Site == "" {
		return nil, forgeyard.Errorf("apply", forgeyard.Unavailable, "the site is not initialised yet")
	}
	switch b := b.(type) {
	case Init:
		return nil, c.init(b)
	case TokenCreate:
		return nil, c.tokenCreate(b)
	case TokenRevoke:
		return nil, c.tokenRevoke(b)
	case Join:
		return c.join(b)
	case Register:
		return c.register(b)
	case MemberSet:
		return nil, c.memberSet(b)
	case ConfigSet:
		return nil, c.configSet(b)
	case Recover:
		return c.recover(b)
	case FormatRaise:
		return nil, c.formatRaise(b)
	}
	if v, err, ok := c.runWork(b); ok {
		return v, err
	}
	return c.runRest(b)
}

func (c *change) runWork(b Body) (v any, err error, ok bool) {
	ok = true
	switch b := b.(type) {
	case Submit:
		v, err = c.submit(b)
	case Cancel:
		v, err = c.cancel(b)
	case Stop:
		err = c.stop(b)
	case Resume:
		err = c.resume(b)
	case Offer:
		v, err = c.offer(b)
	case Accept:
		err = c.accept(b)
	case Reject:
		err = c.reject(b)
	case Phase:
		err = c.phase(b)
	case Checkpoint:
		v, err = c.checkpoint(b)
	case Release:
		err = c.release(b)
	case Complete:
		v, err = c.complete(b)
	case Expire:
		err = c.expire(b)
	case Fail:
		err = c.fail(b)
	case Revoke:
		err = c.revoke(b)
	case Stopped:
		err = c.stopped(b)
	case Report:
		err = c.report(b)
	default:
		ok = false
	}
	return v, err, ok
}

func (c *change) runRest(b Body) (any, error) {
	switch b := b.(type) {
	case DeviceLease:
		return c.deviceLease(b)
	case DeviceRelease:
		return nil, c.deviceRelease(b)
	case DeviceReset:
		return nil, c.deviceReset(b)
	case DeviceHealth:
		return nil, c.deviceHealth(b)
	case UplinkConnect:
		return nil, c.uplinkConnect(b)
	case UplinkObserve:
		return nil, c.uplinkObserve(b)
	case Delegate:
		return nil, c.delegate(b)
	case OutboxAck:
		return nil, c.outboxAck(b)
	case Drill:
		return nil, c.drill(b)
	case Silence:
		return nil, c.silence(b)
	case Readiness:
		return nil, c.readiness(b)
	case Contest:
		return nil, c.contest(b)
	case Ask:
		return c.ask(b)
	case StopRefused:
		return nil, c.refused(b)
	case Stopping:
		return nil, c.stopping(b)
	case Preempt:
		return nil, c.preempt(b)
	case RunSuspend:
		return c.runSuspend(b)
	case RunResume:
		return nil, c.runResume(b)
	case Restored:
		return nil, c.restored(b)
	case CheckpointsAged:
		return nil, c.checkpointsAged(b)
	case CheckpointRevoke:
		return c.checkpointRevoke(b)
	case CheckpointLetGo:
		return nil, c.checkpointLetGo(b)
	case CheckpointOpen:
		return c.checkpointOpen(b)
	case AttestOff:
		return c.attestOff(b)
	case Unname:
		return nil, c.unname(b)
	case SecretSet:
		return nil, c.secretSet(b)
	case SecretRemove:
		return nil, c.secretRemove(b)
	case EffectIntent:
		return c.effectIntent(b)
	case EffectOutcome:
		return nil, c.effectOutcome(b)
	case EffectResolve:
		return nil, c.effectResolve(b)
	case StepCommit:
		return nil, c.stepCommit(b)
	case Mark:
		return nil, c.mark(b)
	}
	return nil, forgeyard.Errorf("apply", forgeyard.Invalid, "command %T is not known", b)
}

// newID derives the next identifier of this command.
func (c *change) newID() string {
	c.ids++
	return forgeyard.DeriveULID(c.at.Time(), c.Step, c.ids)
}

// note adds a line to the site's events.
func (c *change) note(kind, format string, args ...any) {
	h := slices.Clone(c.History)
	h = append(h, SiteEvent{Index: c.Step, At: c.at, Kind: kind, Text: forgeyard.Clip(fmt.Sprintf(format, args...), maxNote)})
	if len(h) > maxHistory {
		if c.Allows(FormatLeases) { // a program of format 1 does not count it
			c.Forgotten = h[len(h)-maxHistory-1].Index
		}
		h = h[len(h)-maxHistory:]
	}
	c.History = h
}

func (c *change) init(b Init) error {
	if c.Site != "" {
		return forgeyard.Errorf("init", forgeyard.Conflict, "site %s (%s) exists already", c.Name, c.Site)
	}
	if err := forgeyard.CheckULID("site", string(b.Site)); err != nil {
		return err
	}
	c.Site, c.Name, c.PublicKey, c.Created, c.Config, c.Incarnation = b.Site, b.Name, b.PublicKey, c.at, b.Config, 1
	c.Uplink = lease.Uplink{State: lease.Standalone, Since: c.at}
	c.Members = c.Members.Put(b.Runner, Member{Runner: b.Runner, Name: b.Node, Peer: b.Peer, MayVote: true, Joined: c.at, Order: c.Step})
	c.note("site", "site %s initialised by %s", b.Name, b.Node)
	return nil
}

func (c *change) tokenCreate(b TokenCreate) error {
	if c.Tokens.Len() >= maxTokens {
		c.dropDeadTokens()
	}
	switch {
	case c.Tokens.Len() >= maxTokens:
		return forgeyard.Errorf("token create", forgeyard.Limit, "%d tokens are live, the bound is %d", c.Tokens.Len(), maxTokens).WithHint("revoke some with: forgeyard-node token revoke ID")
	case b.Uses < 1 || b.Uses > maxMembers:
		return forgeyard.Errorf("token create", forgeyard.Invalid, "uses %d is not in [1, %d]", b.Uses, maxMembers)
	case b.Expires <= c.at:
		return forgeyard.Errorf("token create", forgeyard.Invalid, "the token would expire at %s, which is past", b.Expires.Time().Format("15:04:05"))
	case c.Tokens.Has(b.Token):
		return forgeyard.Errorf("token create", forgeyard.Conflict, "token %s exists", b.Token)
	}
	c.Tokens = c.Tokens.Put(b.Token, Token{ID: b.Token, Hash: b.Hash, Expires: b.Expires, Uses: b.Uses, MayVote: b.MayVote, By: c.by, Created: c.at, Approve: b.Approve})
	if b.Approve {
		c.note("token", "token %s created by %s: %d uses, each to be approved", forgeyard.Short(b.Token), c.by, b.Uses)
		return nil
	}
	c.note("token", "token %s created by %s: %d uses", forgeyard.Short(b.Token), c.by, b.Uses)
	return nil
}

func (c *change) dropDeadTokens() {
	for id, t := range c.Tokens.All() {
		if t.Revoked || t.Expires <= c.at {
			c.Tokens = c.Tokens.Delete(id)
		}
	}
}

func (c *change) tokenRevoke(b TokenRevoke) error {
	t, ok := c.Tokens.Get(b.Token)
	if !ok {
		return forgeyard.Errorf("token revoke", forgeyard.NotFound, "no token %s", b.Token)
	}
	t.Revoked = true
	c.Tokens = c.Tokens.Put(b.Token, t)
	c.note("token", "token %s revoked by %s", forgeyard.Short(b.Token), c.by)
	return nil
}

func (c *change) join(b Join) (Joined, error) {
	denied := func(format string, args ...any) (Joined, error) {
		return Joined{}, forgeyard.Errorf("join", forgeyard.Denied, format, args...).WithHint("ask a member for a new one: forgeyard-node token create")
	}
	t, ok := c.Tokens.Get(b.Token)
	if !ok || t.Hash != b.Hash {
		return denied("the token is not one of this site's")
	}
	if r, again := t.Used[b.Peer]; again {
		m, _ := c.Members.Get(r)
		if m.Removed {
			return denied("this node was removed from the site")
		}
		return Joined{Runner: r, Name: m.Name, MayVote: m.MayLead()}, nil
	}
	switch {
	case t.Revoked:
		return denied("token %s was revoked", forgeyard.Short(t.ID))
	case c.at >= t.Expires:
		return denied("token %s expired at %s", forgeyard.Short(t.ID), t.Expires.Time().Format("2006-01-02 15:04:05Z"))
	case t.Uses < 1:
		return denied("token %s is spent", forgeyard.Short(t.ID))
	case c.Members.Len() >= maxMembers:
		return Joined{}, forgeyard.Errorf("join", forgeyard.Limit, "the site has %d members, the bound is %d", c.Members.Len(), maxMembers)
	}
	if m, ok := c.byPeer(b.Peer); ok {
		return Joined{}, forgeyard.Errorf("join", forgeyard.Conflict, "this key is enrolled already as %s (%s)", m.Name, m.Runner)
	}
	m := Member{Runner: forgeyard.RunnerID(c.newID()), Name: b.Name, Peer: b.Peer, MayVote: t.MayVote, Joined: c.at, Labels: b.Labels, Addrs: b.Addrs, Gossip: b.Gossip, Token: t.ID, Order: c.Step, Waiting: t.Approve}
	m.Name = c.freeName(cmp.Or(b.Name, "node"), m.Runner)
	c.Members = c.Members.Put(m.Runner, m)
	used := make(map[string]forgeyard.RunnerID, len(t.Used)+1)
	for k, v := range t.Used {
		used[k] = v
	}
	used[b.Peer] = m.Runner
	t.Used, t.Uses = used, t.Uses-1
	c.Tokens = c.Tokens.Put(t.ID, t)
	if m.Waiting {
		c.note("member", "%s joined as %s and waits for approval", m.Name, m.Runner)
	} else {
		c.note("member", "%s joined as %s", m.Name, m.Runner)
	}
	return Joined{Runner: m.Runner, Name: m.Name, MayVote: m.MayLead()}, nil
}

func (s *State) byPeer(peer string) (Member, bool) {
	for _, m := range s.Members.All() {
		if m.Peer == peer && !m.Removed {
			return m, true
		}
	}
	return Member{}, false
}

// freeName keeps names distinct for people; identity never comes from a name (07§203).
func (s *State) freeName(name string, id forgeyard.RunnerID) string {
	for _, m := range s.Members.All() {
		if m.Name == name && m.Runner != id && !m.Removed {
			return name + "-" + forgeyard.Short(id)[4:]
		}
	}
	return name
}

func (c *change) register(b Register) (Registered, error) {
	m, ok := c.Members.Get(b.Runner)
	switch {
	case !ok:
		return Registered{}, forgeyard.Errorf("register", forgeyard.Denied, "runner %s is not a member of site %s", b.Runner, c.Name)
	case m.Removed:
		return Registered{}, forgeyard.Errorf("register", forgeyard.Denied, "runner %s was removed from site %s", m.Name, c.Name)
	case m.Disabled && c.Allows(FormatLeases):
		// Not Denied, by which a node would take itself for removed and end.
		return Registered{}, forgeyard.Errorf("register", forgeyard.Conflict, "runner %s is disabled", m.Name).
			WithHint("it registers by itself once it is enabled: forgeyard-node runner enable %s", m.Name)
	case m.Session.superseded(b.Session):
		return Registered{}, forgeyard.Errorf("register", forgeyard.Stale, "session %s was superseded by %s", forgeyard.Short(b.Session), forgeyard.Short(m.Session.ID))
	case b.Session == "":
		return Registered{}, forgeyard.Errorf("register", forgeyard.Invalid, "the session id is empty")
	case !b.Formats.Reads(c.LogFormat()):
		return Registered{}, unreadable("register", b.Formats, c.LogFormat())
	}
	before := m.Session
	fresh := before.ID != b.Session
	c.noteChanges(m, b)
	m.Caps, m.Digest, m.Addrs, m.Gossip = b.Caps, b.Digest, b.Addrs, b.Gossip
	if b.Labels != nil {
		m.Labels = b.Labels
	}
	switch {
	case fresh:
		m.Session = Session{ID: b.Session, Since: c.at, Index: c.Step, Version: b.Version, Previous: before.ID, Formats: b.Formats, Place: b.Place}
		if c.Allows(FormatPlaces) {
			m.Session.Past = before.followedBy()
		}
		m.Silent, m.Notice = 0, nil // what was said of the machine was said of the process that ran there
	case !b.Place.IsZero():
		m.Session.Place = b.Place // it began when the log's format had no room for it
	}
	c.Members = c.Members.Put(b.Runner, m)
	var r Registered
	if fresh {
		r.Abandon = c.supersede(m, before)
		c.note("session", "%s registered session %s", m.Name, forgeyard.Short(b.Session))
	}
	if !m.Waiting { // nobody leases what an unapproved machine says it has
		c.declareDevices(m)
	}
	return r, nil
}

// noteChanges says which of a machine's abilities changed since it registered last.
func (c *change) noteChanges(m Member, b Register) {
	if m.Session.ID == "" || !c.Allows(FormatLeases) {
		return
	}
	if changes := m.Caps.ChangesTo(b.Caps); len(changes) > 0 {
		c.note("capability", "%s: %s", m.Name, listed(changes, maxNote-len(m.Name)-2))
	}
}

// listed are as many of the words as have room, and the number of the others. Its bytes are
// part of the log's format.
func listed(all []string, room int) string {
	text := all[0]
	for i, s := range all[1:] {
		more := fmt.Sprintf("; and %d more", len(all)-i-1)
		longer := text + "; " + s
		if i+2 < len(all) && len(longer)+len(more) <= room || i+2 == len(all) && len(longer) <= room {
			text = longer
			continue
		}
		if len(text)+len(more) > room {
			text = forgeyard.Clip(text, max(0, room-len(more)-len("…")))
		}
		return text + more
	}
	return text
}

// supersede ends every lease that an older session of the member holds: nothing commits
// under it any more. Whoever registered has killed what an earlier process left where it
// runs. If that is not where the holder ran (a copied data dir, another boot), the holder
// may still act: work for which that matters is unknown until it has certainly stopped.
func (c *change) supersede(m Member, before Session) []forgeyard.LeaseID {
	var gone []forgeyard.LeaseID
	for id := range c.Open.All() {
		j, _ := c.Jobs.Get(id)
		a := j.Lease.Authority
		if a.Runner != m.Runner || a.Session == m.Session.ID || j.Status.Terminal() {
			continue
		}
		free := c.isDead(a.Session, before, m.Session) || !j.waitsForCertain()
		switch {
		case j.Lease.Live():
			gone = append(gone, a.Lease)
			c.endSuperseded(&j, free)
		case j.Status == job.Unknown:
			gone = append(gone, a.Lease)
			if free && j.lastGranted() {
				j.Certain = true
				c.settleUnknown(&j)
			}
		}
		c.putJob(j)
	}
	return gone
}

// endSuperseded ends a live lease of an earlier session. free: the job may go on at once.
func (c *change) endSuperseded(j *Job, free bool) {
	begun := j.Lease.State == lease.Accepted
	if !begun || free {
		c.endLease(j, lease.EndSuperseded, "its process restarted")
	} else {
		c.endLease(j, lease.EndSuperseded, "another process registered as its runner")
	}
	switch {
	case !begun:
		c.requeue(j, "the runner's process restarted before it took the offer")
	case free:
		c.next = job.EventRunnerLost
		c.interrupted(j, job.RunnerLost, "the runner's process restarted")
	default:
		j.Interruptions++
		c.next = job.EventRunnerLost
		c.doubt(j, "another process registered as its runner, and the one before may still run")
	}
}

// isDead reports whether the process of a session has surely ended, now that another
// registered after the one before: where both name the same place, and for no session that
// was superseded earlier, of which only its own deadline is known.
func (c *change) isDead(id forgeyard.SessionID, before, now Session) bool {
	if !c.Allows(FormatPlaces) {
		return true // programs of format 1 take whoever registers for the proof
	}
	return id == before.ID && !now.Place.IsZero() && now.Place == before.Place
}

// waitsForCertain reports whether it matters for the job that its last holder may still act:
// others must not, or somebody was told that nothing runs once it is cancelled.
func (j Job) waitsForCertain() bool { return j.Lease.WaitsForCertain() || j.CancelAt != 0 }

func (c *change) memberSet(b MemberSet) error {
	m, ok := c.Members.Get(b.Runner)
	if !ok {
		return forgeyard.Errorf("member", forgeyard.NotFound, "no member %s", b.Runner)
	}
	if b.Draining != nil {
		c.drain(&m, b)
	}
	if b.Disabled != nil {
		m.Disabled = *b.Disabled
		c.note("member", "%s disabled: %v, by %s", m.Name, m.Disabled, c.by)
		if m.Disabled && c.Allows(FormatLeases) {
			// Its connection is for giving back what it holds (07§199); what is not given back is
			// revoked by the controllers.
			c.stopAll(m.Runner, stopDrain, "the runner was disabled by "+c.by)
		}
	}
	if b.Approved {
		if m.Removed {
			return forgeyard.Errorf("approve", forgeyard.Conflict, "%s was removed", m.Name).WithHint("let it join again: forgeyard-node token create")
		}
		c.approve(&m)
	}
	if b.Assign != nil {
		if err := c.assign(&m, *b.Assign); err != nil {
			return err
		}
	}
	if b.Spare != nil {
		if !*b.Spare && m.Waiting {
			return forgeyard.Errorf("promote", forgeyard.Conflict, "%s waits for approval", m.Name).WithHint("forgeyard-node runner approve %s", m.Name)
		}
		if !*b.Spare && !m.MayVote {
			return forgeyard.Errorf("promote", forgeyard.Denied, "%s was enrolled as a runner and holds no site key", m.Name).WithHint("let it join again with a token of role voter")
		}
		m.Spare = *b.Spare
		c.note("member", "%s may vote: %v, by %s", m.Name, !m.Spare, c.by)
	}
	if b.Removed != nil && *b.Removed && !m.Removed {
		if n := c.liveLeases(m.Runner); n > 0 {
			return forgeyard.Errorf("remove", forgeyard.Conflict, "%s still holds %d leases", m.Name, n).WithHint("drain it first: forgeyard-node runner drain %s", m.Name)
		}
		m.Removed = true
		c.note("member", "%s removed by %s", m.Name, c.by)
		for id, d := range c.Devices.All() {
			if d.Host == m.Runner {
				c.Devices = c.Devices.Put(id, d.HostLost(m.Name+" was removed"))
			}
		}
	}
	c.Members = c.Members.Put(b.Runner, m)
	return nil
}

// approve lets a member work and, where its token said so, vote. It is there once and for
// all: who is not wanted any more is disabled or removed.
func (c *change) approve(m *Member) {
	if !m.Waiting {
		return
	}
	m.Waiting = false
	c.note("member", "%s approved by %s", m.Name, c.by)
	c.declareDevices(*m)
}

// assign changes what the site says of a member. What runs there goes on.
func (c *change) assign(m *Member, b job.Assign) error {
	if m.Removed {
		return forgeyard.Errorf("assign", forgeyard.Conflict, "%s was removed", m.Name)
	}
	next, err := b.Changed(m.Assigned)
	if err != nil {
		return err
	}
	m.Assigned = next
	c.note("member", "%s is assigned %s, by %s", m.Name, next, c.by)
	return nil
}

// drain begins a drain, ends it, sets its deadline, or says that the deadline has come.
func (c *change) drain(m *Member, b MemberSet) {
	over := b.Cancel && b.Deadline != 0
	if over && b.Deadline != m.Deadline {
		return // the drain has another one by now, or has ended
	}
	m.Draining = *b.Draining
	m.Moving = m.Draining && (m.Moving || b.Move)
	if b.Move && m.Draining {
		c.note("member", "%s draining: what runs there moves as others have room, by %s", m.Name, c.by)
		return
	}
	switch {
	case over:
		m.Deadline = 0
		c.note("member", "%s: the deadline of the drain has passed", m.Name)
		c.stopAll(m.Runner, stopDrain, "the deadline of the drain has passed")
		return
	case m.Draining && b.Deadline != 0:
		m.Deadline = b.Deadline
		c.note("member", "%s draining: what runs is asked back at %s", m.Name, b.Deadline.Time().UTC().Format(time.RFC3339))
		return
	case !m.Draining || b.Cancel:
		m.Deadline = 0
	}
	c.note("member", "%s draining: %v", m.Name, m.Draining)
	if b.Cancel && m.Draining {
		c.stopAll(m.Runner, stopDrain, "the runner drains")
	}
}

func (s *State) liveLeases(r forgeyard.RunnerID) int {
	n := 0
	for id := range s.Open.All() {
		if j, _ := s.Jobs.Get(id); j.Lease.Live() && j.Lease.Authority.Runner == r {
			n++
		}
	}
	return n
}

func (c *change) configSet(b ConfigSet) error {
	next, err := c.Config.Set(b.Key, b.Value)
	if err != nil {
		return err
	}
	c.Config = next
	c.note("config", "%s set to %s by %s", b.Key, b.Value, c.by)
	return nil
}
