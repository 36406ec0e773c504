// Package site decides what the replicated state of a site is and how each
// command of the log changes it: one deterministic Apply over the rules of job,
// lease, checkpoint and devices.
//
//	command ─▶ Apply(index, term) ─▶ next state, reply
//
// The same state and the same command give the same next state, byte for byte,
// on every voter. A command that does not hold is answered with an error and
// changes nothing but the memory of its request id. Time is a fact inside the
// command, for people; no rule here compares it for authority.
//
// Invariants (each a checker in package simulation):
//   - at most one epoch of a job is current;
//   - nothing is accepted under an authority that is not the current one;
//   - a terminal status is written once, and nothing follows it;
//   - the outbox has no gap and keeps its order;
//   - a device has at most one lease, and its tokens only rise.
//
// A State is immutable: readers keep a pointer for as long as they like, and a
// Raft snapshot stops nothing. The package is pure. It proposes nothing; what to
// do next is decided in node/controllers and node/agent.
package site

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// State is everything the voters agree on. The zero State is a site that was
// not initialised: it accepts Init and nothing else.
type State struct {
	Index uint64 // of the last applied entry
	// Step numbers the commands: at least the index of the entry, and higher than that of
	// every command before. Several commands may share an entry, so what must be unique
	// or rising is made of the step: tokens, identifiers, the order of things.
	Step        uint64
	Site        forgeyard.SiteID
	Name        string
	PublicKey   []byte // of the site key that signs member credentials
	Created     forgeyard.Wall
	Incarnation uint64
	Config      sitecfg.Site

	Members Table[forgeyard.RunnerID, Member]
	Tokens  Table[forgeyard.TokenID, Token]
	Runs    Table[forgeyard.RunID, Run]
	Events  Table[EventKey, job.Event]
	Jobs    Table[forgeyard.JobID, Job]
	Open    Table[forgeyard.JobID, uint64] // jobs that have not ended, with the index of their submission
	Devices Table[forgeyard.DeviceID, devices.Device]
	Names   Table[string, Name] // what ingests brought into the store
	Secrets Table[string, Secret]

	Uplink  lease.Uplink
	Central Central
	Outbox  Table[Seq, Record]
	Sent    uint64 // number of the last record ever put into the outbox
	Acked   uint64 // number of the last record the daemon acknowledged
	Cursor  uint64 // the daemon's delegation records that were taken in

	Keys     Table[string, forgeyard.RunID]           // idempotency keys of submissions
	Requests Table[forgeyard.MessageID, requestReply] // bounded by maxRequests
	Order    Queue[forgeyard.MessageID]               // requests by age
	History  []SiteEvent                              // the last maxHistory events of the site, oldest first
	// LeaseLog is what became of leases, oldest first, the last maxLeaseLog. It is apart
	// from History: a busy minute would push out what the site must remember for weeks.
	LeaseLog Queue[*SiteEvent]
	LeaseSeq uint64                      // events that LeaseLog ever had: nothing is decided by it, but snapshots have it
	Ready    Ready                       // what keeps the site from going on alone
	Ended    Table[Seq, forgeyard.JobID] // ended jobs by age, bounded by maxEnded
	EndedSeq uint64                      // jobs that ever ended

	Format    Format // of the log; see LogFormat
	Forgotten uint64 // number of the last event that is no longer in History
	// LeaseForgotten is the same of LeaseLog.
	LeaseForgotten uint64
	Recoveries     []Recovery // how the incarnation grew, oldest first, bounded by maxRecoveries
}

