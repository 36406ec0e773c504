// Package runner carries out one epoch of one attempt: a fresh workspace, inputs by
// digest, the steps in an executor, the log, checkpoints, outputs, and what is left
// to clean up.
//
//	Start → preparing → running → uploading → ended (Wait) → Finish
//	           │           │          │
//	           └───────────┴──────────┴── Cancel, Stop, LeaseEnded at any time
//
// It is never an authority: whether work may go on is told from outside, and how it
// ended is handed back for the log to decide. What is decided here is only how a
// process is started, stopped and read.
//
// Goroutines of an attempt, all ended before Wait returns: the life (owns the order of
// things), the log flusher, writes of the recovery state, and at most one checkpoint look at a
// time, so that neither storing gigabytes nor waiting for a quorum delays a cancel or a kill.
//
// Invariants: a workspace is never used twice, and is left only by a tree confirmed
// dead (E18); nothing ends "done" while its tree lives (E29); an upload that fails
// changes neither exit code nor outcome (E30); after LeaseEnded nothing is captured,
// committed or proposed; trouble in clean-up is told and never changes a result
// (07§96).
package runner

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/layer"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/ender"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Config of a runner.
type Config struct {
	Site       forgeyard.SiteID // first part of FORGEYARD_FENCE
	Workspaces string           // folder of workspaces; not in the store's folder (07§42)
	Spool      string           // folder of logs
	StateDir   string           // recovery aid, never authority (07§39)
	Store      cas.Store
	// Fetch and FetchTree make content local and verified. Errors have the kinds of cas.Exchange.
	Fetch     func(ctx context.Context, ref cas.Ref) error
	FetchTree func(ctx context.Context, root forgeyard.Digest) error
	// Urgent makes what is fetched under its context overtake other content; nil: nothing does.
	Urgent    func(ctx context.Context) context.Context
	Executors map[job.Sandbox]executor.Executor
	// Prepare makes the folders of a workspace below an empty root and gives the writable ones
	// to the workload's user. Nil: executor.Layout.
	Prepare func(u users.User, root string) error
	// Layers are read-only inputs that several workspaces share. Nil: each has its own.
	Layers *layer.Cache
	Clock  clock.Clock
	Log    *slog.Logger
	// HelperPath is the job helper on this host, given to workloads as fyjob. Empty: none.
	HelperPath string
	// ReserveDisk is left free on the disk of the workspaces, in bytes. Zero: nothing is.
	ReserveDisk int64
	// Keeper ends a tree at its deadline although this process is stopped or dead. Nil: only
	// this process does.
	Keeper Keeper
	// Ender ends trees, and knows which do not die. Nil: one of its own.
	Ender *ender.Ender
	// Own is the argv of the program that carries out ingest and garden runs: this node's own,
	// in a child process (decision 22). Executors must have job.SandboxOwn then. Empty: there is none.
	Own []string
	// Secrets gives values to those that ask for them. Nil: such work is refused.
	Secrets Secrets
	// Unseal opens the key of a restricted checkpoint. Nil: none is restored.
	Unseal capture.Unseal
	// SpoolLimit holds a workload back when that much log was not flushed. Zero: spool.DefaultLimit.
	SpoolLimit int64
	// JobLog bounds what the programs of a job write into its log, in bytes, all epochs
	// together. Zero: nothing does.
	JobLog int64
	// Toolchains are the node's own trees, by the names that jobs require. Nil: it has none.
	Toolchains func() map[string]forgeyard.Digest
	// Warmed is told when a toolchain is ready that was not known to be, and must not wait. Nil:
	// nobody is.
	Warmed func()
	// Used is told, as soon as a step's main process has ended, which it was and what its tree
	// took; zero: nobody can tell. Nil: nobody is.
	Used func(pid int, cpu time.Duration)
	// PackLogs says whether parts of logs may be stored packed: all who may read them read that.
	// Nil: they may not.
	PackLogs func() bool
}

// Keeper holds deadlines outside of this process; node/executor/keeper has one.
type Keeper interface {
	// Hold returns when the tree of that name is held; nothing of it exists before.
	Hold(ctx context.Context, o executor.Orphan, until forgeyard.Instant) error
	Move(id string, until forgeyard.Instant)
	// Struck reports whether the tree was ended for its deadline. An error: nobody can say.
	Struck(ctx context.Context, id string) (bool, error)
	Release(id string)
}

