package job

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// Spec is one planned job: everything that decides what runs. It is immutable
// and named by the digest of its canonical bytes (RA-002, 07§228).
type Spec struct {
	Version      int               `cbor:"1,keyasint"` // SpecVersion
	Title        string            `cbor:"2,keyasint,omitempty"`
	Steps        []Step            `cbor:"3,keyasint"`
	Inputs       []Input           `cbor:"4,keyasint,omitempty"`
	Outputs      []OutputDecl      `cbor:"5,keyasint,omitempty"`
	Env          map[string]string `cbor:"6,keyasint,omitempty"`
	Secrets      []SecretRef       `cbor:"7,keyasint,omitempty"`
	Resources    Resources         `cbor:"8,keyasint"`
	Timeouts     Timeouts          `cbor:"9,keyasint"`
	Sandbox      Sandbox           `cbor:"10,keyasint"`
	Network      Network           `cbor:"11,keyasint"`
	Requires     Requires          `cbor:"12,keyasint"`
	Devices      []DeviceRequest   `cbor:"13,keyasint,omitempty"`
	Connectivity Connectivity      `cbor:"14,keyasint"`
	Durability   Durability        `cbor:"15,keyasint"`
	Effects      Effects           `cbor:"16,keyasint"`
	Interruption Interruption      `cbor:"17,keyasint"`
	Resume       Resume            `cbor:"18,keyasint"`
	Stop         Stop              `cbor:"19,keyasint"`
	Model        string            `cbor:"20,keyasint,omitempty"` // reaches the workload as FORGEYARD_MODEL (decision 21)
	Guidance     string            `cbor:"21,keyasint,omitempty"` // reaches it as a file, FORGEYARD_GUIDANCE_FILE
	NoCommit     bool              `cbor:"22,keyasint,omitempty"` // auto_commit: false; outputs are not captured at success

	// Kind is that of a run which the node's own program carries out, ingest or garden;
	// empty for a build. Such a spec has no steps: see Own.
	Kind   RunKind            `cbor:"23,keyasint,omitempty"`
	Ingest []RunInput         `cbor:"24,keyasint,omitempty"` // of an ingest: what gets which name
	Node   forgeyard.RunnerID `cbor:"25,keyasint,omitempty"` // the only runner that can: the data, or what is looked after, is there

	// OnFailure is what is kept of an attempt of which a step failed, where its runner's
	// policy allows it. It is there to be looked at, and never an output (07§177).
	OnFailure []DiagnosticDecl `cbor:"26,keyasint,omitempty"`

	// EffectRules say what follows an effect outside whose outcome may be unknown. Zero: the
	// job declares none, and may begin one only where Effects is protected.
	EffectRules EffectRules `cbor:"50,keyasint,omitzero"`
}

// Own reports that no workload runs: a child of the node's own program does the work
// (decision 22).
func (s Spec) Own() bool { return s.Kind != "" }

// SpecVersion is the only version of the job file.
const SpecVersion = 1

// Step is one command. Exactly one of Run and Sh is set.
type Step struct {
	Name string            `cbor:"1,keyasint"`
	Run  []string          `cbor:"2,keyasint,omitempty"` // argv
	Sh   string            `cbor:"3,keyasint,omitempty"` // a script for /bin/sh -eu
	Dir  string            `cbor:"4,keyasint,omitempty"` // working directory below /work; default /work/build
	Env  map[string]string `cbor:"5,keyasint,omitempty"`

	Resume    StepResume `cbor:"50,keyasint,omitempty"` // empty: StepRestart
	Outputs   []string   `cbor:"51,keyasint,omitempty"` // of StepCommitted: relative to /work/build, brought back where the step is not run again
	Reconcile []string   `cbor:"52,keyasint,omitempty"` // of StepReconcile: argv, see EffectDecl
}

// Argv is what is executed.
func (s Step) Argv() []string {
	if s.Sh != "" {
		return []string{"/bin/sh", "-eu", "-c", s.Sh}
	}
	return s.Run
}

// Input is content that must be at Path below /work before the first step.
// Content under source/ is read-only; elsewhere below build/ it is a copy.
type Input struct {
	Path     string           `cbor:"1,keyasint"` // relative to /work; first element `source` or `build`
	Tree     bool             `cbor:"2,keyasint,omitempty"`
	Digest   forgeyard.Digest `cbor:"3,keyasint"`
	Manifest forgeyard.Digest `cbor:"4,keyasint,omitzero"`
	Size     int64            `cbor:"5,keyasint"`
}

// OutputDecl names a path, relative to /work/build, that is captured after
// success. Nothing else is (07§80).
type OutputDecl struct {
	Path     string `cbor:"1,keyasint"`
	Optional bool   `cbor:"2,keyasint,omitempty"` // absent is not an error
}