// Member is one enrolled node.
type Member struct {
	Runner   forgeyard.RunnerID `cbor:"1,keyasint"`
	Name     string             `cbor:"2,keyasint"`
	Peer     string             `cbor:"3,keyasint"` // libp2p peer id; the key that the credential names
	MayVote  bool               `cbor:"4,keyasint,omitempty"`
	Joined   forgeyard.Wall     `cbor:"5,keyasint"`
	Labels   map[string]string  `cbor:"6,keyasint,omitempty"`
	Addrs    []string           `cbor:"7,keyasint,omitempty"` // mesh addresses at enrolment
	Gossip   string             `cbor:"8,keyasint,omitempty"`
	Session  Session            `cbor:"9,keyasint"`
	Caps     job.Capabilities   `cbor:"10,keyasint"`
	Digest   forgeyard.Digest   `cbor:"11,keyasint,omitzero"` // of Caps
	Draining bool               `cbor:"12,keyasint,omitempty"`
	Deadline forgeyard.Wall     `cbor:"13,keyasint,omitempty"` // of the drain: see MemberSet
	Disabled bool               `cbor:"14,keyasint,omitempty"`
	Removed  bool               `cbor:"15,keyasint,omitempty"` // revoked: every member drops the peer
	Token    forgeyard.TokenID  `cbor:"16,keyasint,omitempty"` // it came in with
	Order    uint64             `cbor:"17,keyasint"`           // step of the enrolment: the order of promotion
	Silent   forgeyard.Wall     `cbor:"18,keyasint,omitempty"` // since when the leader does not hear it; zero: it does
	Spare    bool               `cbor:"19,keyasint,omitempty"` // an operator took its vote: it gets none by itself
	Waiting  bool               `cbor:"20,keyasint,omitempty"` // for approval: no work, no vote, no word in the site's matters
	// Assigned is what the site says of it. It bears on what is offered from then on, and on
	// nothing that was.
	Assigned job.Assignment `cbor:"21,keyasint,omitzero"`
	Notice   *Notice        `cbor:"58,keyasint,omitempty"` // it is being taken away; its next session has none
	Moving   bool           `cbor:"85,keyasint,omitempty"` // with Draining: what runs there moves away, as the site has room for it
}

// MayLead reports whether the member may vote now, and so lead and hold the site's key.
func (m Member) MayLead() bool { return m.MayVote && !m.Waiting && !m.Removed }

// Session is one process of a member (07§7).
type Session struct {
	ID      forgeyard.SessionID `cbor:"1,keyasint"`
	Since   forgeyard.Wall      `cbor:"2,keyasint"`
	Index   uint64              `cbor:"3,keyasint"`
	Version string              `cbor:"4,keyasint,omitempty"`
	// Previous was superseded by this one: it never comes back (E09).
	Previous forgeyard.SessionID `cbor:"5,keyasint,omitempty"`
	Formats  FormatRange         `cbor:"6,keyasint,omitzero"` // of the log, that this process reads
	Place    forgeyard.Digest    `cbor:"7,keyasint,omitzero"` // see Register.Place
	// Past are those before Previous, the latest first, the last maxPastSessions of them. A
	// registration may be long on its way: what is sent again, by a process that has since
	// ended, must not be taken for the end of the one that runs now. Of log format 2.
	Past []forgeyard.SessionID `cbor:"8,keyasint,omitempty"`
}

// followedBy is Past of the session that comes after s.
func (s Session) followedBy() []forgeyard.SessionID {
	if s.Previous == "" {
		return nil
	}
	past := append([]forgeyard.SessionID{s.Previous}, s.Past...)
	return past[:min(len(past), maxPastSessions)]
}

// superseded reports whether another session of the member followed that one.
func (s Session) superseded(id forgeyard.SessionID) bool {
	return id != "" && (id == s.Previous || slices.Contains(s.Past, id))
}

// Token is a join token; the log knows only the hash of its secret.
type Token struct {
	ID      forgeyard.TokenID             `cbor:"1,keyasint"`
	Hash    [32]byte                      `cbor:"2,keyasint"`
	Expires forgeyard.Wall                `cbor:"3,keyasint"`
	Uses    int                           `cbor:"4,keyasint"` // left
	MayVote bool                          `cbor:"5,keyasint,omitempty"`
	By      string                        `cbor:"6,keyasint,omitempty"`
	Created forgeyard.Wall                `cbor:"7,keyasint"`
	Revoked bool                          `cbor:"8,keyasint,omitempty"`
	Used    map[string]forgeyard.RunnerID `cbor:"9,keyasint,omitempty"`  // peer id → runner: a repeat is the same join
	Approve bool                          `cbor:"10,keyasint,omitempty"` // see TokenCreate
}

