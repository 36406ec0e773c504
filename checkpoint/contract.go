package checkpoint

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// Mode is how a job goes on; the alias spares the helper the whole of package job.
type Mode = job.ResumeMode

// The modes under which this version takes checkpoints.
const (
	ModeApplication = job.ResumeApplication
	ModeFramework   = job.ResumeFramework
)

// Consistency says how a payload was kept from changing while it was taken (69§54).
type Consistency string

// Consistency levels, strongest first.
const (
	Application Consistency = "application" // quiesced by the program, or its whole process tree was dead
	Framework   Consistency = "framework"   // a cursor at test boundaries
	Crash       Consistency = "crash"       // as a power cut would have left it
	BestEffort  Consistency = "best-effort" // leftovers; evidence only, never resumed from
)

func (c Consistency) rank() int {
	switch c {
	case Application:
		return 4
	case Framework:
		return 3
	case Crash:
		return 2
	case BestEffort:
		return 1
	}
	return 0
}

// Meets reports whether c is at least as strong as minimum. BestEffort and unknown
// words meet nothing.
func (c Consistency) Meets(minimum Consistency) bool {
	return c.rank() >= Crash.rank() && minimum.rank() > 0 && c.rank() >= minimum.rank()
}

// Format names the program's own state format; a program reads only its own.
type Format struct {
	Name    string `json:"name" cbor:"1,keyasint,omitempty"`
	Version int    `json:"version" cbor:"2,keyasint,omitempty"`
}

// Limits are the site's bounds on every contract; they only tighten what a job asks.
type Limits struct {
	MaxBytes       int64         // bytes of one payload; zero: DefaultMaxBytes. Too small refuses honest checkpoints, too large fills the store
	MaxFiles       int           // files of one payload; zero: MaxFiles
	MaxWindow      time.Duration // longest wait for a checkpoint before a stop; zero: as the job asks
	MinInterval    time.Duration // shortest interval that is advised; zero: as the job asks
	MaxKeep        int           // committed checkpoints kept per attempt; zero: DefaultKeep
	ResumeFailures int           // failed resumes before a checkpoint is quarantined; zero: DefaultResumeFailures
}

// Contract is the resumability contract in force: the job's declaration after the
// site's limits. Its ID covers the declaration alone, so that a site which changes a
// limit does not make its checkpoints incompatible.
type Contract struct {
	ID             forgeyard.Digest
	Mode           job.ResumeMode
	Format         Format
	Minimum        Consistency
	ExitCode       int      // the workload's "checkpoint written, restart me"
	RejectCode     int      // the workload's "restored state unusable"
	Files          []string // exit-driven: clean paths relative to /work/build, sorted
	Interval       time.Duration
	MinInterval    time.Duration // the site's, for what is advised
	Window         time.Duration
	MaxBytes       int64
	MaxFiles       int
	Keep           int
	MaxAge         time.Duration
	OnFailure      time.Duration
	Signal         string // "" when nothing is sent
	ResumeFailures int
	Compatibility  machine.Compatibility
	Sensitivity    Sensitivity
	Isolation      job.Isolation // of mode framework
	Results        int           // of mode framework: a cursor is committed after so many
	Profile        job.Profile
}

// declaration is what the contract's ID names.
type declaration struct {
	Version int         `cbor:"1,keyasint"`
	Minimum Consistency `cbor:"2,keyasint"`
	Resume  job.Resume  `cbor:"3,keyasint"`
}