// Runner starts attempts. It is safe for concurrent use.
type Runner struct {
	cfg Config

	reserveDisk, spoolLimit, jobLog atomic.Int64 // of Config, as SetBounds changed them

	mu     sync.Mutex // guards all three below
	active map[string]*Attempt
	undone map[string]*undone // clean-ups that failed, by epoch
	stays  []Leftover         // folders that could not be removed

	toolchains toolchains

	tidying sync.Mutex // held by Tidy; guards seen
	seen    map[string]forgeyard.Instant
}

// New checks the configuration and makes the folders.
func New(cfg Config) (*Runner, error) {
	switch {
	case cfg.Store == nil || cfg.Fetch == nil || cfg.FetchTree == nil || cfg.Clock == nil || cfg.Log == nil:
		return nil, forgeyard.Errorf("runner", forgeyard.Invalid, "store, fetch, clock and log must be given")
	case !filepath.IsAbs(cfg.Workspaces) || !filepath.IsAbs(cfg.Spool) || !filepath.IsAbs(cfg.StateDir):
		return nil, forgeyard.Errorf("runner", forgeyard.Invalid, "folders %q, %q and %q must be absolute", cfg.Workspaces, cfg.Spool, cfg.StateDir)
	}
	for dir, mode := range map[string]os.FileMode{cfg.Workspaces: 0o711, cfg.Spool: 0o700, cfg.StateDir: 0o700} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return nil, forgeyard.E("runner", executor.KindOfDisk(err), err)
		}
	}
	if cfg.Prepare == nil {
		cfg.Prepare = executor.Layout
	}
	if cfg.Ender == nil {
		cfg.Ender = ender.New(cfg.Clock, cfg.Log)
	}
	r := &Runner{cfg: cfg, active: map[string]*Attempt{}, undone: map[string]*undone{}, seen: map[string]forgeyard.Instant{}}
	r.SetBounds(cfg.ReserveDisk, cfg.SpoolLimit, cfg.JobLog)
	return r, nil
}

// SetBounds changes Config's ReserveDisk, for what is looked at from now on, and SpoolLimit and
// JobLog, for attempts that open their log from now on.
func (r *Runner) SetBounds(reserveDisk, spoolLimit, jobLog int64) {
	r.reserveDisk.Store(reserveDisk)
	r.spoolLimit.Store(spoolLimit)
	r.jobLog.Store(jobLog)
}

// Check says why this runner cannot take a spec, before any work (07§33): Invalid for what
// it cannot enforce, Denied for secrets that it may not have, NoSpace for a disk that is too full. promised is disk that other work
// was promised, begun or not.
func (r *Runner) Check(s job.Spec, promised int64) error {
	if _, ok := r.cfg.Executors[s.Sandbox]; !ok {
		return forgeyard.Errorf("runner", forgeyard.Invalid, "sandbox %q is not offered here", s.Sandbox)
	}
	if err := r.mayHave(s); err != nil {
		return err
	}
	return r.room(s, "", promised, r.evictable())
}

// evictable is what trees that nobody uses and kept workspaces take of the disk: it is free
// for whoever comes.
func (r *Runner) evictable() int64 {
	n := r.keptBytes()
	if r.cfg.Layers == nil {
		return n
	}
	return n + r.cfg.Layers.Evictable()
}

// Evict removes trees that are kept for reuse and that nobody uses, then workspaces that are
// kept for people, until so many bytes came free, and tells how many did.
func (r *Runner) Evict(want int64) (freed int64) {
	if r.cfg.Layers != nil {
		freed = r.cfg.Layers.Evict(want)
	}
	if freed < want {
		freed += r.evictKept(want - freed)
	}
	return freed
}

// promised is the disk that active attempts were promised, but one.
func (r *Runner) promised(but string) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.active {
		if a.id != but && !a.vacated.Load() {
			n += a.task.Spec.Resources.Disk
		}
	}
	return n
}

// spare is what of the disk and its inodes was promised to nobody.
func (r *Runner) spare() (bytes, inodes int64) {
	free, err := diskFree(r.cfg.Workspaces)
	if err != nil {
		return 0, 0
	}
	return free - r.reserveDisk.Load() - r.promised(""), inodesSpare(r.cfg.Workspaces)
}

// room holds a spec's disk against what is free, soon included, and what others were
// promised: at least that much, by whoever knows of work that has not begun.
func (r *Runner) room(s job.Spec, but string, least, soon int64) error {
	free, err := diskFree(r.cfg.Workspaces)
	if err != nil {
		return forgeyard.E("reserve disk", forgeyard.Unavailable, err)
	}
	promised, reserve := max(r.promised(but), least), r.reserveDisk.Load()
	if left := free + soon - reserve - promised; s.Resources.Disk > left {
		return forgeyard.Errorf("reserve disk", forgeyard.NoSpace, "the spec asks for %d bytes; %s has %d free, of which %d are reserved and %d promised to others",
			s.Resources.Disk, r.cfg.Workspaces, free, reserve, promised).WithHint("free space there, or ask for less disk")
	}
	return nil
}