// DiagnosticDecl names a path, relative to /work/build, that is captured after a failed
// step. Absent is never an error.
type DiagnosticDecl struct {
	Path string `cbor:"1,keyasint"`
	// Sensitive: it may hold what not everybody is to read. It stays on the node where the
	// work failed (07§180).
	Sensitive bool `cbor:"2,keyasint,omitempty"`
}

// SecretRef names a secret that is resolved late, by the runner.
type SecretRef struct {
	Name string `cbor:"1,keyasint"`
	Env  string `cbor:"2,keyasint,omitempty"`
	File string `cbor:"3,keyasint,omitempty"` // name of a file in a private tmpfs
}

// Resources are hard limits of the attempt. Zero takes the site's default.
type Resources struct {
	MilliCPU int64 `cbor:"1,keyasint"` // thousandths of a core
	Memory   int64 `cbor:"2,keyasint"` // bytes
	Disk     int64 `cbor:"3,keyasint"` // bytes: inputs, work, outputs, logs
	Pids     int64 `cbor:"4,keyasint"`
}

// Timeouts bound the phases of one epoch. Zero takes the default.
type Timeouts struct {
	Prepare time.Duration `cbor:"1,keyasint"`
	Run     time.Duration `cbor:"2,keyasint"`
	Upload  time.Duration `cbor:"3,keyasint"`
}

// Stop is how a workload is asked to end.
type Stop struct {
	Signal string        `cbor:"1,keyasint"` // TERM, INT, HUP, USR1, USR2
	Grace  time.Duration `cbor:"2,keyasint"` // signal → kill
}

// Sandbox is what must hold the workload.
type Sandbox string

// Sandboxes.
const (
	SandboxStrict  Sandbox = "strict"  // namespaces, no network, no host sockets, no new privileges
	SandboxProcess Sandbox = "process" // own session and cgroup; weaker, and only where the node lists it (decision 9)
	SandboxOwn     Sandbox = "own"     // not for a workload: a child of the node's own program, for Spec.Own
)

// Network is what the workload may reach.
type Network string

// Networks.
const (
	NetworkNone Network = "none"
	NetworkSite Network = "site"
	NetworkHost Network = "host"
)

// Requires are hard filters of placement.
type Requires struct {
	OS         string            `cbor:"1,keyasint,omitempty"`
	Arch       string            `cbor:"2,keyasint,omitempty"`
	Labels     map[string]string `cbor:"3,keyasint,omitempty"`
	Toolchains []string          `cbor:"4,keyasint,omitempty"` // names as `capabilities` prints them: "gcc", "go"
	Pool       string            `cbor:"5,keyasint,omitempty"` // only runners that the site put there; empty: those in none
	Trust      []Trust           `cbor:"6,keyasint,omitempty"` // only runners that the site gave all of these
}

// DeviceRequest asks for one device, leased together with the job.
type DeviceRequest struct {
	Kind   string            `cbor:"1,keyasint"`
	Labels map[string]string `cbor:"2,keyasint,omitempty"`
	As     string            `cbor:"3,keyasint"` // /work/devices/<as>, FORGEYARD_DEVICE_<AS>
}

// ConnectivityPolicy says what a holder may do while it hears nothing (07§112).
type ConnectivityPolicy string

// Connectivity policies.
const (
	Continuous        ConnectivityPolicy = "continuous"
	Grace             ConnectivityPolicy = "grace"
	OfflineAuthorized ConnectivityPolicy = "offline_authorized"
)

// Connectivity is the policy with its length.
type Connectivity struct {
	Policy ConnectivityPolicy `cbor:"1,keyasint"`
	For    time.Duration      `cbor:"2,keyasint"` // zero for continuous; for grace, zero is the site's `lease.grace`
	// NoReplace is `replace: false`: while the holder may still act, nobody else gets the
	// work, protected or not (E04).
	NoReplace bool `cbor:"3,keyasint,omitempty"`
}

// Durability says who must hold the outputs before the result commits.
type Durability string

// Durability classes.
const (
	Ephemeral  Durability = "ephemeral" // this node
	DurSite    Durability = "site"      // two nodes
	DurCentral Durability = "central"   // also the central daemon
)

// Effects says whether the work touches what cannot be undone.
type Effects string

// Effects.
const (
	EffectsNone      Effects = "none"
	EffectsProtected Effects = "protected" // the next epoch waits until the old holder has certainly stopped
)

// Interruption bounds what trouble from outside may cost.
type Interruption struct {
	Tolerance string `cbor:"1,keyasint"` // checkpointable | restartable | none
	Budget    int    `cbor:"2,keyasint"` // interruptions before the job fails with interrupted_budget
	Retry     string `cbor:"3,keyasint"` // resume-or-restart | resume-latest (resume-only) | restart | never
	// StableAfter interruptions the job goes to stable runners only; 0: DefaultStableAfter.
	StableAfter int `cbor:"58,keyasint,omitempty"`
	// ResumeFailures of one checkpoint before it is quarantined, at most the site's; 0: the site's.
	ResumeFailures int      `cbor:"59,keyasint,omitempty"`
	Priority       Priority `cbor:"60,keyasint,omitempty"` // of its checkpoint, when there is not time for all
	// FinishWithin is how long after its submission the job is to be done: near that a runner
	// that may vanish is avoided. A wish, and no bound.
	FinishWithin time.Duration `cbor:"61,keyasint,omitempty"`
}

