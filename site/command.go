package site

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// Command is one entry of the site's log:
//
//	{1: format, 2: kind, 3: request id, 4: wall time in ms, 5: who, 6: body}
//
// as deterministic CBOR. A repeated request id is answered with the first reply
// and changes nothing (decision 26f).
type Command struct {
	ID   forgeyard.MessageID
	At   forgeyard.Wall // the proposer's wall clock, for people
	By   string         // runner id, person or controller: for the audit
	Body Body
}

// Body is one of the command types below.
type Body interface{ kind() Kind }

// Kind numbers the commands in the log. Append only; a number is never reused.
type Kind uint16

// Kinds of commands.
const (
	kindInit Kind = iota + 1
	kindTokenCreate
	kindTokenRevoke
	kindJoin
	kindRegister
	kindMemberSet
	kindSubmit
	kindCancel
	kindStop
	kindOffer
	kindAccept
	kindReject
	kindPhase
	kindCheckpoint
	kindRelease
	kindComplete
	kindExpire
	kindDeviceLease
	kindDeviceRelease
	kindDeviceReset
	kindDeviceHealth
	kindUplinkConnect
	kindUplinkObserve
	kindDelegate
	kindOutboxAck
	kindDrill
	kindConfigSet
	kindFail
	kindResume
	kindRecover
	kindFormatRaise
	kindRevoke
	kindStopped
	kindSilence
	kindReadiness
	kindReport
	kindUnname
	kindAttestOff
	kindSecretSet
	kindSecretRemove
	kindContest
	kindAsk
	kindStopRefused

	kindStopping   Kind = 58
	kindPreempt    Kind = 59
	kindRunSuspend Kind = 60
	kindRunResume  Kind = 61
)

// kindMark is a number of its own: those between are free.
const kindMark Kind = 55

// Kinds of what is said and wished of a checkpoint that is gone on from.
const (
	kindRestored Kind = iota + 70
	kindCheckpointsAged
)

// Kinds of what is done outside, and of committed steps.
const (
	kindEffectIntent Kind = iota + 50
	kindEffectOutcome
	kindEffectResolve
	kindStepCommit
)

// Kinds of commands about checkpoints that were committed.
const (
	kindCheckpointRevoke Kind = iota + 45
	kindCheckpointLetGo
	kindCheckpointOpen
)

// Init starts the site with its founder.
type Init struct {
	Site      forgeyard.SiteID   `cbor:"1,keyasint"`
	Name      string             `cbor:"2,keyasint"`
	PublicKey []byte             `cbor:"3,keyasint"`
	Config    sitecfg.Site       `cbor:"4,keyasint"`
	Runner    forgeyard.RunnerID `cbor:"5,keyasint"`
	Node      string             `cbor:"6,keyasint"`
	Peer      string             `cbor:"7,keyasint"`
}

// TokenCreate stores the hash of a join token's secret.
type TokenCreate struct {
	Token   forgeyard.TokenID `cbor:"1,keyasint"`
	Hash    [32]byte          `cbor:"2,keyasint"`
	Expires forgeyard.Wall    `cbor:"3,keyasint"`
	Uses    int               `cbor:"4,keyasint"`
	MayVote bool              `cbor:"5,keyasint"`
	Approve bool              `cbor:"6,keyasint,omitempty"` // who comes in with it waits for approval; of log format 2
}

// TokenRevoke ends a token.
type TokenRevoke struct {
	Token forgeyard.TokenID `cbor:"1,keyasint"`
}

// Join redeems a token for one peer. The same peer with the same token gets the
// same runner again: an answer that was lost costs no second use.
type Join struct {
	Token   forgeyard.TokenID `cbor:"1,keyasint"`
	Hash    [32]byte          `cbor:"2,keyasint"`
	Peer    string            `cbor:"3,keyasint"`
	Name    string            `cbor:"4,keyasint"`
	Labels  map[string]string `cbor:"5,keyasint,omitempty"`
	Addrs   []string          `cbor:"6,keyasint,omitempty"`
	Gossip  string            `cbor:"7,keyasint,omitempty"`
	Version string            `cbor:"8,keyasint,omitempty"`
}

// Joined is Join's reply. MayVote is of now: of who waits for approval it is false.
type Joined struct {
	Runner  forgeyard.RunnerID `cbor:"1,keyasint"`
	Name    string             `cbor:"2,keyasint"`
	MayVote bool               `cbor:"3,keyasint"`
}

