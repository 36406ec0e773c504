package scenario

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Taste narrows what Draw draws, for a test that needs certain company.
type Taste struct {
	Kinds    []string      // damages; empty: as drawn
	Calm     time.Duration // mean time between two; 0: as drawn
	TTL      time.Duration // 0: as drawn
	Late     bool          // answers to renewals always come through, however late
	Delegate bool          // every job is delegated
	Devices  bool          // every job uses the one device of n1
	Recover  bool          // all voters but one are lost for good, and the site is recovered from that
	Again    bool          // as Recover, and then once more
	Restore  bool          // as Again, and the second time from a backup of before the first
	Mixed    bool          // some nodes run the program before
	Persons  bool          // people do what they do, although the damages are named
	Longest  time.Duration // of a damage; 0: as drawn
	Length   time.Duration // of the safety half; 0: as drawn
	Adjust   func(*Job)    // of each job
	Own      bool          // ingests, and jobs that ask for no replacement, come all the same
}

// MaxWallError is what a wall clock is wrong by in a run in which elapsed time may
// have to be told by it. A clock that is wrong by hours is noticed by its reader, one
// that is wrong by minutes is not.
const MaxWallError = 400 * time.Millisecond

// Draw makes the scenario of a seed: its shape first, then its work, then its damage.
func Draw(seed uint64, t Taste) Scenario {
	t.Again = t.Again || t.Restore
	t.Recover = t.Recover || t.Again
	d := drawer{r: rand.New(rand.NewPCG(seed, 0x666f726765796172)), t: t}
	d.s = Scenario{Story: []string{fmt.Sprintf("seed %d", seed)}, Seed: seed}
	d.shape()
	d.wider(seed)
	for i := range 3 + d.r.IntN(6) {
		d.job(fmt.Sprintf("j%d", i+1))
	}
	d.kinds(seed)
	d.people()
	d.settings(seed)
	d.again(seed)
	d.copies(seed)
	d.suspensions(seed)
	d.damages()
	return d.s
}

type drawer struct {
	r       *rand.Rand
	t       Taste
	s       Scenario
	calm    time.Duration
	longest time.Duration
	power   bool // machines lose power, and not only their process
	bad     int  // the one node whose wall clock may be wrong; 0: none
	gone    int  // the one node that a person removes; 0: none
	left    int  // the one node from which the site is recovered by force; 0: none
}

func (d *drawer) pick(ds ...time.Duration) time.Duration { return ds[d.r.IntN(len(ds))] }

func (d *drawer) chance(perMille int) bool { return d.r.IntN(1000) < perMille }

// within draws from [lo, hi), in whole milliseconds.
func (d *drawer) within(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return round(lo + time.Duration(d.r.Int64N(int64(hi-lo))))
}

func (d *drawer) shape() {
	s := &d.s
	s.Length = d.within(90*time.Second, 240*time.Second)
	s.Nodes = []int{3, 3, 3, 4, 5, 5}[d.r.IntN(6)]
	s.Voters = 3
	if s.Nodes == 5 && d.chance(300) {
		s.Voters = 5
	}
	d.calm = d.pick(3*time.Second, 8*time.Second, 20*time.Second)
	d.longest = d.pick(8*time.Second, 25*time.Second, time.Minute)
	s.TTL = d.pick(3*time.Second, 6*time.Second, 15*time.Second)
	s.Grace = d.pick(0, 5*time.Second, 20*time.Second)
	s.Copies = 1 + d.r.IntN(3)
	s.Silent = d.pick(2*time.Second, 5*time.Second, 10*time.Second)
	s.UpGrace = d.pick(0, 5*time.Second, 20*time.Second)
	s.Allowed = s.Silent + d.pick(0, 10*time.Second, 40*time.Second, 90*time.Second)
	for i := range s.Nodes {
		s.Devices[i] = []int{0, 0, 1, 2}[d.r.IntN(4)]
	}
	if mixed := d.chance(400); mixed || d.t.Mixed {
		for i := range s.Nodes {
			s.Old[i] = d.chance(500)
		}
	}
	s.Slow = []int{0, 20, 200}[d.r.IntN(3)]
	s.Late = d.chance(500) || d.t.Late
	d.power = d.chance(330)
	d.bad = d.r.IntN(s.Nodes + 1)
	if s.Nodes > 3 && d.chance(300) {
		d.gone = 1 + d.r.IntN(s.Nodes)
	}
	if d.t.Recover { // some only run jobs, and outlive the voters
		s.Nodes, s.Voters = MaxNodes, 3
	}
	if lost := d.chance(60); d.t.Recover || (lost && len(d.t.Kinds) == 0) {
		d.left, d.gone = 1+d.r.IntN(s.Nodes), 0
		one := [MaxNodes]int{} // what stands elsewhere may be lost with its host
		one[d.left-1] = s.Devices[d.left-1]
		s.Devices = one
	}
	if d.t.Calm > 0 {
		d.calm = d.t.Calm
	}
	if d.t.TTL > 0 {
		s.TTL = d.t.TTL
	}
	if d.t.Longest > 0 {
		d.longest = d.t.Longest
	}
	if d.t.Length > 0 {
		s.Length = d.t.Length
	}
	if d.t.Devices {
		s.Devices, d.gone = [MaxNodes]int{1}, 0
	}
}

