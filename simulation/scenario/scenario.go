// Package scenario says what happens to a simulated site: its shape, its work, and the
// damage that it suffers. A scenario is drawn from a seed, read from a file, or cut
// down from a longer one that failed.
//
//	seed ─▶ Draw ─┐
//	file ─▶ Parse ┴▶ Scenario ─▶ simulation.Play ─▶ broken? ─▶ Smaller ─▶ … ─▶ Format ─▶ file
//
// A file has one fact a line; `#` begins a comment, of which the first block is the
// story's title and text:
//
//	# E08: two runners never execute one job
//	seed 7
//	length 2m
//	nodes 5 voters 3
//	lease ttl 3s grace 5s copies 2
//	uplink silent 2s grace 5s allowance 40s
//	devices n1 1
//	old n2
//	apply slow 20
//	renewals late
//	job a at 3s work 12s policy grace 5s cpu 1000 budget 3 stop 1s checkpoint 3s effects
//	job b at 9s delegated continuous 0s work 5s policy continuous 0s cpu 500 budget 0 stop 1s input output
//	job c at 9s work 5s policy continuous 0s cpu 500 budget 3 stop 1s no-replace
//	job d at 9s work 5s policy continuous 0s cpu 100 budget 3 stop 1s ingest 2
//	at 20s cut n1 for 10s
//	expect done a
//
// Invariant: Parse(Format(s)) is s, so that what a failing run prints is what failed.
// The package decides what may be written; what it means is the simulation's.
package scenario

import "time"

// Bounds of a scenario, each so that a file cannot ask for more than a test has time for.
const (
	MaxNodes  = 5 // voters of the largest site that is promised; more are runners only
	MinNodes  = 1
	MaxLength = time.Hour
	MaxJobs   = 64
	MaxDamage = 512
	maxFile   = 64 << 10
)

// Scenario is one site and what happens to it in the safety half. Everything ends with
// the heal at Length.
type Scenario struct {
	Story   []string // its title and text, line by line
	Seed    uint64   // of all that no line says: delays, the times of workloads, drift
	Length  time.Duration
	Nodes   int
	Voters  int
	TTL     time.Duration // of leases; they are renewed three times within it
	Grace   time.Duration
	Copies  int
	Silent  time.Duration // of the uplink's terms
	UpGrace time.Duration
	Allowed time.Duration
	Devices [MaxNodes]int
	Old     [MaxNodes]bool // runs the program of the log format before, until it is upgraded
	Slow    int            // per mille of applies that take long
	Late    bool           // answers to renewals that came too late are still believed
	Jobs    []Job
	Damage  []Damage
	Expect  []Expect
}

// Job is one job and how it behaves when it runs.
type Job struct {
	Name      string
	At        time.Duration
	Delegated bool
	Grant     Policy        // of the daemon's grant, if delegated
	Ends      time.Duration // after the delegation its authority has its hard end; 0: never
	Work      time.Duration
	Policy    Policy
	CPU       int64 // thousandths of a core
	Budget    int   // of interruptions
	Stop      time.Duration
	Every     time.Duration // between two checkpoints; 0: none
	Sealed    bool          // checkpoints are taken while it goes on
	Effects   bool          // they are protected
	Never     bool          // it is not retried
	Fails     bool          // the work itself
	Broken    int           // preparations that fail
	Rejects   int           // restored states that the program rejects
	Devices   int
	Input     bool
	Output    bool
	Publishes bool // it does one thing outside, half way through
	Stays     bool // nobody else gets it before its holder has certainly stopped
	Ingest    int  // it brings in what node so and so has, under names; 0: it is a build
}

// Policy is a connectivity policy: its name, and for how long.
type Policy struct {
	Name string
	For  time.Duration
}