// Register records a new session of a member, with what the machine is. The
// session that was there before is superseded at once (E09). Its proposer has
// killed what an old process left here, by pid and birth time, before it asks.
type Register struct {
	Runner  forgeyard.RunnerID  `cbor:"1,keyasint"`
	Session forgeyard.SessionID `cbor:"2,keyasint"`
	Version string              `cbor:"3,keyasint"`
	Caps    job.Capabilities    `cbor:"4,keyasint"`
	Addrs   []string            `cbor:"5,keyasint,omitempty"`
	Gossip  string              `cbor:"6,keyasint,omitempty"`
	Labels  map[string]string   `cbor:"7,keyasint,omitempty"`
	Digest  forgeyard.Digest    `cbor:"8,keyasint,omitzero"` // of Caps, as the runner computed it
	Formats FormatRange         `cbor:"9,keyasint,omitzero"` // of the log, that its program reads
	// Place is where the process runs: two processes that name the same place never run at
	// the same time, so that the later one is the end of the earlier. Zero: it cannot tell.
	// Of log format 2.
	Place forgeyard.Digest `cbor:"10,keyasint,omitzero"`
}

// Registered is Register's reply: what to do with each attempt of before (07§108).
type Registered struct {
	Abandon []forgeyard.LeaseID `cbor:"1,keyasint,omitempty"` // AbandonAndCleanup; all others are stale
}

// MemberSet changes what a member may do. Nil fields stay as they are.
type MemberSet struct {
	Runner   forgeyard.RunnerID `cbor:"1,keyasint"`
	Draining *bool              `cbor:"2,keyasint,omitempty"`
	Cancel   bool               `cbor:"3,keyasint,omitempty"` // with Draining: cancel what runs
	Disabled *bool              `cbor:"4,keyasint,omitempty"`
	Removed  *bool              `cbor:"5,keyasint,omitempty"`
	Spare    *bool              `cbor:"6,keyasint,omitempty"` // of log format 2
	// Deadline with Draining: when what still runs is asked to give its job back. With Cancel
	// too: that time has come. By the wall clock of the runner itself, for whose drain a person
	// has set it. Of log format 2.
	Deadline forgeyard.Wall `cbor:"7,keyasint,omitempty"`
	Approved bool           `cbor:"8,keyasint,omitempty"`  // it waits no longer; of log format 2
	Assign   *job.Assign    `cbor:"9,keyasint,omitempty"`  // what the site says of it; of log format 2
	Move     bool           `cbor:"85,keyasint,omitempty"` // with Draining: what runs there moves away; of log format 2
}

// Submit puts a run with one job into the queue.
type Submit struct {
	Kind   job.RunKind      `cbor:"1,keyasint"`
	Title  string           `cbor:"2,keyasint,omitempty"`
	Key    string           `cbor:"3,keyasint,omitempty"` // idempotency key: the same key is the same run
	Spec   []byte           `cbor:"4,keyasint"`           // canonical bytes of the job's spec
	SpecID forgeyard.Digest `cbor:"5,keyasint"`
	// Via is the member whose control socket the submission came through: what it alone may
	// ask of its own machine. A member says it of itself only. Of log format 2.
	Via forgeyard.RunnerID `cbor:"6,keyasint,omitempty"`
	// Group and Order: it supersedes the runs of its group that have a lower order, and is
	// refused where one has a higher. Order 0: after all that are there. Of log format 2.
	Group string `cbor:"58,keyasint,omitempty"`
	Order uint64 `cbor:"59,keyasint,omitempty"`
}

// Submitted is Submit's reply.
type Submitted struct {
	Run     forgeyard.RunID `cbor:"1,keyasint"`
	Job     forgeyard.JobID `cbor:"2,keyasint"`
	Existed bool            `cbor:"3,keyasint,omitempty"`
}

// Cancel asks for a job to end. It is durable (RS-006).
type Cancel struct {
	Job   forgeyard.JobID `cbor:"1,keyasint"`
	Force bool            `cbor:"2,keyasint,omitempty"`
	// Of log format 2, as all below. Empty: user. Security ends it at once and withdraws what
	// its current epoch has saved.
	Reason job.CancelReason `cbor:"58,keyasint,omitempty"`
	Note   string           `cbor:"59,keyasint,omitempty"` // in words
	After  bool             `cbor:"60,keyasint,omitempty"` // a checkpoint first, where there is time
	Within int64            `cbor:"61,keyasint,omitempty"` // nanoseconds for it; 0: as the contract says
	Run    forgeyard.RunID  `cbor:"62,keyasint,omitempty"` // the run that supersedes it
}