// Run is one record of the ledger (RS-010).
type Run struct {
	ID       forgeyard.RunID     `cbor:"1,keyasint"`
	Kind     job.RunKind         `cbor:"2,keyasint"`
	Title    string              `cbor:"3,keyasint,omitempty"`
	Status   job.Status          `cbor:"4,keyasint"`
	Summary  string              `cbor:"5,keyasint,omitempty"`
	Error    string              `cbor:"6,keyasint,omitempty"`
	Category job.FailureCategory `cbor:"7,keyasint,omitempty"`
	Created  forgeyard.Wall      `cbor:"8,keyasint"`
	Started  forgeyard.Wall      `cbor:"9,keyasint,omitempty"`
	Ended    forgeyard.Wall      `cbor:"10,keyasint,omitempty"`
	CancelAt forgeyard.Wall      `cbor:"11,keyasint,omitempty"` // cancellation_requested_at
	Job      forgeyard.JobID     `cbor:"12,keyasint"`
	LastSeq  uint64              `cbor:"13,keyasint"` // of its events
	Exec     ExecutionRef        `cbor:"14,keyasint"`
	By       string              `cbor:"15,keyasint,omitempty"`
	Key      string              `cbor:"16,keyasint,omitempty"` // idempotency key
	// Group: of the runs in it the one with the highest Order supersedes the others.
	Group        string          `cbor:"58,keyasint,omitempty"`
	Order        uint64          `cbor:"59,keyasint,omitempty"`
	SupersededBy forgeyard.RunID `cbor:"60,keyasint,omitempty"`
	Suspension   *RunSuspension  `cbor:"61,keyasint,omitempty"` // the last one
}

// ExecutionRef says where a run executes (RS, decision 22).
type ExecutionRef struct {
	Node  forgeyard.RunnerID `cbor:"1,keyasint,omitempty"`
	PID   int                `cbor:"2,keyasint,omitempty"`
	Birth uint64             `cbor:"3,keyasint,omitempty"` // start time of the process: a reused pid never matches
}