// NewContract checks a declaration and applies the site's limits. Mode none and
// restart-stage give a contract under which no checkpoint is ever taken.
func NewContract(r job.Resume, site Limits) (Contract, error) {
	d := r.Checkpoint
	c := Contract{
		Mode: r.Mode, Format: Format{r.FormatName, r.FormatVersion}, Minimum: Application,
		Interval: d.Interval, Window: d.Window, MaxBytes: d.MaxBytes, Keep: d.Keep,
		Compatibility: r.Compatibility, Sensitivity: Sensitivity(r.Sensitivity), MaxAge: d.MaxAge, OnFailure: d.KeepOnFailure, MinInterval: site.MinInterval,
		ResumeFailures: orInt(site.ResumeFailures, DefaultResumeFailures),
		Isolation:      r.Isolation, Results: d.Results, Profile: r.Profile,
	}
	switch r.Mode {
	case "":
		c.Mode = job.ResumeNone
	case job.ResumeNone, job.ResumeRestartStage, job.ResumeApplication:
	case job.ResumeFramework:
		c.Minimum = Framework
		if !slices.Contains(job.Isolations, r.Isolation) || d.Results < 1 {
			return Contract{}, forgeyard.Errorf("contract", forgeyard.Invalid, "mode framework with isolation %q and %d results between commits: isolation is isolated, suite or ordered, and results are at least 1", forgeyard.Clip(string(r.Isolation), 40), d.Results)
		}
	default:
		return Contract{}, forgeyard.Errorf("contract", forgeyard.Invalid, "resume mode %q is not one of none, restart-stage, application, framework", forgeyard.Clip(string(r.Mode), 40))
	}
	if err := c.declare(d); err != nil {
		return Contract{}, err
	}
	c.limit(site)
	c.ID = cas.Sum(cborx.Marshal(declaration{Version: 1, Minimum: c.Minimum, Resume: r}))
	return c, nil
}

// declare takes over what needs a check.
func (c *Contract) declare(d job.CheckpointDecl) error {
	bad := func(format string, args ...any) error {
		return forgeyard.Errorf("contract", forgeyard.Invalid, format, args...)
	}
	if !c.Speaks() {
		return nil
	}
	c.ExitCode, c.RejectCode = orInt(d.ExitCode, DefaultExitCode), orInt(d.RejectCode, DefaultRejectCode)
	for _, code := range []int{c.ExitCode, c.RejectCode} {
		if code < 2 || code > 125 {
			return bad("exit code %d is not in [2, 125]: 0 and 1 say done and failed, and shells use those above", code)
		}
	}
	if c.ExitCode == c.RejectCode {
		return bad("exit_code and restore_reject_code are both %d", c.ExitCode)
	}
	if d.Interval < 0 || d.Window < 0 || d.MaxBytes < 0 || d.Keep < 0 {
		return bad("interval, window, max_bytes and keep are not negative")
	}
	if len(c.Format.Name) > MaxText || c.Format.Version < 0 {
		return bad("format %q version %d: a name has at most %d bytes and a version is not negative", forgeyard.Clip(c.Format.Name, 40), c.Format.Version, MaxText)
	}
	switch d.Signal {
	case "", "none":
	case "USR1", "USR2", "HUP":
		c.Signal = d.Signal
	default:
		return bad("signal %q is not one of none, USR1, USR2, HUP", forgeyard.Clip(d.Signal, 40))
	}
	files, err := cleanFiles(d.Files)
	c.Files = files
	return err
}

// cleanFiles strips the slash that says "a directory", sorts, and drops what lies
// below another entry.
func cleanFiles(in []string) ([]string, error) {
	var out []string
	for _, f := range in {
		p := f
		for len(p) > 1 && p[len(p)-1] == '/' {
			p = p[:len(p)-1]
		}
		if why := badPath(p); why != "" {
			return nil, forgeyard.Errorf("contract", forgeyard.Invalid, "checkpoint file %q %s", forgeyard.Clip(f, 80), why)
		}
		out = append(out, p)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(p string) bool {
		return slices.ContainsFunc(out, func(q string) bool { return below(p, q) })
	}), nil
}

// below reports whether p lies in directory q.
func below(p, q string) bool { return len(p) > len(q) && p[:len(q)] == q && p[len(q)] == '/' }