// Cancelling is Cancel's reply.
type Cancelling struct {
	Changed bool       `cbor:"1,keyasint"`
	Status  job.Status `cbor:"2,keyasint"`
}

// Stop asks the holder to give a running job back: by a checkpoint where the
// contract has one.
type Stop struct {
	Job    forgeyard.JobID `cbor:"1,keyasint"`
	Kind   string          `cbor:"2,keyasint"` // drain | authority
	Reason string          `cbor:"3,keyasint"`
	// Lease is the one that was seen: a later one is not asked back by mistake. Of log format 2.
	Lease forgeyard.LeaseID `cbor:"4,keyasint,omitempty"`
}

// Offer grants the next epoch of a job to one session, and with it the devices
// it needs: all or nothing, in one entry.
type Offer struct {
	Job     forgeyard.JobID      `cbor:"1,keyasint"`
	Runner  forgeyard.RunnerID   `cbor:"2,keyasint"`
	Session forgeyard.SessionID  `cbor:"3,keyasint"`
	Epoch   uint64               `cbor:"4,keyasint"` // the epoch the proposer saw: an offer made on old sight is refused
	Devices []forgeyard.DeviceID `cbor:"5,keyasint,omitempty"`
	Used    int64                `cbor:"6,keyasint,omitempty"` // the leader's own figure of uplink silence, nanoseconds
}

// Accept takes an offer.
type Accept struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
}

// Reject refuses an offer before any work (07§34).
type Reject struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Reason    job.RejectReason    `cbor:"2,keyasint"`
	Detail    string              `cbor:"3,keyasint,omitempty"`
}

// Phase reports a significant phase. A repeat is safe.
type Phase struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Phase     job.Phase           `cbor:"2,keyasint"`
	Exec      ExecutionRef        `cbor:"3,keyasint"`
	Message   string              `cbor:"4,keyasint,omitempty"`
}

// Checkpoint commits a checkpoint whose payload and manifest are stored already.
// With Continue it also grants the next epoch to the same session: the old tree is
// known to be dead (FYCP/1 §4 way 2).
type Checkpoint struct {
	Authority  forgeyard.Authority `cbor:"1,keyasint"`
	Commit     checkpoint.Commit   `cbor:"2,keyasint"` // At is set by Apply
	Log        []job.LogChunk      `cbor:"3,keyasint,omitempty"`
	Continue   bool                `cbor:"4,keyasint,omitempty"`
	Productive bool                `cbor:"5,keyasint,omitempty"` // the resume that this epoch began with went well
	Told       job.Told            `cbor:"6,keyasint,omitzero"`
}

// Checkpointed is Checkpoint's reply.
type Checkpointed struct {
	Duplicate bool                 `cbor:"1,keyasint,omitempty"`
	Next      *forgeyard.Authority `cbor:"2,keyasint,omitempty"` // with Continue: the authority of the next epoch
}

// Release gives a lease back before the work is complete.
type Release struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Kind      string              `cbor:"2,keyasint"` // interrupted | drain | authority | resume_failed | resume_rejected | device_host_lost
	Detail    string              `cbor:"3,keyasint,omitempty"`
	Log       []job.LogChunk      `cbor:"4,keyasint,omitempty"`
	Told      job.Told            `cbor:"5,keyasint,omitzero"`
	// Clean says that whoever goes on does nothing again that was done here: the program was
	// not started, or it ended with the checkpoint that was committed last. Of log format 2.
	Clean bool `cbor:"6,keyasint,omitempty"`
}

// Complete ends a job with its result.
type Complete struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Message   forgeyard.MessageID `cbor:"2,keyasint"` // kept by the runner until it is answered (07§94)
	Result    job.Result          `cbor:"3,keyasint"`
}

// Verdict is the answer to a completion (07§90).
type Verdict string

// Verdicts.
const (
	Accepted          Verdict = "accepted"
	DuplicateAccepted Verdict = "duplicate_accepted"
	StaleRejected     Verdict = "stale_rejected"
	InvalidRejected   Verdict = "invalid_rejected"
)