// Job is one planned job and the execution of it that is current.
type Job struct {
	ID      forgeyard.JobID     `cbor:"1,keyasint"`
	Run     forgeyard.RunID     `cbor:"2,keyasint"`
	Spec    job.Spec            `cbor:"3,keyasint"`
	SpecID  forgeyard.Digest    `cbor:"4,keyasint"`
	Status  job.Status          `cbor:"5,keyasint"`
	Reason  string              `cbor:"6,keyasint,omitempty"` // why it stands where it stands
	Attempt forgeyard.AttemptID `cbor:"7,keyasint,omitempty"`
	Phase   job.Phase           `cbor:"8,keyasint,omitempty"`
	Epoch   uint64              `cbor:"9,keyasint"` // executions so far, over all attempts
	Term    uint64              `cbor:"10,keyasint"`
	Lease   lease.Lease         `cbor:"11,keyasint"` // of the current epoch, live or ended
	Grant   *lease.Grant        `cbor:"12,keyasint,omitempty"`
	Certain bool                `cbor:"13,keyasint,omitempty"` // status unknown: the old holder has certainly stopped

	Interruptions int            `cbor:"14,keyasint,omitempty"` // from outside; charged to the budget
	Retries       int            `cbor:"15,keyasint,omitempty"` // runner-side trouble; bounded by maxRetries
	Avoid         []Avoidance    `cbor:"16,keyasint,omitempty"`
	CancelAt      forgeyard.Wall `cbor:"17,keyasint,omitempty"`
	CancelBy      string         `cbor:"18,keyasint,omitempty"`
	Force         bool           `cbor:"19,keyasint,omitempty"`
	StopKind      string         `cbor:"20,keyasint,omitempty"` // suspend | preempt | drain: asked of the holder
	StopReason    string         `cbor:"21,keyasint,omitempty"`

	Checkpoints []checkpoint.Commit `cbor:"22,keyasint,omitempty"` // committed, oldest first; all of the current attempt
	ResumeFrom  forgeyard.Digest    `cbor:"23,keyasint,omitzero"`  // manifest of the one that the current epoch starts from

	Log     []job.LogChunk `cbor:"25,keyasint,omitempty"` // flushed, oldest first
	LogSeq  uint64         `cbor:"26,keyasint,omitempty"` // last log sequence that reached the store
	History []EpochRecord  `cbor:"27,keyasint,omitempty"` // the last maxEpochs epochs

	Result    *job.Result         `cbor:"28,keyasint,omitempty"`
	Message   forgeyard.MessageID `cbor:"29,keyasint,omitempty"` // of the completion that was accepted
	Submitted forgeyard.Wall      `cbor:"30,keyasint"`
	Started   forgeyard.Wall      `cbor:"31,keyasint,omitempty"`
	Ended     forgeyard.Wall      `cbor:"32,keyasint,omitempty"`
	Category  job.FailureCategory `cbor:"33,keyasint,omitempty"`
	Devices   []HeldDevice        `cbor:"34,keyasint,omitempty"`
	LogFull   bool                `cbor:"36,keyasint,omitempty"` // parts of the log beyond the bound are not kept
	Late      []LateResult        `cbor:"35,keyasint,omitempty"` // refused completions, kept as evidence (E27)
	Told      uint64              `cbor:"37,keyasint,omitempty"` // happenings of the current epoch that are in the run's events
	Via       forgeyard.RunnerID  `cbor:"38,keyasint,omitempty"` // see Submit
	Said      uint64              `cbor:"39,keyasint,omitempty"` // number of the outcome's record for the daemon
	Tail      uint64              `cbor:"40,keyasint,omitempty"` // last number that the lost holder's log had, 0: unknown, or none was lost
	Hold      *Hold               `cbor:"41,keyasint,omitempty"` // the last wish to suspend it
	Asks      uint64              `cbor:"42,keyasint,omitempty"` // checkpoints that people asked for, of the current epoch

	// Tainted is the epoch that ran when its runner's checkpoints, or its own, were revoked.
	Tainted uint64 `cbor:"46,keyasint,omitempty"`

	Effects []Effect        `cbor:"50,keyasint,omitempty"`  // the ledger, in the order of the first intents; at most job.MaxEffects
	Steps   []CommittedStep `cbor:"51,keyasint,omitempty"`  // in the order of the log, each step once
	Cancel  *Cancellation   `cbor:"58,keyasint,omitempty"`  // beside CancelAt: nil where a person's plain wish is all
	Stuck   int             `cbor:"59,keyasint,omitempty"`  // checkpoints in a row that brought nothing, each with a restart
	Mark    string          `cbor:"55,keyasint,omitempty"`  // the last that the attempt's program set, for its next epoch
	Word    *RestoreWord    `cbor:"85,keyasint,omitempty"`  // the last that a program said of what it went on from
	Begun   uint64          `cbor:"111,keyasint,omitempty"` // the first epoch that was accepted, of which something may have run
}

// Fence is the current fence of the job.
func (j Job) Fence() forgeyard.Fence { return j.Lease.Authority.Fence }

// HeldDevice is a device that the current epoch holds.
type HeldDevice struct {
	As     string                  `cbor:"1,keyasint"`
	Device forgeyard.DeviceID      `cbor:"2,keyasint"`
	Lease  forgeyard.DeviceLeaseID `cbor:"3,keyasint"`
	Token  uint64                  `cbor:"4,keyasint"`
	Host   forgeyard.RunnerID      `cbor:"5,keyasint"`
}

// Avoidance keeps a job from the runner that just refused it, until that runner
// has a new session or the controllers' patience ends.
type Avoidance struct {
	Runner  forgeyard.RunnerID  `cbor:"1,keyasint"`
	Session forgeyard.SessionID `cbor:"2,keyasint"`
	Reason  string              `cbor:"3,keyasint"`
	Index   uint64              `cbor:"4,keyasint"`
}