// Restore is the committed checkpoint that an epoch starts from.
type Restore struct {
	ID         forgeyard.Digest // of the manifest; it and all it names are fetched
	Seq        int
	ExitDriven bool           // its files go back to their places in the build folder
	Machine    *machine.Facts // this one, as the job sees it; nil: it does not say
}

// DeviceBinding is a leased device that the workload gets.
type DeviceBinding struct {
	As       string // name in the spec
	HostPath string // what this host has: a device node, a pty or a socket
}

// Task is one epoch to carry out.
type Task struct {
	Authority     forgeyard.Authority
	Spec          job.Spec
	Restore       *Restore // nil: from nothing
	Interruptions int
	ResumeID      string // empty on the first epoch
	Devices       []DeviceBinding
	Mark          string // last that an earlier epoch's program set
	FirstLogSeq   uint64 // number of the first log frame; 0 means 1
	// LastLogSeq is the highest number that an earlier epoch reported, 0 if unknown: what lies
	// between it and FirstLogSeq was lost, and the epoch marker says so.
	LastLogSeq uint64
	// LoggedBytes is how much of the job's log earlier epochs brought into the store.
	LoggedBytes int64
	// LogParts is how many more parts of its log somebody can name. 0: no bound.
	LogParts int
	// Diagnostics is what may be kept of work that fails. Zero: nothing.
	Diagnostics Diagnostics
	// MaxGrace bounds the time between the stop signal and the kill; 0: as the spec says.
	MaxGrace time.Duration
	// Until is when the right to act ends as far as is known at the start; Extend moves it.
	// Zero: only LeaseEnded ends it.
	Until forgeyard.Instant
	// Advised is the time between checkpoints that the program is told; zero: what it declares.
	Advised time.Duration
	// Checkpoints takes checkpoints; nil when the contract has none.
	Checkpoints Checkpointer
	// Ledger keeps effects and committed steps; nil where the spec has neither.
	Ledger     Ledger
	Intents    []Intent        // to be looked for before anything runs
	Committed  []CommittedStep // of earlier epochs
	FenceToken uint64          // of the lease; it only rises over the whole site. 0: not told
}

// Hooks are what an attempt tells and asks while it lives. Calls come from its own
// goroutines, one at a time per method. Their context ends when the lease ends.
type Hooks interface {
	// Phase reports progress. Stale ends the attempt as LeaseEnded does; other
	// errors are the node's to retry and change nothing here (07§68).
	Phase(ctx context.Context, p job.Phase) error
	// Logged tells which chunks of the log reached the store.
	Logged(ctx context.Context, chunks []job.LogChunk)
	// Replicate brings a result to where its durability asks. It is called again
	// after an error or a short answer until the upload time is over; the work is not.
	Replicate(ctx context.Context, d Delivery) (Replicas, error)
	// Report brings events of the epoch into the run's. It is called again with the same
	// ones, and maybe more, after an error.
	Report(ctx context.Context, t job.Told) error
	// StopRefused tells that a suspend was not followed for want of a checkpoint.
	StopRefused(ctx context.Context, why string)
	// Stopping tells how far the end of cancelled work has come: it was asked to end, or by
	// force it is killed.
	Stopping(ctx context.Context, force bool)
}

// Delivery is what must reach other nodes before a completion.
type Delivery struct {
	Outputs []job.Output
	Log     []job.LogChunk
	Private []job.Output // kept here and copied nowhere
}

// Replicas says who holds a delivery. Short: fewer than asked, and policy accepts it.
type Replicas struct {
	Nodes []forgeyard.RunnerID
	Short bool
}

// Verdict is what became of a checkpoint. Append only.
type Verdict string

// Verdicts.
const (
	VerdictNone      Verdict = ""          // there was none
	VerdictCommitted Verdict = "committed" // in the log
	VerdictContinue  Verdict = "continue"  // in the log, together with a grant of the next epoch
	VerdictHeld      Verdict = "held"      // no quorum: the job waits, it is not executed again
	VerdictRejected  Verdict = "rejected"  // the next epoch starts from the one before
	VerdictStale     Verdict = "stale"     // another epoch is current: stop now
)