// Completed is Complete's reply.
type Completed struct {
	Verdict Verdict `cbor:"1,keyasint"`
	Reason  string  `cbor:"2,keyasint,omitempty"`
}

// Expire ends a lease that was silent for longer than its policy allows. With
// Certain the leader has waited until the holder has certainly stopped.
type Expire struct {
	Job     forgeyard.JobID   `cbor:"1,keyasint"`
	Lease   forgeyard.LeaseID `cbor:"2,keyasint"`
	Certain bool              `cbor:"3,keyasint,omitempty"`
	// Term is that of the leadership that counted the silence. What enters the log in
	// another one is refused: there, the holder may have been renewed meanwhile. Zero is
	// not checked.
	Term uint64 `cbor:"4,keyasint,omitempty"`
	// State is the lease's as the proposer saw it: an offer that was accepted meanwhile does
	// not expire as one that nobody answered.
	State lease.State `cbor:"5,keyasint,omitempty"`
	// LogSeq is the last number of the attempt's log that its holder said it had, 0 if
	// nobody heard. The next epoch tells how much of it is lost. Of log format 2.
	LogSeq uint64 `cbor:"6,keyasint,omitempty"`
}

// Revoke takes a lease from its holder, whether that can be reached or not: from this
// entry on nothing commits under it. Where that is enough the job goes on elsewhere; else
// the execution is unknown until its holder has certainly stopped.
type Revoke struct {
	Job    forgeyard.JobID   `cbor:"1,keyasint"`
	Lease  forgeyard.LeaseID `cbor:"2,keyasint"` // the one that was seen: a later one is not revoked by mistake
	Class  string            `cbor:"3,keyasint"` // operator | disabled | security
	Reason string            `cbor:"4,keyasint"`
}

// Stopped is a holder's word that all it ran under a lease is dead. For an execution that
// is unknown this is certainty, which else takes until the holder's own deadline.
type Stopped struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	LogSeq    uint64              `cbor:"2,keyasint,omitempty"` // last number of the log on its own disk
}

// Silence says that the leader has not heard a runner for a while, or hears it again.
type Silence struct {
	Runner  forgeyard.RunnerID  `cbor:"1,keyasint"`
	Session forgeyard.SessionID `cbor:"2,keyasint"`
	Silent  bool                `cbor:"3,keyasint,omitempty"`
	For     int64               `cbor:"4,keyasint,omitempty"` // nanoseconds of silence so far
}

// Readiness commits what keeps the site from going on alone for its whole allowance.
type Readiness struct {
	Lacks []lease.Shortfall `cbor:"1,keyasint,omitempty"`
}

// Report tells what happened in an execution: events for the run, summaries at most, and
// where parts of its log are, so that they outlive its runner. What has a command of its
// own, a phase or an end, is told by that.
type Report struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Told      job.Told            `cbor:"2,keyasint"`
	Log       []job.LogChunk      `cbor:"3,keyasint,omitempty"` // of the attempt's log, parts that other nodes have too
}

// Unname ends a name: what it pointed at is kept no longer for it.
type Unname struct {
	Name string `cbor:"1,keyasint"`
}

// AttestOff is a person's word that the machine of a runner is off, and with it all that it
// ran: what would else be certain only when its policies are over is certain at once.
type AttestOff struct {
	Runner  forgeyard.RunnerID  `cbor:"1,keyasint"`
	Session forgeyard.SessionID `cbor:"2,keyasint"` // the one that was seen: a later one is not meant
	Reason  string              `cbor:"3,keyasint"`
}

// AttestedOff is AttestOff's reply.
type AttestedOff struct {
	Released []forgeyard.JobID `cbor:"1,keyasint,omitempty"` // jobs whose holder it was
}

// Contest tells that another process asked to be a runner whose own process is heard, and
// was refused. Only the leader knows that, and only for a while; this is for people.
type Contest struct {
	Runner  forgeyard.RunnerID  `cbor:"1,keyasint"`
	Session forgeyard.SessionID `cbor:"2,keyasint"` // the one that is heard
	Other   forgeyard.SessionID `cbor:"3,keyasint"`
	Addr    string              `cbor:"4,keyasint,omitempty"` // of the other, as it says
}

// Fail ends a job that can't go on; only controllers propose it.
type Fail struct {
	Job      forgeyard.JobID     `cbor:"1,keyasint"`
	Epoch    uint64              `cbor:"2,keyasint"`
	Category job.FailureCategory `cbor:"3,keyasint"`
	Reason   string              `cbor:"4,keyasint"`
}