// wider draws, by dice of its own, what shape draws for few or no seeds: small sites, nodes
// that only run jobs, and terms between and beyond those that it picks from.
func (d *drawer) wider(seed uint64) {
	if len(d.t.Kinds) > 0 || d.t.Adjust != nil || d.t.Own || d.left > 0 {
		return
	}
	own, s := drawer{r: rand.New(rand.NewPCG(seed, 0x7769646572))}, &d.s
	if own.chance(200) {
		s.Nodes = 1 + own.r.IntN(MaxNodes)
		s.Voters = 1 + 2*own.r.IntN((s.Nodes+1)/2)
		d.gone, d.bad = 0, min(d.bad, s.Nodes)
		clear(s.Devices[s.Nodes:])
		clear(s.Old[s.Nodes:])
		s.Copies = min(s.Copies, s.Nodes)
	}
	if own.chance(200) {
		s.TTL, s.Grace = own.within(3*time.Second, 30*time.Second), own.within(0, 45*time.Second)
	}
	if own.chance(200) {
		s.Silent, s.UpGrace = own.within(time.Second, 20*time.Second), own.within(0, 40*time.Second)
		s.Allowed = s.Silent + own.within(0, 150*time.Second)
	}
	if own.chance(200) {
		s.Slow = own.r.IntN(400)
	}
}

func (d *drawer) policy(grace, offline []time.Duration) Policy {
	switch d.r.IntN(3) {
	case 0:
		return Policy{Name: "continuous"}
	case 1:
		return Policy{"grace", d.pick(grace...)}
	}
	return Policy{"offline", d.pick(offline...)}
}

func (d *drawer) job(name string) {
	s := &d.s
	j := Job{Name: name, At: d.within(0, s.Length*2/3), Work: d.within(2*time.Second, 40*time.Second), Fails: d.chance(100), Delegated: (d.chance(500) || d.t.Delegate) && d.left == 0}
	if j.Delegated {
		j.Grant = d.policy([]time.Duration{0, s.Allowed / 4, s.Allowed / 2, s.Allowed}, []time.Duration{s.Silent, s.Allowed / 2, s.Allowed, 2 * s.Allowed})
		if d.chance(250) {
			j.Ends = d.within(j.Work, 4*j.Work+30*time.Second)
		}
	}
	j.CPU = []int64{500, 1000, 2000}[d.r.IntN(3)]
	j.Policy = d.policy([]time.Duration{time.Second, 5 * time.Second, 20 * time.Second}, []time.Duration{10 * time.Second, 40 * time.Second, 90 * time.Second})
	j.Effects, j.Budget, j.Never = d.chance(330), d.r.IntN(12), d.chance(150)
	if d.chance(500) {
		j.Every, j.Sealed = d.within(2*time.Second, 10*time.Second), d.chance(500)
		if d.chance(150) {
			j.Rejects = 1 + d.r.IntN(2)
		}
	}
	if d.chance(150) {
		j.Broken = 1 + d.r.IntN(3)
	}
	j.Stop = d.pick(time.Second, 4*time.Second)
	total := 0
	for i, n := range s.Devices {
		if i+1 != d.gone { // what leaves with its host serves nobody for long
			total += n
		}
	}
	if total > 0 && d.chance(250) {
		j.Devices = 1 + d.r.IntN(min(2, total))
	}
	if d.t.Devices {
		j.Devices = 1
	}
	j.Input, j.Output = d.chance(400), d.chance(500)
	if d.t.Adjust != nil {
		d.t.Adjust(&j)
	}
	s.Jobs = append(s.Jobs, j)
}