// Captured is what one look at a workload's checkpoints brought.
type Captured struct {
	Verdict Verdict
	Seq     int
	ID      forgeyard.Digest // manifest
	Reason  string
	// Unusable is why the program rejects the state that it was given; empty: it does not.
	Unusable string
}

// Folders are where a workload's checkpoint traffic is, on the host.
type Folders struct {
	Ckpt, Ctl, Build string
	Restored         string            // the payload that this epoch goes on from; empty: it began fresh
	Was              []checkpoint.File // of a sealed one: what is in it
	Secrets          [][]byte          // values that must stand in nothing that is kept (K16)
	Now              bool              // what there is of a cursor is wanted at once
}

// Checkpointer stores and commits checkpoints of one epoch. Calls do not overlap.
type Checkpointer interface {
	// Poll takes what was sealed since the last call and answers the program. final
	// means that its tree is gone and nobody waits for an answer.
	Poll(ctx context.Context, f Folders, final bool) (Captured, error)
	// Exit takes the declared files of a program that exited with the checkpoint code;
	// its whole tree is confirmed dead. yield: the job is being given back, so no next epoch is wanted here.
	Exit(ctx context.Context, f Folders, yield bool) (Captured, error)
}

// End is how an epoch ended on this node.
type End string

// Ends.
const (
	EndCompleted       End = "completed"        // propose the completion with the result
	EndYielded         End = "yielded"          // given back, as a stop asked
	EndCheckpoint      End = "checkpoint"       // exited for a checkpoint; Captured says what follows
	EndRestoreRejected End = "restore_rejected" // the program cannot use the restored state
	EndTryLater        End = "try_later"        // EX_TEMPFAIL of a resumable program
	EndReconcile       End = "reconcile"        // nobody knows what became of an effect of an earlier epoch
	EndLease           End = "lease"            // the right to act ended; propose nothing
)

// Ended tells how an epoch ended, beside the result.
type Ended struct {
	Kind       End
	Stop       string   // the stop that was being followed, if any
	Checkpoint Captured // the last one taken
	Log        []job.LogChunk
	LastLogSeq uint64
	Told       job.Told // events that the site does not have yet; the result has them too
	// Undelivered is why outputs did not reach their replicas; empty when they did. The
	// result stands all the same: passing and being delivered are two facts (E30).
	Undelivered string
	// LeftOut counts the bytes that the bound of the log kept out.
	LeftOut int64
	// Clean: nothing of what was done here is done again by whoever goes on. No program was
	// started, or the last one ended with the checkpoint that it was committed with.
	Clean bool
	Spans []Span // what took how long, in order
}

// Start begins an epoch and returns at once. Conflict: it is active here already.
// The context bounds the attempt's life; its end is like LeaseEnded.
func (r *Runner) Start(ctx context.Context, t Task, h Hooks) (*Attempt, error) {
	if t.Authority.Fence.IsZero() || t.Authority.Attempt == "" {
		return nil, forgeyard.Errorf("run", forgeyard.Invalid, "attempt %q under fence %s has no authority", t.Authority.Attempt, t.Authority.Fence)
	}
	if t.Spec.Resume.Speaks() && t.Checkpoints == nil {
		return nil, forgeyard.Errorf("run", forgeyard.Invalid, "the contract has checkpoints and nobody takes them")
	}
	if t.Spec.HasEffects() && t.Ledger == nil {
		return nil, forgeyard.Errorf("run", forgeyard.Invalid, "the spec has effects and nobody keeps their ledger")
	}
	a := newAttempt(ctx, r, t, h)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.active[a.id]; ok {
		return nil, forgeyard.Errorf("run", forgeyard.Conflict, "epoch %s is active here already", a.id)
	}
	r.active[a.id] = a
	go a.live()
	return a, nil
}

// Active lists the attempts that were started and not finished.
func (r *Runner) Active() []*Attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l []*Attempt
	for _, a := range r.active {
		l = append(l, a)
	}
	slices.SortFunc(l, func(a, b *Attempt) int { return strings.Compare(a.id, b.id) })
	return l
}

// epochName names an epoch in paths, control groups and state files.
func epochName(a forgeyard.Authority) string {
	return fmt.Sprintf("%s-%d", a.Attempt, a.Fence.Epoch)
}

// PinOwner owns what an attempt needs and made, in the local store. The node unpins it
// when the result is kept otherwise.
func PinOwner(a forgeyard.AttemptID) string { return "attempt/" + string(a) }

// seconds for the environment: whole, and never below one unless zero.
func seconds(d time.Duration) int64 {
	if d > 0 && d < time.Second {
		return 1
	}
	return int64(d / time.Second)
}