// DeviceLease leases a device to a person. The request id of the command is that of
// the lease: the same id is the same lease (D03).
type DeviceLease struct {
	Device forgeyard.DeviceID  `cbor:"1,keyasint,omitempty"` // or
	Kind   string              `cbor:"2,keyasint,omitempty"`
	Labels map[string]string   `cbor:"3,keyasint,omitempty"`
	Holder string              `cbor:"4,keyasint"`
	TTL    int64               `cbor:"5,keyasint"` // nanoseconds
	Key    forgeyard.MessageID `cbor:"6,keyasint"`
}

// DeviceLeased is DeviceLease's reply.
type DeviceLeased struct {
	Lease  forgeyard.DeviceLeaseID `cbor:"1,keyasint"`
	Token  uint64                  `cbor:"2,keyasint"`
	Device forgeyard.DeviceID      `cbor:"3,keyasint"`
	Host   forgeyard.RunnerID      `cbor:"4,keyasint"`
}

// DeviceRelease ends a person's device lease; the device is reset before anybody
// else gets it.
type DeviceRelease struct {
	Lease   forgeyard.DeviceLeaseID `cbor:"1,keyasint"`
	Expired bool                    `cbor:"2,keyasint,omitempty"`
	Force   bool                    `cbor:"3,keyasint,omitempty"`
}

// DeviceReset reports how a reset after a lease went.
type DeviceReset struct {
	Device   forgeyard.DeviceID `cbor:"1,keyasint"`
	Host     forgeyard.RunnerID `cbor:"2,keyasint"`
	Evidence devices.Evidence   `cbor:"3,keyasint"`
}

// DeviceHealth changes what is thought of a device.
type DeviceHealth struct {
	Device forgeyard.DeviceID `cbor:"1,keyasint"`
	Action string             `cbor:"2,keyasint"` // quarantine | clear | checked | lost
	Reason string             `cbor:"3,keyasint,omitempty"`
	OK     bool               `cbor:"4,keyasint,omitempty"` // for checked
}

// UplinkConnect records the central daemon of the ticket, after it answered.
type UplinkConnect struct {
	Central Central           `cbor:"1,keyasint"`
	Terms   lease.UplinkTerms `cbor:"2,keyasint"`
	Off     bool              `cbor:"3,keyasint,omitempty"` // disconnect
}

// UplinkObserve commits how long the uplink was silent (§6).
type UplinkObserve struct {
	Used    int64              `cbor:"1,keyasint"` // nanoseconds
	Contact bool               `cbor:"2,keyasint,omitempty"`
	Doubt   string             `cbor:"3,keyasint,omitempty"` // no clock can vouch: the allowance counts as used up
	Terms   *lease.UplinkTerms `cbor:"4,keyasint,omitempty"` // what the daemon said now
	Daemon  forgeyard.Wall     `cbor:"5,keyasint,omitempty"` // with Contact: what the daemon's clock read then
}

// Delegate takes in delegation records of the central daemon, in order.
type Delegate struct {
	From   uint64       `cbor:"1,keyasint"` // the cursor the records continue
	To     uint64       `cbor:"2,keyasint"`
	Grants []Delegation `cbor:"3,keyasint,omitempty"`
}

// Delegation is one record of the daemon: a job given, or taken back.
type Delegation struct {
	Seq    uint64           `cbor:"1,keyasint"`
	Grant  lease.Grant      `cbor:"2,keyasint"`
	Cancel bool             `cbor:"3,keyasint,omitempty"`
	Title  string           `cbor:"4,keyasint,omitempty"`
	Spec   []byte           `cbor:"5,keyasint,omitempty"` // canonical
	SpecID forgeyard.Digest `cbor:"6,keyasint,omitzero"`
}

// OutboxAck trims the outbox up to and with the given record.
type OutboxAck struct {
	Upto uint64 `cbor:"1,keyasint"`
}

// Drill cuts or restores the uplink on purpose.
type Drill struct {
	Cut bool `cbor:"1,keyasint"`
}

// ConfigSet changes one of the site's settings.
type ConfigSet struct {
	Key   string `cbor:"1,keyasint"`
	Value string `cbor:"2,keyasint"`
}