// kinds draws, by dice of its own, which jobs ask for no replacement, and ingests beside them.
func (d *drawer) kinds(seed uint64) {
	if (len(d.t.Kinds) > 0 && !d.t.Persons || d.t.Adjust != nil) && !d.t.Own {
		return
	}
	own, s := drawer{r: rand.New(rand.NewPCG(seed, 0x6b696e6473))}, &d.s
	for i := range s.Jobs {
		s.Jobs[i].Stays = own.chance(150)
	}
	for i := range 3 {
		if !own.chance(300) && !d.t.Own {
			continue
		}
		s.Jobs = append(s.Jobs, Job{
			Name: fmt.Sprintf("i%d", i+1), At: own.within(0, s.Length*2/3), Work: own.within(time.Second, 25*time.Second), CPU: 100, Ingest: 1 + own.r.IntN(s.Nodes),
			Policy: own.policy([]time.Duration{time.Second, 20 * time.Second}, []time.Duration{10 * time.Second, 90 * time.Second}),
			Budget: own.r.IntN(12), Never: own.chance(150), Fails: own.chance(100), Stays: own.chance(150), Stop: own.pick(time.Second, 4*time.Second),
		})
	}
}

// people draws what clients, administrators and the daemon's users do.
func (d *drawer) people() {
	end := d.s.Length
	if d.left > 0 {
		x := Damage{Kind: "recover", At: d.within(end/6, end), Node: d.left, For: d.within(200*time.Millisecond, 10*time.Second)}
		if d.chance(600) { // it knows less than the others did
			before := d.within(time.Second, end/6)
			d.s.Damage = append(d.s.Damage, Damage{Kind: "cut", At: x.At - before, Node: d.left, For: before + time.Second})
		}
		d.s.Damage = append(d.s.Damage, x)
	}
	if len(d.t.Kinds) > 0 && !d.t.Persons {
		return
	}
	add := func(perMille int, x Damage, job bool) {
		if d.chance(perMille) && (!job || x.Job != "") {
			x.At = d.within(end/6, end)
			d.s.Damage = append(d.s.Damage, x)
		}
	}
	add(700, Damage{Kind: "cancel", Job: d.jobOf(false), Word: d.maybe(300, "force")}, true)
	add(400, Damage{Kind: "take-back", Job: d.jobOf(true)}, true)
	add(500, Damage{Kind: "raise", Job: d.jobOf(true)}, true)
	add(400, Damage{Kind: "revoke", Job: d.jobOf(d.chance(300)), Word: d.maybe(300, "security")}, true)
	add(150, Damage{Kind: "disable", Node: d.node()}, false)
	for i, old := range d.s.Old {
		if old {
			add(800, Damage{Kind: "upgrade", Node: i + 1, For: d.within(200*time.Millisecond, 10*time.Second)}, false)
		}
	}
	add(300, Damage{Kind: "drain", Node: d.node(), Word: d.maybe(500, "cancel")}, false)
	if d.gone > 0 {
		add(1000, Damage{Kind: "remove", Node: d.gone}, false)
	}
	if d.s.Nodes == 5 {
		add(200, Damage{Kind: "voters", Word: []string{"3", "5"}[d.r.IntN(2)]}, false)
	}
}

// settings draws what an administrator changes of the leases while work goes on, by dice
// of its own: what else a seed means stays as it is.
func (d *drawer) settings(seed uint64) {
	if len(d.t.Kinds) > 0 && !d.t.Persons {
		return
	}
	own := drawer{r: rand.New(rand.NewPCG(seed, 0x73657474696e6773))}
	for own.chance(300) {
		x := Damage{Kind: "ttl", At: own.within(d.s.Length/6, d.s.Length)}
		if own.chance(300) {
			x.Kind = "grace"
		}
		own.shapeOf(&x, Damage{})
		d.s.Damage = append(d.s.Damage, x)
	}
}