// Damage is one thing that goes wrong, or that somebody does.
type Damage struct {
	At   time.Duration
	Kind string
	Node int    // 1 is n1; 0: none, or all; Leader: whoever leads then
	Peer int    // 1 is n1; 0: all others
	Job  string // whom it concerns
	Word string // one of the kind's words, or empty
	By   time.Duration
	Loss int // per mille
	Dup  int
	Tail int
	For  time.Duration
}

// Leader stands for the node that leads when the damage comes.
const Leader = -1

// Expect is what must be so at the end, so that a story which no longer happens is seen.
type Expect struct {
	Status string // done, failed, cancelled: of Job; or trace: a line holds Text; or none: no line does
	Job    string
	Text   string
}

// kind says what a damage line may name.
type kind struct {
	node, peer, job, by, noise, lasts bool
	words                             []string
}

// kinds are the damages, by name.
var kinds = map[string]kind{
	"cut":        {node: true, lasts: true, words: []string{"uplink"}},                               // reaches nobody; the uplink neither, if it says so
	"mute":       {node: true, peer: true, by: true, lasts: true},                                    // sends nothing, and hears late
	"clog":       {node: true, by: true, lasts: true, words: []string{"into", "from"}},               // its messages are late
	"noise":      {noise: true, lasts: true},                                                         // messages are lost, doubled and late
	"uplink":     {lasts: true},                                                                      // the daemon cannot be reached
	"deaf":       {node: true, lasts: true},                                                          // hears nothing from the daemon, and is heard
	"kill":       {node: true, lasts: true},                                                          // the process dies, and is back after that
	"power":      {node: true, lasts: true},                                                          // the machine does, or all do; what was not synced is gone
	"pause":      {node: true, lasts: true},                                                          // the machine stops; its clock goes on
	"sleep":      {node: true, lasts: true},                                                          // it sleeps: what is sent to it meanwhile is lost
	"wall":       {node: true, by: true, words: []string{"back"}},                                    // its wall clock jumps
	"slow-disk":  {node: true, by: true, lasts: true},                                                // a sync takes so much longer
	"full":       {node: true, lasts: true},                                                          // nothing can be written
	"unreadable": {node: true, lasts: true},                                                          // the store and old entries cannot be read
	"corrupt":    {node: true, words: []string{"spool", "witness", "tokens", "objects"}},             // at the next start, or the next read
	"daemon":     {lasts: true, by: true, words: []string{"restart", "slow", "forgets-unconfirmed"}}, // the central daemon
	"take-back":  {job: true},                                                                        // the daemon cancels
	"raise":      {job: true},                                                                        // the daemon gives anew, under a higher term
	"cancel":     {job: true, words: []string{"force"}},                                              // a person cancels
	"revoke":     {job: true, words: []string{"security"}},                                           // a person takes the lease
	"suspend":    {job: true, lasts: true, words: []string{"restart", "cancel", "checkpoint"}},       // a person does, and resumes it after that; or only asks for a checkpoint
	"disable":    {node: true},                                                                       // a runner, until the heal
	"copy":       {node: true, lasts: true},                                                          // its data dir begins on another machine after that, while the first one, cut off, goes on
	"upgrade":    {node: true, lasts: true},                                                          // its program ends, and a newer one begins after that
	"drain":      {node: true, words: []string{"cancel"}},                                            // until the heal
	"preempt":    {node: true, lasts: true},                                                          // its machine is to be taken away after that, is, and comes back as much later
	"remove":     {node: true},                                                                       // for good, once its leases have ended
	"recover":    {node: true, lasts: true},                                                          // all other voters are lost for good; it goes on alone, by force, after that
	"backup":     {node: true},                                                                       // a person keeps its state
	"restore":    {node: true, lasts: true},                                                          // as recover, from the newest backup instead of its log
	"voters":     {words: []string{"1", "3", "5"}},                                                   // the site's setting
	"ttl":        {by: true},                                                                         // of leases that are granted from now on, and a third of it for their renewal
	"grace":      {by: true},                                                                         // the site's, from now on
}