// Ask is a person's wish to the holder of a job: a checkpoint, or that the job wait, with one,
// until somebody resumes it. Of log format 2.
type Ask struct {
	Job  forgeyard.JobID `cbor:"1,keyasint"`
	What string          `cbor:"2,keyasint"`           // AskCheckpoint, AskSuspend
	Or   string          `cbor:"3,keyasint,omitempty"` // when it cannot be suspended: OrRestart, OrCancel
}

// Asked is Ask's reply.
type Asked struct {
	Changed bool             `cbor:"1,keyasint"`
	Status  job.Status       `cbor:"2,keyasint"`
	Newest  forgeyard.Digest `cbor:"3,keyasint,omitzero"` // the checkpoint that was the newest then
}

// StopRefused is a holder's word that it does not suspend its job: there is no checkpoint to
// go on from. Of log format 2.
type StopRefused struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Why       string              `cbor:"2,keyasint"`
	Wish      uint64              `cbor:"3,keyasint"` // Hold.Step of what is refused: a late word answers no later wish
}

// Stopping is a holder's word of how far it is with the end of cancelled work. Of log format 2.
type Stopping struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Stage     CancelState         `cbor:"2,keyasint"`
}

// Preempt tells that a runner is being taken away, or no longer is. Of log format 2.
type Preempt struct {
	Runner  forgeyard.RunnerID  `cbor:"1,keyasint"`
	Session forgeyard.SessionID `cbor:"2,keyasint,omitempty"` // the one that was seen; empty: a person means the runner
	Source  string              `cbor:"3,keyasint,omitempty"`
	Left    int64               `cbor:"4,keyasint,omitempty"` // nanoseconds until then; 0: nobody says
	Off     bool                `cbor:"5,keyasint,omitempty"`
}

// RunSuspend lets a run wait as a whole until somebody resumes it. Of log format 2.
type RunSuspend struct {
	Run forgeyard.RunID `cbor:"1,keyasint"`
	Or  string          `cbor:"2,keyasint,omitempty"` // as in Ask
}

// RunSuspended is RunSuspend's reply.
type RunSuspended struct {
	ID      forgeyard.RunSuspensionID `cbor:"1,keyasint"`
	Changed bool                      `cbor:"2,keyasint,omitempty"`
	Status  job.Status                `cbor:"3,keyasint"`
}

// RunResume lets a suspended run go on. Of log format 2.
type RunResume struct {
	Run forgeyard.RunID `cbor:"1,keyasint"`
}

// CheckpointRevoke withdraws checkpoints for ever: one, all that a runner took, or all of one
// epoch of a job, and what came of them. Of log format 2.
type CheckpointRevoke struct {
	Job        forgeyard.JobID    `cbor:"1,keyasint,omitempty"` // empty, with Runner: of every job
	Checkpoint forgeyard.Digest   `cbor:"2,keyasint,omitzero"`
	Runner     forgeyard.RunnerID `cbor:"3,keyasint,omitempty"`
	Epoch      uint64             `cbor:"4,keyasint,omitempty"`
	Reason     string             `cbor:"5,keyasint"`
}

// CheckpointRevoked is CheckpointRevoke's reply.
type CheckpointRevoked struct {
	Revoked int               `cbor:"1,keyasint"`
	Running []forgeyard.JobID `cbor:"2,keyasint,omitempty"` // executions that went on from one, and are asked back
}

// CheckpointLetGo gives up the payload of a checkpoint; its manifest and its record stay. Of
// log format 2.
type CheckpointLetGo struct {
	Job        forgeyard.JobID  `cbor:"1,keyasint"`
	Checkpoint forgeyard.Digest `cbor:"2,keyasint"`
	Force      bool             `cbor:"3,keyasint,omitempty"` // even if the job would begin anew
}

// CheckpointOpen notes that a person reads the payload of a checkpoint: it may hold whatever
// the job had in its hands. Of log format 2.
type CheckpointOpen struct {
	Job        forgeyard.JobID  `cbor:"1,keyasint"`
	Checkpoint forgeyard.Digest `cbor:"2,keyasint"`
	Reason     string           `cbor:"3,keyasint"`
}

// CheckpointOpened is CheckpointOpen's reply.
type CheckpointOpened struct {
	Payload forgeyard.Digest `cbor:"1,keyasint"`
}

// Resume puts a suspended job back into the queue.
type Resume struct {
	Job    forgeyard.JobID  `cbor:"1,keyasint"`
	From   forgeyard.Digest `cbor:"2,keyasint,omitzero"` // of log format 2: the checkpoint to go on from; zero: the newest good one
	Reason string           `cbor:"3,keyasint,omitempty"`
}