// again draws what else befalls a site that is recovered by force, by dice of its own: it
// goes on from a backup instead of a log, or loses its voters once more.
func (d *drawer) again(seed uint64) {
	at := slices.IndexFunc(d.s.Damage, func(x Damage) bool { return x.Kind == "recover" })
	if at < 0 {
		return
	}
	first := &d.s.Damage[at]
	own := drawer{r: rand.New(rand.NewPCG(seed, 0x616761696e))}
	made := Damage{Kind: "backup", Node: first.Node, At: own.within(time.Second, first.At)}
	if own.chance(400) {
		made.Node = 1 + own.r.IntN(d.s.Nodes)
	}
	second := Damage{Kind: "recover", At: min(first.At+first.For+own.within(5*time.Second, 90*time.Second), d.s.Length), Node: first.Node, For: own.within(200*time.Millisecond, 10*time.Second)}
	if d.s.Devices[first.Node-1] == 0 && own.chance(500) { // who has devices stays
		second.Node = 1 + own.r.IntN(d.s.Nodes)
	}
	before := own.within(time.Second, 10*time.Second)
	cut := Damage{Kind: "cut", At: second.At - before, Node: second.Node, For: before + time.Second}
	alone := Damage{Kind: "voters", Word: "1", At: min(first.At+first.For+2*time.Second, second.At)} // then the others only run jobs, and outlive it
	twice, restored, late := own.chance(500), own.chance(500), own.chance(500)
	if d.t.Recover {
		twice, restored, late = d.t.Again, d.t.Restore, true
	}
	switch {
	case restored && twice && late:
		second.Kind = "restore"
	case restored:
		first.Kind = "restore"
	}
	if restored {
		d.s.Damage = append(d.s.Damage, made)
	}
	if twice {
		if second.Node != first.Node && own.chance(500) {
			d.s.Damage = append(d.s.Damage, alone)
		}
		if second.Kind == "recover" && own.chance(600) { // it knows less than the others did
			d.s.Damage = append(d.s.Damage, cut)
		}
		d.s.Damage = append(d.s.Damage, second)
	}
}

// copies draws data dirs that somebody copies to another machine, by dice of its own.
func (d *drawer) copies(seed uint64) {
	if len(d.t.Kinds) > 0 && !d.t.Persons {
		return
	}
	own := drawer{r: rand.New(rand.NewPCG(seed, 0x636f70696573))}
	for own.chance(200) {
		d.s.Damage = append(d.s.Damage, Damage{
			Kind: "copy", At: own.within(d.s.Length/6, d.s.Length), Node: 1 + own.r.IntN(d.s.Nodes), For: own.within(200*time.Millisecond, 10*time.Second),
		})
	}
}

// suspensions draws, by dice of its own, what people ask of the holders of jobs.
func (d *drawer) suspensions(seed uint64) {
	if len(d.t.Kinds) > 0 && !d.t.Persons {
		return
	}
	own := drawer{r: rand.New(rand.NewPCG(seed, 0x73757370656e64))}
	for own.chance(350) {
		j := d.s.Jobs[own.r.IntN(len(d.s.Jobs))]
		d.s.Damage = append(d.s.Damage, Damage{
			Kind: "suspend", At: min(j.At+own.within(0, j.Work+20*time.Second), d.s.Length-time.Second), Job: j.Name, For: own.within(500*time.Millisecond, 40*time.Second),
			Word: []string{"", "", "restart", "cancel", "checkpoint"}[own.r.IntN(5)],
		})
	}
}