func (c *Contract) limit(site Limits) {
	maxBytes := site.MaxBytes
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	if c.MaxBytes == 0 || c.MaxBytes > maxBytes {
		c.MaxBytes = maxBytes
	}
	c.MaxFiles = MaxFiles
	if site.MaxFiles > 0 {
		c.MaxFiles = min(c.MaxFiles, site.MaxFiles)
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if site.MaxWindow > 0 {
		c.Window = min(c.Window, site.MaxWindow)
	}
	if c.Interval > 0 {
		c.Interval = max(c.Interval, site.MinInterval)
	}
	if maxKeep := orInt(site.MaxKeep, DefaultKeep); c.Keep == 0 || c.Keep > maxKeep {
		c.Keep = maxKeep
	}
}

func orInt(v, otherwise int) int {
	if v <= 0 {
		return otherwise
	}
	return v
}

// takes reports whether a payload's format is the declared one. A job that declares none
// leaves the check to its program, which is told FORGEYARD_RESTORE_FORMAT.
func (c Contract) takes(f Format) bool { return c.Format == Format{} || c.Format == f }

// Resumable reports whether checkpoints are taken under the contract.
func (c Contract) Resumable() bool {
	return c.Mode == ModeApplication || c.Mode == ModeFramework && c.Isolation != job.Ordered
}

// Speaks reports whether the program has the protocol: ordered tests have it, for their
// report, and are not resumed.
func (c Contract) Speaks() bool { return c.Mode == ModeApplication || c.Mode == ModeFramework }

// PutsBack reports whether the files of a checkpoint are put where the program left them,
// and nothing tells it of a restore: it looks for its own files.
func (c Contract) PutsBack() bool { return c.Profile == job.ProfileHTCondor }

// Epoch is what the environment of one execution tells the workload beside the contract.
type Epoch struct {
	Site          forgeyard.SiteID
	Attempt       forgeyard.AttemptID
	Epoch         uint64
	ResumeID      string // empty on the first epoch
	Interruptions int
	CkptDir       string // as the workload sees them
	CtlDir        string
	RestoreDir    string // "" when fresh
	Restore       *Commit
	RestoreFormat Format
	StopGrace     time.Duration
	Mark          string // last mark of the job
	List          string // digest of the list of the restored cursor
}

// Env is the environment of the protocol (FYCP/1 §2). It never holds a secret.
func (c Contract) Env(e Epoch) map[string]string {
	sec := func(d time.Duration) string { return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10) }
	env := map[string]string{
		EnvProtocol: strconv.Itoa(ProtocolVersion), EnvMode: string(c.Mode),
		EnvAttempt: string(e.Attempt), EnvEpoch: strconv.FormatUint(e.Epoch, 10),
		EnvResumeID: e.ResumeID, EnvInterruptions: strconv.Itoa(e.Interruptions),
		EnvFence:   string(e.Site) + "." + string(e.Attempt) + "." + strconv.FormatUint(e.Epoch, 10),
		EnvCkptDir: e.CkptDir, EnvCtlDir: e.CtlDir,
		EnvInterval: sec(c.Interval), EnvWindow: sec(c.Window), EnvMaxBytes: strconv.FormatInt(c.MaxBytes, 10),
		EnvExitCode: strconv.Itoa(c.ExitCode), EnvRejectCode: strconv.Itoa(c.RejectCode),
		EnvStopGrace: sec(e.StopGrace), EnvFormat: c.Format.String(),
	}
	if c.Mode == ModeFramework {
		maps.Copy(env, c.TestEnv(e.CkptDir, e.RestoreDir, e.List))
	}
	if e.Mark != "" {
		env[EnvMark] = e.Mark
	}
	if e.RestoreDir != "" && e.Restore != nil && !c.PutsBack() {
		env[EnvRestoreDir] = e.RestoreDir
		env[EnvRestoreID] = e.Restore.Manifest.String()
		env[EnvRestoreSeq] = strconv.Itoa(e.Restore.Seq)
		env[EnvRestoreFormat] = e.RestoreFormat.String()
	}
	return env
}

// TestEnv is what mode framework adds. Both directories are as the workload sees them;
// restore and the digest of its list are empty on a fresh start.
func (c Contract) TestEnv(ckpt, restore, list string) map[string]string {
	env := map[string]string{
		EnvTestPlan: path.Join(ckpt, PlanName), EnvTestCursorOut: path.Join(ckpt, CursorName),
		EnvTestIsolation: string(c.Isolation),
	}
	if restore != "" {
		env[EnvTestCursorIn], env[EnvTestList] = path.Join(restore, CursorName), list
	}
	return env
}

// String is `name:version`, empty for a format without a name.
func (f Format) String() string {
	if f.Name == "" {
		return ""
	}
	return f.Name + ":" + strconv.Itoa(f.Version)
}