func (Init) kind() Kind          { return kindInit }
func (TokenCreate) kind() Kind   { return kindTokenCreate }
func (TokenRevoke) kind() Kind   { return kindTokenRevoke }
func (Join) kind() Kind          { return kindJoin }
func (Register) kind() Kind      { return kindRegister }
func (MemberSet) kind() Kind     { return kindMemberSet }
func (Submit) kind() Kind        { return kindSubmit }
func (Cancel) kind() Kind        { return kindCancel }
func (Stop) kind() Kind          { return kindStop }
func (Offer) kind() Kind         { return kindOffer }
func (Accept) kind() Kind        { return kindAccept }
func (Reject) kind() Kind        { return kindReject }
func (Phase) kind() Kind         { return kindPhase }
func (Checkpoint) kind() Kind    { return kindCheckpoint }
func (Release) kind() Kind       { return kindRelease }
func (Complete) kind() Kind      { return kindComplete }
func (Expire) kind() Kind        { return kindExpire }
func (DeviceLease) kind() Kind   { return kindDeviceLease }
func (DeviceRelease) kind() Kind { return kindDeviceRelease }
func (DeviceReset) kind() Kind   { return kindDeviceReset }
func (DeviceHealth) kind() Kind  { return kindDeviceHealth }
func (UplinkConnect) kind() Kind { return kindUplinkConnect }
func (UplinkObserve) kind() Kind { return kindUplinkObserve }
func (Delegate) kind() Kind      { return kindDelegate }
func (OutboxAck) kind() Kind     { return kindOutboxAck }
func (Drill) kind() Kind         { return kindDrill }
func (ConfigSet) kind() Kind     { return kindConfigSet }
func (Fail) kind() Kind          { return kindFail }
func (Resume) kind() Kind        { return kindResume }
func (Recover) kind() Kind       { return kindRecover }
func (FormatRaise) kind() Kind   { return kindFormatRaise }
func (Revoke) kind() Kind        { return kindRevoke }
func (Stopped) kind() Kind       { return kindStopped }
func (Silence) kind() Kind       { return kindSilence }
func (Readiness) kind() Kind     { return kindReadiness }
func (Report) kind() Kind        { return kindReport }
func (Unname) kind() Kind        { return kindUnname }
func (AttestOff) kind() Kind     { return kindAttestOff }
func (Contest) kind() Kind       { return kindContest }
func (Ask) kind() Kind           { return kindAsk }
func (StopRefused) kind() Kind   { return kindStopRefused }
func (Stopping) kind() Kind      { return kindStopping }
func (Preempt) kind() Kind       { return kindPreempt }
func (RunSuspend) kind() Kind    { return kindRunSuspend }
func (RunResume) kind() Kind     { return kindRunResume }
func (SecretSet) kind() Kind     { return kindSecretSet }
func (SecretRemove) kind() Kind  { return kindSecretRemove }

func (CheckpointRevoke) kind() Kind { return kindCheckpointRevoke }
func (CheckpointLetGo) kind() Kind  { return kindCheckpointLetGo }
func (CheckpointOpen) kind() Kind   { return kindCheckpointOpen }

// commandFormat is the version of the envelope.
const commandFormat = 1

type envelope struct {
	Format uint8               `cbor:"1,keyasint"`
	Kind   Kind                `cbor:"2,keyasint"`
	ID     forgeyard.MessageID `cbor:"3,keyasint"`
	At     forgeyard.Wall      `cbor:"4,keyasint"`
	By     string              `cbor:"5,keyasint,omitempty"`
	Body   cborx.RawMessage    `cbor:"6,keyasint"`
}

// Encode returns the bytes of the log entry.
func (c Command) Encode() []byte {
	return cborx.Marshal(envelope{commandFormat, c.Body.kind(), c.ID, c.At, c.By, cborx.Marshal(c.Body)})
}