func (d *drawer) jobOf(delegated bool) string {
	var names []string
	for _, j := range d.s.Jobs {
		if j.Delegated == delegated {
			names = append(names, j.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return names[d.r.IntN(len(names))]
}

func (d *drawer) maybe(perMille int, word string) string {
	if d.chance(perMille) {
		return word
	}
	return ""
}

// node draws one; the leader is where it hurts.
func (d *drawer) node() int {
	if d.chance(300) {
		return Leader
	}
	return 1 + d.r.IntN(d.s.Nodes)
}

// drawn are the damages that chance may bring, in an order that is part of what a seed
// means: append only.
var drawn = []string{
	"cut", "mute", "clog", "noise", "uplink", "deaf", "kill", "pause", "wall", "power", "sleep", "slow-disk", "full", "unreadable", "corrupt", "daemon",
}

// damages draws what breaks. A run knows only some kinds, so that each gets runs in which
// it happens often, and in every company.
func (d *drawer) damages() {
	known := d.t.Kinds
	if len(known) == 0 {
		for _, k := range drawn {
			if d.chance(400) && (k != "power" || d.power) {
				known = append(known, k)
			}
		}
	}
	if len(known) == 0 {
		known = []string{"kill", "cut", "uplink"}
	}
	jump := d.jump()
	for at := d.within(d.calm/2, d.calm*2); at < d.s.Length; at += d.within(d.calm/2, d.calm*2) {
		x := Damage{At: at, Kind: known[d.r.IntN(len(known))], Node: d.node(), For: d.within(500*time.Millisecond, d.longest)}
		if d.shapeOf(&x, jump) {
			d.s.Damage = append(d.s.Damage, x)
		}
	}
	slices.SortStableFunc(d.s.Damage, func(a, b Damage) int { return int(a.At - b.At) })
}

// jump is how far the one bad wall clock of the run goes. Where machines lose power,
// time may have to be told by it, and an error of hours the wrong way would be noticed.
func (d *drawer) jump() Damage {
	x := Damage{By: d.pick(MaxWallError, time.Hour), Word: d.maybe(500, "back")}
	if d.power && x.Word == "" {
		x.By = MaxWallError
	}
	return x
}

// shapeOf gives a damage what its kind needs; false: not in this run.
func (d *drawer) shapeOf(x *Damage, jump Damage) bool {
	s := &d.s
	switch x.Kind {
	case "cut":
		x.Word = d.maybe(500, "uplink")
	case "mute":
		if d.chance(400) {
			x.Peer = 1 + d.r.IntN(s.Nodes)
		}
		if x.Peer == x.Node {
			x.Peer = 0
		}
		if d.chance(500) {
			x.By = d.within(500*time.Millisecond, 6*time.Second)
		}
	case "clog":
		x.By, x.Word = d.within(100*time.Millisecond, 6*time.Second), []string{"into", "from"}[d.r.IntN(2)]
	case "noise":
		x.Node, x.Loss, x.Dup, x.Tail = 0, d.r.IntN(200), d.r.IntN(200), d.r.IntN(200)
	case "uplink":
		x.Node, x.For = 0, d.within(time.Second, 2*s.Allowed)
	case "kill", "power":
		x.For = d.within(200*time.Millisecond, 20*time.Second)
		if x.Kind == "power" && d.chance(300) {
			x.Node = 0
		}
	case "pause", "sleep":
		x.For = d.within(500*time.Millisecond, 40*time.Second)
	case "wall":
		x.Node, x.By, x.Word, x.For = d.bad, jump.By, jump.Word, 0
		return d.bad > 0
	case "ttl":
		x.Node, x.For, x.By = 0, 0, d.pick(3*time.Second, 6*time.Second, 15*time.Second, 30*time.Second)
	case "grace":
		x.Node, x.For, x.By = 0, 0, d.pick(0, 5*time.Second, 20*time.Second)
	case "slow-disk":
		x.By = d.within(20*time.Millisecond, 900*time.Millisecond)
	case "corrupt":
		x.Word, x.For = []string{"spool", "witness", "tokens", "objects"}[d.r.IntN(4)], 0
	case "raise", "take-back":
		x.Node, x.For, x.Job = 0, 0, d.jobOf(true)
		return x.Job != ""
	case "revoke":
		x.Node, x.For, x.Job = 0, 0, d.jobOf(d.chance(300))
		return x.Job != ""
	case "drain":
		x.Word, x.For = "cancel", 0
	case "upgrade":
		return x.Node > 0 && s.Old[x.Node-1]
	case "daemon":
		x.Node, x.Word = 0, []string{"restart", "slow", "forgets-unconfirmed"}[d.r.IntN(3)]
		if x.Word == "slow" {
			x.By = d.within(100*time.Millisecond, 4*time.Second)
		}
	}
	return true
}