// saysLater reports what a program of log format 1 does not read.
func (i Interruption) saysLater() bool {
	return i.StableAfter != 0 || i.ResumeFailures != 0 || i.Priority != "" || i.FinishWithin != 0 || i.Retry == RetryRestart || i.Retry == RetryResumeLatest
}

// ResumesOnly reports a job that never begins from nothing once it was interrupted.
func (i Interruption) ResumesOnly() bool {
	return i.Retry == RetryResumeOnly || i.Retry == RetryResumeLatest
}

// ResumeMode is how a job can go on where it stopped.
type ResumeMode string

// Resume modes that a site of this version supports; others are refused by name.
const (
	ResumeNone         ResumeMode = "none"
	ResumeRestartStage ResumeMode = "restart-stage"
	ResumeApplication  ResumeMode = "application"
	ResumeFramework    ResumeMode = "framework" // a list of tests, with a cursor
)

// Isolation says what of a list of tests counts after an interruption.
type Isolation string

// Isolations.
const (
	Isolated Isolation = "isolated" // each test by itself
	Suite    Isolation = "suite"    // suites that ended
	Ordered  Isolation = "ordered"  // nothing: the list begins anew
)

// Isolations lists them.
var Isolations = []Isolation{Isolated, Suite, Ordered}

// Profile is whose conventions a program follows beside the protocol's own.
type Profile string

// Profiles. The zero value is the protocol's own.
const (
	ProfileHTCondor Profile = "htcondor" // restored files are where the program left them
	ProfileSlurm    Profile = "slurm"    // SLURM_RESTART_COUNT, and a nudge by USR1
)

// Speaks reports whether a program under this contract has the checkpoint protocol.
func (r Resume) Speaks() bool { return r.Mode == ResumeApplication || r.Mode == ResumeFramework }

// TakesCheckpoints reports whether the work can go on from where it was.
func (r Resume) TakesCheckpoints() bool {
	return r.Mode == ResumeApplication || r.Mode == ResumeFramework && r.Isolation != Ordered
}

// Resume is the resumability contract as the job declares it (FYCP/1 §1).
type Resume struct {
	Mode          ResumeMode     `cbor:"1,keyasint"`
	FormatName    string         `cbor:"2,keyasint,omitempty"`
	FormatVersion int            `cbor:"3,keyasint,omitempty"`
	Checkpoint    CheckpointDecl `cbor:"4,keyasint"`
	// Compatibility is what the machine that goes on must have of the one that wrote, and
	// Sensitivity who may see what was written. Of log format 2.
	Compatibility machine.Compatibility `cbor:"45,keyasint,omitzero"`
	Sensitivity   Sensitivity           `cbor:"46,keyasint,omitempty"`
	Isolation     Isolation             `cbor:"55,keyasint,omitempty"` // of mode framework
	Profile       Profile               `cbor:"56,keyasint,omitempty"`
}

// CheckpointDecl is the checkpoint part of the contract.
type CheckpointDecl struct {
	ExitCode   int           `cbor:"1,keyasint"`           // 85 unless declared; 0 when Mode is not application
	RejectCode int           `cbor:"2,keyasint"`           // 86
	Files      []string      `cbor:"3,keyasint,omitempty"` // exit-driven: relative to /work/build
	Interval   time.Duration `cbor:"4,keyasint,omitempty"`
	Window     time.Duration `cbor:"5,keyasint,omitempty"`
	MaxBytes   int64         `cbor:"6,keyasint,omitempty"`
	Keep       int           `cbor:"7,keyasint,omitempty"`
	Signal     string        `cbor:"8,keyasint,omitempty"`  // none | USR1 | USR2 | HUP
	OnCancel   bool          `cbor:"58,keyasint,omitempty"` // a cancellation asks for one, where its reason allows
	// NoneOnNotice: a notice that the machine is taken away asks for none, and the last committed one
	// is used.
	NoneOnNotice bool `cbor:"98,keyasint,omitempty"`
	// MaxAge and KeepOnFailure say how long payloads are kept: at most, beside the newest; and
	// after the job failed or was cancelled. Of log format 2.
	MaxAge        time.Duration `cbor:"45,keyasint,omitempty"`
	KeepOnFailure time.Duration `cbor:"46,keyasint,omitempty"`
	// Results is after how many ended tests a cursor is committed; of mode framework.
	Results int `cbor:"55,keyasint,omitempty"`
}