// Decode reads a log entry.
func Decode(b []byte) (Command, error) {
	if len(b) > maxCommand {
		return Command{}, forgeyard.Errorf("command", forgeyard.Limit, "a command of %d bytes is over the bound of %d", len(b), maxCommand)
	}
	var e envelope
	if err := cborx.Unmarshal(b, &e); err != nil {
		return Command{}, err
	}
	if e.Format != commandFormat {
		return Command{}, forgeyard.Errorf("command", forgeyard.Invalid, "format %d is not known, this version reads %d", e.Format, commandFormat)
	}
	if e.ID == "" || len(e.ID) > maxRequestID {
		return Command{}, forgeyard.Errorf("command", forgeyard.Invalid, "request id of %d bytes is not in [1, %d]", len(e.ID), maxRequestID)
	}
	body, err := decodeBody(e.Kind, e.Body)
	return Command{ID: e.ID, At: e.At, By: e.By, Body: body}, err
}

func into[T Body](raw []byte) (Body, error) {
	var v T
	err := cborx.Unmarshal(raw, &v)
	return v, err
}

var decoders = map[Kind]func([]byte) (Body, error){
	kindInit: into[Init], kindTokenCreate: into[TokenCreate], kindTokenRevoke: into[TokenRevoke], kindJoin: into[Join],
	kindRegister: into[Register], kindMemberSet: into[MemberSet], kindSubmit: into[Submit], kindCancel: into[Cancel],
	kindStop: into[Stop], kindOffer: into[Offer], kindAccept: into[Accept], kindReject: into[Reject], kindPhase: into[Phase],
	kindCheckpoint: into[Checkpoint], kindRelease: into[Release], kindComplete: into[Complete], kindExpire: into[Expire],
	kindDeviceLease: into[DeviceLease], kindDeviceRelease: into[DeviceRelease], kindDeviceReset: into[DeviceReset],
	kindDeviceHealth: into[DeviceHealth], kindUplinkConnect: into[UplinkConnect], kindUplinkObserve: into[UplinkObserve],
	kindDelegate: into[Delegate], kindOutboxAck: into[OutboxAck], kindDrill: into[Drill], kindConfigSet: into[ConfigSet],
	kindFail: into[Fail], kindResume: into[Resume], kindRecover: into[Recover], kindFormatRaise: into[FormatRaise],
	kindRevoke: into[Revoke], kindStopped: into[Stopped], kindSilence: into[Silence], kindReadiness: into[Readiness],
	kindReport: into[Report], kindUnname: into[Unname], kindAttestOff: into[AttestOff],
	kindSecretSet: into[SecretSet], kindSecretRemove: into[SecretRemove], kindContest: into[Contest],
	kindAsk: into[Ask], kindStopRefused: into[StopRefused],
	kindEffectIntent: into[EffectIntent], kindEffectOutcome: into[EffectOutcome], kindEffectResolve: into[EffectResolve], kindStepCommit: into[StepCommit],
	kindMark: into[Mark], kindStopping: into[Stopping], kindPreempt: into[Preempt], kindRunSuspend: into[RunSuspend], kindRunResume: into[RunResume],
	kindCheckpointRevoke: into[CheckpointRevoke], kindCheckpointLetGo: into[CheckpointLetGo], kindCheckpointOpen: into[CheckpointOpen],
	kindRestored: into[Restored], kindCheckpointsAged: into[CheckpointsAged],
}

func decodeBody(k Kind, raw []byte) (Body, error) {
	d, ok := decoders[k]
	if !ok {
		return nil, forgeyard.E("command", forgeyard.Invalid, fmt.Errorf("kind %d is not known to this version", k))
	}
	return d(raw)
}

// Reply is what Apply answers. It travels back to whoever proposed, and the
// state remembers it for a repeat of the request.
type Reply struct {
	Kind  forgeyard.Kind   `cbor:"1,keyasint,omitempty"` // of the error; with Error empty, all went well
	Error string           `cbor:"2,keyasint,omitempty"`
	Hint  string           `cbor:"3,keyasint,omitempty"`
	Value cborx.RawMessage `cbor:"4,keyasint,omitempty"`
}

// Err turns the reply into an error, or nil.
func (r Reply) Err() error {
	if r.Error == "" {
		return nil
	}
	e := forgeyard.Errorf("", r.Kind, "%s", r.Error)
	e.Hint = r.Hint
	return e
}

// Value decodes the reply's value.
func Value[T any](r Reply) (T, error) {
	var v T
	if err := r.Err(); err != nil {
		return v, err
	}
	if len(r.Value) == 0 {
		return v, nil
	}
	err := cborx.Unmarshal(r.Value, &v)
	return v, err
}

type requestReply struct {
	Index uint64 `cbor:"1,keyasint"`
	Reply Reply  `cbor:"2,keyasint"`
}