// EpochRecord is one line of a job's history.
type EpochRecord struct {
	Epoch   uint64              `cbor:"1,keyasint"`
	Attempt forgeyard.AttemptID `cbor:"2,keyasint"`
	Lease   forgeyard.LeaseID   `cbor:"3,keyasint"`
	Runner  forgeyard.RunnerID  `cbor:"4,keyasint"`
	Session forgeyard.SessionID `cbor:"5,keyasint"`
	Resumed forgeyard.Digest    `cbor:"6,keyasint,omitzero"` // checkpoint it started from
	Started forgeyard.Wall      `cbor:"7,keyasint"`
	Ended   forgeyard.Wall      `cbor:"8,keyasint,omitempty"`
	Reason  lease.EndReason     `cbor:"9,keyasint,omitempty"`
	Detail  string              `cbor:"10,keyasint,omitempty"`
}

// What a new process of a runner says of the epochs that the one before it held.
const (
	ProcessRestarted = "the runner's process restarted"
	MachineRestarted = "the runner's machine restarted"
)

// EndedWithProcess reports that the process which held the epoch is no more: its session takes
// nothing, although the next one has not registered yet.
func (r EpochRecord) EndedWithProcess() bool {
	return r.Reason == lease.EndReleased && (r.Detail == ProcessRestarted || r.Detail == MachineRestarted)
}

// LateResult is a completion that came under a fence that was not current.
type LateResult struct {
	At      forgeyard.Wall      `cbor:"1,keyasint"`
	Epoch   uint64              `cbor:"2,keyasint"`
	Runner  forgeyard.RunnerID  `cbor:"3,keyasint"`
	Message forgeyard.MessageID `cbor:"4,keyasint"`
	Outcome job.Outcome         `cbor:"5,keyasint"`
	Why     string              `cbor:"6,keyasint"`
}

// Central is the daemon this site reports to.
type Central struct {
	Peer   string   `cbor:"1,keyasint,omitempty"` // its libp2p peer id, pinned by the ticket
	Addrs  []string `cbor:"2,keyasint,omitempty"`
	Name   string   `cbor:"3,keyasint,omitempty"`
	Ticket string   `cbor:"4,keyasint,omitempty"` // id of the ticket, not its secret
	Drill  bool     `cbor:"5,keyasint,omitempty"` // a person cut the link on purpose
}

// Record is one fact for the central daemon, in order (architecture §6).
type Record struct {
	Seq    uint64             `cbor:"1,keyasint"`
	Kind   string             `cbor:"2,keyasint"` // started | outcome
	Grant  forgeyard.GrantID  `cbor:"3,keyasint"`
	Job    forgeyard.JobID    `cbor:"4,keyasint"`
	Fence  forgeyard.Fence    `cbor:"5,keyasint"`
	Status job.Status         `cbor:"6,keyasint"`
	Result *job.Result        `cbor:"7,keyasint,omitempty"`
	Runner forgeyard.RunnerID `cbor:"8,keyasint,omitempty"`
	At     forgeyard.Wall     `cbor:"9,keyasint"`
	Used   int64              `cbor:"10,keyasint,omitempty"` // nanoseconds of silence when it happened: 0 while online
}

// Ready is whether the site could keep the promise of its allowance, as last looked at
// while it was online.
type Ready struct {
	Asked bool              `cbor:"1,keyasint,omitempty"` // somebody looked
	Since forgeyard.Wall    `cbor:"2,keyasint,omitempty"` // the answer is what it is since then
	Lacks []lease.Shortfall `cbor:"3,keyasint,omitempty"` // none: it could
}

// SiteEvent is one line of `site events`.
type SiteEvent struct {
	Index uint64         `cbor:"1,keyasint"`
	At    forgeyard.Wall `cbor:"2,keyasint"`
	Kind  string         `cbor:"3,keyasint"`
	Text  string         `cbor:"4,keyasint"`
}
